/* The module trackside._native: the list of its parts. */

#include "core.h"

#ifndef TRACKSIDE_SOURCES
#define TRACKSIDE_SOURCES ""
#endif

/* native/build.py finds this text in the file, so it need not import the module. */
static const char sources[] = "trackside-sources:" TRACKSIDE_SOURCES;

static int
execute(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "a subinterpreter cannot use it");
        return -1;
    }
    if (PyModule_AddStringConstant(module, "sources", strchr(sources, ':') + 1) < 0) {
        return -1;
    }
    if (ts_add_methods(module) < 0 || ts_add_count(module) < 0 || ts_add_ambient(module) < 0
        || ts_add_bus(module) < 0 || ts_add_counters(module) < 0 || ts_add_rows(module) < 0
        || ts_add_decoder(module) < 0 || ts_add_delivery(module) < 0 || ts_add_events(module) < 0
        || ts_add_goodput(module) < 0 || ts_add_kernels(module) < 0 || ts_add_metrics(module) < 0 || ts_add_sections(module) < 0
        || ts_add_spans(module) < 0
        || ts_add_extensions(module) < 0) {
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "trackside._native",
    .m_doc = "The compiled core; see native/core.h.",
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
