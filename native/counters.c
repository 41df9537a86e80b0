/*
 * Recording the samples of counters, stats and gauges.
 *
 * A Recorder is the base of trackside.counters.Instrument. Samples wait for a fold in one of two places. Plain samples,
 * which are finite floats or whole numbers that a float holds exactly, wait in a C array of one kind. All others wait
 * in the list that the Python methods use. The two are never used at once: before a sample is left to Python, the
 * samples of the array are moved to the list. So the order of the samples, and the chunks of 1,024 in which they are
 * folded, are those of pure Python, and the sums are the same to the last bit.
 *
 * If only the figures of a full array are needed, they replace it at once; Python folds sixteen such chunks at a time.
 * This is not done during a fold, which may need the samples.
 */

#include "core.h"

#include <float.h>
#include <math.h>

enum { FOLD_AT = 1024, MOST_CHUNKS = 16 };
static const long long MOST_WHOLE = 1LL << 52; /* FOLD_AT of them add up without an overflow */

typedef enum { FLOATS, WHOLES } Kind;

typedef union {
    double real;
    long long whole;
} Sample;

/* The figures of a chunk of samples that a fold needs. */
typedef struct {
    Kind kind;
    int count;
    Sample sum;
    double least, most, last;
} Figures;

typedef struct {
    PyObject_HEAD
    PyObject *list;   /* set by Instrument; NULL before */
    Sample *samples;  /* FOLD_AT of them; NULL before the first */
    int count;
    Kind kind;        /* of all samples, if there are any */
    char needs_samples, is_folding; /* set by Instrument */
    int chunk_count;
    Figures chunks[MOST_CHUNKS]; /* older than the samples */
} Recorder;

enum { COUNTER, STAT, GAUGE, KINDS_OF_INSTRUMENTS };

/*
 * The recording method of each kind of instrument: a method descriptor, like those of C types, because the interpreter
 * calls only these directly. Its function gets the object and the arguments alone, so everything else that a call needs
 * is here. All are set once and kept for ever.
 */
static struct {
    PyTypeObject *owner;
    PyObject *python;
    PyMethodDef definition;
} methods[KINDS_OF_INSTRUMENTS];

static PyTypeObject *recorder_type;
static PyObject *make_room_name;

/*
 * Add up as the interpreter's own sum() does, so that both implementations give the same figure: from Python 3.12 on
 * with the compensation of Neumaier (1974), in older versions without it.
 */
static double
sum_of(const Sample *samples, int count)
{
    double sum = 0.0;
#if PY_VERSION_HEX >= 0x030C0000
    double lost = 0.0;
    for (int place = 0; place < count; place++) {
        double sample = samples[place].real, after = sum + sample;
        lost += fabs(sum) >= fabs(sample) ? (sum - after) + sample : (sample - after) + sum;
        sum = after;
    }
    return lost != 0.0 && isfinite(lost) ? sum + lost : sum;
#else
    for (int place = 0; place < count; place++) {
        sum += samples[place].real;
    }
    return sum;
#endif
}

/* Write the figures of the SAMPLES, at least one, to FIGURES: 1, or 0 if the sum is not finite. */
static int
summarize(const Sample *samples, int count, Kind kind, Figures *figures)
{
    *figures = (Figures){.kind = kind, .count = count};
    if (kind == FLOATS) {
        double least = samples[0].real, most = least;
        for (int place = 1; place < count; place++) {
            double sample = samples[place].real;
            most = sample > most ? sample : most;
            least = sample < least ? sample : least;
        }
        figures->sum.real = sum_of(samples, count);
        figures->least = least;
        figures->most = most;
        figures->last = samples[count - 1].real;
        return isfinite(figures->sum.real);
    }
    long long sum = 0, least = samples[0].whole, most = least;
    for (int place = 0; place < count; place++) {
        long long sample = samples[place].whole;
        sum += sample;
        least = sample < least ? sample : least;
        most = sample > most ? sample : most;
    }
    figures->sum.whole = sum;
    figures->least = (double)least;
    figures->most = (double)most;
    figures->last = (double)samples[count - 1].whole;
    return 1;
}

static PyObject *
as_tuple(const Figures *figures)
{
    double least = figures->least, most = figures->most, last = figures->last;
    return figures->kind == FLOATS ? Py_BuildValue("(idddd)", figures->count, figures->sum.real, least, most, last)
                                   : Py_BuildValue("(iLddd)", figures->count, figures->sum.whole, least, most, last);
}

/* Make a chunk of the array's FOLD_AT samples: 1, or 0 if Python has to fold. */
static int
make_chunk(Recorder *self)
{
    if (self->needs_samples || self->is_folding || self->chunk_count == MOST_CHUNKS
        || !summarize(self->samples, self->count, self->kind, &self->chunks[self->chunk_count])) {
        return 0;
    }
    self->chunk_count++;
    self->count = 0;
    return 1;
}

static PyObject *
as_object(const Recorder *self, int place)
{
    Sample sample = self->samples[place];
    return self->kind == FLOATS ? PyFloat_FromDouble(sample.real) : PyLong_FromLongLong(sample.whole);
}

/* Return the array's samples as a list. Making floats and ints does not run the garbage collector. */
static PyObject *
as_list(const Recorder *self)
{
    PyObject *objects = PyList_New(self->count);
    if (objects == NULL) {
        return NULL;
    }
    /* PyList_New may have run a finalizer, which recorded or folded. */
    if (PyList_GET_SIZE(objects) != self->count) {
        Py_DECREF(objects);
        return as_list(self);
    }
    for (int place = 0; place < self->count; place++) {
        PyObject *object = as_object(self, place);
        if (object == NULL) {
            Py_DECREF(objects);
            return NULL;
        }
        PyList_SET_ITEM(objects, place, object);
    }
    return objects;
}

/* Move the array's samples to the end of the list, which is empty unless code that ran meanwhile added a sample. */
static int
spill(Recorder *self)
{
    if (self->count == 0) {
        return 0;
    }
    PyObject *objects = as_list(self);
    if (objects == NULL) {
        return -1;
    }
    Py_ssize_t end = PyList_GET_SIZE(self->list);
    int done = PyList_SetSlice(self->list, end, end, objects);
    if (done == 0) {
        self->count = 0;
    }
    Py_DECREF(objects); /* the list holds the elements, so only this list itself is freed */
    return done;
}

/* Have self._make_room() fold: 1 if the sample can be kept, 0 if it was refused, -1 with an exception. */
static int
make_room(Recorder *self)
{
    PyObject *answer = PyObject_CallMethodNoArgs((PyObject *)self, make_room_name);
    if (answer == NULL) {
        return -1;
    }
    int has_room = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return has_room;
}

/* Have Python record. */
static PyObject *
record_in_python(int which, PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    PyObject *bound = PyMethod_New(methods[which].python, self);
    PyObject *result = bound == NULL ? NULL : PyObject_Vectorcall(bound, args, count, keywords);
    Py_XDECREF(bound);
    return result;
}

/* Record a sample that is not the usual one of record(). */
static __attribute__((noinline)) PyObject *
record_any(int which, PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    int only_grows = which == COUNTER;
    Recorder *self = (Recorder *)object;
    /* A strict bus has a list of its own class, which checks each sample. */
    if (Py_TYPE(object) != methods[which].owner || self->list == NULL || !PyList_CheckExact(self->list)) {
        return record_in_python(which, object, args, count, keywords);
    }
    if (count != 1 || keywords != NULL || PyList_GET_SIZE(self->list) != 0) {
        goto python;
    }
    Sample sample;
    Kind kind;
    if (PyFloat_CheckExact(args[0])) {
        kind = FLOATS;
        sample.real = PyFloat_AS_DOUBLE(args[0]);
        if (!isfinite(sample.real) || (only_grows && sample.real < 0.0)) {
            goto python;
        }
    }
    else if (PyLong_CheckExact(args[0])) {
        int overflow;
        kind = WHOLES;
        sample.whole = PyLong_AsLongLongAndOverflow(args[0], &overflow);
        if (overflow || sample.whole > MOST_WHOLE || sample.whole < (only_grows ? 0 : -MOST_WHOLE)) {
            goto python;
        }
    }
    else {
        goto python;
    }
    if (self->count == FOLD_AT && !make_chunk(self)) {
        int has_room = make_room(self);
        if (has_room <= 0) {
            return has_room < 0 ? NULL : Py_NewRef(Py_None);
        }
        /* The fold may have failed, and the code that it called may have recorded or forked. */
        if (self->list == NULL || !PyList_CheckExact(self->list)) {
            Py_RETURN_NONE;
        }
        if (self->count == FOLD_AT || PyList_GET_SIZE(self->list) != 0) {
            goto keep;
        }
    }
    if (self->samples == NULL) {
        self->samples = PyMem_Malloc(FOLD_AT * sizeof(Sample));
        if (self->samples == NULL) {
            goto python;
        }
    }
    if (self->count == 0) {
        self->kind = kind;
    }
    else if (self->kind != kind) {
        goto python;
    }
    self->samples[self->count++] = sample;
    Py_RETURN_NONE;

keep: /* as Python does with a sample for which it has made room */
    if (spill(self) < 0 || PyList_Append(self->list, args[0]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;

python:
    return spill(self) < 0 ? NULL : record_in_python(which, object, args, count, keywords);
}

/* Record the usual sample: a finite float after another one, with room for it. */
static inline PyObject *
record(int which, PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (count == 1 && keywords == NULL && Py_TYPE(object) == methods[which].owner && PyFloat_CheckExact(args[0])) {
        Recorder *self = (Recorder *)object;
        double real = PyFloat_AS_DOUBLE(args[0]);
        if ((size_t)(self->count - 1) < FOLD_AT - 1 && self->kind == FLOATS && self->list != NULL
            && PyList_CheckExact(self->list) && PyList_GET_SIZE(self->list) == 0
            && (which == COUNTER ? 0.0 <= real && real <= DBL_MAX : isfinite(real))) {
            self->samples[self->count++].real = real;
            Py_RETURN_NONE;
        }
    }
    return record_any(which, object, args, count, keywords);
}

static PyObject *
add(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    return record(COUNTER, self, args, count, keywords);
}

static PyObject *
record_value(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    return record(STAT, self, args, count, keywords);
}

static PyObject *
set(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    return record(GAUGE, self, args, count, keywords);
}

PyDoc_STRVAR(take_doc,
"_take($self, as_list, /)\n--\n\n"
"Take the plain samples that wait, in chunks: of each its figures, or a list of the samples.\n\n"
"The figures are count, sum, minimum, maximum and last. It is a list if *as_list*, or if the sum is not finite.");

static PyObject *
recorder_take(Recorder *self, PyObject *as_a_list)
{
    Sample samples[FOLD_AT];
    Figures chunks[MOST_CHUNKS + 1];
    int wants_list = PyObject_IsTrue(as_a_list), count = self->count, chunk_count = self->chunk_count;
    if (wants_list < 0) {
        return NULL;
    }
    /* Copied, because the allocations below may run code that records or folds. */
    memcpy(chunks, self->chunks, chunk_count * sizeof(Figures));
    if (count > 0) {
        memcpy(samples, self->samples, count * sizeof(Sample));
    }
    Recorder copy = {.samples = samples, .count = count, .kind = self->kind};
    self->count = self->chunk_count = 0;
    int is_listed = count > 0;
    if (count > 0 && !wants_list && summarize(samples, count, copy.kind, &chunks[chunk_count])) {
        chunk_count++;
        is_listed = 0;
    }
    PyObject *taken = PyList_New(chunk_count + is_listed);
    for (int place = 0; taken != NULL && place < chunk_count + is_listed; place++) {
        PyObject *chunk = place < chunk_count ? as_tuple(&chunks[place]) : as_list(&copy);
        if (chunk == NULL) {
            Py_CLEAR(taken);
        }
        else {
            PyList_SET_ITEM(taken, place, chunk);
        }
    }
    return taken;
}

PyDoc_STRVAR(discard_doc, "_discard($self, /)\n--\n\nForget the samples that wait.");

static PyObject *
recorder_discard(Recorder *self, PyObject *Py_UNUSED(ignored))
{
    self->count = self->chunk_count = 0;
    if (self->list != NULL && PyList_Check(self->list)) {
        if (PyList_SetSlice(self->list, 0, PyList_GET_SIZE(self->list), NULL) < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *
recorder_waiting(Recorder *self, void *Py_UNUSED(closure))
{
    Py_ssize_t others = self->list == NULL || !PyList_Check(self->list) ? 0 : PyList_GET_SIZE(self->list);
    return PyLong_FromSsize_t(self->count + others);
}

static int
recorder_traverse(Recorder *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->list);
    return 0;
}

static void
recorder_dealloc(Recorder *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->list);
    PyMem_Free(self->samples);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef recorder_methods[] = {
    {"_take", (PyCFunction)recorder_take, METH_O, take_doc},
    {"_discard", (PyCFunction)recorder_discard, METH_NOARGS, discard_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef recorder_attributes[] = {
    {"waiting", (getter)recorder_waiting, NULL, "How many samples wait to be folded.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef recorder_members[] = {
    {"_buffer", T_OBJECT_EX, offsetof(Recorder, list), 0, NULL},
    {"_needs_samples", T_BOOL, offsetof(Recorder, needs_samples), 0, NULL},
    {"_is_folding", T_BOOL, offsetof(Recorder, is_folding), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot recorder_slots[] = {
    {Py_tp_doc, "Samples that wait to be folded; base of trackside.counters.Instrument."},
    {Py_tp_traverse, recorder_traverse},
    {Py_tp_dealloc, recorder_dealloc},
    {Py_tp_getset, recorder_attributes},
    {Py_tp_methods, recorder_methods},
    {Py_tp_members, recorder_members},
    {0, NULL},
};

static PyType_Spec recorder_spec = {
    .name = "trackside._native.Recorder",
    .basicsize = sizeof(Recorder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = recorder_slots,
};

PyDoc_STRVAR(compile_doc,
"compile_recording(counter, stat, gauge, /)\n--\n\n"
"Return the methods with which each of the three classes records a sample, compiled: add, record and set.");

static PyObject *
compile_recording(PyObject *Py_UNUSED(module), PyObject *args)
{
    static const struct {
        const char *name, *sample;
        PyCFunction function;
    } each[] = {
        [COUNTER] = {"add", "amount", (PyCFunction)(void (*)(void))add},
        [STAT] = {"record", "value", (PyCFunction)(void (*)(void))record_value},
        [GAUGE] = {"set", "value", (PyCFunction)(void (*)(void))set},
    };
    PyTypeObject *owners[KINDS_OF_INSTRUMENTS];
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyType_Type, &owners[0], &PyType_Type, &owners[1], &PyType_Type,
                          &owners[2])) {
        return NULL;
    }
    PyObject *compiled = PyTuple_New(KINDS_OF_INSTRUMENTS);
    for (int which = 0; compiled != NULL && which < KINDS_OF_INSTRUMENTS; which++) {
        PyObject *owner = (PyObject *)owners[which];
        PyObject *python = PyObject_GetAttrString(owner, each[which].name);
        PyObject *about = python == NULL ? NULL : PyObject_GetAttrString(python, "__doc__");
        PyObject *text = about == NULL ? NULL
                                       : PyUnicode_FromFormat("%s($self, %s)\n--\n\n%U", each[which].name,
                                                              each[which].sample, about);
        const char *doc = text == NULL ? NULL : PyUnicode_AsUTF8(text); /* valid as long as the text, which stays */
        Py_XDECREF(about);
        if (doc == NULL || !PyType_IsSubtype(owners[which], recorder_type)) {
            Py_XDECREF(python);
            Py_XDECREF(text);
            Py_DECREF(compiled);
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "not a class of recorders");
        }
        methods[which].definition =
            (PyMethodDef){each[which].name, each[which].function, METH_FASTCALL | METH_KEYWORDS, doc};
        Py_XSETREF(methods[which].python, python);
        Py_XSETREF(methods[which].owner, (PyTypeObject *)Py_NewRef(owner));
        PyObject *method = PyDescr_NewMethod(owners[which], &methods[which].definition);
        if (method == NULL) {
            Py_CLEAR(compiled);
        }
        else {
            PyTuple_SET_ITEM(compiled, which, method);
        }
    }
    return compiled;
}

static PyMethodDef functions[] = {
    {"compile_recording", compile_recording, METH_VARARGS, compile_doc},
    {NULL, NULL, 0, NULL},
};

int
ts_add_counters(PyObject *module)
{
    recorder_type = (PyTypeObject *)PyType_FromSpec(&recorder_spec);
    make_room_name = PyUnicode_InternFromString("_make_room");
    if (recorder_type == NULL || make_room_name == NULL || PyModule_AddFunctions(module, functions) < 0) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "Recorder", (PyObject *)recorder_type);
}
