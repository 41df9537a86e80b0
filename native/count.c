/*
 * A count that C code increments without making a number, and whose numbers are reused. It replaces itertools.count for
 * the ids of spans, and in trackside.core.ThreadSafeCount, with which the bus counts the events of each type. It holds
 * 2⁶³ - 1 at most, which no process reaches.
 */

#include "core.h"

typedef struct {
    PyObject_HEAD
    long long next;
} Count;

static PyTypeObject *count_type;

long long
ts_count(PyObject *count)
{
    return Py_IS_TYPE(count, count_type) ? ((Count *)count)->next++ : -1;
}

static PyObject *
count_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    long long start;
    static char *names[] = {"start", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "L", names, &start)) {
        return NULL;
    }
    Count *self = (Count *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->next = start;
    }
    return (PyObject *)self;
}

static PyObject *
count_next(Count *self)
{
    PyObject *number = ts_number(self->next);
    self->next += number != NULL;
    return number;
}

static void
count_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"next", T_LONGLONG, offsetof(Count, next), READONLY, "The number that comes next."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_members, members},
    {Py_tp_doc, "Count(start)\n--\n\nCount up from *start*, as itertools.count does."},
    {Py_tp_new, count_new},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, count_next},
    {Py_tp_dealloc, count_dealloc},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "trackside._native.Count",
    .basicsize = sizeof(Count),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

int
ts_add_count(PyObject *module)
{
    count_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return count_type == NULL ? -1 : PyModule_AddObjectRef(module, "Count", (PyObject *)count_type);
}
