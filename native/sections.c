/*
 * Making, entering and leaving sections in the plain case: entries are timed with the system's clock, and a section
 * object is not entered within itself. And summing up their times.
 *
 * No reference cycle can lead through a section, so the garbage collector does not track those made here.
 */

#include "core.h"

enum { OUTER, START_NS, TIMES, SECTION_SLOTS };
static const char *const section_slots[] = {"_outer", "_start_ns", "_times"};
enum { EVERY, LIST, COUNT_ENTRY, TIMES_SLOTS };
static const char *const times_slots[] = {"every", "times", "count_entry"};
static const char *const sections_slots[] = {"_times"};

static Py_ssize_t of_section[SECTION_SLOTS], of_times[TIMES_SLOTS], of_sections;
static PyTypeObject *times_type;
static Pool *pool;
static Py_ssize_t fold_at;
static PyObject *zero, *one, *skipped, *fold_name;

#define SECTION(section, name) (*ts_slot(section, of_section[name]))

/* Return the times of SECTION, borrowed, or NULL. */
static inline PyObject *
times_of(PyObject *section)
{
    PyObject *times = SECTION(section, TIMES);
    return times == NULL || !Py_IS_TYPE(times, times_type) ? NULL : times;
}

/* Count an entry of which not each is timed: whether it is timed, or -1 if it is not the plain case. */
static int
is_turn(PyObject *times)
{
    long long every, before;
    if (!ts_read_number(ts_slot(times, of_times[EVERY]), &every) || every < 0 || *ts_slot(times, of_times[COUNT_ENTRY]) == NULL) {
        return -1;
    }
    if (every == 0) {
        return 0;
    }
    PyObject *number = PyObject_CallNoArgs(*ts_slot(times, of_times[COUNT_ENTRY])); /* a method of itertools.count */
    int is_read = number != NULL && ts_read_number(&number, &before);
    Py_XDECREF(number);
    PyErr_Clear();
    return is_read && before % every == 0; /* an entry that was counted but cannot be timed is skipped */
}

/* Return whether SECTION is not entered within itself. */
static inline int
is_outermost(PyObject *section)
{
    PyObject *outer = SECTION(section, OUTER);
    return outer == Py_None || (outer != NULL && PyList_CheckExact(outer) && PyList_GET_SIZE(outer) == 0);
}

static PyObject *
enter_section(PyObject *owner, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    long long now;
    if (count != 1 || keywords != NULL || (PyObject *)Py_TYPE(args[0]) != owner || SECTION(args[0], START_NS) != zero) {
        return TS_TO_PYTHON;
    }
    PyObject *times = times_of(args[0]);
    if (times == NULL || !ts_read_monotonic(&now)) {
        return TS_TO_PYTHON;
    }
    int is_timed = *ts_slot(times, of_times[EVERY]) == one ? 1 : is_turn(times);
    if (is_timed < 0) {
        return TS_TO_PYTHON;
    }
    PyObject *start = is_timed ? ts_number(now) : Py_NewRef(skipped);
    if (start == NULL) {
        return NULL;
    }
    SECTION(args[0], START_NS) = start;
    Py_DECREF(zero); /* the reference that the slot held */
    return Py_NewRef(args[0]);
}

static PyObject *
leave_section(PyObject *owner, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    long long now, begun;
    if (count != 4 || keywords != NULL || (PyObject *)Py_TYPE(args[0]) != owner || args[1] != Py_None
        || !is_outermost(args[0])) {
        return TS_TO_PYTHON;
    }
    PyObject *start = SECTION(args[0], START_NS), *times = times_of(args[0]);
    if (start == skipped) {
        SECTION(args[0], START_NS) = Py_NewRef(zero);
        Py_DECREF(skipped); /* the reference that the slot held */
        Py_RETURN_NONE;
    }
    PyObject *list = times == NULL ? NULL : *ts_slot(times, of_times[LIST]);
    if (list == NULL || !PyList_CheckExact(list) || !ts_read_number(&start, &begun) || begun <= 0 || !ts_read_monotonic(&now)) {
        return TS_TO_PYTHON;
    }
    PyObject *taken = ts_number(now - begun);
    if (taken == NULL || PyList_Append(list, taken) < 0) {
        Py_XDECREF(taken);
        return NULL;
    }
    Py_DECREF(taken);
    SECTION(args[0], START_NS) = Py_NewRef(zero);
    ts_drop_number(start);
    if (PyList_GET_SIZE(list) >= fold_at) {
        return PyObject_CallMethodNoArgs(times, fold_name);
    }
    Py_RETURN_NONE;
}

#ifdef __SIZEOF_INT128__
/* Return HIGH * 2**64 + LOW: a new reference, or NULL with an exception. */
static PyObject *
joined(unsigned long long high, unsigned long long low)
{
    PyObject *above = PyLong_FromUnsignedLongLong(high), *bits = PyLong_FromLong(64), *below = PyLong_FromUnsignedLongLong(low);
    PyObject *shifted = above == NULL || bits == NULL ? NULL : PyNumber_Lshift(above, bits);
    PyObject *sum = shifted == NULL || below == NULL ? NULL : PyNumber_Or(shifted, below);
    Py_XDECREF(above);
    Py_XDECREF(bits);
    Py_XDECREF(below);
    Py_XDECREF(shifted);
    return sum;
}

/* The sums and the extremes of times, which are added up without an object for each. */
static PyObject *
sum_times(PyObject *Py_UNUSED(about), PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (count != 1 || keywords != NULL || !PyList_CheckExact(args[0]) || PyList_GET_SIZE(args[0]) == 0
        || PyList_GET_SIZE(args[0]) > 1 << 20) {
        return TS_TO_PYTHON;
    }
    long long total = 0, least = LLONG_MAX, greatest = 0;
    unsigned __int128 squares = 0;
    for (Py_ssize_t place = 0; place < PyList_GET_SIZE(args[0]); place++) {
        PyObject *item = PyList_GET_ITEM(args[0], place);
        long long time;
        if (!ts_read_number(&item, &time) || time < 0 || time >= 1LL << 42) { /* more than an hour: no sum overflows */
            return TS_TO_PYTHON;
        }
        total += time;
        squares += (unsigned __int128)time * (unsigned __int128)time;
        least = time < least ? time : least;
        greatest = time > greatest ? time : greatest;
    }
    PyObject *sum_of_squares = joined((unsigned long long)(squares >> 64), (unsigned long long)squares);
    return sum_of_squares == NULL ? NULL : Py_BuildValue("(LNLL)", total, sum_of_squares, least, greatest);
}
#else /* a processor of 32 bits */
static PyObject *
sum_times(PyObject *Py_UNUSED(about), PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count), PyObject *Py_UNUSED(keywords))
{
    return TS_TO_PYTHON;
}
#endif

/* Sections.section, for a name that it was called with before. */
static PyObject *
make_section(PyObject *owner, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (count != 2 || keywords != NULL || (PyObject *)Py_TYPE(args[0]) != owner || !PyUnicode_CheckExact(args[1])) {
        return TS_TO_PYTHON;
    }
    PyObject *table = *ts_slot(args[0], of_sections);
    PyObject *times = table == NULL || !PyDict_CheckExact(table) ? NULL : PyDict_GetItemWithError(table, args[1]);
    if (times == NULL) {
        PyErr_Clear();
        return TS_TO_PYTHON;
    }
    Py_INCREF(times); /* allocating may run code that drops the table's reference */
    PyObject *section = ts_new(pool);
    if (section == NULL) {
        Py_DECREF(times);
        return NULL;
    }
    SECTION(section, TIMES) = times;
    SECTION(section, START_NS) = Py_NewRef(zero);
    SECTION(section, OUTER) = Py_NewRef(Py_None);
    return section;
}

PyDoc_STRVAR(compile_sections_doc,
"compile_sections(section, times, fold_at, /)\n--\n\n"
"Return the methods __enter__ and __exit__ of the class *section*, compiled.\n\n"
"*times* is the class of what its times are added to, and *fold_at* how many may lie there.");

static PyObject *
compile_sections(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *section, *times;
    if (!PyArg_ParseTuple(args, "O!O!n", &PyType_Type, &section, &PyType_Type, &times, &fold_at)) {
        return NULL;
    }
    if (ts_find_slots(section, section_slots, SECTION_SLOTS, of_section) < 0
        || ts_find_slots(times, times_slots, TIMES_SLOTS, of_times) < 0
        || (pool = ts_pool(section, &of_section[START_NS], 1)) == NULL) {
        return NULL;
    }
    Py_XSETREF(times_type, (PyTypeObject *)Py_NewRef((PyObject *)times));
    PyObject *enter = PyObject_GetAttrString((PyObject *)section, "__enter__");
    PyObject *leave = enter == NULL ? NULL : PyObject_GetAttrString((PyObject *)section, "__exit__");
    PyObject *methods = leave == NULL ? NULL
                                      : Py_BuildValue("(NN)", ts_method((PyObject *)section, enter_section, enter),
                                                      ts_method((PyObject *)section, leave_section, leave));
    Py_XDECREF(enter);
    Py_XDECREF(leave);
    return methods;
}

PyDoc_STRVAR(compile_sums_doc,
"compile_sums(python, /)\n--\n\nReturn the function *python*, which sums up times, compiled.");

static PyObject *
compile_sums(PyObject *Py_UNUSED(module), PyObject *python)
{
    return ts_method(python, sum_times, python);
}

PyDoc_STRVAR(compile_making_doc,
"compile_making(sections, /)\n--\n\nReturn the method section of the class *sections*, compiled.");

static PyObject *
compile_making(PyObject *Py_UNUSED(module), PyObject *sections)
{
    if (pool == NULL || !PyType_Check(sections)) {
        return PyErr_Format(PyExc_TypeError, "not a class, or before compile_sections()");
    }
    if (ts_find_slots((PyTypeObject *)sections, sections_slots, 1, &of_sections) < 0) {
        return NULL;
    }
    PyObject *python = PyObject_GetAttrString(sections, "section");
    PyObject *method = python == NULL ? NULL : ts_method(sections, make_section, python);
    Py_XDECREF(python);
    return method;
}

static PyMethodDef functions[] = {
    {"compile_sections", compile_sections, METH_VARARGS, compile_sections_doc},
    {"compile_making", compile_making, METH_O, compile_making_doc},
    {"compile_sums", compile_sums, METH_O, compile_sums_doc},
    {NULL, NULL, 0, NULL},
};

int
ts_add_sections(PyObject *module)
{
    zero = PyLong_FromLong(0);
    one = PyLong_FromLong(1);
    skipped = PyLong_FromLong(-1);
    fold_name = PyUnicode_InternFromString("fold");
    return zero == NULL || one == NULL || skipped == NULL || fold_name == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
