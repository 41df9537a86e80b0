/*
 * An extension that says what it does: digest.digest(data) returns the 64-bit FNV-1a hash of bytes, while a span is open,
 * and counts them. Built by one command, or by setuptools: docs/write-an-extension.md.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <trackside.h>

static PyObject *
digest(PyObject *Py_UNUSED(module), PyObject *data)
{
    Py_buffer bytes;
    if (PyObject_GetBuffer(data, &bytes, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *span = trackside_open_span("digest", TRACKSIDE_PROFILE), *result = NULL;
    uint64_t hash = 0xcbf29ce484222325;
    Py_BEGIN_ALLOW_THREADS /* nothing of Python in here, and nothing of trackside */
    for (Py_ssize_t place = 0; place < bytes.len; place++) {
        hash = (hash ^ ((const uint8_t *)bytes.buf)[place]) * 0x100000001b3;
    }
    Py_END_ALLOW_THREADS
    if (bytes.len == 0) {
        PyErr_SetString(PyExc_ValueError, "nothing to digest"); /* the span has it as its error */
    }
    else {
        result = PyLong_FromUnsignedLongLong(hash);
        trackside_record(TRACKSIDE_COUNTER, "digest.bytes", (double)bytes.len);
    }
    trackside_close_span(span);
    PyBuffer_Release(&bytes);
    return result;
}

static int
execute(PyObject *Py_UNUSED(module))
{
    if (trackside_import() < 0) {
        PyErr_Clear(); /* goes without telemetry */
    }
    return 0;
}

static PyMethodDef functions[] = {
    {"digest", digest, METH_O, "Return the 64-bit FNV-1a hash of *data*."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "digest", .m_methods = functions, .m_slots = slots,
};

PyMODINIT_FUNC
PyInit_digest(void)
{
    return PyModuleDef_Init(&definition);
}
