/*
 * The surroundings of the running code: the innermost open span and the step, as in trackside.events.ambient.
 *
 * Python keeps both in a context variable, and setting one makes six objects. The parts of a step open and close
 * several times in each step. So, in the context that the interpreter gave the thread ("home"), they are kept beside
 * the variable. asyncio and Context.run enter other contexts.
 *
 *   top      the surroundings of the code that runs at home
 *   stored   the variable's value at home: the same, or the surroundings of the open parts, or the step that was left
 *
 * An iteration is stored when it is entered. The end of a training iteration is not stored by itself: the next value
 * that is stored, nearly always another iteration, replaces it.
 *
 * A context that was copied at home while a part was open, or after a step, has the stored value. If such a copy runs
 * in the same thread, as those of the tasks of asyncio.run do, the stored value stands for the top. In another thread,
 * or after another value was stored, it does not.
 */

#include "core.h"

/* One of each for the process. Home is None if the module was imported in a context that had been entered. */
static PyObject *variable, *nowhere, *outside, *stored;
PyObject *ts_home, *ts_top;
static unsigned long home_thread;

PyObject *
ts_surroundings(void)
{
    PyObject *around = NULL;
    if (ts_is_at_home()) {
        return Py_NewRef(ts_top);
    }
    if (variable == NULL) {
        return PyErr_Format(PyExc_SystemError, "nothing surrounds the running code yet");
    }
    if (PyContextVar_Get(variable, NULL, &around) < 0) {
        return NULL;
    }
    if (around == stored && around != ts_top && PyThread_get_thread_ident() == home_thread) {
        Py_SETREF(around, Py_NewRef(ts_top));
    }
    return around;
}

/* If a finalizer sets a variable while one is being set, CPython reads memory that it has freed (its issue 148891). */
static PyObject *
set_variable(PyObject *around)
{
    int was_collecting = ts_stop_collecting();
    PyObject *token = PyContextVar_Set(variable, around);
    ts_go_on_collecting(was_collecting);
    return token;
}

static int
reset_variable(PyObject *token)
{
    int was_collecting = ts_stop_collecting(), failed = PyContextVar_Reset(variable, token);
    ts_go_on_collecting(was_collecting);
    return failed;
}

/* Set the variable: a new reference to the token, or NULL with an exception. */
static PyObject *
store(PyObject *around)
{
    if (!ts_is_at_home()) {
        return set_variable(around);
    }
    /*
     * Only home and its copies may have this value, but every context has the variable's default: store an equal pair.
     */
    PyObject *kept = around == nowhere ? outside : around;
    PyObject *token = set_variable(kept);
    if (token != NULL) {
        Py_SETREF(stored, Py_NewRef(kept));
        Py_SETREF(ts_top, Py_NewRef(kept));
    }
    return token;
}

int
ts_surround(PyObject *around)
{
    PyObject *token = store(around);
    Py_XDECREF(token);
    return token == NULL ? -1 : 0;
}

int
ts_surround_part(PyObject *around, PyObject *left)
{
    if (!ts_is_at_home() || stored == left) {
        return ts_surround(around);
    }
    Py_SETREF(ts_top, Py_NewRef(around));
    return 0;
}

int
ts_surround_after_step(PyObject *around, PyObject *left)
{
    if (!ts_is_at_home() || stored != left) {
        return ts_surround(around);
    }
    Py_SETREF(ts_top, Py_NewRef(around == nowhere ? outside : around));
    return 0;
}

/* --- for Python -------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(get_doc, "surroundings()\n--\n\nReturn what surrounds the running code.");

static PyObject *
surroundings(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return ts_surroundings();
}

PyDoc_STRVAR(set_doc, "surround(around, /)\n--\n\nHave *around* surround what runs from here on; return a token.");

static PyObject *
surround(PyObject *Py_UNUSED(module), PyObject *around)
{
    /* Store the present surroundings, to which the token is to lead back. */
    if (ts_is_at_home() && stored != ts_top && ts_surround(ts_top) < 0) {
        return NULL;
    }
    return store(around);
}

PyDoc_STRVAR(reset_doc, "reset_surroundings(token, /)\n--\n\nHave the surroundings be as before surround().");

static PyObject *
reset_surroundings(PyObject *Py_UNUSED(module), PyObject *token)
{
    PyObject *around = NULL;
    if (reset_variable(token) < 0 || PyContextVar_Get(variable, NULL, &around) < 0) {
        return NULL;
    }
    if (ts_is_at_home()) {
        if (around == nowhere) {
            Py_SETREF(around, Py_NewRef(outside));
        }
        Py_SETREF(stored, Py_NewRef(around));
        Py_SETREF(ts_top, Py_NewRef(around));
    }
    Py_DECREF(around);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(use_doc,
"keep_surroundings(variable, nowhere, /)\n--\n\n"
"Keep what surrounds the running code in *variable*, whose default is *nowhere*.");

static PyObject *
keep_surroundings(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given, *unset;
    if (!PyArg_ParseTuple(args, "O!O!", &PyContextVar_Type, &given, &PyTuple_Type, &unset)) {
        return NULL;
    }
    PyObject *copy = PyTuple_GET_SIZE(unset) != 2
                         ? PyErr_Format(PyExc_SystemError, "the surroundings are no pair")
                         : PyTuple_Pack(2, PyTuple_GET_ITEM(unset, 0), PyTuple_GET_ITEM(unset, 1));
    PyObject *token = copy == NULL ? NULL : PyContextVar_Set(given, copy); /* from here on the thread has a context */
    if (token == NULL) {
        Py_XDECREF(copy);
        return NULL;
    }
    Py_DECREF(token);
    /* A context can be entered only once at a time: if it cannot be entered now, it is not the thread's own. */
    PyObject *context = PyThreadState_Get()->context;
    int is_own = PyContext_Enter(context) == 0 && PyContext_Exit(context) == 0;
    PyErr_Clear();
    Py_XSETREF(ts_home, Py_NewRef(is_own ? context : Py_None));
    home_thread = PyThread_get_thread_ident();
    Py_XSETREF(variable, Py_NewRef(given));
    Py_XSETREF(nowhere, Py_NewRef(unset));
    Py_XSETREF(outside, Py_NewRef(copy));
    Py_XSETREF(stored, Py_NewRef(copy));
    Py_XSETREF(ts_top, copy);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"surroundings", surroundings, METH_NOARGS, get_doc},
    {"surround", surround, METH_O, set_doc},
    {"reset_surroundings", reset_surroundings, METH_O, reset_doc},
    {"keep_surroundings", keep_surroundings, METH_VARARGS, use_doc},
    {NULL, NULL, 0, NULL},
};

int
ts_add_ambient(PyObject *module)
{
    ts_home = Py_NewRef(Py_None);
    return PyModule_AddFunctions(module, functions);
}
