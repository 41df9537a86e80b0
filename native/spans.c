/*
 * Opening and closing spans and iterations: what trackside.instruments.Span does where nothing is out of order.
 *
 * The plain case of opening is a span that is closed, publishes nothing at its start and has no profiler beside it. That
 * of closing is the innermost span of its context, left without an exception by the main thread, which opened it. What
 * surrounds a span is in the context variable that Python uses too, so threads, tasks, copied contexts and generators
 * keep their parents. An event goes straight to the queue where the queue alone wants it and has room; to
 * Bus.log else.
 *
 * Ownership. A span owns what is in its slots. What an old value's end may run, a finalizer, is run last: new values
 * are allocated first, then the span's slots are written, then old ones are dropped. Borrowed references are used only
 * up to the next call that can run foreign code. What was looked at before such a call is looked at again after it.
 */

#include "core.h"

enum { AROUND, INSIDE, GIVEN, ENDED, THREAD, ATTRIBUTES, ID, NAME, PARENT_ID, START_NS, SPAN_SLOTS };
static const char *const span_slots[] = {"_around",    "_inside", "_given", "_ended",    "_thread",
                                         "attributes", "id",      "name",   "parent_id", "start_ns"};

enum { GIVEN_STEP, STEP, KIND, SAMPLES, TOKENS, FLOPS, LOSS, FAILED, ITERATION_SLOTS };
enum { DONE_FIELDS = 4 }; /* SAMPLES and the three after it */
static const char *const iteration_slots[] = {"_given_step", "step",  "kind", "samples",
                                              "tokens",      "flops", "loss", "failed"};

enum { E_AT_NS, E_SPAN_ID, E_STEP, E_PARENT_SPAN_ID, E_DURATION_NS, EVENT_SLOTS };
static const char *const event_slots[] = {"at_ns", "span_id", "step", "parent_span_id", "duration_ns"};

enum { E_NAME, E_ATTRIBUTES, E_ERROR, SPAN_EVENT_SLOTS };
static const char *const span_event_slots[] = {"name", "attributes", "error"};

enum { E_KIND, E_SAMPLES, E_TOKENS, E_FLOPS, E_LOSS, E_FAILED, ITERATION_EVENT_SLOTS };
static const char *const iteration_event_slots[] = {"kind", "samples", "tokens", "flops", "loss", "failed"};

enum { QUEUE, APPEND, LIMIT, DROPPED, OFFERED, ADMISSION_SLOTS };
static const char *const admission_slots[] = {"_queue", "_append", "_limit", "dropped", "offered"};

enum { NONE = -1, LONG, SHORT, PART, OF_ITERATION, CLASSES, CLASSES_OF_SPANS = OF_ITERATION };

/*
 * The route of the events of one class. The bus replaces its table whenever a route may change, so a route holds as long
 * as the table is the same one: to look routes up, twice a span, was a twentieth of a step.
 */
typedef struct {
    PyObject *table;
    PyObject *steps;
    PyObject *admission; /* where the queue is the only step; borrowed from it; else NULL */
    PyObject *limit;     /* what the admission has as such, owned, or NULL; and the same as a number */
    Py_ssize_t most;
} Route;

/* All set once, and kept for ever: the module trackside.instruments._span is too. */
static PyTypeObject *span_type, *admission_type, *count_type, *iteration_type;
static PyTypeObject *classes[CLASSES]; /* of the events: ends of long, of short spans, of parts, of iterations */
static Route routes[CLASSES];
static Pool *pools[CLASSES], *pool_of_spans, *pool_of_iterations; /* of the same events, and of what publishes them */
static Py_ssize_t of_span[SPAN_SLOTS], of_iteration[ITERATION_SLOTS], of_admission[ADMISSION_SLOTS];
static Py_ssize_t of_event[CLASSES][EVENT_SLOTS];
static Py_ssize_t of_span_event[CLASSES_OF_SPANS][SPAN_EVENT_SLOTS], of_iteration_event[ITERATION_EVENT_SLOTS];
static Py_ssize_t of_routes, of_is_closed, of_subscribers, of_counter;
static PyObject *bus, *open_by_id, *span_ids, *no_attributes, *log_function, *add_name, *step_name, *zero;
static PyObject *done_names[DONE_FIELDS], *training_kind, *next_step;

/* What the Python module has as globals, and sets by set_process(). */
static PyObject *root_id, *main_thread;
static unsigned long main_ident;
static int has_annotator;

static inline PyObject **
slot(PyObject *object, Py_ssize_t offset)
{
    return (PyObject **)((char *)object + offset);
}

#define SPAN(span, name) (*slot(span, of_span[name]))
#define ITERATION(span, name) (*slot(span, of_iteration[name]))

/* Return the next number of COUNTER, an itertools.count: a new reference, or NULL with an exception. */
static inline PyObject *
next_of(PyObject *counter)
{
    return Py_TYPE(counter)->tp_iternext(counter);
}

/* --- the bus ----------------------------------------------------------------------------------------------------- */

/* Drop what ROUTE holds, which may run a finalizer. */
static void
forget_route(Route *route)
{
    PyObject *table = route->table, *steps = route->steps, *limit = route->limit;
    *route = (Route){NULL, NULL, NULL, NULL, 0};
    Py_XDECREF(limit);
    Py_XDECREF(steps);
    Py_XDECREF(table);
}

/* Look up the route of events of class WHICH: NULL, without an exception, if it has to be resolved. */
static Route *
look_up_route(int which)
{
    Route *route = &routes[which];
    forget_route(route);
    PyObject *table = *slot(bus, of_routes);
    if (table == NULL || !PyDict_CheckExact(table) || route->table != NULL) {
        return NULL;
    }
    /* Classes are compared by identity, so nothing is called. */
    PyObject *steps = PyDict_GetItemWithError(table, (PyObject *)classes[which]);
    if (steps == NULL) {
        PyErr_Clear();
        return NULL;
    }
    if (!PyTuple_CheckExact(steps)) {
        return NULL;
    }
    route->table = Py_NewRef(table);
    route->steps = Py_NewRef(steps);
    PyObject *step = PyTuple_GET_SIZE(steps) == 1 ? PyTuple_GET_ITEM(steps, 0) : NULL;
    if (step != NULL && PyTuple_CheckExact(step) && PyTuple_GET_SIZE(step) == 4
        && Py_IS_TYPE(PyTuple_GET_ITEM(step, 3), admission_type)) {
        route->admission = PyTuple_GET_ITEM(step, 3);
    }
    return route;
}

/* Return the route of events of class WHICH, valid until foreign code runs; NULL, without an exception, if it is new. */
static inline Route *
route_of(int which)
{
    return routes[which].table != NULL && routes[which].table == *slot(bus, of_routes) ? &routes[which]
                                                                                       : look_up_route(which);
}

/* Return whether a handler would get an event of class WHICH, as Bus.wants does; -1, no exception, to ask there. */
static int
wants(int which)
{
    const Route *route = route_of(which);
    if (route == NULL) {
        return -1;
    }
    if (PyTuple_GET_SIZE(route->steps) == 0) {
        return 0;
    }
    PyObject *is_closed = *slot(bus, of_is_closed);
    return is_closed == Py_False ? 1 : is_closed == Py_True ? 0 : -1;
}

/* Have ROUTE know LIMIT, what its admission has as such: 0 if it is no number of events. */
static int
know_limit(Route *route, PyObject *limit)
{
    Py_ssize_t most = limit != NULL && PyLong_CheckExact(limit) ? PyLong_AsSsize_t(limit) : -1;
    if (most < 0) {
        PyErr_Clear();
        return 0;
    }
    Py_XSETREF(route->limit, Py_NewRef(limit)); /* a number: nothing is run */
    route->most = most;
    return 1;
}

/*
 * Queue EVENT, of class WHICH, as Bus.log does with it where the queue is its route's only step: 1, or 0 to leave it to
 * Bus.log. No exception: memory that is short costs the event, which is counted as dropped, as Admission.fail does.
 */
static int
queue_event(PyObject *event, int which)
{
    Route *route = route_of(which);
    PyObject *admission = route == NULL ? NULL : route->admission;
    if (admission == NULL) {
        return 0;
    }
    PyObject *queue = *slot(admission, of_admission[QUEUE]), *limit = *slot(admission, of_admission[LIMIT]);
    PyObject *append = *slot(admission, of_admission[APPEND]), *dropped = *slot(admission, of_admission[DROPPED]);
    PyObject *offered = *slot(admission, of_admission[OFFERED]);
    if (queue == NULL || append == NULL || dropped == NULL || offered == NULL || !Py_IS_TYPE(offered, count_type)
        || *slot(offered, of_counter) == NULL || (limit != route->limit && !know_limit(route, limit))) {
        return 0;
    }
    Py_ssize_t most = route->most;
    PySequenceMethods *as_sequence = Py_TYPE(queue)->tp_as_sequence;
    Py_ssize_t waiting = as_sequence == NULL || as_sequence->sq_length == NULL ? -1 : as_sequence->sq_length(queue);
    if (waiting < 0) {
        PyErr_Clear();
        return 0;
    }
    if (waiting >= most || !ts_count(*slot(offered, of_counter))) {
        return 0;
    }
    /* The admission keeps these: their slots are written once. */
    Py_INCREF(admission);
    PyObject *none = PyCFunction_CheckExact(append) && PyCFunction_GET_FLAGS(append) == METH_O
                         ? PyCFunction_GET_FUNCTION(append)(PyCFunction_GET_SELF(append), event)
                         : PyObject_CallOneArg(append, event);
    if (none == NULL) {
        PyErr_Clear();
        none = PyObject_CallMethodNoArgs(dropped, add_name);
        PyErr_Clear();
    }
    Py_XDECREF(none);
    Py_DECREF(admission);
    return 1;
}

/*
 * Log EVENT, of class WHICH, a reference that is given up: None, or NULL with an exception, that of a strict bus or a
 * signal handler.
 */
static PyObject *
log_event(PyObject *event, int which)
{
    PyObject *result = queue_event(event, which) ? Py_NewRef(Py_None) : PyObject_CallOneArg(log_function, event);
    Py_DECREF(event);
    return result;
}

/* --- the open ones ----------------------------------------------------------------------------------------------- */

/*
 * The spans that were opened last, owned, and not yet in open_by_id: nearly all are closed before anybody looks there, and
 * to put one in and take it out was a tenth of a step. Where they do not find room, the dict has it.
 */
enum { MOST_LATEST = 8 };
static struct {
    PyObject *number, *span;
    PyObject *start; /* what the span has as its start, owned, or NULL; and the same as a number */
    long long start_ns;
} latest[MOST_LATEST];
static int latest_count;

/* Have SPAN, of the id NUMBER, among the open ones: 0, or -1 with an exception. */
static inline int
remember(PyObject *number, PyObject *span)
{
    if (latest_count == MOST_LATEST) {
        return PyDict_SetItem(open_by_id, number, span);
    }
    latest[latest_count].number = Py_NewRef(number);
    latest[latest_count].start = NULL;
    latest[latest_count++].span = Py_NewRef(span);
    return 0;
}

/* Read the clock for SPAN, which was remembered: a new reference, or NULL with an exception. */
static inline PyObject *
read_start(PyObject *span)
{
    long long start_ns;
    int is_real;
    PyObject *start = ts_now_ns(&start_ns, &is_real);
    int place = latest_count - 1;
    if (start != NULL && is_real && place >= 0 && latest[place].span == span && latest[place].start == NULL) {
        latest[place].start = Py_NewRef(start);
        latest[place].start_ns = start_ns;
    }
    return start;
}

/* Return what START, the start of SPAN, is as a number; NULL if that has to be worked out. Valid until SPAN is forgotten. */
static inline const long long *
known_start(PyObject *span, PyObject *start)
{
    int place = latest_count - 1;
    return place >= 0 && latest[place].span == span && latest[place].start == start ? &latest[place].start_ns : NULL;
}

/* Take SPAN, which the caller owns, out of the open ones: 0 if it was none of them, as in a child forked inside. */
static inline int
forget(PyObject *span)
{
    for (int place = latest_count - 1; place >= 0; place--) {
        if (latest[place].number == SPAN(span, ID) && latest[place].span == span) {
            PyObject *start = latest[place].start;
            latest_count--;
            for (int each = place; each < latest_count; each++) {
                latest[each] = latest[each + 1];
            }
            Py_DECREF(SPAN(span, ID)); /* the span has it, and the caller the span */
            Py_DECREF(span);
            Py_XDECREF(start); /* a number: nothing is run */
            return 1;
        }
    }
    PyObject *found = NULL;
#if PY_VERSION_HEX >= 0x030D0000
    int failed = PyDict_Pop(open_by_id, SPAN(span, ID), &found) < 0;
#else
    int failed = (found = _PyDict_Pop(open_by_id, SPAN(span, ID), Py_None)) == NULL;
#endif
    if (failed) {
        PyErr_Clear();
    }
    int is_span = found == span;
    Py_XDECREF(found);
    return is_span;
}

PyDoc_STRVAR(store_open_doc, "store_open()\n--\n\nPut the spans that were opened last where the Python methods have them.");

static PyObject *
store_open(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    int stored = 0;
    /* Ints are compared and hashed without calling anything. */
    while (stored < latest_count && PyDict_SetItem(open_by_id, latest[stored].number, latest[stored].span) == 0) {
        Py_DECREF(latest[stored].number); /* the dict has both */
        Py_XDECREF(latest[stored].start);
        Py_DECREF(latest[stored++].span);
    }
    latest_count -= stored;
    for (int each = 0; each < latest_count; each++) {
        latest[each] = latest[each + stored];
    }
    if (latest_count > 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* --- pairs ------------------------------------------------------------------------------------------------------- */

/*
 * Pairs of a span's id and its step that surround nothing any more and that nothing refers to: owned, empty, and unknown
 * to the garbage collector. From 3.14 on a tuple remembers its hash, so it cannot become another one.
 */
enum { MOST_SPARE = PY_VERSION_HEX < 0x030E0000 ? 4 : 0 };
static PyObject *spare[MOST_SPARE + 1];
static int spare_count;

/* Return the pair of NUMBER and STEP: a new reference, or NULL with an exception. It may run foreign code. */
static inline PyObject *
new_pair(PyObject *number, PyObject *step)
{
    PyObject *pair = spare_count > 0 && PyLong_CheckExact(step) ? spare[--spare_count] : PyTuple_New(2);
    if (pair != NULL) {
        PyTuple_SET_ITEM(pair, 0, Py_NewRef(number));
        PyTuple_SET_ITEM(pair, 1, Py_NewRef(step));
    }
    return pair;
}

/* Give up a reference to PAIR, of two numbers. */
static inline void
drop_pair(PyObject *pair)
{
    if (Py_REFCNT(pair) > 1 || spare_count >= MOST_SPARE || !PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2
        || !PyLong_CheckExact(PyTuple_GET_ITEM(pair, 0)) || !PyLong_CheckExact(PyTuple_GET_ITEM(pair, 1))) {
        Py_DECREF(pair);
        return;
    }
    PyObject_GC_UnTrack(pair);
    Py_DECREF(PyTuple_GET_ITEM(pair, 0));
    Py_DECREF(PyTuple_GET_ITEM(pair, 1));
    PyTuple_SET_ITEM(pair, 0, NULL);
    PyTuple_SET_ITEM(pair, 1, NULL);
    spare[spare_count++] = pair;
}

/* --- idle ones --------------------------------------------------------------------------------------------------- */

/*
 * Spans that were closed in the plain way, without attributes, owned: the next ones, unless somebody else refers to one by
 * then. Parts and iterations come by the thousand, and to free one and make another was a fifteenth of a step.
 */
enum { MOST_IDLE = 4, HOLDERS = 2 /* who retires it, and the method that the with block called */ };
typedef struct {
    int count;
    PyObject *spans[MOST_IDLE];
} Idle;
static Idle idle_spans, idle_iterations;

static PyObject *
take_out(Idle *idle, int place)
{
    PyObject *span = idle->spans[place];
    idle->count--;
    for (; place < idle->count; place++) {
        idle->spans[place] = idle->spans[place + 1];
    }
    return span;
}

/* Keep SPAN, a reference that is given up, and which HOLDERS at most refer to; it may run foreign code. */
static inline void
retire(Idle *idle, PyObject *span, Py_ssize_t holders)
{
    PyObject *dropped = span;
    if (Py_REFCNT(span) <= holders && Py_TYPE(span)->tp_finalize == NULL) {
        int place = 0;
        while (place < idle->count && idle->spans[place] != span) {
            place++;
        }
        if (place == idle->count) {
            dropped = idle->count == MOST_IDLE ? take_out(idle, 0) : NULL;
            idle->spans[idle->count++] = span;
        }
    }
    Py_XDECREF(dropped);
}

/*
 * Return an idle span that nobody else refers to, as it was before it was opened, but for its attributes and what it is
 * made with: the caller's own; NULL, without an exception, if there is none. It may run foreign code.
 */
static inline PyObject *
revive(Idle *idle)
{
    for (int place = idle->count - 1; place >= 0; place--) {
        if (Py_REFCNT(idle->spans[place]) > 1) {
            continue;
        }
        PyObject *span = take_out(idle, place);
        PyObject *around = SPAN(span, AROUND), *number = SPAN(span, ID), *start = SPAN(span, START_NS);
        PyObject *const old[] = {SPAN(span, PARENT_ID), SPAN(span, THREAD)};
        if (SPAN(span, INSIDE) != Py_None || around == NULL || number == NULL || start == NULL) {
            Py_DECREF(span); /* somebody used it since */
            return NULL;
        }
        SPAN(span, AROUND) = SPAN(span, START_NS) = SPAN(span, PARENT_ID) = SPAN(span, THREAD) = NULL;
        SPAN(span, ID) = Py_NewRef(zero);
        drop_pair(around);
        ts_drop_number(number);
        ts_drop_number(start);
        Py_XDECREF(old[0]);
        Py_XDECREF(old[1]);
        return span;
    }
    return NULL;
}

/* Have *PLACE be VALUE; it may run foreign code. */
static inline void
put(PyObject **place, PyObject *value)
{
    if (*place != value) {
        Py_XSETREF(*place, Py_NewRef(value));
    }
}

/* --- opening ----------------------------------------------------------------------------------------------------- */

/* Return whether SPAN can be opened here: it is closed, and there is no profiler. */
static inline int
is_openable(PyObject *span)
{
    return SPAN(span, INSIDE) == Py_None && !has_annotator && SPAN(span, GIVEN) != NULL;
}

/*
 * Open SPAN, which is openable, within AROUND and at STEP: SPAN, NULL with an exception, or TS_TO_PYTHON if it was
 * opened while memory was allocated.
 */
static PyObject *
enter(PyObject *span, PyObject *around, PyObject *step, int is_part)
{
    PyObject *result = NULL, *inside = NULL;
    unsigned long ident = PyThread_get_thread_ident();
    PyObject *number = next_of(span_ids);
    PyObject *thread = number == NULL        ? NULL
                       : ident == main_ident ? Py_NewRef(main_thread)
                                             : PyLong_FromUnsignedLong(ident);
    inside = thread == NULL ? NULL : new_pair(number, step);
    if (inside == NULL) {
        goto out;
    }
    PyObject *parent = PyTuple_GET_ITEM(around, 0);
    if (!PyLong_CheckExact(parent)) {
        parent = NULL;
    }
    else if (parent == zero) { /* there is one of it */
        parent = root_id;
    }
    if (parent == NULL || !is_openable(span)) {
        result = TS_TO_PYTHON;
        goto out;
    }
    /* All in one go: what an old value's end runs finds an open span. */
    PyObject *const old[] = {SPAN(span, AROUND),     SPAN(span, ID),     SPAN(span, PARENT_ID),
                             SPAN(span, ATTRIBUTES), SPAN(span, THREAD), SPAN(span, INSIDE)};
    SPAN(span, AROUND) = Py_NewRef(around);
    SPAN(span, ID) = Py_NewRef(number);
    SPAN(span, PARENT_ID) = Py_NewRef(parent);
    SPAN(span, ATTRIBUTES) = Py_NewRef(SPAN(span, GIVEN));
    SPAN(span, THREAD) = Py_NewRef(thread);
    SPAN(span, INSIDE) = Py_NewRef(inside);
    PyObject *now = NULL;
    int failed = is_part ? ts_surround_part(inside, NULL) : ts_surround(inside);
    if (!failed && remember(number, span) == 0) {
        now = read_start(span);
    }
    if (now != NULL) {
        Py_XSETREF(SPAN(span, START_NS), now);
        result = Py_NewRef(span);
    }
    Py_XDECREF(old[0]);
    Py_XDECREF(old[1]);
    Py_XDECREF(old[2]);
    Py_XDECREF(old[3]);
    Py_XDECREF(old[4]);
    Py_XDECREF(old[5]);
out:
    Py_XDECREF(number);
    Py_XDECREF(thread);
    Py_XDECREF(inside);
    return result;
}

/* Return what surrounds the running code, a new reference; NULL, without an exception, if it is no pair. */
static PyObject *
surroundings(void)
{
    PyObject *around = ts_surroundings();
    if (around == NULL) {
        PyErr_Clear();
    }
    else if (!PyTuple_CheckExact(around) || PyTuple_GET_SIZE(around) != 2) {
        Py_CLEAR(around);
    }
    return around;
}

/* Return of which class the event of SPAN's end is. */
static inline int
class_of(PyObject *span)
{
    int which = PART;
    while (which >= LONG && SPAN(span, ENDED) != (PyObject *)classes[which]) {
        which--;
    }
    return which;
}

static PyObject *
open_span(PyObject *owner, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (count != 1 || keywords != NULL || (PyObject *)Py_TYPE(args[0]) != owner) {
        return TS_TO_PYTHON;
    }
    PyObject *span = args[0];
    int which = class_of(span), wanted = which == NONE || which == LONG ? -1 : wants(which);
    if (wanted < 0 || !is_openable(span)) {
        return TS_TO_PYTHON;
    }
    if (!wanted) {
        Py_XSETREF(SPAN(span, ID), Py_NewRef(zero));
        return Py_NewRef(span);
    }
    PyObject *around = surroundings();
    if (around == NULL) {
        return TS_TO_PYTHON;
    }
    PyObject *result = enter(span, around, PyTuple_GET_ITEM(around, 1), which == PART);
    Py_DECREF(around);
    return result;
}

/*
 * Return the next step of the training loop around, as Iteration.open takes it where none was given: a new reference, or NULL
 * with an exception. What counts the steps may be foreign code. Should that open the very iteration, Python takes another one.
 */
static PyObject *
take_step(void)
{
    PyObject *take, *step = NULL;
    if (PyContextVar_Get(next_step, NULL, &take) == 0) {
        step = PyObject_CallNoArgs(take);
        Py_DECREF(take);
    }
    return step;
}

static PyObject *
open_iteration(PyObject *owner, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (count != 1 || keywords != NULL || (PyObject *)Py_TYPE(args[0]) != owner) {
        return TS_TO_PYTHON;
    }
    PyObject *span = args[0];
    int wanted = wants(OF_ITERATION);
    PyObject *step = ITERATION(span, GIVEN_STEP);
    if (wanted != 1 || !is_openable(span) || step == NULL
        || (step == Py_None && ITERATION(span, KIND) != training_kind)) {
        return TS_TO_PYTHON;
    }
    PyObject *around = surroundings();
    if (around == NULL) {
        return TS_TO_PYTHON;
    }
    step = step == Py_None ? take_step() : Py_NewRef(step);
    PyObject *result = step == NULL ? NULL : enter(span, around, step, 0);
    if (result != NULL && result != TS_TO_PYTHON) {
        Py_XSETREF(ITERATION(span, STEP), Py_NewRef(step));
    }
    Py_XDECREF(step);
    Py_DECREF(around);
    return result;
}

/* --- closing ----------------------------------------------------------------------------------------------------- */

/* Return whether the iteration SPAN, a closable span, has what its event takes, and nothing that another event takes. */
static int
is_plain_iteration(PyObject *span)
{
    static const int fields[] = {STEP, KIND, SAMPLES, TOKENS, FLOPS, LOSS, FAILED};
    for (size_t field = 0; field < sizeof fields / sizeof fields[0]; field++) {
        if (ITERATION(span, fields[field]) == NULL) {
            return 0;
        }
    }
    return PyBool_Check(ITERATION(span, FAILED)) && PyDict_GET_SIZE(SPAN(span, ATTRIBUTES)) == 0;
}

static inline int
is_training_step(PyObject *span, int which)
{
    return which == OF_ITERATION && ITERATION(span, KIND) == training_kind;
}

/* Return whether SPAN, whose event is of class WHICH, can be closed here; calls nothing foreign, and may be asked again. */
static int
is_closable(PyObject *span, int which)
{
    PyObject *inside = SPAN(span, INSIDE), *number = SPAN(span, ID), *attributes = SPAN(span, ATTRIBUTES);
    if (inside == NULL || inside == Py_None || has_annotator || number == NULL || !PyLong_CheckExact(number)
        || attributes == NULL || !PyDict_CheckExact(attributes) || SPAN(span, NAME) == NULL
        || SPAN(span, PARENT_ID) == NULL || SPAN(span, AROUND) == NULL || !PyTuple_CheckExact(SPAN(span, AROUND))
        || PyTuple_GET_SIZE(SPAN(span, AROUND)) != 2 || SPAN(span, START_NS) == NULL
        || !PyLong_CheckExact(SPAN(span, START_NS)) || SPAN(span, THREAD) != main_thread
        || (which == OF_ITERATION && !is_plain_iteration(span))) {
        return 0;
    }
    if (ts_is_at_home()) {
        return ts_top == inside;
    }
    PyObject *current = surroundings();
    Py_XDECREF(current); /* the context has it, and SPAN too if it is the same */
    return current == inside;
}

/*
 * Return the event of class WHICH, with what all events of ends have, and close SPAN: a new reference, NULL with an
 * exception, or TS_TO_PYTHON, with nothing changed; but that SPAN is no open one then, which Python would find too.
 * The garbage collector does not know the event.
 */
static PyObject *
leave(PyObject *span, int which)
{
    const Py_ssize_t *offsets = of_event[which];
    PyObject *event = ts_new(pools[which]), *start, *end, *duration;
    if (event == NULL) {
        return NULL;
    }
    if (!is_closable(span, which)) {
        goto python;
    }
    start = Py_NewRef(SPAN(span, START_NS));
    int is_plain = ts_since(start, known_start(span, start), &end, &duration);
    Py_DECREF(start);
    if (is_plain < 0) {
        Py_DECREF(event);
        return NULL;
    }
    *slot(event, offsets[E_AT_NS]) = end;
    *slot(event, offsets[E_DURATION_NS]) = duration;
    if ((!is_plain && !is_closable(span, which)) || !forget(span)) {
        goto python;
    }
    PyObject *around = Py_NewRef(SPAN(span, AROUND)), *inside = SPAN(span, INSIDE);
    *slot(event, offsets[E_SPAN_ID]) = Py_NewRef(SPAN(span, ID));
    *slot(event, offsets[E_PARENT_SPAN_ID]) = Py_NewRef(SPAN(span, PARENT_ID));
    *slot(event, offsets[E_STEP]) = Py_NewRef(PyTuple_GET_ITEM(around, 1));
    SPAN(span, INSIDE) = Py_NewRef(Py_None);
    int failed = which == PART                ? ts_surround_part(around, inside)
                 : is_training_step(span, which) ? ts_surround_after_step(around, inside)
                                              : ts_surround(around);
    drop_pair(inside);
    Py_DECREF(around);
    if (failed) {
        Py_DECREF(event);
        return NULL;
    }
    return event;

python:
    Py_DECREF(event);
    return TS_TO_PYTHON;
}

/* Return whether the garbage collector need not know of VALUE. */
static inline int
is_scalar(PyObject *value)
{
    return value == NULL || !PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HAVE_GC);
}

/*
 * Return whether what all events of ends have is scalars in EVENT, of class WHICH. An event of scalars alone is not
 * tracked: those that wait in the queue would be visited by each collection.
 */
static inline int
has_scalars(PyObject *event, int which)
{
    const Py_ssize_t *offsets = of_event[which];
    return is_scalar(*slot(event, offsets[E_AT_NS])) && is_scalar(*slot(event, offsets[E_SPAN_ID]))
           && is_scalar(*slot(event, offsets[E_STEP])) && is_scalar(*slot(event, offsets[E_PARENT_SPAN_ID]))
           && is_scalar(*slot(event, offsets[E_DURATION_NS]));
}

/* Return whether the call is that of a with block which no exception leaves. */
static inline int
is_plain_exit(PyObject *owner, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    return count == 4 && keywords == NULL && (PyObject *)Py_TYPE(args[0]) == owner && args[2] == Py_None;
}

/* Return whether ATTRIBUTES are scalars, which nobody can change: a copy of the dict is all that an event needs. */
static int
are_scalars(PyObject *attributes)
{
    PyObject *value;
    Py_ssize_t place = 0;
    if (attributes == NULL || !PyDict_CheckExact(attributes) || PyDict_GET_SIZE(attributes) == 0) {
        return attributes == NULL || PyDict_CheckExact(attributes);
    }
    while (PyDict_Next(attributes, &place, NULL, &value)) {
        if (!PyUnicode_CheckExact(value) && !PyLong_CheckExact(value) && !PyFloat_CheckExact(value)
            && !PyBool_Check(value) && value != Py_None && !PyBytes_CheckExact(value)) {
            return 0;
        }
    }
    return 1;
}

static PyObject *
leave_span(PyObject *owner, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (!is_plain_exit(owner, args, count, keywords)) {
        return TS_TO_PYTHON;
    }
    PyObject *span = args[0];
    int which = class_of(span), is_bare = 0;
    if (which == NONE || !are_scalars(SPAN(span, ATTRIBUTES))) {
        return TS_TO_PYTHON;
    }
    Py_INCREF(span);
    PyObject *event = leave(span, which);
    if (event != NULL && event != TS_TO_PYTHON) {
        const Py_ssize_t *offsets = of_span_event[which];
        PyObject *attributes = SPAN(span, ATTRIBUTES);
        if (attributes == NULL || (PyDict_CheckExact(attributes) && PyDict_GET_SIZE(attributes) == 0)) {
            is_bare = attributes == SPAN(span, GIVEN);
            attributes = Py_NewRef(no_attributes);
        }
        else {
            /* A copy: the span's own can be changed while the event waits. */
            Py_INCREF(attributes);
            PyObject *copy = PyDict_Copy(attributes);
            if (copy == NULL) {
                PyErr_Clear();
            }
            else {
                Py_SETREF(attributes, copy);
            }
        }
        *slot(event, offsets[E_NAME]) = Py_NewRef(SPAN(span, NAME) ? SPAN(span, NAME) : Py_None);
        *slot(event, offsets[E_ATTRIBUTES]) = attributes;
        *slot(event, offsets[E_ERROR]) = Py_NewRef(Py_None);
        if (attributes != no_attributes || !is_scalar(SPAN(span, NAME)) || !has_scalars(event, which)) {
            PyObject_GC_Track(event);
        }
        event = log_event(event, which);
    }
    retire(&idle_spans, span, is_bare ? HOLDERS : 0);
    return event;
}

static PyObject *
leave_iteration(PyObject *owner, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (!is_plain_exit(owner, args, count, keywords)) {
        return TS_TO_PYTHON;
    }
    PyObject *span = args[0];
    int scalars = 0;
    Py_INCREF(span);
    PyObject *event = leave(span, OF_ITERATION);
    if (event != NULL && event != TS_TO_PYTHON) {
        static const int fields[] = {KIND, SAMPLES, TOKENS, FLOPS, LOSS, FAILED};
        Py_SETREF(*slot(event, of_event[OF_ITERATION][E_STEP]), Py_XNewRef(ITERATION(span, STEP)));
        for (int field = 0; field < ITERATION_EVENT_SLOTS; field++) {
            PyObject *value = ITERATION(span, fields[field]);
            *slot(event, of_iteration_event[field]) = Py_XNewRef(value);
            scalars += is_scalar(value);
        }
        if (scalars < ITERATION_EVENT_SLOTS || !has_scalars(event, OF_ITERATION)) {
            PyObject_GC_Track(event);
        }
        event = log_event(event, OF_ITERATION);
    }
    retire(&idle_iterations, span, scalars == ITERATION_EVENT_SLOTS ? HOLDERS + 1 : 0); /* the name after as, too */
    return event;
}

/* --- making ------------------------------------------------------------------------------------------------------ */

/* Return a closed span with ATTRIBUTES, a reference that is given up. */
static PyObject *
new_span(PyObject *name, PyObject *ended, PyObject *attributes)
{
    PyObject *span = attributes == NULL ? NULL : ts_new(pool_of_spans);
    if (span == NULL) {
        Py_XDECREF(attributes);
        return NULL;
    }
    SPAN(span, NAME) = Py_NewRef(name);
    SPAN(span, ENDED) = Py_NewRef(ended);
    SPAN(span, ATTRIBUTES) = Py_NewRef(attributes);
    SPAN(span, GIVEN) = attributes;
    SPAN(span, ID) = Py_NewRef(zero);
    SPAN(span, INSIDE) = Py_NewRef(Py_None);
    PyObject_GC_Track(span);
    return span;
}

PyDoc_STRVAR(make_doc, "make_span(name, ended, attributes, /)\n--\n\nReturn a closed span, as Span() does.");

static PyObject *
make_span(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || span_type == NULL) {
        PyErr_SetString(PyExc_TypeError, "make_span takes a name, the class of its end and attributes");
        return NULL;
    }
    return new_span(args[0], args[1], Py_NewRef(args[2]));
}

/* Return an idle span with that name and end, and its empty attributes; NULL, without an exception, if there is none. */
static inline PyObject *
revive_span(PyObject *name, PyObject *ended)
{
    PyObject *span = revive(&idle_spans), *attributes = span == NULL ? NULL : SPAN(span, ATTRIBUTES);
    if (attributes != NULL && attributes == SPAN(span, GIVEN) && PyDict_CheckExact(attributes)
        && PyDict_GET_SIZE(attributes) == 0 && Py_REFCNT(attributes) == 2) {
        put(&SPAN(span, NAME), name);
        put(&SPAN(span, ENDED), ended);
        return span;
    }
    Py_XDECREF(span);
    return NULL;
}

/* ABOUT is a name and a class of ends. */
static PyObject *
make_part(PyObject *about, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (count != 0) {
        return TS_TO_PYTHON;
    }
    PyObject *name = PyTuple_GET_ITEM(about, 0), *ended = PyTuple_GET_ITEM(about, 1);
    PyObject *idle = keywords == NULL ? revive_span(name, ended) : NULL;
    if (idle != NULL) {
        return idle;
    }
    PyObject *attributes = PyDict_New();
    for (Py_ssize_t each = 0; attributes != NULL && keywords != NULL && each < PyTuple_GET_SIZE(keywords); each++) {
        if (PyDict_SetItem(attributes, PyTuple_GET_ITEM(keywords, each), args[each]) < 0) {
            Py_CLEAR(attributes);
        }
    }
    return new_span(name, ended, attributes);
}

/* Return which of the fields samples, tokens, flops and loss NAME is; -1 if none, or not the interned text. */
static inline int
done_field(PyObject *name)
{
    for (int field = 0; field < DONE_FIELDS; field++) {
        if (name == done_names[field]) {
            return field;
        }
    }
    return -1;
}

/* ABOUT is a kind, a name and what iterations without attributes have. */
static PyObject *
make_iteration(PyObject *about, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    Py_ssize_t named = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    PyObject *subscribers = *slot(bus, of_subscribers), *step = count > 0 ? args[0] : NULL;
    PyObject *done[DONE_FIELDS] = {Py_None, Py_None, Py_None, Py_None};
    if (count > 1 || subscribers == NULL || !PyDict_CheckExact(subscribers) || PyDict_GET_SIZE(subscribers) == 0) {
        return TS_TO_PYTHON;
    }
    for (Py_ssize_t each = 0; each < named; each++) {
        PyObject *name = PyTuple_GET_ITEM(keywords, each);
        int field = done_field(name);
        if (field >= 0) {
            done[field] = args[count + each];
        }
        else if (name == step_name && step == NULL) {
            step = args[count + each];
        }
        else {
            return TS_TO_PYTHON;
        }
    }
    PyObject *span = revive(&idle_iterations);
    int is_new = span == NULL;
    if (is_new) {
        span = ts_new(pool_of_iterations);
        if (span == NULL) {
            return NULL;
        }
        SPAN(span, ID) = Py_NewRef(zero);
        SPAN(span, INSIDE) = Py_NewRef(Py_None);
    }
    put(&ITERATION(span, KIND), PyTuple_GET_ITEM(about, 0));
    put(&SPAN(span, NAME), PyTuple_GET_ITEM(about, 1));
    put(&SPAN(span, GIVEN), PyTuple_GET_ITEM(about, 2));
    put(&ITERATION(span, GIVEN_STEP), step == NULL ? Py_None : step);
    for (int field = 0; field < DONE_FIELDS; field++) {
        put(&ITERATION(span, SAMPLES + field), done[field]);
    }
    put(&ITERATION(span, FAILED), Py_False);
    Py_CLEAR(ITERATION(span, STEP));
    Py_CLEAR(SPAN(span, ATTRIBUTES));
    if (is_new) {
        PyObject_GC_Track(span);
    }
    return span;
}

/* Iteration.set; a loss that is no float may be a tensor, which Python detaches. */
static PyObject *
set_done(PyObject *owner, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    Py_ssize_t named = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    if (count != 1 || (PyObject *)Py_TYPE(args[0]) != owner) {
        return TS_TO_PYTHON;
    }
    for (Py_ssize_t each = 0; each < named; each++) {
        int field = done_field(PyTuple_GET_ITEM(keywords, each));
        PyObject *value = args[1 + each];
        if (field < 0 || (field == DONE_FIELDS - 1 && value != Py_None && !PyFloat_CheckExact(value))) {
            return TS_TO_PYTHON;
        }
    }
    for (Py_ssize_t each = 0; each < named; each++) {
        PyObject *value = args[1 + each];
        if (value != Py_None) {
            Py_XSETREF(ITERATION(args[0], SAMPLES + done_field(PyTuple_GET_ITEM(keywords, each))), Py_NewRef(value));
        }
    }
    Py_RETURN_NONE;
}

/* --- setting up -------------------------------------------------------------------------------------------------- */

/* Find COUNT slots of CLS: 0, or -1 with an exception. */
static int
find_slots(PyTypeObject *cls, const char *const *names, int count, Py_ssize_t *offsets)
{
    for (int place = 0; place < count; place++) {
        PyObject *name = PyUnicode_InternFromString(names[place]);
        int is_slot = name == NULL ? -1 : ts_find_slot(cls, name, &offsets[place]);
        if (is_slot == 0) {
            PyErr_Format(PyExc_SystemError, "%s has no slot %U", cls->tp_name, name);
        }
        Py_XDECREF(name);
        if (is_slot <= 0) {
            return -1;
        }
    }
    return 0;
}

/* Return the pool of TYPE, the class WHICH of events, or NULL with an exception. */
static Pool *
pool_of_ends(PyTypeObject *type, int which)
{
    const Py_ssize_t *offsets = of_event[which];
    return ts_pool(type, (const Py_ssize_t[]){offsets[E_AT_NS], offsets[E_DURATION_NS], offsets[E_SPAN_ID]}, 3);
}

/* Return the pool of CLS, a class of spans, or NULL with an exception. */
static Pool *
pool_of_those(PyTypeObject *cls)
{
    return ts_pool(cls, (const Py_ssize_t[]){of_span[START_NS], of_span[ID]}, 2);
}

PyDoc_STRVAR(compile_spans_doc,
"compile_spans(cls, ended, namespace, /)\n--\n\n"
"Return the methods open and _leave of the class of spans, compiled.\n\n"
"*ended* are the classes of ends, long ones first, and *namespace* is that of the module, with what the Python methods\n"
"use.");

static PyObject *
compile_spans(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *cls;
    PyObject *ended, *names;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyType_Type, &cls, &PyTuple_Type, &ended, &PyDict_Type, &names)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(ended) != CLASSES_OF_SPANS || find_slots(cls, span_slots, SPAN_SLOTS, of_span) < 0) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_SystemError, "not %d classes of ends", CLASSES_OF_SPANS);
    }
    for (int place = 0; place < CLASSES_OF_SPANS; place++) {
        PyTypeObject *type = (PyTypeObject *)PyTuple_GET_ITEM(ended, place);
        if (!PyType_Check(type) || find_slots(type, event_slots, EVENT_SLOTS, of_event[place]) < 0
            || find_slots(type, span_event_slots, SPAN_EVENT_SLOTS, of_span_event[place]) < 0) {
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_SystemError, "no class of ends");
        }
        Py_XSETREF(classes[place], (PyTypeObject *)Py_NewRef((PyObject *)type));
        if ((pools[place] = pool_of_ends(type, place)) == NULL) {
            return NULL;
        }
    }
    static const char *const wanted[] = {"default_bus", "open_by_id", "next_id", "_NO_ATTRIBUTES", "_log"};
    PyObject **const kept[] = {&bus, &open_by_id, &span_ids, &no_attributes, &log_function};
    for (size_t place = 0; place < sizeof wanted / sizeof wanted[0]; place++) {
        PyObject *found = PyDict_GetItemString(names, wanted[place]);
        if (found == NULL) {
            return PyErr_Format(PyExc_SystemError, "there is no %s", wanted[place]);
        }
        Py_XSETREF(*kept[place], Py_NewRef(found));
    }
    static const char *const bus_slots[] = {"_routes", "_is_closed", "_subscribers"};
    Py_ssize_t of_bus[3];
    if (find_slots(Py_TYPE(bus), bus_slots, 3, of_bus) < 0) {
        return NULL;
    }
    of_routes = of_bus[0];
    of_is_closed = of_bus[1];
    of_subscribers = of_bus[2];
    PyObject *counter = PyObject_GetAttrString(span_ids, "__self__"); /* so far it is the bound __next__ */
    if (counter == NULL) {
        return NULL;
    }
    Py_SETREF(span_ids, counter);
    if (!PyIter_Check(span_ids) || !PyDict_CheckExact(open_by_id)) {
        return PyErr_Format(PyExc_SystemError, "the spans of another trackside");
    }
    if ((pool_of_spans = pool_of_those(cls)) == NULL) {
        return NULL;
    }
    Py_XSETREF(span_type, (PyTypeObject *)Py_NewRef((PyObject *)cls));
    PyObject *open = PyObject_GetAttrString((PyObject *)cls, "open");
    PyObject *close = open == NULL ? NULL : PyObject_GetAttrString((PyObject *)cls, "_leave");
    PyObject *methods = close == NULL ? NULL
                                      : Py_BuildValue("(NN)", ts_method((PyObject *)cls, open_span, open),
                                                      ts_method((PyObject *)cls, leave_span, close));
    Py_XDECREF(open);
    Py_XDECREF(close);
    return methods;
}

PyDoc_STRVAR(compile_iterations_doc,
"compile_iterations(cls, ended, kind, next_step, /)\n--\n\n"
"Return the methods open, _leave and set of the class of iterations, compiled.\n\n"
"Those of *kind* that are given no step take theirs from what the context variable *next_step* holds.");

static PyObject *
compile_iterations(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *cls, *ended;
    PyObject *kind, *counts;
    if (!PyArg_ParseTuple(args, "O!O!UO!", &PyType_Type, &cls, &PyType_Type, &ended, &kind, &PyContextVar_Type, &counts)) {
        return NULL;
    }
    if (span_type == NULL || !PyType_IsSubtype(cls, span_type)) {
        return PyErr_Format(PyExc_TypeError, "not a class of spans");
    }
    if (find_slots(cls, iteration_slots, ITERATION_SLOTS, of_iteration) < 0
        || find_slots(ended, event_slots, EVENT_SLOTS, of_event[OF_ITERATION]) < 0
        || find_slots(ended, iteration_event_slots, ITERATION_EVENT_SLOTS, of_iteration_event) < 0) {
        return NULL;
    }
    pools[OF_ITERATION] = pool_of_ends(ended, OF_ITERATION);
    pool_of_iterations = pool_of_those(cls);
    if (pools[OF_ITERATION] == NULL || pool_of_iterations == NULL) {
        return NULL;
    }
    Py_XSETREF(iteration_type, (PyTypeObject *)Py_NewRef((PyObject *)cls));
    Py_XSETREF(training_kind, Py_NewRef(kind));
    Py_XSETREF(next_step, Py_NewRef(counts));
    Py_XSETREF(classes[OF_ITERATION], (PyTypeObject *)Py_NewRef((PyObject *)ended));
    PyObject *open = PyObject_GetAttrString((PyObject *)cls, "open");
    PyObject *close = open == NULL ? NULL : PyObject_GetAttrString((PyObject *)cls, "_leave");
    PyObject *set = close == NULL ? NULL : PyObject_GetAttrString((PyObject *)cls, "set");
    PyObject *methods = set == NULL ? NULL
                                    : Py_BuildValue("(NNN)", ts_method((PyObject *)cls, open_iteration, open),
                                                    ts_method((PyObject *)cls, leave_iteration, close),
                                                    ts_method((PyObject *)cls, set_done, set));
    Py_XDECREF(open);
    Py_XDECREF(close);
    Py_XDECREF(set);
    return methods;
}

PyDoc_STRVAR(compile_part_doc,
"compile_part(function, name, ended, /)\n--\n\n"
"Return *function*, compiled: it returns a span of that name, with its keywords for attributes.");

static PyObject *
compile_part(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function, *name, *ended;
    if (!PyArg_ParseTuple(args, "OUO!", &function, &name, &PyType_Type, &ended)) {
        return NULL;
    }
    PyObject *about = PyTuple_Pack(2, name, ended);
    PyObject *compiled = about == NULL ? NULL : ts_method(about, make_part, function);
    Py_XDECREF(about);
    return compiled;
}

PyDoc_STRVAR(compile_iteration_doc,
"compile_iteration(function, kind, name, attributes, /)\n--\n\n"
"Return *function*, compiled: it returns an iteration of that kind and name.");

static PyObject *
compile_iteration(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function, *kind, *name, *attributes;
    if (!PyArg_ParseTuple(args, "OUUO!", &function, &kind, &name, &PyDict_Type, &attributes)) {
        return NULL;
    }
    PyObject *about = PyTuple_Pack(3, kind, name, attributes);
    PyObject *compiled = about == NULL ? NULL : ts_method(about, make_iteration, function);
    Py_XDECREF(about);
    return compiled;
}

PyDoc_STRVAR(set_process_doc,
"set_process(root_id, main_thread, has_annotator, /)\n--\n\n"
"Have spans without one around hang under *root_id*, and know the thread whose spans do not name it.");

static PyObject *
set_process(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *root, *thread;
    int annotated;
    if (!PyArg_ParseTuple(args, "O!O!p", &PyLong_Type, &root, &PyLong_Type, &thread, &annotated)) {
        return NULL;
    }
    unsigned long ident = PyLong_AsUnsignedLong(thread);
    if (ident == (unsigned long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    main_ident = ident;
    has_annotator = annotated;
    Py_XSETREF(main_thread, Py_NewRef(thread));
    Py_XSETREF(root_id, Py_NewRef(root));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(set_admission_doc,
"set_admission(cls, count, /)\n--\n\n"
"Take instances of *cls*, on the route of an event, for the way into the queue; *count* is the class of its counts.");

static PyObject *
set_admission(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *cls, *count;
    static const char *const counter_slot[] = {"_counter"};
    if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &cls, &PyType_Type, &count)) {
        return NULL;
    }
    if (find_slots(cls, admission_slots, ADMISSION_SLOTS, of_admission) < 0
        || find_slots(count, counter_slot, 1, &of_counter) < 0) {
        return NULL;
    }
    Py_XSETREF(admission_type, (PyTypeObject *)Py_NewRef((PyObject *)cls));
    Py_XSETREF(count_type, (PyTypeObject *)Py_NewRef((PyObject *)count));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(forget_doc,
"forget_routes()\n--\n\nLet go of the routes that spans took last: of a handler that left the bus nothing is kept.");

static PyObject *
forget_routes(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    for (int which = 0; which < CLASSES; which++) {
        forget_route(&routes[which]);
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"store_open", store_open, METH_NOARGS, store_open_doc},
    {"forget_routes", forget_routes, METH_NOARGS, forget_doc},
    {"set_admission", set_admission, METH_VARARGS, set_admission_doc},
    {"set_process", set_process, METH_VARARGS, set_process_doc},
    {"compile_part", compile_part, METH_VARARGS, compile_part_doc},
    {"compile_iteration", compile_iteration, METH_VARARGS, compile_iteration_doc},
    {"compile_spans", compile_spans, METH_VARARGS, compile_spans_doc},
    {"compile_iterations", compile_iterations, METH_VARARGS, compile_iterations_doc},
    {"make_span", (PyCFunction)(void (*)(void))make_span, METH_FASTCALL, make_doc},
    {NULL, NULL, 0, NULL},
};

int
ts_add_spans(PyObject *module)
{
    static const struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&add_name, "add"},          {&step_name, "step"},         {&done_names[0], "samples"},
        {&done_names[1], "tokens"},  {&done_names[2], "flops"},    {&done_names[3], "loss"},
    };
    for (size_t place = 0; place < sizeof names / sizeof names[0]; place++) {
        *names[place].name = PyUnicode_InternFromString(names[place].text);
        if (*names[place].name == NULL) {
            return -1;
        }
    }
    zero = PyLong_FromLong(0);
    return zero == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
