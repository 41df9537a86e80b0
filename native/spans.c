/*
 * Opening and closing spans and iterations, as trackside.instruments.Span does, if nothing is out of order.
 *
 * The plain case of opening is a span that is closed and publishes nothing at its start, without a profiler. The plain
 * case of closing is the innermost span of its context, opened by the main thread and left by it without an exception.
 * The surroundings of a span are in the context variable that Python uses too, so threads, tasks, copied contexts and
 * generators keep their parents. An event goes straight to the queue if the queue alone wants it and has room;
 * otherwise it goes to Bus.log.
 *
 * Ownership. A span owns the values of its slots. New values are allocated first, then the span's slots are written,
 * then old values are dropped, so the finalizer of an old value runs last. Borrowed references are used only up to the
 * next call that can run foreign code. Everything that was read before such a call is read again after it.
 */

#include "core.h"

/* The slots of spans and iterations, as the interpreter lays them out: see core.h. */
#define SPAN_SLOTS                                                                                                   \
    PyObject_HEAD PyObject *around, *end_annotation, *ended, *given, *inside, *thread, *attributes, *id, *name,      \
        *parent_id, *start_ns;
typedef struct {
    SPAN_SLOTS
} Span;
typedef struct {
    SPAN_SLOTS
    PyObject *given_step, *failed, *flops, *kind, *loss, *samples, *step, *tokens;
} Iteration;

static const Place places_of_span[] = {
    TS_PRIVATE_PLACE(Span, around), TS_PRIVATE_PLACE(Span, ended),  TS_PRIVATE_PLACE(Span, given),
    TS_PRIVATE_PLACE(Span, inside), TS_PRIVATE_PLACE(Span, thread), TS_PLACE(Span, attributes),
    TS_PLACE(Span, id),             TS_PLACE(Span, name),           TS_PLACE(Span, parent_id),
    TS_PLACE(Span, start_ns),       {NULL, 0},
};
static const Place places_of_iteration[] = {
    TS_PRIVATE_PLACE(Iteration, given_step), TS_PLACE(Iteration, failed), TS_PLACE(Iteration, flops),
    TS_PLACE(Iteration, kind),               TS_PLACE(Iteration, loss),   TS_PLACE(Iteration, samples),
    TS_PLACE(Iteration, step),               TS_PLACE(Iteration, tokens), {NULL, 0},
};

enum { NONE = -1, LONG, SHORT, PART, OF_ITERATION, CLASSES, CLASSES_OF_SPANS = OF_ITERATION };

/*
 * The route of the events of one class. The bus replaces its table whenever a route may change, so a route is valid
 * while the table is the same. Two look-ups for each span took a twentieth of a step.
 */
typedef struct {
    PyObject *table;
    PyObject *steps;
    PyObject *admission; /* the target if the only step leads to the queue, borrowed from STEPS; else NULL */
    PyObject *queue, *append, *counter; /* borrowed from the admission, which writes these slots once */
    PyObject *limit; /* the admission's limit as an object, owned, or NULL; `most` is its value */
    Py_ssize_t most;
} Route;

/* All are set once and kept for ever, like the module trackside.instruments._span. */
static PyTypeObject *span_type, *iteration_type;
static PyTypeObject *classes[CLASSES]; /* of the events: ends of long spans, short spans, parts, iterations */
static Route routes[CLASSES];
static Pool *pools[CLASSES], *pool_of_spans, *pool_of_iterations; /* of these events, and of their spans */
static Py_ssize_t of_counts;
static PyObject *bus, *open_by_id, *span_ids, *no_attributes, *log_function, *add_name, *step_name, *zero;
static PyObject *training_kind, *next_step;

/* The globals of the Python module, set by set_process(). */
static PyObject *root_id, *main_thread;
static unsigned long main_ident;
static int has_annotator;

#define SPAN(object) ((Span *)(object))
#define ITERATION(object) ((Iteration *)(object))

/* Return the next number of COUNTER, an iterator: a new reference, or NULL with an exception. */
static inline PyObject *
next_of(PyObject *counter)
{
    return Py_TYPE(counter)->tp_iternext(counter);
}

/* --- the bus ----------------------------------------------------------------------------------------------------- */

/* Drop the references of ROUTE, which may run a finalizer. */
static void
forget_route(Route *route)
{
    PyObject *table = route->table, *steps = route->steps, *limit = route->limit;
    *route = (Route){.table = NULL};
    Py_XDECREF(limit);
    Py_XDECREF(steps);
    Py_XDECREF(table);
}

/* Store ADMISSION, the target of the only step of ROUTE, if events can be queued through it here. */
static void
know_admission(Route *route, PyObject *admission)
{
    PyObject *queue = *ts_slot(admission, ts_of_admission[ADMISSION_QUEUE]), *append = *ts_slot(admission, ts_of_admission[ADMISSION_APPEND]);
    PyObject *counter = ts_counter_of(*ts_slot(admission, ts_of_admission[ADMISSION_OFFERED]));
    PySequenceMethods *as_sequence = queue == NULL ? NULL : Py_TYPE(queue)->tp_as_sequence;
    if (as_sequence != NULL && as_sequence->sq_length != NULL && counter != NULL && append != NULL
        && PyCFunction_CheckExact(append) && PyCFunction_GET_FLAGS(append) == METH_O) {
        route->admission = admission;
        route->queue = queue;
        route->append = append;
        route->counter = counter;
    }
}

/* Look up the route of events of class WHICH; NULL, without an exception, if Python has to resolve it. */
static Route *
look_up_route(int which)
{
    Route *route = &routes[which];
    forget_route(route);
    PyObject *table = *ts_slot(bus, ts_of_bus[BUS_ROUTES]);
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
    if (step != NULL && PyTuple_CheckExact(step) && PyTuple_GET_SIZE(step) == STEP_SIZE
        && Py_IS_TYPE(PyTuple_GET_ITEM(step, STEP_TARGET), ts_admission_type)) {
        know_admission(route, PyTuple_GET_ITEM(step, STEP_TARGET));
    }
    return route;
}

/* Return the route of events of class WHICH, valid until foreign code runs; else NULL, as look_up_route(). */
static inline Route *
route_of(int which)
{
    return routes[which].table != NULL && routes[which].table == *ts_slot(bus, ts_of_bus[BUS_ROUTES]) ? &routes[which]
                                                                                       : look_up_route(which);
}

/* Return whether a handler would get an event of class WHICH; -1, without an exception, if only Bus.wants can tell. */
TS_INLINE int
wants(int which)
{
    const Route *route = route_of(which);
    if (route == NULL) {
        return -1;
    }
    if (PyTuple_GET_SIZE(route->steps) == 0) {
        return 0;
    }
    PyObject *is_closed = *ts_slot(bus, ts_of_bus[BUS_IS_CLOSED]);
    return is_closed == Py_False ? 1 : is_closed == Py_True ? 0 : -1;
}

/* Store LIMIT, the limit of the admission of ROUTE: 1, or 0 if it is not a number of events. */
static int
know_limit(Route *route, PyObject *limit)
{
    Py_ssize_t most = limit != NULL && PyLong_CheckExact(limit) ? PyLong_AsSsize_t(limit) : -1;
    if (most < 0) {
        PyErr_Clear();
        return 0;
    }
    Py_XSETREF(route->limit, Py_NewRef(limit)); /* a number: this runs no code */
    route->most = most;
    return 1;
}

/*
 * Queue EVENT, of class WHICH, as Bus.log does if the queue is the only step of its route: 1, or 0 if it is left to
 * Bus.log. Sets no exception: without memory it counts the event as dropped, as Admission.fail does.
 */
TS_INLINE int
queue_event(PyObject *event, int which)
{
    Route *route = route_of(which);
    PyObject *admission = route == NULL ? NULL : route->admission;
    if (admission == NULL) {
        return 0;
    }
    PyObject *append = route->append, *limit = *ts_slot(admission, ts_of_admission[ADMISSION_LIMIT]);
    if (limit != route->limit && !know_limit(route, limit)) {
        return 0;
    }
    Py_ssize_t waiting = Py_TYPE(route->queue)->tp_as_sequence->sq_length(route->queue);
    if (waiting < 0) {
        PyErr_Clear();
        return 0;
    }
    if (waiting >= route->most || ts_count(route->counter) < 0) {
        return 0;
    }
    Py_INCREF(admission); /* it keeps the method append alive */
    PyObject *none = PyCFunction_GET_FUNCTION(append)(PyCFunction_GET_SELF(append), event);
    if (none == NULL) {
        PyErr_Clear();
        PyObject *dropped = *ts_slot(admission, ts_of_admission[ADMISSION_DROPPED]);
        none = dropped == NULL ? NULL : PyObject_CallMethodNoArgs(dropped, add_name);
        PyErr_Clear();
    }
    Py_XDECREF(none);
    Py_DECREF(admission);
    return 1;
}

/* Return whether VALUE is a text as short as most, which takes a part of a place in the queue. */
static inline int
is_short(PyObject *value)
{
    enum { SHORT = 256 };
    return PyUnicode_CheckExact(value) && PyUnicode_GET_LENGTH(value) <= SHORT;
}

/*
 * Log EVENT, of class WHICH: None, or NULL with the exception of a strict bus or of a signal handler. IS_SMALL is whether
 * it takes one place in the queue. Steals the reference to EVENT.
 */
TS_INLINE PyObject *
log_event(PyObject *event, int which, int is_small)
{
    PyObject *result = is_small && queue_event(event, which) ? Py_NewRef(Py_None) : PyObject_CallOneArg(log_function, event);
    Py_DECREF(event);
    return result;
}

/* --- open spans -------------------------------------------------------------------------------------------------- */

/*
 * The spans that the main thread opened last. They are not in open_by_id: nearly all are closed before that dict is
 * read, and adding and removing one took a tenth of a step. All other open spans are in the dict, and Python closes
 * them.
 */
enum { MOST_LATEST = 8 };
typedef struct {
    PyObject *span, *number, *start; /* owned; the id and the start that the span was given here */
    long long start_ns;
    int is_real; /* whether START_NS is the start, read from the system's clock */
} Open;
static Open latest[MOST_LATEST];
static int latest_count;

/*
 * Add OPEN to the open spans: 0, or -1 with an exception. Borrows its span, and steals the references to its id and
 * start.
 */
TS_INLINE int
remember(const Open *open, int is_main)
{
    if (is_main && latest_count < MOST_LATEST) {
        Py_INCREF(open->span);
        latest[latest_count] = *open;
        latest_count++;
        return 0;
    }
    int failed = PyDict_SetItem(open_by_id, open->number, open->span);
    Py_DECREF(open->number);
    Py_DECREF(open->start);
    return failed;
}

/* Return the index of SPAN among the spans opened last, if it has the id and the start that it got then; else -1. */
TS_INLINE int
find(PyObject *span)
{
    int place = latest_count - 1;
    while (place >= 0 && latest[place].span != span) {
        place--;
    }
    return place >= 0 && latest[place].number == SPAN(span)->id && latest[place].start == SPAN(span)->start_ns ? place : -1;
}

/*
 * Remove the span at PLACE, to which the caller has a reference, from the open spans; return its id, a new reference.
 */
TS_INLINE PyObject *
forget(int place)
{
    Open open = latest[place];
    latest_count--;
    for (int each = place; each < latest_count; each++) {
        latest[each] = latest[each + 1];
    }
    Py_DECREF(open.start); /* the span still holds it, and the caller holds the span */
    Py_DECREF(open.span);
    return open.number;
}

PyDoc_STRVAR(add_open_doc, "add_open(spans, /)\n--\n\nAdd to *spans*, a dict by id, the open ones that open_by_id does not have.");

static PyObject *
add_open(PyObject *Py_UNUSED(module), PyObject *spans)
{
    /* Ints are compared and hashed without calling anything. */
    for (int place = 0; place < latest_count; place++) {
        if (PyDict_SetItem(spans, latest[place].number, latest[place].span) < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(store_open_doc, "store_open()\n--\n\nPut all open spans where the Python methods have them.");

static PyObject *
store_open(PyObject *module, PyObject *Py_UNUSED(none))
{
    PyObject *done = add_open(module, open_by_id);
    while (done != NULL && latest_count > 0) {
        Open open = latest[--latest_count];
        Py_DECREF(open.number); /* the dict holds it and the span, which holds its start */
        Py_DECREF(open.span);
        Py_DECREF(open.start);
    }
    return done;
}

/* --- pairs ------------------------------------------------------------------------------------------------------- */

/*
 * Unused pairs of a span's id and its step, which become the next pairs: owned, empty, without other references, and
 * not tracked by the garbage collector.
 */
enum { MOST_SPARE = 4 };
static PyObject *spare[MOST_SPARE];
static int spare_count;

/* Return the pair of NUMBER and STEP: a new reference, or NULL with an exception. It may run foreign code. */
TS_INLINE PyObject *
new_pair(PyObject *number, PyObject *step)
{
    PyObject *pair = spare_count > 0 && PyLong_CheckExact(step) ? spare[--spare_count] : PyTuple_New(2);
    if (pair != NULL) {
        PyTuple_SET_ITEM(pair, 0, Py_NewRef(number));
        PyTuple_SET_ITEM(pair, 1, Py_NewRef(step));
    }
    return pair;
}

/* Drop a reference to PAIR, of two numbers; keep the pair for the next ones if nothing else refers to it. */
TS_INLINE void
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
#if PY_VERSION_HEX >= 0x030E0000
    ((PyTupleObject *)pair)->ob_hash = -1; /* it remembers the hash of what it held */
#endif
    spare[spare_count++] = pair;
}

/* --- idle spans -------------------------------------------------------------------------------------------------- */

/*
 * Owned spans that were closed in the plain way, without attributes. They become the next spans, unless a program still
 * refers to them. There are thousands of parts and iterations, and freeing one and making another took a fifteenth of a
 * step.
 */
enum { MOST_IDLE = 4, HOLDERS = 2 /* the caller, and the method that the with block called */ };
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

/*
 * Keep SPAN for revive() if it has at most HOLDERS references, else drop it. Steals the reference; may run foreign
 * code.
 */
TS_INLINE void
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
 * Return an idle span without other references, or NULL, without an exception, if there is none. Its state is that
 * before opening, except for its attributes and the arguments of its constructor. It may run foreign code.
 */
static inline PyObject *
revive(Idle *idle)
{
    for (int place = idle->count - 1; place >= 0; place--) {
        if (Py_REFCNT(idle->spans[place]) > 1) {
            continue;
        }
        PyObject *span = take_out(idle, place);
        PyObject *around = SPAN(span)->around, *number = SPAN(span)->id, *start = SPAN(span)->start_ns;
        PyObject *const old[] = {SPAN(span)->parent_id, SPAN(span)->thread};
        if (SPAN(span)->inside != Py_None || around == NULL || number == NULL || start == NULL) {
            Py_DECREF(span); /* a program has used it since */
            return NULL;
        }
        SPAN(span)->around = SPAN(span)->start_ns = SPAN(span)->parent_id = SPAN(span)->thread = NULL;
        SPAN(span)->id = Py_NewRef(zero);
        drop_pair(around);
        ts_drop_number(number);
        ts_drop_number(start);
        Py_XDECREF(old[0]);
        Py_XDECREF(old[1]);
        return span;
    }
    return NULL;
}

/* Replace *PLACE by a new reference to VALUE; it may run foreign code. */
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
    return SPAN(span)->inside == Py_None && !has_annotator && SPAN(span)->given != NULL;
}

/*
 * Open SPAN, which is openable, within AROUND and at STEP, which OWN_STEP shall hold unless it is NULL. Return SPAN, NULL
 * with an exception, or TS_TO_PYTHON if code that ran during an allocation has opened it.
 */
TS_INLINE PyObject *
enter(PyObject *span, PyObject *around, PyObject *step, PyObject **own_step, int is_part)
{
    Open open = {.span = span};
    unsigned long ident = PyThread_get_thread_ident();
    int is_main = ident == main_ident;
    PyObject *inside = NULL, *parent = PyTuple_GET_ITEM(around, 0);
    PyObject *thread = is_main ? Py_NewRef(main_thread) : PyLong_FromUnsignedLong(ident);
    int is_ready = thread != NULL && (open.number = next_of(span_ids)) != NULL
                   && (inside = new_pair(open.number, step)) != NULL
                   && (open.start = ts_now_ns(&open.start_ns, &open.is_real)) != NULL;
    if (!is_ready || !PyLong_CheckExact(parent) || !is_openable(span)) {
        Py_XDECREF(thread);
        Py_XDECREF(open.number);
        Py_XDECREF(inside);
        Py_XDECREF(open.start);
        return is_ready ? TS_TO_PYTHON : NULL;
    }
    if (parent == zero) { /* the interpreter has one object for 0 */
        parent = root_id;
    }
    /* All slots in one go: a finalizer of an old value finds an open span. */
    PyObject *const old[] = {SPAN(span)->around,     SPAN(span)->id,     SPAN(span)->parent_id,
                             SPAN(span)->attributes, SPAN(span)->thread, SPAN(span)->start_ns};
    PyObject *old_step = NULL;
    if (own_step != NULL) {
        old_step = *own_step;
        *own_step = Py_NewRef(step);
    }
    SPAN(span)->around = Py_NewRef(around);
    SPAN(span)->id = Py_NewRef(open.number);
    SPAN(span)->parent_id = Py_NewRef(parent);
    SPAN(span)->attributes = Py_NewRef(SPAN(span)->given);
    SPAN(span)->thread = thread;
    SPAN(span)->start_ns = Py_NewRef(open.start);
    SPAN(span)->inside = Py_NewRef(inside);
    Py_DECREF(Py_None); /* the old value: SPAN was openable */
    int failed = is_part ? ts_surround_part(inside, NULL) : ts_surround(inside);
    if (failed) {
        Py_DECREF(open.number);
        Py_DECREF(open.start);
    }
    else {
        failed = remember(&open, is_main);
    }
    Py_DECREF(inside);
    Py_XDECREF(old[0]);
    Py_XDECREF(old[1]);
    Py_XDECREF(old[2]);
    Py_XDECREF(old[3]);
    Py_XDECREF(old[4]);
    Py_XDECREF(old[5]);
    Py_XDECREF(old_step);
    return failed ? NULL : Py_NewRef(span);
}

static inline int
is_pair(PyObject *value)
{
    return value != NULL && PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) == 2;
}

/* Return what surrounds the running code, a new reference; NULL, without an exception, if it is not a pair. */
TS_INLINE PyObject *
surroundings(void)
{
    PyObject *around = ts_surroundings();
    if (around == NULL) {
        PyErr_Clear();
    }
    else if (!is_pair(around)) {
        Py_CLEAR(around);
    }
    return around;
}

/* Return the class of the event of SPAN's end, or NONE. */
TS_INLINE int
class_of(PyObject *span)
{
    int which = PART;
    while (which >= LONG && SPAN(span)->ended != (PyObject *)classes[which]) {
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
        Py_XSETREF(SPAN(span)->id, Py_NewRef(zero));
        return Py_NewRef(span);
    }
    PyObject *around = surroundings();
    if (around == NULL) {
        return TS_TO_PYTHON;
    }
    PyObject *result = enter(span, around, PyTuple_GET_ITEM(around, 1), NULL, which == PART);
    Py_DECREF(around);
    return result;
}

/*
 * Return the next step of the surrounding training loop, as Iteration.open does if none was given: a new reference, or
 * NULL with an exception. The function that counts the steps may be foreign code. If it opens this very iteration,
 * Python takes another step.
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
    PyObject *step = ITERATION(span)->given_step;
    if (wanted != 1 || !is_openable(span) || step == NULL
        || (step == Py_None && ITERATION(span)->kind != training_kind)) {
        return TS_TO_PYTHON;
    }
    PyObject *around = surroundings();
    if (around == NULL) {
        return TS_TO_PYTHON;
    }
    step = step == Py_None ? take_step() : Py_NewRef(step);
    PyObject *result = step == NULL ? NULL : enter(span, around, step, &ITERATION(span)->step, 0);
    Py_XDECREF(step);
    Py_DECREF(around);
    return result;
}

/* --- closing ----------------------------------------------------------------------------------------------------- */

/* Return whether the iteration SPAN has all fields of its event, and no other attributes. */
TS_INLINE int
is_plain_iteration(PyObject *span)
{
    const Iteration *iteration = ITERATION(span);
    PyObject *attributes = SPAN(span)->attributes;
    return iteration->step != NULL && iteration->kind != NULL && iteration->samples != NULL && iteration->tokens != NULL
           && iteration->flops != NULL && iteration->loss != NULL && iteration->failed != NULL
           && PyBool_Check(iteration->failed) && attributes != NULL && PyDict_CheckExact(attributes)
           && PyDict_GET_SIZE(attributes) == 0;
}

static inline int
is_training_step(PyObject *span, int which)
{
    return which == OF_ITERATION && ITERATION(span)->kind == training_kind;
}

/* Return whether ATTRIBUTES are a dict of scalars. These cannot change, so an event needs only a copy of the dict. */
TS_INLINE int
are_scalars(PyObject *attributes)
{
    PyObject *value;
    Py_ssize_t place = 0;
    if (attributes == NULL || !PyDict_CheckExact(attributes)) {
        return 0;
    }
    while (PyDict_GET_SIZE(attributes) > 0 && PyDict_Next(attributes, &place, NULL, &value)) {
        if (!PyUnicode_CheckExact(value) && !PyLong_CheckExact(value) && !PyFloat_CheckExact(value)
            && !PyBool_Check(value) && value != Py_None && !PyBytes_CheckExact(value)) {
            return 0;
        }
    }
    return 1;
}

/*
 * Return the index of SPAN, whose event is of class WHICH, among the spans opened last, if it can be closed here; else
 * -1. Runs no foreign code, and may be called again.
 */
TS_INLINE int
find_closable(PyObject *span, int which)
{
    int place = find(span);
    PyObject *inside = SPAN(span)->inside;
    if (place < 0 || inside == NULL || has_annotator || SPAN(span)->thread != main_thread || SPAN(span)->name == NULL
        || SPAN(span)->parent_id == NULL || !is_pair(SPAN(span)->around)
        || !(which == OF_ITERATION ? is_plain_iteration(span) : are_scalars(SPAN(span)->attributes))) {
        return -1;
    }
    if (ts_is_at_home()) {
        return ts_top == inside ? place : -1;
    }
    PyObject *current = surroundings();
    Py_XDECREF(current); /* the context holds it, and so does SPAN if it is the same */
    return current == inside ? place : -1;
}

/* Return whether the garbage collector need not visit VALUE. */
static inline int
is_scalar(PyObject *value)
{
    return value == NULL || !PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HAVE_GC);
}

/*
 * Close SPAN, and return the event of class WHICH with the fields that all ends have: a new reference, NULL with an
 * exception, or TS_TO_PYTHON if nothing was changed. The garbage collector does not track the event, because each
 * collection would visit all events in the queue. If one of these fields may not be a scalar, *SCALARS is 0, and the
 * caller has to track the event.
 */
TS_INLINE PyObject *
leave(PyObject *span, int which, int *scalars)
{
    PyObject *event = ts_new(pools[which]), *end, *duration;
    if (event == NULL) {
        return NULL;
    }
    EventOfSpan *ended = (EventOfSpan *)event;
    int place = find_closable(span, which);
    if (place < 0) {
        goto python;
    }
    PyObject *start = Py_NewRef(latest[place].start);
    int is_plain = ts_since(start, latest[place].is_real ? &latest[place].start_ns : NULL, &end, &duration);
    Py_DECREF(start);
    if (is_plain < 0) {
        Py_DECREF(event);
        return NULL;
    }
    ended->at_ns = end;
    *(which == OF_ITERATION ? &((IterationEnded *)event)->duration_ns : &((SpanEnded *)event)->duration_ns) = duration;
    if (!is_plain && (place = find_closable(span, which)) < 0) {
        goto python;
    }
    PyObject *around = Py_NewRef(SPAN(span)->around), *inside = SPAN(span)->inside;
    PyObject *parent = SPAN(span)->parent_id, *step = PyTuple_GET_ITEM(around, 1);
    ended->span_id = forget(place);
    ended->parent_span_id = Py_NewRef(parent);
    ended->step = Py_NewRef(step);
    *scalars = is_plain && is_scalar(parent) && is_scalar(step);
    SPAN(span)->inside = Py_NewRef(Py_None);
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

/* Return whether the call is that of a "with" block that no exception leaves. */
static inline int
is_plain_exit(PyObject *owner, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    return count == 4 && keywords == NULL && (PyObject *)Py_TYPE(args[0]) == owner && args[2] == Py_None;
}

static PyObject *
leave_span(PyObject *owner, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (!is_plain_exit(owner, args, count, keywords)) {
        return TS_TO_PYTHON;
    }
    PyObject *span = args[0];
    int which = class_of(span), is_bare = 0, scalars;
    if (which == NONE) {
        return TS_TO_PYTHON;
    }
    Py_INCREF(span);
    PyObject *event = leave(span, which, &scalars);
    if (event != NULL && event != TS_TO_PYTHON) {
        SpanEnded *ended = (SpanEnded *)event;
        PyObject *attributes = Py_NewRef(no_attributes), *given = SPAN(span)->attributes;
        if (given != NULL && PyDict_CheckExact(given) && PyDict_GET_SIZE(given) > 0) {
            /* A copy: the span's own attributes can change while the event waits. */
            Py_INCREF(given);
            PyObject *copy = PyDict_Copy(given);
            Py_SETREF(attributes, copy == NULL ? Py_NewRef(given) : copy);
            PyErr_Clear();
            Py_DECREF(given);
        }
        is_bare = attributes == no_attributes && given == SPAN(span)->given;
        ended->name = Py_NewRef(SPAN(span)->name ? SPAN(span)->name : Py_None);
        ended->attributes = attributes;
        ended->error = Py_NewRef(Py_None);
        int is_small = attributes == no_attributes && is_short(ended->name);
        if (!is_small || !scalars) {
            PyObject_GC_Track(event);
        }
        static const Py_ssize_t sized[] = {offsetof(SpanEnded, name), offsetof(SpanEnded, attributes)};
        event = log_event(event, which, is_small || ts_is_small(event, sized, 2));
    }
    retire(&idle_spans, span, is_bare ? HOLDERS : 0);
    return event;
}

/* Fill the empty slot TO with VALUE, which may be NULL: whether that is a scalar. */
static inline int
copy_field(PyObject **to, PyObject *value)
{
    *to = Py_XNewRef(value);
    return is_scalar(value);
}

static PyObject *
leave_iteration(PyObject *owner, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (!is_plain_exit(owner, args, count, keywords)) {
        return TS_TO_PYTHON;
    }
    PyObject *span = args[0];
    int are_others_scalars, is_usual = 0;
    Py_INCREF(span);
    PyObject *event = leave(span, OF_ITERATION, &are_others_scalars);
    if (event != NULL && event != TS_TO_PYTHON) {
        const Iteration *iteration = ITERATION(span);
        IterationEnded *ended = (IterationEnded *)event;
        Py_SETREF(ended->step, Py_XNewRef(iteration->step));
        is_usual = copy_field(&ended->kind, iteration->kind) & copy_field(&ended->samples, iteration->samples)
                   & copy_field(&ended->tokens, iteration->tokens) & copy_field(&ended->flops, iteration->flops)
                   & copy_field(&ended->loss, iteration->loss) & copy_field(&ended->failed, iteration->failed)
                   & is_scalar(iteration->step);
        if (!is_usual || !are_others_scalars) {
            PyObject_GC_Track(event);
        }
        event = log_event(event, OF_ITERATION, 1);
    }
    retire(&idle_iterations, span, is_usual ? HOLDERS + 1 : 0); /* the "as" variable, too */
    return event;
}

/* --- making ------------------------------------------------------------------------------------------------------ */

/* Return a closed span with ATTRIBUTES, or NULL with an exception. Steals the reference to ATTRIBUTES. */
static PyObject *
new_span(PyObject *name, PyObject *ended, PyObject *attributes)
{
    PyObject *span = attributes == NULL ? NULL : ts_new(pool_of_spans);
    if (span == NULL) {
        Py_XDECREF(attributes);
        return NULL;
    }
    SPAN(span)->name = Py_NewRef(name);
    SPAN(span)->ended = Py_NewRef(ended);
    SPAN(span)->attributes = Py_NewRef(attributes);
    SPAN(span)->given = attributes;
    SPAN(span)->id = Py_NewRef(zero);
    SPAN(span)->inside = Py_NewRef(Py_None);
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

/* Return an idle span with NAME, ENDED and its empty attributes; NULL, without an exception, if there is none. */
static inline PyObject *
revive_span(PyObject *name, PyObject *ended)
{
    PyObject *span = revive(&idle_spans), *attributes = span == NULL ? NULL : SPAN(span)->attributes;
    if (attributes != NULL && attributes == SPAN(span)->given && PyDict_CheckExact(attributes)
        && PyDict_GET_SIZE(attributes) == 0 && Py_REFCNT(attributes) == 2) {
        put(&SPAN(span)->name, name);
        put(&SPAN(span)->ended, ended);
        return span;
    }
    Py_XDECREF(span);
    return NULL;
}

/* ABOUT has the name of the spans, or None if the caller names them, and the class of their ends. */
static PyObject *
make_named(PyObject *about, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    PyObject *name = PyTuple_GET_ITEM(about, 0), *ended = PyTuple_GET_ITEM(about, 1);
    int is_named = name != Py_None;
    if (count != !is_named) {
        return TS_TO_PYTHON;
    }
    for (Py_ssize_t each = 0; !is_named && keywords != NULL && each < PyTuple_GET_SIZE(keywords); each++) {
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(keywords, each), "priority") == 0) {
            return TS_TO_PYTHON; /* the class of the end depends on it */
        }
    }
    name = is_named ? name : args[0];
    PyObject *idle = keywords == NULL ? revive_span(name, ended) : NULL;
    if (idle != NULL) {
        return idle;
    }
    PyObject *attributes = PyDict_New();
    for (Py_ssize_t each = 0; attributes != NULL && keywords != NULL && each < PyTuple_GET_SIZE(keywords); each++) {
        if (PyDict_SetItem(attributes, PyTuple_GET_ITEM(keywords, each), args[count + each]) < 0) {
            Py_CLEAR(attributes);
        }
    }
    return new_span(name, ended, attributes);
}

/* Samples, tokens, flops and loss: their names, interned, and where an iteration has them. */
enum { DONE_SAMPLES, DONE_TOKENS, DONE_FLOPS, DONE_LOSS, DONE_FIELDS };
static PyObject *done_names[DONE_FIELDS];
static const Py_ssize_t done_places[] = {offsetof(Iteration, samples), offsetof(Iteration, tokens), offsetof(Iteration, flops),
                                         offsetof(Iteration, loss)};

/* Return the index of NAME among these; -1 if it is another text, or not interned. */
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

/*
 * ABOUT has a kind, a name, the attributes of an iteration that has none of its own, and two stand-ins for iterations
 * while no handler is subscribed: for those without a step, and for those with one.
 */
static PyObject *
make_iteration(PyObject *about, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    Py_ssize_t named = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    PyObject *subscribers = *ts_slot(bus, ts_of_bus[BUS_SUBSCRIBERS]), *step = count > 0 ? args[0] : NULL;
    PyObject *done[DONE_FIELDS] = {Py_None, Py_None, Py_None, Py_None};
    if (count > 1 || subscribers == NULL || !PyDict_CheckExact(subscribers)) {
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
    if (PyDict_GET_SIZE(subscribers) == 0 && !has_annotator) {
        for (int field = 0; field < DONE_FIELDS; field++) {
            if (done[field] != Py_None) {
                return TS_TO_PYTHON;
            }
        }
        return Py_NewRef(PyTuple_GET_ITEM(about, step == NULL || step == Py_None ? 3 : 4));
    }
    PyObject *span = revive(&idle_iterations);
    int is_new = span == NULL;
    if (is_new) {
        span = ts_new(pool_of_iterations);
        if (span == NULL) {
            return NULL;
        }
        SPAN(span)->id = Py_NewRef(zero);
        SPAN(span)->inside = Py_NewRef(Py_None);
    }
    put(&ITERATION(span)->kind, PyTuple_GET_ITEM(about, 0));
    put(&SPAN(span)->name, PyTuple_GET_ITEM(about, 1));
    put(&SPAN(span)->given, PyTuple_GET_ITEM(about, 2));
    put(&ITERATION(span)->given_step, step == NULL ? Py_None : step);
    for (int field = 0; field < DONE_FIELDS; field++) {
        put(ts_slot(span, done_places[field]), done[field]);
    }
    put(&ITERATION(span)->failed, Py_False);
    Py_CLEAR(ITERATION(span)->step);
    Py_CLEAR(SPAN(span)->attributes);
    if (is_new) {
        PyObject_GC_Track(span);
    }
    return span;
}

/* Enter the stand-in for an iteration without a handler. */
static PyObject *
open_unheard(PyObject *owner, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (count != 1 || keywords != NULL || (PyObject *)Py_TYPE(args[0]) != owner) {
        return TS_TO_PYTHON;
    }
    PyObject *counts = *ts_slot(args[0], of_counts);
    PyObject *step = counts == Py_True ? take_step() : Py_NewRef(Py_None);
    Py_XDECREF(step);
    return step == NULL ? NULL : Py_NewRef(args[0]);
}

/* Leave the stand-in, also with an exception. */
static PyObject *
leave_unheard(PyObject *Py_UNUSED(owner), PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count), PyObject *keywords)
{
    if (keywords != NULL) {
        return TS_TO_PYTHON;
    }
    Py_RETURN_NONE;
}

/* Iteration.set. A loss that is not a float may be a tensor, which Python detaches. */
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
        if (field < 0 || (field == DONE_LOSS && value != Py_None && !PyFloat_CheckExact(value))) {
            return TS_TO_PYTHON;
        }
    }
    for (Py_ssize_t each = 0; each < named; each++) {
        PyObject *value = args[1 + each];
        if (value != Py_None) {
            Py_XSETREF(*ts_slot(args[0], done_places[done_field(PyTuple_GET_ITEM(keywords, each))]), Py_NewRef(value));
        }
    }
    Py_RETURN_NONE;
}

/* --- setting up -------------------------------------------------------------------------------------------------- */

/* Return the pool of TYPE, the class of events with the number WHICH, or NULL with an exception. */
static Pool *
pool_of_ends(PyTypeObject *type, int which)
{
    Py_ssize_t duration = which == OF_ITERATION ? offsetof(IterationEnded, duration_ns) : offsetof(SpanEnded, duration_ns);
    return ts_pool(type, (const Py_ssize_t[]){offsetof(EventOfSpan, at_ns), duration, offsetof(EventOfSpan, span_id)}, 3);
}

/* Return the pool of CLS, a class of spans, or NULL with an exception. */
static Pool *
pool_of_those(PyTypeObject *cls)
{
    return ts_pool(cls, (const Py_ssize_t[]){offsetof(Span, start_ns), offsetof(Span, id)}, 2);
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
    if (PyTuple_GET_SIZE(ended) != CLASSES_OF_SPANS || ts_check_layout(cls, places_of_span) < 0) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_SystemError, "not %d classes of ends", CLASSES_OF_SPANS);
    }
    for (int place = 0; place < CLASSES_OF_SPANS; place++) {
        PyTypeObject *type = (PyTypeObject *)PyTuple_GET_ITEM(ended, place);
        if (!PyType_Check(type) || ts_check_layout(type, ts_places_of_spans) < 0) {
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
    PyObject *counter = PyObject_GetAttrString(span_ids, "__self__"); /* before, it is the bound __next__ */
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
    if (ts_check_layout(cls, places_of_iteration) < 0 || ts_check_layout(ended, ts_places_of_iterations) < 0) {
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

PyDoc_STRVAR(compile_named_doc,
"compile_named(function, name, ended, /)\n--\n\n"
"Return *function*, compiled: it returns a span of that name, with its keywords for attributes. If *name* is None, the\n"
"function's argument names the span, and Python handles the keyword priority.");

static PyObject *
compile_named(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function, *name, *ended;
    if (!PyArg_ParseTuple(args, "OOO!", &function, &name, &PyType_Type, &ended)) {
        return NULL;
    }
    PyObject *about = PyTuple_Pack(2, name, ended);
    PyObject *compiled = about == NULL ? NULL : ts_method(about, make_named, function);
    Py_XDECREF(about);
    return compiled;
}

PyDoc_STRVAR(compile_iteration_doc,
"compile_iteration(function, kind, name, attributes, unheard, unheard_with_step, /)\n--\n\n"
"Return *function*, compiled: it returns an iteration of that kind and name, or what stands for one that no handler hears of.");

static PyObject *
compile_iteration(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function, *kind, *name, *attributes, *unheard, *with_step;
    if (!PyArg_ParseTuple(args, "OUUO!OO", &function, &kind, &name, &PyDict_Type, &attributes, &unheard, &with_step)) {
        return NULL;
    }
    PyObject *about = PyTuple_Pack(5, kind, name, attributes, unheard, with_step);
    PyObject *compiled = about == NULL ? NULL : ts_method(about, make_iteration, function);
    Py_XDECREF(about);
    return compiled;
}

PyDoc_STRVAR(compile_unheard_doc,
"compile_unheard(cls, /)\n--\n\n"
"Return the methods __enter__ and __exit__, compiled, of the class of what stands for iterations that no handler hears of.");

static PyObject *
compile_unheard(PyObject *Py_UNUSED(module), PyObject *cls)
{
    static const char *const counts_slot[] = {"_counts"};
    if (!PyType_Check(cls) || ts_find_slots((PyTypeObject *)cls, counts_slot, 1, &of_counts) < 0) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "not a class");
    }
    PyObject *open = PyObject_GetAttrString(cls, "__enter__");
    PyObject *close = open == NULL ? NULL : PyObject_GetAttrString(cls, "__exit__");
    PyObject *methods = close == NULL
                            ? NULL
                            : Py_BuildValue("(NN)", ts_method(cls, open_unheard, open), ts_method(cls, leave_unheard, close));
    Py_XDECREF(open);
    Py_XDECREF(close);
    return methods;
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
    {"add_open", add_open, METH_O, add_open_doc},
    {"store_open", store_open, METH_NOARGS, store_open_doc},
    {"forget_routes", forget_routes, METH_NOARGS, forget_doc},
    {"set_process", set_process, METH_VARARGS, set_process_doc},
    {"compile_named", compile_named, METH_VARARGS, compile_named_doc},
    {"compile_unheard", compile_unheard, METH_O, compile_unheard_doc},
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
