/*
 * The functions for C and C++ extensions, which src/trackside/include/trackside.h calls.
 *
 * They call the Python functions. The bound method of each counter, stat or gauge is kept by its name. A span is
 * entered and left as by a "with" statement.
 */

#include "core.h"

#include "../src/trackside/include/trackside.h"

enum { KINDS = 3, MOST_NAMES = 10000 };
static const char *const makers[KINDS] = {"counter", "stat", "gauge"};
static const char *const methods[KINDS] = {"add", "record", "set"};

static PyObject *known[KINDS]; /* for each kind, the methods by name; None for a name that cannot be used */
static PyObject *library_name, *span_name, *priority_names, *enter_name, *exit_name;

PyObject *
ts_take_exception(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (type == NULL) {
        return NULL;
    }
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL) {
        PyException_SetTraceback(error, trace);
        Py_DECREF(trace);
    }
    Py_DECREF(type);
    return error;
#endif
}

static int
interrupt(void *Py_UNUSED(nothing))
{
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    return -1;
}

/* Report the exception that is set, if any, then set ERROR if it is not NULL. Steals the reference to ERROR. */
static void
give_back(PyObject *error, PyObject *about)
{
    if (PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
            PyErr_Clear();
            Py_AddPendingCall(interrupt, NULL);
        }
        else {
            PyErr_WriteUnraisable(about);
        }
    }
    if (error != NULL) {
#if PY_VERSION_HEX >= 0x030C0000
        PyErr_SetRaisedException(error);
#else
        PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, PyException_GetTraceback(error));
#endif
    }
}

/*
 * Return the method that records in the instrument of this KIND and NAME: a new reference, or NULL with an exception.
 */
static PyObject *
make_method(int kind, PyObject *name)
{
    PyObject *library = PyImport_ImportModule("trackside"), *method = NULL;
    PyObject *made = library == NULL ? NULL : PyObject_CallMethod(library, makers[kind], "O", name);
    if (made != NULL) {
        method = PyObject_GetAttrString(made, methods[kind]);
        Py_DECREF(made);
    }
    Py_XDECREF(library);
    return method;
}

/*
 * Return the method of this KIND and NAME, or None if NAME cannot be used: a new reference, or NULL with an exception.
 */
static PyObject *
find_method(int kind, PyObject *name)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *method;
    if (PyDict_GetItemRef(known[kind], name, &method) != 0) {
        return method;
    }
#else
    PyObject *method = PyDict_GetItemWithError(known[kind], name);
    if (method != NULL || PyErr_Occurred()) {
        return Py_XNewRef(method);
    }
#endif
    method = make_method(kind, name);
    if (method == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_WriteUnraisable(name);
        method = Py_NewRef(Py_None);
    }
    if (method != NULL && PyDict_GET_SIZE(known[kind]) < MOST_NAMES
        && PyDict_SetItem(known[kind], name, method) < 0) {
        Py_CLEAR(method);
    }
    return method;
}

static int
record(int kind, const char *text, double value)
{
    if (!PyGILState_Check() || text == NULL || kind < 0 || kind >= KINDS) {
        return -1;
    }
    PyObject *error = ts_take_exception(), *number = NULL, *done = NULL;
    PyObject *name = PyUnicode_FromString(text);
    PyObject *method = name == NULL ? NULL : find_method(kind, name);
    if (method != NULL && method != Py_None && (number = PyFloat_FromDouble(value)) != NULL) {
        done = PyObject_CallOneArg(method, number);
    }
    int result = done == NULL ? -1 : 0;
    Py_XDECREF(done);
    Py_XDECREF(number);
    Py_XDECREF(method);
    give_back(error, name);
    Py_XDECREF(name);
    return result;
}

static PyObject *
open_span(const char *text, int priority)
{
    if (!PyGILState_Check() || text == NULL) {
        return NULL;
    }
    PyObject *error = ts_take_exception(), *span = NULL;
    PyObject *name = PyUnicode_FromString(text), *number = name == NULL ? NULL : PyLong_FromLong(priority);
    PyObject *library = number == NULL ? NULL : PyImport_GetModule(library_name);
    if (library != NULL) {
        PyObject *const args[] = {library, name, number};
        span = PyObject_VectorcallMethod(span_name, args, 2, priority_names);
        Py_DECREF(library);
    }
    if (span != NULL) {
        PyObject *entered = PyObject_CallMethodNoArgs(span, enter_name);
        if (entered == NULL) {
            Py_CLEAR(span);
        }
        Py_XDECREF(entered);
    }
    Py_XDECREF(number);
    give_back(error, name);
    Py_XDECREF(name);
    return span;
}

static int
close_span(PyObject *span)
{
    if (!PyGILState_Check()) {
        return -1;
    }
    PyObject *error = ts_take_exception();
    PyObject *type = error == NULL ? Py_None : (PyObject *)Py_TYPE(error);
    PyObject *done = PyObject_CallMethodObjArgs(span, exit_name, type, error == NULL ? Py_None : error, Py_None, NULL);
    int result = done == NULL ? -1 : 0;
    Py_XDECREF(done);
    give_back(error, span);
    Py_DECREF(span);
    return result;
}

static const trackside_functions functions = {TRACKSIDE_API_VERSION, record, open_span, close_span};

int
ts_add_extensions(PyObject *module)
{
    for (int kind = 0; kind < KINDS; kind++) {
        if ((known[kind] = PyDict_New()) == NULL) {
            return -1;
        }
    }
    library_name = PyUnicode_InternFromString("trackside");
    span_name = PyUnicode_InternFromString("span");
    enter_name = PyUnicode_InternFromString("__enter__");
    exit_name = PyUnicode_InternFromString("__exit__");
    priority_names = Py_BuildValue("(s)", "priority");
    if (library_name == NULL || span_name == NULL || enter_name == NULL || exit_name == NULL || priority_names == NULL) {
        return -1;
    }
    PyObject *capsule = PyCapsule_New((void *)&functions, TRACKSIDE_API_CAPSULE, NULL);
    int added = capsule == NULL ? -1 : PyModule_AddObjectRef(module, "_C_API", capsule);
    Py_XDECREF(capsule);
    return added;
}
