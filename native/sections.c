/*
 * Making, entering and leaving sections in the plain case: every entry is timed with the system's clock, and a section
 * object is not entered within itself.
 *
 * No reference cycle can lead through a section, so the garbage collector does not track those made here.
 */

#include "core.h"

enum { OUTER, START_NS, TIMES, SECTION_SLOTS };
static const char *const section_slots[] = {"_outer", "_start_ns", "_times"};
enum { EVERY, LIST, TIMES_SLOTS };
static const char *const times_slots[] = {"every", "times"};
static const char *const sections_slots[] = {"_times"};

static Py_ssize_t of_section[SECTION_SLOTS], of_times[TIMES_SLOTS], of_sections;
static PyTypeObject *times_type;
static Pool *pool;
static Py_ssize_t fold_at;
static PyObject *zero, *one, *fold_name;

#define SECTION(section, name) (*ts_slot(section, of_section[name]))

/* Return the list of times to which SECTION adds, borrowed, if each of its entries is timed; else NULL. */
static inline PyObject *
list_of(PyObject *section)
{
    PyObject *times = SECTION(section, TIMES);
    if (times == NULL || !Py_IS_TYPE(times, times_type) || *ts_slot(times, of_times[EVERY]) != one) {
        return NULL;
    }
    PyObject *list = *ts_slot(times, of_times[LIST]);
    return list != NULL && PyList_CheckExact(list) ? list : NULL;
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
    if (count != 1 || keywords != NULL || (PyObject *)Py_TYPE(args[0]) != owner || SECTION(args[0], START_NS) != zero
        || list_of(args[0]) == NULL || !ts_read_monotonic(&now)) {
        return TS_TO_PYTHON;
    }
    PyObject *start = ts_number(now);
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
    int overflow;
    if (count != 4 || keywords != NULL || (PyObject *)Py_TYPE(args[0]) != owner || args[1] != Py_None
        || !is_outermost(args[0])) {
        return TS_TO_PYTHON;
    }
    PyObject *start = SECTION(args[0], START_NS), *list = list_of(args[0]);
    if (start == NULL || !PyLong_CheckExact(start) || list == NULL || !ts_read_monotonic(&now)) {
        return TS_TO_PYTHON;
    }
    begun = PyLong_AsLongLongAndOverflow(start, &overflow);
    if (overflow || begun <= 0) {
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
        return PyObject_CallMethodNoArgs(SECTION(args[0], TIMES), fold_name);
    }
    Py_RETURN_NONE;
}

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
    {NULL, NULL, 0, NULL},
};

int
ts_add_sections(PyObject *module)
{
    zero = PyLong_FromLong(0);
    one = PyLong_FromLong(1);
    fold_name = PyUnicode_InternFromString("fold");
    return zero == NULL || one == NULL || fold_name == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
