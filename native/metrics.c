/*
 * Reading the iterations and spans of a process for its training metrics, as read_until_derived of
 * trackside.handlers.models.training_metrics does: usual events here, and all others by the Python functions.
 *
 * The figures that usual events change are kept here as numbers, and given to the objects before a Python function reads
 * an event, or when there is none left. No foreign code runs while usual events are read, and an event is either read
 * whole or not at all.
 */

#include "core.h"
#include <math.h>

enum { RANKS, BATCH_SIZE, SEQ_LENGTH, FLOPS_PER_SAMPLE, LOG_EVERY, ITERATIONS_START, LATEST_STEP, LATEST_LOSS, FIRST_END,
       LATEST_END, LATEST_PARENT, TIMER, WINDOW, PROGRESS, PARTS, METRICS_SLOTS };
static const char *const metrics_slots[] = {
    "ranks", "global_batch_size", "seq_length", "flops_per_sample", "log_every", "iterations_start", "latest_step",
    "latest_loss", "first_end_ns", "latest_end_ns", "latest_parent_id", "timer", "window", "progress", "parts",
};
enum { LAST_END, LAST_STEP, LOADING, INTERRUPTIONS, TIMER_SLOTS };
static const char *const timer_slots[] = {"last_end_ns", "last_step", "loading_ns", "interruptions"};
enum { TIMES, SAMPLES, KNOWN_SAMPLES, TOKENS, KNOWN_TOKENS, FLOPS, KNOWN_FLOPS, FASTEST, SLOWEST, PARTS_NS, PARTS_KNOWN, WORK_SLOTS };
static const char *const work_slots[] = {
    "times", "samples", "known_samples", "tokens", "known_tokens_ns", "flops", "known_flops_ns", "fastest", "slowest",
    "parts_ns", "parts_known",
};
enum { COUNT, TOTAL, WAITING, TIMES_SLOTS };
static const char *const times_slots[] = {"count", "total_ns", "waiting"};
enum { DONE_ITERATIONS, DONE_SAMPLES, DONE_TRAINING, DONE_FLOPS, PROGRESS_SLOTS };
static const char *const progress_slots[] = {"iterations", "samples", "train_ns", "flops"};
static const char *const parts_slots[] = {"within"};
enum { OF_METRICS, OF_TIMER, OF_WORK, OF_TIMES, OF_PROGRESS, OF_PARTS, OBJECTS };
enum { PLACES = 3, MOST_WAITING = 256, MOST_OPEN = 64 };

/* All are set once and kept for ever, like the module that gives them. */
static Py_ssize_t of_metrics[METRICS_SLOTS], of_timer[TIMER_SLOTS], of_work[WORK_SLOTS], of_times[TIMES_SLOTS],
    of_progress[PROGRESS_SLOTS], of_parts[1];
static PyTypeObject *object_types[OBJECTS], *iteration_type;
static PyObject *spans, *places, *special, *data_loading, *thread, *training, *readers, *nothing;
static long long longest_window, fold_at;

/*
 * Numbers of events are below SMALL, so a product of two that are converted to doubles is rounded once, as Python rounds
 * the product. Sums are below LARGE when they are loaded, so those of the MOST_WAITING iterations between two loads do not
 * overflow; times of parts, of which there may be more, are below LARGE after each addition, too.
 */
static const long long SMALL = 1LL << 53, LARGE = 1LL << 61;

typedef struct {
    long long value;
    int is_known;
} Optional;

typedef struct {
    double value;
    int is_known;
} OptionalDouble;

/* The times of the parts within an open span. */
typedef struct {
    long long id, parts[PLACES];
} Open;

typedef struct {
    PyObject *objects[OBJECTS], *within;
    Optional batch_size, seq_length, flops_per_sample, last_end, loading, known_tokens, known_flops;
    OptionalDouble fastest, slowest, done_flops, loss;
    long long ranks, log_every, last_step, samples, known_samples, tokens, count, total, done_iterations, done_samples,
        done_training, latest_step, latest_end, latest_parent, parts_ns[PLACES], parts_known[PLACES];
    double flops;
    Py_ssize_t were_waiting;
    int new_waiting, is_open_changed, is_loading_changed; /* the durations that are new, and whether others are */
    int open;
    long long durations[MOST_WAITING];
    Open within_open[MOST_OPEN];
} Reading;

/* --- reading the state ------------------------------------------------------------------------------------------- */

static int
is_within(long long number, long long bound)
{
    return -bound < number && number < bound;
}

/* Read the int or None in SLOT: whether it is one of them, and small enough. */
static int
read_optional(PyObject *const *slot, long long bound, Optional *found)
{
    *found = (Optional){0, *slot != Py_None};
    return !found->is_known || (ts_read_number(slot, &found->value) && is_within(found->value, bound));
}

static int
read_optional_double(PyObject *const *slot, OptionalDouble *found)
{
    if (*slot == NULL || (*slot != Py_None && !PyFloat_CheckExact(*slot))) {
        return 0;
    }
    found->is_known = *slot != Py_None;
    found->value = found->is_known ? PyFloat_AS_DOUBLE(*slot) : 0.0;
    return 1;
}

static int
read_sum(PyObject *const *slot, long long *number)
{
    return ts_read_number(slot, number) && is_within(*number, LARGE);
}

/* Read the ints of LIST, one for each part: whether it has them. */
static int
read_parts(PyObject *list, long long numbers[PLACES])
{
    if (list == NULL || !PyList_CheckExact(list) || PyList_GET_SIZE(list) != PLACES) {
        return 0;
    }
    for (int place = 0; place < PLACES; place++) {
        PyObject *item = PyList_GET_ITEM(list, place);
        if (!read_sum(&item, &numbers[place])) {
            return 0;
        }
    }
    return 1;
}

/* Read the state of METRICS: whether it is the plain case. */
static int
load(Reading *reading, PyObject *metrics)
{
    PyObject **objects = reading->objects;
    if (!Py_IS_TYPE(metrics, object_types[OF_METRICS])) {
        return 0;
    }
    objects[OF_METRICS] = metrics;
    objects[OF_TIMER] = *ts_slot(metrics, of_metrics[TIMER]);
    objects[OF_WORK] = *ts_slot(metrics, of_metrics[WINDOW]);
    objects[OF_PROGRESS] = *ts_slot(metrics, of_metrics[PROGRESS]);
    objects[OF_PARTS] = *ts_slot(metrics, of_metrics[PARTS]);
    objects[OF_TIMES] = objects[OF_WORK] != NULL && Py_IS_TYPE(objects[OF_WORK], object_types[OF_WORK])
                        ? *ts_slot(objects[OF_WORK], of_work[TIMES]) : NULL;
    for (int object = 0; object < OBJECTS; object++) {
        if (objects[object] == NULL || !Py_IS_TYPE(objects[object], object_types[object])) {
            return 0;
        }
    }
    PyObject *timer = objects[OF_TIMER], *work = objects[OF_WORK], *times = objects[OF_TIMES], *progress = objects[OF_PROGRESS];
    PyObject *interruptions = *ts_slot(timer, of_timer[INTERRUPTIONS]), *flops = *ts_slot(work, of_work[FLOPS]);
    PyObject *waiting = *ts_slot(times, of_times[WAITING]), *start = *ts_slot(metrics, of_metrics[ITERATIONS_START]), *first_end = *ts_slot(metrics, of_metrics[FIRST_END]);
    reading->within = *ts_slot(objects[OF_PARTS], of_parts[0]);
    if (interruptions == NULL || !PyList_CheckExact(interruptions) || PyList_GET_SIZE(interruptions) > 0 || start == NULL
        || start == Py_None || first_end == NULL || first_end == Py_None || flops == NULL || !PyFloat_CheckExact(flops)
        || reading->within == NULL || !PyDict_CheckExact(reading->within) || PyDict_GET_SIZE(reading->within) > MOST_OPEN
        || waiting == NULL || !PyList_CheckExact(waiting)
        || !ts_read_number(ts_slot(metrics, of_metrics[RANKS]), &reading->ranks) || reading->ranks < 1 || reading->ranks >= 1LL << 31
        || !ts_read_number(ts_slot(metrics, of_metrics[LOG_EVERY]), &reading->log_every) || reading->log_every < 1
        || !read_optional(ts_slot(metrics, of_metrics[BATCH_SIZE]), SMALL, &reading->batch_size)
        || !read_optional(ts_slot(metrics, of_metrics[SEQ_LENGTH]), SMALL, &reading->seq_length)
        || !read_optional(ts_slot(metrics, of_metrics[FLOPS_PER_SAMPLE]), SMALL, &reading->flops_per_sample)
        || !read_optional(ts_slot(timer, of_timer[LAST_END]), LARGE, &reading->last_end)
        || !read_optional(ts_slot(timer, of_timer[LOADING]), LARGE, &reading->loading)
        || !read_optional(ts_slot(work, of_work[KNOWN_TOKENS]), LARGE, &reading->known_tokens)
        || !read_optional(ts_slot(work, of_work[KNOWN_FLOPS]), LARGE, &reading->known_flops)
        || !read_optional_double(ts_slot(work, of_work[FASTEST]), &reading->fastest)
        || !read_optional_double(ts_slot(work, of_work[SLOWEST]), &reading->slowest)
        || !read_optional_double(ts_slot(progress, of_progress[DONE_FLOPS]), &reading->done_flops)
        || !read_sum(ts_slot(timer, of_timer[LAST_STEP]), &reading->last_step)
        || !read_sum(ts_slot(work, of_work[SAMPLES]), &reading->samples)
        || !read_sum(ts_slot(work, of_work[KNOWN_SAMPLES]), &reading->known_samples)
        || !read_sum(ts_slot(work, of_work[TOKENS]), &reading->tokens)
        || !read_sum(ts_slot(times, of_times[COUNT]), &reading->count)
        || !read_sum(ts_slot(times, of_times[TOTAL]), &reading->total)
        || !read_sum(ts_slot(progress, of_progress[DONE_ITERATIONS]), &reading->done_iterations)
        || !read_sum(ts_slot(progress, of_progress[DONE_SAMPLES]), &reading->done_samples)
        || !read_sum(ts_slot(progress, of_progress[DONE_TRAINING]), &reading->done_training)
        || !read_parts(*ts_slot(work, of_work[PARTS_NS]), reading->parts_ns)
        || !read_parts(*ts_slot(work, of_work[PARTS_KNOWN]), reading->parts_known)) {
        return 0;
    }
    PyObject *key, *parts;
    Py_ssize_t at = 0;
    reading->open = 0;
    while (PyDict_Next(reading->within, &at, &key, &parts)) {
        Open *open = &reading->within_open[reading->open++];
        if (!ts_read_number(&key, &open->id) || !read_parts(parts, open->parts)) {
            return 0;
        }
    }
    reading->flops = PyFloat_AS_DOUBLE(flops);
    reading->were_waiting = PyList_GET_SIZE(waiting);
    reading->new_waiting = reading->is_open_changed = reading->is_loading_changed = reading->loss.is_known = 0;
    return 1;
}

/* --- reading events ---------------------------------------------------------------------------------------------- */

/* Return the entry of the open span ID, or NULL. */
static Open *
find_open(Reading *reading, long long id)
{
    for (int place = reading->open - 1; place >= 0; place--) {
        if (reading->within_open[place].id == id) {
            return &reading->within_open[place];
        }
    }
    return NULL;
}

static void
remove_open(Reading *reading, Open *open)
{
    Open *last = &reading->within_open[--reading->open];
    memmove(open, open + 1, (size_t)((char *)last - (char *)open));
    reading->is_open_changed = 1;
}

/* Add the parts of OPEN, if it is not NULL, to PARTS: whether the sums stay below LARGE. */
static int
add_parts(const Open *open, long long parts[PLACES])
{
    for (int place = 0; open != NULL && place < PLACES; place++) {
        parts[place] += open->parts[place];
        if (!is_within(parts[place], LARGE)) {
            return 0;
        }
    }
    return 1;
}

/* Read the end of a span. */
static int
read_span(Reading *reading, PyObject *event)
{
    SpanEnded *span = (SpanEnded *)event;
    PyObject *name = span->name, *attributes = span->attributes, *number;
    long long at, id, parent_id, duration, place = -1, parts[PLACES] = {0};
    if (name == NULL || !PyUnicode_CheckExact(name) || !ts_read_number(&span->at_ns, &at) || !is_within(at, LARGE)
        || !ts_read_number(&span->span_id, &id) || !ts_read_number(&span->parent_span_id, &parent_id)
        || !ts_read_number(&span->duration_ns, &duration) || !is_within(duration, SMALL)
        || PySet_Contains(special, name) != 0) {
        return 0;
    }
    number = PyDict_GetItemWithError(places, name);
    if (number != NULL) {
        place = PyLong_AsLong(number);
    }
    Open *own = find_open(reading, id), *parent = find_open(reading, parent_id);
    if (own == NULL && place < 0) {
        return 1;
    }
    if (parent == NULL && reading->open == MOST_OPEN) {
        return 0;
    }
    int is_loading = PyUnicode_Compare(name, data_loading) == 0;
    if (is_loading && (attributes == NULL || !PyDict_CheckExact(attributes) || !ts_has_text_keys(attributes))) {
        return 0;
    }
    if (!add_parts(own, parts)) {
        return 0;
    }
    if (place >= 0) {
        parts[place] = duration; /* it includes the parts inside it */
    }
    if (parent != own && !add_parts(parent, parts)) {
        return 0;
    }
    if (is_loading && PyDict_Contains(attributes, thread) == 0) {
        reading->loading = (Optional){at - duration, 1};
        reading->is_loading_changed = 1;
    }
    if (own != NULL) {
        remove_open(reading, own);
    }
    parent = find_open(reading, parent_id); /* removing its own moved it */
    if (parent == NULL) {
        parent = &reading->within_open[reading->open++];
        parent->id = parent_id;
    }
    memcpy(parent->parts, parts, sizeof parts);
    reading->is_open_changed = 1;
    return 1;
}

/* Find the operations of an iteration on all ranks, of which GIVEN is what the rank gave: whether it is the plain case. */
static int
find_flops(const Reading *reading, PyObject *given, const Optional *samples, OptionalDouble *flops)
{
    double ranks = (double)reading->ranks;
    long long whole;
    flops->is_known = 1;
    if (given == Py_None) {
        flops->is_known = samples->is_known && reading->flops_per_sample.is_known;
        flops->value = flops->is_known ? (double)samples->value * (double)reading->flops_per_sample.value + 0.0 : 0.0;
        return 1;
    }
    if (given != NULL && PyFloat_CheckExact(given)) {
        flops->value = trunc(PyFloat_AS_DOUBLE(given)) * ranks + 0.0; /* an int has no negative zero */
        return fabs(flops->value) < 1e300; /* and is a number */
    }
    flops->value = ts_read_number(&given, &whole) && is_within(whole, SMALL) ? (double)whole * ranks : INFINITY;
    return flops->value < INFINITY;
}

/* Read the end of an iteration. */
static int
read_iteration(Reading *reading, PyObject *event)
{
    IterationEnded *iteration = (IterationEnded *)event;
    PyObject *kind = iteration->kind, *loss = iteration->loss;
    long long at, step, id, parent_id, duration, whole_loss = 0, product, per_gpu_time = 0, parts[PLACES] = {0};
    Optional samples, tokens;
    OptionalDouble flops;
    if (kind == NULL || !PyUnicode_CheckExact(kind) || PyUnicode_Compare(kind, training) != 0
        || iteration->failed != Py_False || !ts_read_number(&iteration->at_ns, &at)
        || !is_within(at, LARGE) || !ts_read_number(&iteration->step, &step) || !is_within(step, LARGE)
        || !ts_read_number(&iteration->span_id, &id) || !ts_read_number(&iteration->parent_span_id, &parent_id)
        || !ts_read_number(&iteration->duration_ns, &duration) || !is_within(duration, SMALL)
        || !read_optional(&iteration->samples, SMALL, &samples)
        || !read_optional(&iteration->tokens, SMALL, &tokens) || loss == NULL
        || !(loss == Py_None || PyFloat_CheckExact(loss) || (ts_read_number(&loss, &whole_loss) && is_within(whole_loss, SMALL)))) {
        return 0;
    }
    /* The step, as StepTimer.iteration_ended finds it. */
    long long own_start = at - duration, start = reading->last_end.value;
    if (!reading->last_end.is_known || (step >= 0 && step != reading->last_step + 1) || start > own_start) {
        start = own_start;
        if (!reading->last_end.is_known && reading->loading.is_known && reading->loading.value < start) {
            start = reading->loading.value;
        }
    }
    long long step_ns = at - start;
    /* Its work, as ProcessMetrics.iteration_ended finds it. */
    if (!samples.is_known) {
        samples = reading->batch_size;
    }
    if (!tokens.is_known && reading->seq_length.is_known && samples.is_known) {
        if (__builtin_mul_overflow(samples.value, reading->seq_length.value, &product) || !is_within(product, SMALL)) {
            return 0;
        }
        tokens = (Optional){product, 1};
    }
    if (!find_flops(reading, iteration->flops, &samples, &flops)
        || !is_within(step_ns, SMALL) || (flops.is_known && __builtin_mul_overflow(step_ns * 1000, reading->ranks, &per_gpu_time))
        || (reading->done_iterations + 1) % reading->log_every == 0 || reading->total + step_ns >= longest_window
        || reading->were_waiting + reading->new_waiting + 1 >= fold_at) {
        return 0;
    }
    Open *inside = id == 0 ? NULL : find_open(reading, id), *before = parent_id == id && id != 0 ? NULL : find_open(reading, parent_id);
    if (!add_parts(inside, parts) || !add_parts(before, parts)) {
        return 0;
    }
    long long parts_ns[PLACES];
    for (int place = 0; place < PLACES; place++) {
        parts_ns[place] = reading->parts_ns[place] + parts[place];
        if (!is_within(parts_ns[place], LARGE)) {
            return 0;
        }
    }
    reading->last_end = (Optional){at, 1};
    reading->last_step = step;
    reading->loading.is_known = 0;
    reading->is_loading_changed = 1;
    if (inside != NULL) {
        remove_open(reading, inside);
        before = before == NULL ? NULL : find_open(reading, parent_id); /* removing the other one moved it */
    }
    if (before != NULL) {
        remove_open(reading, before);
    }
    memcpy(reading->parts_ns, parts_ns, sizeof parts_ns);
    for (int place = 0; place < PLACES; place++) {
        reading->parts_known[place] += parts[place] != 0;
    }
    reading->durations[reading->new_waiting++] = step_ns;
    reading->count++;
    reading->total += step_ns;
    if (samples.is_known) {
        reading->samples += samples.value;
        reading->known_samples++;
        reading->done_samples += samples.value;
    }
    if (tokens.is_known) {
        reading->tokens += tokens.value;
        reading->known_tokens = (Optional){(reading->known_tokens.is_known ? reading->known_tokens.value : 0) + step_ns, 1};
    }
    if (flops.is_known) {
        reading->flops += flops.value;
        reading->known_flops = (Optional){(reading->known_flops.is_known ? reading->known_flops.value : 0) + step_ns, 1};
        reading->done_flops.value += flops.value; /* used only if it is known */
        if (step_ns > 0) {
            double per_gpu = flops.value / (double)per_gpu_time;
            if (!reading->fastest.is_known || per_gpu > reading->fastest.value) {
                reading->fastest = (OptionalDouble){per_gpu, 1};
            }
            if (!reading->slowest.is_known || per_gpu < reading->slowest.value) {
                reading->slowest = (OptionalDouble){per_gpu, 1};
            }
        }
    }
    reading->done_iterations++;
    reading->done_training += step_ns;
    reading->latest_step = step >= 0 ? step : reading->done_iterations - 1;
    if (loss != Py_None) {
        reading->loss = (OptionalDouble){PyFloat_CheckExact(loss) ? PyFloat_AS_DOUBLE(loss) : (double)whole_loss, 1};
    }
    reading->latest_end = at;
    reading->latest_parent = parent_id;
    return 1;
}

/* Read EVENT: whether it is usual. If it is not, nothing has changed. */
static int
read_event(Reading *reading, PyObject *event)
{
    PyTypeObject *type = Py_TYPE(event);
    if (type == iteration_type) {
        return read_iteration(reading, event);
    }
    return ts_is_among(type, spans) && read_span(reading, event);
}

/* --- storing the state ------------------------------------------------------------------------------------------- */

static PyObject *
from_optional(const Optional *number)
{
    return number->is_known ? PyLong_FromLongLong(number->value) : Py_NewRef(Py_None);
}

static PyObject *
from_optional_double(const OptionalDouble *number)
{
    return number->is_known ? PyFloat_FromDouble(number->value) : Py_NewRef(Py_None);
}

/* Return the times of parts as a list: a new reference, or NULL with an exception. */
static PyObject *
from_parts(const long long parts[PLACES])
{
    PyObject *list = PyList_New(PLACES);
    for (int place = 0; list != NULL && place < PLACES; place++) {
        PyObject *number = PyLong_FromLongLong(parts[place]);
        if (number == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, place, number);
    }
    return list;
}

/* Return the times of the parts within open spans as a dict: a new reference, or NULL with an exception. */
static PyObject *
from_open(const Reading *reading)
{
    PyObject *within = PyDict_New();
    for (int place = 0; within != NULL && place < reading->open; place++) {
        PyObject *key = PyLong_FromLongLong(reading->within_open[place].id);
        PyObject *parts = key == NULL ? NULL : from_parts(reading->within_open[place].parts);
        if (parts == NULL || PyDict_SetItem(within, key, parts) < 0) {
            Py_CLEAR(within);
        }
        Py_XDECREF(key);
        Py_XDECREF(parts);
    }
    return within;
}

/* Give the objects the figures of the new iterations: 0, or -1 with an exception. Making numbers runs no foreign code. */
static int
store_iterations(Reading *reading)
{
    PyObject *metrics = reading->objects[OF_METRICS], *timer = reading->objects[OF_TIMER], *work = reading->objects[OF_WORK],
             *times = reading->objects[OF_TIMES], *progress = reading->objects[OF_PROGRESS];
    for (int place = 0; place < reading->new_waiting; place++) {
        PyObject *duration = PyLong_FromLongLong(reading->durations[place]);
        int status = duration == NULL ? -1 : PyList_Append(*ts_slot(times, of_times[WAITING]), duration);
        Py_XDECREF(duration);
        if (status < 0) {
            return -1;
        }
    }
    return ts_store(ts_slot(timer, of_timer[LAST_END]), from_optional(&reading->last_end)) < 0
           || ts_store(ts_slot(timer, of_timer[LAST_STEP]), PyLong_FromLongLong(reading->last_step)) < 0
           || ts_store(ts_slot(work, of_work[SAMPLES]), PyLong_FromLongLong(reading->samples)) < 0
           || ts_store(ts_slot(work, of_work[KNOWN_SAMPLES]), PyLong_FromLongLong(reading->known_samples)) < 0
           || ts_store(ts_slot(work, of_work[TOKENS]), PyLong_FromLongLong(reading->tokens)) < 0
           || ts_store(ts_slot(work, of_work[KNOWN_TOKENS]), from_optional(&reading->known_tokens)) < 0
           || ts_store(ts_slot(work, of_work[FLOPS]), PyFloat_FromDouble(reading->flops)) < 0
           || ts_store(ts_slot(work, of_work[KNOWN_FLOPS]), from_optional(&reading->known_flops)) < 0
           || ts_store(ts_slot(work, of_work[FASTEST]), from_optional_double(&reading->fastest)) < 0
           || ts_store(ts_slot(work, of_work[SLOWEST]), from_optional_double(&reading->slowest)) < 0
           || ts_store(ts_slot(times, of_times[COUNT]), PyLong_FromLongLong(reading->count)) < 0
           || ts_store(ts_slot(times, of_times[TOTAL]), PyLong_FromLongLong(reading->total)) < 0
           || ts_store(ts_slot(progress, of_progress[DONE_ITERATIONS]), PyLong_FromLongLong(reading->done_iterations)) < 0
           || ts_store(ts_slot(progress, of_progress[DONE_SAMPLES]), PyLong_FromLongLong(reading->done_samples)) < 0
           || ts_store(ts_slot(progress, of_progress[DONE_TRAINING]), PyLong_FromLongLong(reading->done_training)) < 0
           || ts_store(ts_slot(progress, of_progress[DONE_FLOPS]), from_optional_double(&reading->done_flops)) < 0
           || ts_store(ts_slot(metrics, of_metrics[LATEST_STEP]), PyLong_FromLongLong(reading->latest_step)) < 0
           || ts_store(ts_slot(metrics, of_metrics[LATEST_END]), PyLong_FromLongLong(reading->latest_end)) < 0
           || ts_store(ts_slot(metrics, of_metrics[LATEST_PARENT]), PyLong_FromLongLong(reading->latest_parent)) < 0
           || (reading->loss.is_known
               && ts_store(ts_slot(metrics, of_metrics[LATEST_LOSS]), from_optional_double(&reading->loss)) < 0)
           ? -1 : 0;
}

/* Give the objects what was read: 0, or -1 with an exception. */
static int
store_all(Reading *reading)
{
    PyObject *work = reading->objects[OF_WORK], *timer = reading->objects[OF_TIMER];
    int has_iterations = reading->new_waiting > 0, was_collecting = ts_stop_collecting();
    PyObject *within = reading->is_open_changed ? from_open(reading) : Py_NewRef(reading->within);
    PyObject *parts_ns = has_iterations ? from_parts(reading->parts_ns) : Py_NewRef(Py_None);
    PyObject *parts_known = has_iterations ? from_parts(reading->parts_known) : Py_NewRef(Py_None);
    int status = within == NULL || parts_ns == NULL || parts_known == NULL ? -1 : 0;
    if (status == 0 && has_iterations) {
        ts_store(ts_slot(work, of_work[PARTS_NS]), Py_NewRef(parts_ns));
        ts_store(ts_slot(work, of_work[PARTS_KNOWN]), Py_NewRef(parts_known));
        status = store_iterations(reading);
    }
    if (status == 0 && reading->is_loading_changed) {
        status = ts_store(ts_slot(timer, of_timer[LOADING]), from_optional(&reading->loading));
    }
    if (status == 0) {
        status = ts_store(ts_slot(reading->objects[OF_PARTS], of_parts[0]), Py_NewRef(within));
    }
    ts_go_on_collecting(was_collecting);
    Py_XDECREF(within);
    Py_XDECREF(parts_ns);
    Py_XDECREF(parts_known);
    return status;
}

/* Let the Python function of EVENT read it: what it derives, a new reference, or NULL with an exception. */
static PyObject *
read_in_python(PyObject *metrics, PyObject *event)
{
    PyObject *both[] = {metrics, event}, *read = PyObject_GetItem(readers, (PyObject *)Py_TYPE(event));
    PyObject *derived = read == NULL ? NULL : PyObject_Vectorcall(read, both, 2, NULL);
    Py_XDECREF(read);
    return derived;
}

static PyObject *
read_until_derived(PyObject *Py_UNUSED(about), PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    Reading reading;
    if (count != 3 || keywords != NULL || !PyList_CheckExact(args[1])) {
        return TS_TO_PYTHON;
    }
    PyObject *metrics = args[0], *events = args[1], *derived = NULL;
    Py_ssize_t place = PyNumber_AsSsize_t(args[2], NULL);
    if (place < 0 || place > PyList_GET_SIZE(events)) {
        PyErr_Clear();
        return TS_TO_PYTHON;
    }
    while (place < PyList_GET_SIZE(events)) {
        int is_usual = load(&reading, metrics);
        Py_ssize_t first = place;
        while (is_usual && place < PyList_GET_SIZE(events)) {
            is_usual = read_event(&reading, PyList_GET_ITEM(events, place));
            place += is_usual;
        }
        if (PyErr_Occurred() || (place > first && store_all(&reading) < 0)) {
            return NULL;
        }
        if (place < PyList_GET_SIZE(events)) {
            PyObject *event = Py_NewRef(PyList_GET_ITEM(events, place++));
            derived = read_in_python(metrics, event);
            Py_DECREF(event);
            if (derived == NULL) {
                return NULL;
            }
            if (!PyTuple_CheckExact(derived) || PyTuple_GET_SIZE(derived) > 0) {
                return Py_BuildValue("nN", place, derived);
            }
            Py_DECREF(derived);
        }
    }
    return Py_BuildValue("nO", place, nothing);
}

PyDoc_STRVAR(compile_metrics_doc,
"compile_metrics(python, objects, classes, spans, places, special, names, readers, limits, /)\n--\n\n"
"Return the function *python*, which reads events for training metrics, compiled.\n\n"
"*objects* are the classes of what it changes, *classes* those of spans and iterations, and *spans*\n"
"those of usual spans; *places* are the indices of timed parts by name, and *special* the names of the spans\n"
"that Python reads; *names* and *limits* are the constants that it uses, and *readers* the Python functions by class.");

static PyObject *
compile_metrics(PyObject *Py_UNUSED(module), PyObject *args)
{
    static PyObject **const kept[] = {&spans, &places, &special, &data_loading, &thread, &training, &readers};
    PyObject *python, *given[7];
    PyTypeObject *types[OBJECTS], *span, *iteration;
    if (!PyArg_ParseTuple(args, "O(O!O!O!O!O!O!)(O!O!)O!O!O!(UUU)O(LL)", &python, &PyType_Type, &types[OF_METRICS], &PyType_Type,
                          &types[OF_TIMER], &PyType_Type, &types[OF_WORK], &PyType_Type, &types[OF_TIMES], &PyType_Type,
                          &types[OF_PROGRESS], &PyType_Type, &types[OF_PARTS], &PyType_Type, &span,
                          &PyType_Type, &iteration, &PyTuple_Type, &given[0], &PyDict_Type, &given[1], &PyFrozenSet_Type,
                          &given[2], &given[3], &given[4], &given[5], &given[6], &longest_window, &fold_at)
        || ts_find_slots(types[OF_METRICS], metrics_slots, METRICS_SLOTS, of_metrics) < 0
        || ts_find_slots(types[OF_TIMER], timer_slots, TIMER_SLOTS, of_timer) < 0
        || ts_find_slots(types[OF_WORK], work_slots, WORK_SLOTS, of_work) < 0
        || ts_find_slots(types[OF_TIMES], times_slots, TIMES_SLOTS, of_times) < 0
        || ts_find_slots(types[OF_PROGRESS], progress_slots, PROGRESS_SLOTS, of_progress) < 0
        || ts_find_slots(types[OF_PARTS], parts_slots, 1, of_parts) < 0
        || ts_check_layout(span, ts_places_of_spans) < 0 || ts_check_layout(iteration, ts_places_of_iterations) < 0) {
        return NULL;
    }
    PyObject *name, *place_of_name;
    Py_ssize_t at = 0;
    int has_places = PyDict_GET_SIZE(given[1]) == PLACES;
    while (PyDict_Next(given[1], &at, &name, &place_of_name)) {
        long long place;
        has_places &= ts_read_number(&place_of_name, &place) && 0 <= place && place < PLACES;
    }
    if (!has_places || fold_at > MOST_WAITING) {
        return PyErr_Format(PyExc_ValueError, "not %d parts, or more than %d durations that wait", PLACES, MOST_WAITING);
    }
    for (int place = 0; place < 7; place++) {
        Py_XSETREF(*kept[place], Py_NewRef(given[place]));
    }
    for (int object = 0; object < OBJECTS; object++) {
        Py_XSETREF(object_types[object], (PyTypeObject *)Py_NewRef((PyObject *)types[object]));
    }
    Py_XSETREF(iteration_type, (PyTypeObject *)Py_NewRef((PyObject *)iteration));
    return ts_method(python, read_until_derived, python);
}

static PyMethodDef functions[] = {
    {"compile_metrics", compile_metrics, METH_VARARGS, compile_metrics_doc},
    {NULL, NULL, 0, NULL},
};

int
ts_add_metrics(PyObject *module)
{
    nothing = PyTuple_New(0);
    return nothing == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
