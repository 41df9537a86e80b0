/*
 * A method that is compiled for the plain case, and in every other one is the Python function that it stands for.
 *
 * To everybody who looks at it it is that function: its name, its documentation and its signature.
 */

#include "trackside.h"

char ts_to_python;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    ts_plain plain;
    PyTypeObject *owner;
    PyObject *python;
} Method;

static PyTypeObject *method_type;

static PyObject *
method_vectorcall(PyObject *callable, PyObject *const *args, size_t flags, PyObject *keywords)
{
    Method *self = (Method *)callable;
    PyObject *result = self->plain(self->owner, args, PyVectorcall_NARGS(flags), keywords);
    if (result != TS_TO_PYTHON) {
        return result;
    }
    return PyObject_Vectorcall(self->python, args, flags, keywords);
}

PyObject *
ts_method(PyTypeObject *owner, ts_plain plain, PyObject *python)
{
    Method *self = PyObject_GC_New(Method, method_type);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = method_vectorcall;
    self->plain = plain;
    self->owner = (PyTypeObject *)Py_NewRef((PyObject *)owner);
    self->python = Py_NewRef(python);
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static int
method_traverse(Method *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->owner);
    Py_VISIT(self->python);
    return 0;
}

static void
method_dealloc(Method *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->owner);
    Py_XDECREF(self->python);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyObject *
method_bind(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    return object == NULL ? Py_NewRef(self) : PyMethod_New(self, object);
}

static PyObject *
method_attribute(Method *self, void *name)
{
    return PyObject_GetAttrString(self->python, name);
}

static PyGetSetDef method_attributes[] = {
    {"__code__", (getter)method_attribute, NULL, NULL, "__code__"},
    {"__doc__", (getter)method_attribute, NULL, NULL, "__doc__"},
    {"__module__", (getter)method_attribute, NULL, NULL, "__module__"},
    {"__name__", (getter)method_attribute, NULL, NULL, "__name__"},
    {"__qualname__", (getter)method_attribute, NULL, NULL, "__qualname__"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef method_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Method, vectorcall), READONLY, NULL},
    {"__wrapped__", T_OBJECT_EX, offsetof(Method, python), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot method_slots[] = {
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, method_traverse},
    {Py_tp_dealloc, method_dealloc},
    {Py_tp_descr_get, method_bind},
    {Py_tp_getset, method_attributes},
    {Py_tp_members, method_members},
    {0, NULL},
};

static PyType_Spec method_spec = {
    .name = "trackside._native.Method",
    .basicsize = sizeof(Method),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR
             | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = method_slots,
};

int
ts_add_methods(PyObject *Py_UNUSED(module))
{
    method_type = (PyTypeObject *)PyType_FromSpec(&method_spec);
    return method_type == NULL ? -1 : 0;
}
