/*
 * Reading the usual events of a process for goodput, as read_usual of trackside.handlers.models.goodput._reading does,
 * and packing slices, as _pack_slices of trackside.handlers.models.goodput._packed does.
 *
 * The slices that these events add to a track are kept in a buffer here and added to its arrays together, when reading
 * stops or the buffer is full. The last slice of the arrays is in the buffer too, because a step that ends may cut it.
 * No foreign code runs while events are read, and an event is either read whole or not at all.
 */

#include "core.h"

enum { SOURCE, START, LAST, NEXT_SEQ, VERSION, OPEN_SPANS, SEEN_OPEN, TRACK, BESIDE, STARTED_AT, STARTED_STEP,
       STARTED_RESTORED, FIRST_STEP, IS_RESTORED, LAST_ITERATION_ID, TRAINS_IN, PROCESS_SLOTS };
static const char *const process_slots[] = {
    "source", "start", "last", "next_seq", "version", "open_spans", "seen_open", "track", "beside", "started_at",
    "started_step", "started_restored", "first_step", "is_restored", "last_iteration_id", "trains_in",
};
enum { STARTS, ENDS, CODES, NUMBERS, LIMIT, LATE_END, TALLIED, TOP, STEP_END, LAST_STEP, TRACK_SLOTS };
static const char *const track_slots[] = {
    "_starts", "_ends", "_codes", "_numbers", "_limit", "_late_end", "_tallied", "top", "step_end", "last_step",
};
enum { COLUMNS = 4, MOST_SLICES = 256 };
enum { DATA_LOADING, THREAD, BADPUT_TYPE, TRAINING, MAIN, ROLE, WORDS };
enum { NEVER, NO_STEP, LATEST, LOADED, WHOLE_STEP, LOADED_INSIDE, REST_OF_STEP, NUMBERS_KNOWN };

/* All are set once and kept for ever, like the module that gives them. */
static Py_ssize_t of_process[PROCESS_SLOTS], of_track[TRACK_SLOTS];
static PyTypeObject *process_type, *track_type, *iteration_type, *started_type;
static PyObject *spans, *timed, *words[WORDS], *frombytes, *seal;
static long long known[NUMBERS_KNOWN];

typedef struct {
    long long start, end, number;
    unsigned int code;
} Slice;

/* The end of a track. */
typedef struct {
    PyObject *track;
    long long top, step_end, last_step, late_end, limit;
    long long before;      /* the end of the last slice that is not here, if there is one */
    Py_ssize_t length;     /* of the track's arrays without the slices here */
    Py_ssize_t count, old; /* the slices here, and whether the first of them is in the arrays too */
    int cuts_old, is_changed;
    Slice slices[MOST_SLICES];
} Tail;

typedef struct {
    PyObject *process, *source, *trains_in, *last_iteration_id;
    long long begin, last, next_seq, version, before, started_at, started_step, first_step;
    int is_main, is_restored, started_restored;
    Tail track, beside;
} Reading;

/* Read item PLACE of ARRAY, whose items are ints: 0, or -1 with an exception. */
static int
read_item(PyObject *array, Py_ssize_t place, long long *number)
{
    PyObject *item = PySequence_GetItem(array, place);
    *number = item == NULL ? -1 : PyLong_AsLongLong(item);
    Py_XDECREF(item);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Read the end of TRACK: 1, or 0 if it is not the plain case, or -1 with an exception. */
static int
load_track(Tail *tail, PyObject *track)
{
    if (track == NULL || !Py_IS_TYPE(track, track_type)) {
        return 0;
    }
    tail->track = track;
    tail->count = tail->old = tail->cuts_old = tail->is_changed = 0;
    if (!ts_read_number(ts_slot(track, of_track[TOP]), &tail->top)
        || !ts_read_number(ts_slot(track, of_track[STEP_END]), &tail->step_end)
        || !ts_read_number(ts_slot(track, of_track[LAST_STEP]), &tail->last_step)
        || !ts_read_number(ts_slot(track, of_track[LATE_END]), &tail->late_end)
        || !ts_read_number(ts_slot(track, of_track[LIMIT]), &tail->limit)) {
        return 0;
    }
    for (int column = STARTS; column < COLUMNS; column++) {
        PyObject *array = *ts_slot(track, of_track[column]);
        Py_ssize_t length = array == NULL ? -1 : PyObject_Size(array);
        if (length < 0) {
            return PyErr_Occurred() ? -1 : 0;
        }
        if (column != STARTS && length != tail->length) {
            return 0;
        }
        tail->length = length;
    }
    if (tail->length > 0) {
        Slice *last = &tail->slices[0];
        Py_ssize_t place = --tail->length;
        long long code;
        tail->count = tail->old = 1;
        if (read_item(*ts_slot(track, of_track[STARTS]), place, &last->start) < 0
            || read_item(*ts_slot(track, of_track[ENDS]), place, &last->end) < 0
            || read_item(*ts_slot(track, of_track[CODES]), place, &code) < 0
            || read_item(*ts_slot(track, of_track[NUMBERS]), place, &last->number) < 0
            || (place > 0 && read_item(*ts_slot(track, of_track[ENDS]), place - 1, &tail->before) < 0)) {
            return -1;
        }
        last->code = (unsigned int)code;
    }
    return 1;
}

/* Add the bytes of COLUMN of the slices of TAIL from FIRST on to its array: 0, or -1 with an exception. */
static int
extend(Tail *tail, int column, Py_ssize_t first)
{
    long long items[MOST_SLICES];
    unsigned int codes[MOST_SLICES];
    Py_ssize_t count = tail->count - first;
    for (Py_ssize_t place = 0; place < count; place++) {
        const Slice *slice = &tail->slices[first + place];
        codes[place] = slice->code;
        items[place] = column == STARTS ? slice->start : column == ENDS ? slice->end : slice->number;
    }
    PyObject *bytes = column == CODES ? PyBytes_FromStringAndSize((char *)codes, count * (Py_ssize_t)sizeof codes[0])
                                      : PyBytes_FromStringAndSize((char *)items, count * (Py_ssize_t)sizeof items[0]);
    PyObject *done = bytes == NULL ? NULL : PyObject_CallMethodOneArg(*ts_slot(tail->track, of_track[column]), frombytes, bytes);
    Py_XDECREF(bytes);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Give the track what was read: 0, or -1 with an exception. */
static int
store_track(Tail *tail)
{
    PyObject *track = tail->track;
    Py_ssize_t first = tail->cuts_old ? 0 : tail->old;
    long long tallied;
    if (!tail->is_changed) {
        return 0;
    }
    if (tail->cuts_old) {
        for (int column = STARTS; column < COLUMNS; column++) {
            if (PySequence_DelItem(*ts_slot(track, of_track[column]), tail->length) < 0) {
                return -1;
            }
        }
        /* The sums of the open slices are made anew if they have the one that was cut. */
        if ((!ts_read_number(ts_slot(track, of_track[TALLIED]), &tallied) || tallied > tail->length)
            && ts_store(ts_slot(track, of_track[TALLIED]), PyLong_FromLongLong(0)) < 0) {
            return -1;
        }
    }
    for (int column = STARTS; column < COLUMNS; column++) {
        if (extend(tail, column, first) < 0) {
            return -1;
        }
    }
    if (ts_store(ts_slot(track, of_track[TOP]), PyLong_FromLongLong(tail->top)) < 0
        || ts_store(ts_slot(track, of_track[STEP_END]), PyLong_FromLongLong(tail->step_end)) < 0
        || ts_store(ts_slot(track, of_track[LAST_STEP]), PyLong_FromLongLong(tail->last_step)) < 0) {
        return -1;
    }
    return 0;
}

/* Pack a part of TRACK, in Python: 0, or -1 with an exception. */
static int
pack(PyObject *track)
{
    PyObject *done = PyObject_CallMethodNoArgs(track, seal);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Add a slice. There is room for it. */
static void
push(Tail *tail, long long start, long long end, long long code, long long number)
{
    tail->slices[tail->count++] = (Slice){start, end, number, (unsigned int)code};
    tail->top = end;
    tail->is_changed = 1;
}

/* Whether TAIL may have no room for the slices of one more event, or its track is full. */
static int
is_full(const Tail *tail)
{
    return tail->count + 2 > MOST_SLICES || tail->length + tail->count >= tail->limit;
}

/* Add a loading of data, as Track.add does at the end of the track: whether it could. */
static int
add_load(Tail *tail, long long start, long long end)
{
    if (start < tail->top || (start == tail->top && (tail->count == 0 || tail->slices[tail->count - 1].code == known[LOADED]))) {
        return 0;
    }
    push(tail, start, end, known[LOADED], 0);
    return 1;
}

/* Add a step over the last slices, as overlay_load and Track.append_over do: whether they would. */
static int
add_over(Tail *tail, long long number, long long start, long long end)
{
    if (start < tail->late_end || tail->count == 0) {
        return 0;
    }
    Slice *last = &tail->slices[tail->count - 1];
    long long begun = last->start, loaded = last->end;
    if (last->code != known[LOADED] || tail->length + tail->count <= 1
        || (tail->count > 1 ? last[-1].end : tail->before) > start || start >= begun || loaded >= end) {
        return 0;
    }
    tail->cuts_old |= tail->count == 1 && tail->old;
    *last = (Slice){start, begun, number, (unsigned int)known[WHOLE_STEP]};
    push(tail, begun, loaded, known[LOADED_INSIDE], 0);
    push(tail, loaded, end, known[REST_OF_STEP], 0);
    tail->step_end = end;
    tail->last_step = number;
    return 1;
}

/* Add a step that begins where the track ends, or later. */
static void
add_step(Tail *tail, long long number, long long start, long long end)
{
    push(tail, start, end, known[WHOLE_STEP], number);
    tail->step_end = end;
    tail->last_step = number;
}

/* Return whether VALUE and OTHER are the same text, or both None, which may be NULL; or -1 if that is not known. */
static int
are_same(PyObject *value, PyObject *other)
{
    value = value == Py_None ? NULL : value;
    other = other == Py_None ? NULL : other;
    if (value == NULL || other == NULL) {
        return value == other;
    }
    return PyUnicode_CheckExact(value) && PyUnicode_CheckExact(other) ? PyUnicode_Compare(value, other) == 0 : -1;
}

/* Read the DURATION in SLOT of something that ended at AT: whether the process may have done it. */
static int
read_duration(const Reading *reading, PyObject *const *slot, long long at, long long *duration)
{
    return ts_read_number(slot, duration) && 0 <= *duration && *duration <= at - reading->begin;
}

static int
read_span(Reading *reading, PyObject *event, long long at)
{
    SpanEnded *span = (SpanEnded *)event;
    PyObject *name = span->name, *attributes = span->attributes;
    long long duration;
    if (!read_duration(reading, &span->duration_ns, at, &duration) || name == NULL
        || !PyUnicode_CheckExact(name) || attributes == NULL || !PyDict_CheckExact(attributes)
        || !ts_has_text_keys(attributes)) {
        return 0;
    }
    if (PyDict_GET_SIZE(attributes) > 0) {
        PyObject *badput = PyDict_GetItemWithError(attributes, words[BADPUT_TYPE]);
        if (badput != NULL && badput != Py_None) {
            return 0;
        }
    }
    int is_timed = PySet_Contains(timed, name);
    if (is_timed <= 0) {
        return is_timed == 0;
    }
    if (PyUnicode_Compare(name, words[DATA_LOADING]) != 0) {
        return 0;
    }
    int is_own = are_same(PyDict_GetItemWithError(attributes, words[THREAD]), reading->trains_in);
    if (is_own < 0) {
        return 0;
    }
    return duration == 0 || add_load(is_own && reading->is_main ? &reading->track : &reading->beside, at - duration, at);
}

static int
read_iteration(Reading *reading, PyObject *event, long long at)
{
    IterationEnded *iteration = (IterationEnded *)event;
    PyObject *kind = iteration->kind, *id = iteration->span_id;
    Tail *track = &reading->track;
    long long duration, step;
    if (!read_duration(reading, &iteration->duration_ns, at, &duration) || duration == 0
        || !ts_read_number(&iteration->step, &step) || track->last_step < 0 || step < track->last_step
        || step >= known[LATEST] || kind == NULL || !PyUnicode_CheckExact(kind) || id == NULL
        || PyUnicode_Compare(kind, words[TRAINING]) != 0 || iteration->failed != Py_False
        || reading->is_restored || (reading->started_at != known[NEVER] && reading->started_restored)) {
        return 0;
    }
    long long start = at - duration;
    if (track->top <= start) {
        add_step(track, step, start, at);
    }
    else if (reading->started_at != known[NEVER] || reading->first_step == known[NO_STEP] || !add_over(track, step, start, at)) {
        return 0;
    }
    reading->last_iteration_id = id;
    reading->started_at = known[NEVER];
    return 1;
}

static int
read_step_start(Reading *reading, PyObject *event, long long at)
{
    Tail *track = &reading->track;
    long long step, start = reading->started_at, number = reading->started_step;
    if (!ts_read_number(&((Event *)event)->step, &step) || start == known[NEVER] || start < track->top || at <= start
        || at < reading->begin || track->last_step < 0 || number < track->last_step || step <= number || step >= known[LATEST]
        || reading->started_restored || reading->is_restored || reading->first_step == known[NO_STEP]) {
        return 0;
    }
    add_step(track, number, start, at);
    reading->started_step = step;
    reading->started_at = at;
    return 1;
}

/* Read EVENT: whether it is usual. If it is not, nothing has changed. */
static int
read_event(Reading *reading, PyObject *event)
{
    PyTypeObject *type = Py_TYPE(event);
    long long at, seq;
    int (*read)(Reading *, PyObject *, long long) = type == iteration_type ? read_iteration
                                                    : type == started_type ? read_step_start
                                                    : ts_is_among(type, spans) ? read_span : NULL;
    if (read == NULL || ((Event *)event)->source != reading->source
        || !ts_read_number(&((Event *)event)->at_ns, &at) || !ts_read_number(&((Event *)event)->seq, &seq)
        || seq < reading->next_seq || seq == LLONG_MAX || reading->version == LLONG_MAX || at < reading->last
        || at < reading->begin || at >= reading->before || !read(reading, event, at)) {
        return 0;
    }
    reading->last = at;
    reading->next_seq = seq + 1;
    reading->version++;
    return 1;
}

/* Read the state of PROCESS: 1, or 0 if it is not the plain case, or -1 with an exception. */
static int
load(Reading *reading, PyObject *process, PyObject *source, long long before)
{
    static const struct { int slot; size_t field; } numbers[] = {
        {START, offsetof(Reading, begin)}, {LAST, offsetof(Reading, last)}, {NEXT_SEQ, offsetof(Reading, next_seq)},
        {VERSION, offsetof(Reading, version)}, {STARTED_AT, offsetof(Reading, started_at)},
        {STARTED_STEP, offsetof(Reading, started_step)}, {FIRST_STEP, offsetof(Reading, first_step)},
    };
    for (size_t place = 0; place < sizeof numbers / sizeof numbers[0]; place++) {
        if (!ts_read_number(ts_slot(process, of_process[numbers[place].slot]), (long long *)((char *)reading + numbers[place].field))) {
            return 0;
        }
    }
    PyObject *open_spans = *ts_slot(process, of_process[OPEN_SPANS]), *of = *ts_slot(process, of_process[SOURCE]);
    if (open_spans == NULL || !PyDict_CheckExact(open_spans) || PyDict_GET_SIZE(open_spans) > 0 || of == NULL
        || *ts_slot(process, of_process[SEEN_OPEN]) != Py_None || reading->begin <= 0) {
        return 0;
    }
    PyObject *role = PyObject_GetAttr(of, words[ROLE]);
    if (role == NULL) {
        return -1;
    }
    int is_main = are_same(role, words[MAIN]);
    Py_DECREF(role);
    if (is_main < 0) {
        return 0;
    }
    reading->is_main = is_main;
    reading->process = process;
    reading->source = source;
    reading->before = before;
    reading->trains_in = *ts_slot(process, of_process[TRAINS_IN]);
    reading->last_iteration_id = NULL;
    reading->is_restored = *ts_slot(process, of_process[IS_RESTORED]) != Py_False;
    reading->started_restored = *ts_slot(process, of_process[STARTED_RESTORED]) != Py_False;
    int is_plain = load_track(&reading->track, *ts_slot(process, of_process[TRACK]));
    return is_plain <= 0 ? is_plain : load_track(&reading->beside, *ts_slot(process, of_process[BESIDE]));
}

/* Return a new reference to the track of TAIL if it was changed and is full, else NULL. */
static PyObject *
full_track(const Tail *tail)
{
    return tail->is_changed && tail->length + tail->count >= tail->limit ? Py_NewRef(tail->track) : NULL;
}

/* Give the process what was read, and then pack tracks that are full: 0, or -1 with an exception. */
static int
store_all(Reading *reading)
{
    PyObject *process = reading->process, *id = Py_XNewRef(reading->last_iteration_id);
    if (store_track(&reading->track) < 0 || store_track(&reading->beside) < 0
        || ts_store(ts_slot(process, of_process[LAST]), PyLong_FromLongLong(reading->last)) < 0
        || ts_store(ts_slot(process, of_process[NEXT_SEQ]), PyLong_FromLongLong(reading->next_seq)) < 0
        || ts_store(ts_slot(process, of_process[VERSION]), PyLong_FromLongLong(reading->version)) < 0
        || ts_store(ts_slot(process, of_process[STARTED_AT]), PyLong_FromLongLong(reading->started_at)) < 0
        || ts_store(ts_slot(process, of_process[STARTED_STEP]), PyLong_FromLongLong(reading->started_step)) < 0) {
        Py_XDECREF(id);
        return -1;
    }
    /* From here on foreign code may run: what was replaced may be of any class, and packing is Python. */
    PyObject *track = full_track(&reading->track), *beside = full_track(&reading->beside);
    if (id != NULL) {
        Py_XSETREF(*ts_slot(process, of_process[LAST_ITERATION_ID]), id);
    }
    int failed = (track != NULL && pack(track) < 0) || (beside != NULL && pack(beside) < 0);
    Py_XDECREF(track);
    Py_XDECREF(beside);
    return failed ? -1 : 0;
}

static PyObject *
read_usual(PyObject *Py_UNUSED(about), PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    Reading reading;
    long long before;
    if (count != 5 || keywords != NULL || !Py_IS_TYPE(args[0], process_type) || !PyList_CheckExact(args[2])
        || !ts_read_number(&args[4], &before)) {
        return TS_TO_PYTHON;
    }
    PyObject *events = args[2];
    Py_ssize_t place = PyNumber_AsSsize_t(args[3], NULL);
    int is_usual = place >= 0;
    if (!is_usual) {
        PyErr_Clear();
        return TS_TO_PYTHON;
    }
    while (is_usual && place < PyList_GET_SIZE(events)) {
        int is_plain = load(&reading, args[0], args[1], before);
        if (is_plain <= 0) {
            return is_plain < 0 ? NULL : PyLong_FromSsize_t(place);
        }
        Py_ssize_t first = place;
        while (is_usual && place < PyList_GET_SIZE(events) && !is_full(&reading.track) && !is_full(&reading.beside)) {
            is_usual = read_event(&reading, PyList_GET_ITEM(events, place));
            place += is_usual;
        }
        if (PyErr_Occurred() || (place > first && store_all(&reading) < 0)) {
            return NULL;
        }
        if (place == first) {
            break; /* no room: Python packs the track */
        }
    }
    return PyLong_FromSsize_t(place);
}

PyDoc_STRVAR(compile_goodput_doc,
"compile_goodput(python, process, track, classes, spans, timed, words, numbers, /)\n--\n\n"
"Return the function *python*, which reads usual events, compiled.\n\n"
"*process* and *track* are the classes of what it changes, *classes* those of all events, of spans, iterations and\n"
"starts of steps, *spans* the classes of usual spans, and *timed* the names of those whose time has a kind; *words* and\n"
"*numbers* are the constants that it uses.");

static PyObject *
compile_goodput(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *python, *of_spans, *names, *text[WORDS];
    PyTypeObject *process, *track, *event, *span, *iteration, *started;
    if (!PyArg_ParseTuple(args, "OO!O!(O!O!O!O!)O!O!(UUUUUU)(LLLLLLL)", &python, &PyType_Type, &process, &PyType_Type, &track,
                          &PyType_Type, &event, &PyType_Type, &span, &PyType_Type, &iteration, &PyType_Type, &started,
                          &PyTuple_Type, &of_spans, &PyFrozenSet_Type, &names, &text[DATA_LOADING], &text[THREAD],
                          &text[BADPUT_TYPE], &text[TRAINING], &text[MAIN], &text[ROLE], &known[NEVER], &known[NO_STEP],
                          &known[LATEST], &known[LOADED], &known[WHOLE_STEP], &known[LOADED_INSIDE], &known[REST_OF_STEP])
        || ts_find_slots(process, process_slots, PROCESS_SLOTS, of_process) < 0
        || ts_find_slots(track, track_slots, TRACK_SLOTS, of_track) < 0
        || ts_check_layout(event, ts_places_of_events) < 0 || ts_check_layout(span, ts_places_of_spans) < 0
        || ts_check_layout(iteration, ts_places_of_iterations) < 0) {
        return NULL;
    }
    for (int word = 0; word < WORDS; word++) {
        Py_XSETREF(words[word], Py_NewRef(text[word]));
    }
    Py_XSETREF(spans, Py_NewRef(of_spans));
    Py_XSETREF(timed, Py_NewRef(names));
    Py_XSETREF(process_type, (PyTypeObject *)Py_NewRef((PyObject *)process));
    Py_XSETREF(track_type, (PyTypeObject *)Py_NewRef((PyObject *)track));
    Py_XSETREF(iteration_type, (PyTypeObject *)Py_NewRef((PyObject *)iteration));
    Py_XSETREF(started_type, (PyTypeObject *)Py_NewRef((PyObject *)started));
    return ts_method(python, read_usual, python);
}

/* --- packing ----------------------------------------------------------------------------------------------------- */

enum { FIRST_BIT, INSIDE_BIT, WASTED_BIT, IGNORED_BITS, OWN_TIME, BITS };
static long long bits[BITS];

enum { MOST_CODES = 32 }; /* different ones in a block, of which a usual job has four */

/* The slices that are packed: GAP and DISTANCE are derived from the others. */
typedef struct {
    Py_ssize_t count;
    const long long *starts, *ends, *numbers;
    const unsigned int *codes;
    long long *gaps, *lengths, *distances;
} Slices;

/* Add LENGTH to the sum of KEY, one of the COUNT KEYS so far: whether that is possible. */
static int
add_sum(long long *keys, long long *totals, int *count, long long key, long long length)
{
    int place = 0;
    while (place < *count && keys[place] != key) {
        place++;
    }
    if (place == *count) {
        if (*count == MOST_CODES) {
            return 0;
        }
        keys[place] = key;
        totals[place] = 0;
        ++*count;
    }
    return !__builtin_add_overflow(totals[place], length, &totals[place]);
}

/* Append NUMBER to LIST: 0, or -1 with an exception. */
static int
append_number(PyObject *list, long long number)
{
    PyObject *object = PyLong_FromLongLong(number);
    int failed = object == NULL || PyList_Append(list, object) < 0;
    Py_XDECREF(object);
    return failed ? -1 : 0;
}

/* Append the NET time of a step to NETS, and to WASTED if it is LOST: 0, or -1 with an exception. */
static int
append_net(PyObject *nets, PyObject *wasted, long long net, int lost)
{
    return net != 0 && (append_number(nets, net) < 0 || (lost && append_number(wasted, net) < 0)) ? -1 : 0;
}

/* Sum up SLICES as SliceSums.add does: 1, or 0 if that is left to Python, or -1 with an exception. */
static int
sum_up(const Slices *slices, PyObject *sums, PyObject *nets, PyObject *wasted)
{
    long long keys[MOST_CODES], totals[MOST_CODES], net = 0, step_end = 0;
    int count = 0, lost = 0;
    for (Py_ssize_t place = 0; place < slices->count; place++) {
        long long code = slices->codes[place], length = slices->lengths[place];
        int is_first = (code & bits[FIRST_BIT]) != 0;
        if (is_first) {
            if (append_net(nets, wasted, net, lost) < 0) {
                return -1;
            }
            net = 0;
            lost = (code & bits[WASTED_BIT]) != 0;
        }
        int is_of_step = is_first || (slices->starts[place] == step_end && (code & bits[INSIDE_BIT]));
        step_end = is_of_step ? slices->ends[place] : step_end;
        if (!add_sum(keys, totals, &count, code & ~bits[FIRST_BIT], length)
            || (is_of_step && (code & ~bits[IGNORED_BITS]) == bits[OWN_TIME] && __builtin_add_overflow(net, length, &net))) {
            return 0;
        }
    }
    for (int place = 0; place < count; place++) {
        PyObject *key = PyLong_FromLongLong(keys[place]), *total = PyLong_FromLongLong(totals[place]);
        int failed = key == NULL || total == NULL || PyDict_SetItem(sums, key, total) < 0;
        Py_XDECREF(key);
        Py_XDECREF(total);
        if (failed) {
            return -1;
        }
    }
    return append_net(nets, wasted, net, lost) < 0 ? -1 : 1;
}

/*
 * Fill in the distances, as _distances does, and find the BASE and the LAST_STEP, which is that of the slices before:
 * whether that is possible.
 */
static int
find_distances(const Slices *slices, long long *base, long long *last_step)
{
    int has_step = 0;
    long long before = 0;
    *base = 0;
    for (Py_ssize_t place = 0; place < slices->count; place++) {
        long long code = slices->codes[place], number = slices->numbers[place], distance = 1;
        if (code & bits[FIRST_BIT]) {
            if (has_step ? __builtin_sub_overflow(number, before, &distance) : __builtin_sub_overflow(number, 1, base)) {
                return 0;
            }
            has_step = 1;
            before = number;
            *last_step = code & bits[WASTED_BIT] ? *last_step : number;
        }
        slices->distances[place] = distance;
    }
    return 1;
}

/* Return the number of slices until the codes come again if the steps are alike, as _alike finds, else 1. */
static Py_ssize_t
find_period(const Slices *slices)
{
    const unsigned int *codes = slices->codes;
    Py_ssize_t period = 1, first = 0;
    while (period < slices->count && codes[period] != codes[0]) {
        period++;
    }
    if (period == slices->count || slices->count % period != 0) {
        return 1;
    }
    for (Py_ssize_t place = period; place < slices->count; place++) {
        if (codes[place] != codes[place - period]) {
            return 1;
        }
    }
    while (first < period && !(codes[first] & bits[FIRST_BIT])) {
        first++;
    }
    Py_ssize_t last = first + 1;
    while (last < period && (codes[last] & bits[INSIDE_BIT])) {
        last++;
    }
    if (first == period || (codes[first] & bits[WASTED_BIT])) {
        return 1;
    }
    for (Py_ssize_t place = 0; place < slices->count; place++) {
        Py_ssize_t part = place % period;
        int is_within = first < part && part < last;
        if (part != first && (is_within ? (codes[part] & bits[FIRST_BIT]) || slices->gaps[place] != 0
                                        : (codes[part] & (bits[FIRST_BIT] | bits[INSIDE_BIT])) != 0)) {
            return 1;
        }
    }
    return period;
}

static long long
item_of(const Slices *slices, int column, Py_ssize_t place)
{
    return column == 0 ? slices->gaps[place] : column == 1 ? slices->lengths[place]
           : column == 2 ? (long long)slices->codes[place] : slices->distances[place];
}

/* Pack the columns part by part, of which there are PERIOD, as _pack does: their shape and the bytes, new references. */
static PyObject *
pack_columns(const Slices *slices, Py_ssize_t period, PyObject **shape)
{
    Py_ssize_t each = slices->count / period, size = 0;
    PyObject *planes = NULL;
    *shape = PyTuple_New(2 * COLUMNS * period);
    for (int pass = 0; *shape != NULL && pass < 2; pass++) { /* first the shape, and with it the size, then the bytes */
        unsigned char *bytes = NULL;
        if (pass == 1 && (planes = PyBytes_FromStringAndSize(NULL, size)) == NULL) {
            break;
        }
        bytes = planes == NULL ? NULL : (unsigned char *)PyBytes_AS_STRING(planes);
        for (Py_ssize_t part = 0; part < COLUMNS * period; part++) {
            int column = (int)(part / period), width = 0;
            long long least = LLONG_MAX, most = LLONG_MIN;
            for (Py_ssize_t place = part % period; place < slices->count; place += period) {
                long long item = item_of(slices, column, place);
                least = item < least ? item : least;
                most = item > most ? item : most;
            }
            for (unsigned long long range = (unsigned long long)most - (unsigned long long)least; range > 0; range >>= 8) {
                width++;
            }
            if (bytes == NULL) {
                PyObject *of_least = PyLong_FromLongLong(least), *of_width = PyLong_FromLong(width);
                PyTuple_SET_ITEM(*shape, 2 * part, of_least);
                PyTuple_SET_ITEM(*shape, 2 * part + 1, of_width);
                size += width * each;
                if (of_least == NULL || of_width == NULL) {
                    Py_CLEAR(*shape);
                    break;
                }
                continue;
            }
            for (Py_ssize_t at = 0; width > 0 && at < each; at++) {
                unsigned long long beyond
                    = (unsigned long long)item_of(slices, column, part % period + at * period) - (unsigned long long)least;
                for (int plane = 0; plane < width; plane++, beyond >>= 8) {
                    bytes[plane * each + at] = (unsigned char)beyond;
                }
            }
            bytes += width * each;
        }
    }
    if (planes == NULL) {
        Py_CLEAR(*shape);
    }
    return planes;
}

/* Pack SLICES: the result of the Python function, NULL with an exception, or TS_TO_PYTHON. */
static PyObject *
pack_these(const Slices *slices, long long last_step)
{
    long long base;
    for (Py_ssize_t place = 0; place < slices->count; place++) {
        if (__builtin_sub_overflow(slices->ends[place], slices->starts[place], &slices->lengths[place])
            || __builtin_sub_overflow(slices->starts[place], place > 0 ? slices->ends[place - 1] : slices->starts[place],
                                      &slices->gaps[place])) {
            return TS_TO_PYTHON;
        }
    }
    if (!find_distances(slices, &base, &last_step)) {
        return TS_TO_PYTHON;
    }
    PyObject *sums = PyDict_New(), *nets = PyList_New(0), *wasted = PyList_New(0), *shape = NULL, *planes = NULL;
    int is_summed = sums == NULL || nets == NULL || wasted == NULL ? -1 : sum_up(slices, sums, nets, wasted);
    if (is_summed > 0) {
        planes = pack_columns(slices, find_period(slices), &shape);
    }
    PyObject *result = planes == NULL ? NULL : Py_BuildValue("OOOLLOO", sums, nets, wasted, base, last_step, shape, planes);
    Py_XDECREF(sums);
    Py_XDECREF(nets);
    Py_XDECREF(wasted);
    Py_XDECREF(shape);
    Py_XDECREF(planes);
    return is_summed == 0 ? TS_TO_PYTHON : result;
}

static PyObject *
pack_slices(PyObject *Py_UNUSED(about), PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    Py_buffer views[COLUMNS];
    int held = 0, is_plain = count == COLUMNS + 1 && keywords == NULL;
    long long last_step;
    for (int column = STARTS; is_plain && column < COLUMNS; column++) {
        int size = column == CODES ? sizeof(unsigned int) : sizeof(long long);
        is_plain = PyObject_CheckBuffer(args[column]) && PyObject_GetBuffer(args[column], &views[column], PyBUF_FORMAT) == 0;
        held += is_plain;
        is_plain = is_plain && views[column].format != NULL && strcmp(views[column].format, column == CODES ? "I" : "q") == 0
                   && views[column].itemsize == size && views[column].len == views[0].len / views[0].itemsize * size;
    }
    PyErr_Clear();
    PyObject *result = TS_TO_PYTHON;
    if (is_plain && views[0].len > 0 && ts_read_number(&args[COLUMNS], &last_step)) {
        Py_ssize_t length = views[0].len / views[0].itemsize;
        long long *derived = PyMem_Malloc(3 * views[0].len);
        if (derived != NULL) {
            Slices slices = {length, views[STARTS].buf, views[ENDS].buf, views[NUMBERS].buf, views[CODES].buf,
                             derived, derived + length, derived + 2 * length};
            result = pack_these(&slices, last_step);
        }
        PyMem_Free(derived);
    }
    while (held > 0) {
        PyBuffer_Release(&views[--held]);
    }
    return result;
}

PyDoc_STRVAR(compile_packing_doc,
"compile_packing(python, bits, /)\n--\n\n"
"Return the function *python*, which sums up and packs slices, compiled.\n\n"
"*bits* are those of codes: the first slice of a step, within a step, done again, those that do not matter for a step's\n"
"own time, and the code of that.");

static PyObject *
compile_packing(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *python;
    if (!PyArg_ParseTuple(args, "O(LLLLL)", &python, &bits[FIRST_BIT], &bits[INSIDE_BIT], &bits[WASTED_BIT],
                          &bits[IGNORED_BITS], &bits[OWN_TIME])) {
        return NULL;
    }
    return ts_method(python, pack_slices, python);
}

static PyMethodDef functions[] = {
    {"compile_goodput", compile_goodput, METH_VARARGS, compile_goodput_doc},
    {"compile_packing", compile_packing, METH_VARARGS, compile_packing_doc},
    {NULL, NULL, 0, NULL},
};

int
ts_add_goodput(PyObject *module)
{
    frombytes = PyUnicode_InternFromString("frombytes");
    seal = PyUnicode_InternFromString("_seal");
    return frombytes == NULL || seal == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
