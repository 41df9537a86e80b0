/*
 * A method that is compiled for the plain case, and calls the Python function that it stands for in all other cases.
 *
 * It looks like that function: it has the same name, documentation and signature.
 */

#include "core.h"

char ts_to_python;
int ts_are_arguments_lent;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    ts_plain plain;
    PyObject *about;
    PyObject *python;
    int is_special; /* whether only a statement looks it up, as a "with" statement looks up __enter__ */
} Method;

/*
 * A special method bound to an object. It is freed right after the call, so its memory is reused, and the garbage
 * collector does not track it. If a program stores one in the object that it is bound to, neither is ever freed.
 */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *method, *object;
} Bound;

enum { MOST_FREE = 8 };

static PyTypeObject *method_type, *bound_type;
static Bound *free_bound[MOST_FREE];
static int free_count;

static PyObject *
method_vectorcall(PyObject *callable, PyObject *const *args, size_t flags, PyObject *keywords)
{
    Method *self = (Method *)callable;
    ts_are_arguments_lent = !(flags & PY_VECTORCALL_ARGUMENTS_OFFSET);
    PyObject *result = self->plain(self->about, args, PyVectorcall_NARGS(flags), keywords);
    if (result != TS_TO_PYTHON) {
        return result;
    }
    return PyObject_Vectorcall(self->python, args, flags, keywords);
}

PyObject *
ts_method(PyObject *about, ts_plain plain, PyObject *python)
{
    Method *self = PyObject_GC_New(Method, method_type);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = method_vectorcall;
    self->plain = plain;
    self->about = Py_NewRef(about);
    self->python = Py_NewRef(python);
    self->is_special = 0;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

/* --- binding ----------------------------------------------------------------------------------------------------- */

/* Call CALLABLE, the Python function, as a method of the object of SELF: for a call that is not the plain case. */
static __attribute__((noinline)) PyObject *
call_bound(Bound *self, PyObject *const *args, size_t flags, PyObject *keywords, PyObject *callable)
{
    PyObject *bound = PyMethod_New(callable, self->object);
    PyObject *result = bound == NULL ? NULL : PyObject_Vectorcall(bound, args, flags, keywords);
    Py_XDECREF(bound);
    return result;
}

/* The interpreter's calls of special methods leave room for the object before the arguments. */
static PyObject *
bound_vectorcall(PyObject *callable, PyObject *const *args, size_t flags, PyObject *keywords)
{
    Bound *self = (Bound *)callable;
    Method *method = (Method *)self->method;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    PyObject *result;
    if (keywords == NULL && count == 0) {
        result = method->plain(method->about, &self->object, 1, NULL);
    }
    else if (keywords == NULL && (flags & PY_VECTORCALL_ARGUMENTS_OFFSET)) {
        PyObject **all = (PyObject **)args - 1, *before = all[0];
        all[0] = self->object;
        result = method->plain(method->about, all, count + 1, NULL);
        all[0] = before;
    }
    else {
        result = TS_TO_PYTHON;
    }
    return result != TS_TO_PYTHON ? result : call_bound(self, args, flags, keywords, method->python);
}

static PyObject *
bind(PyObject *method, PyObject *object)
{
    Bound *self;
    if (free_count > 0) {
        self = free_bound[--free_count]; /* with its reference to the class */
        Py_SET_REFCNT(self, 1);
    }
    else {
        self = PyObject_New(Bound, bound_type);
        if (self == NULL) {
            return NULL;
        }
    }
    self->vectorcall = bound_vectorcall;
    self->method = Py_NewRef(method);
    self->object = Py_NewRef(object);
    return (PyObject *)self;
}

static void
bound_dealloc(Bound *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject *method = self->method, *object = self->object;
    if (free_count < MOST_FREE) {
        free_bound[free_count++] = self;
    }
    else {
        PyObject_Free(self);
        Py_DECREF(type);
    }
    Py_DECREF(method);
    Py_DECREF(object); /* last: a finalizer may bind another */
}

static PyObject *
bound_getattr(Bound *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr((PyObject *)self, name);
    if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        found = PyObject_GetAttr(self->method, name);
    }
    return found;
}

static PyMemberDef bound_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Bound, vectorcall), READONLY, NULL},
    {"__func__", T_OBJECT_EX, offsetof(Bound, method), READONLY, NULL},
    {"__self__", T_OBJECT_EX, offsetof(Bound, object), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot bound_slots[] = {
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_dealloc, bound_dealloc},
    {Py_tp_getattro, bound_getattr},
    {Py_tp_members, bound_members},
    {0, NULL},
};

static PyType_Spec bound_spec = {
    .name = "trackside._native.Bound",
    .basicsize = sizeof(Bound),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE
             | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = bound_slots,
};

/* --- the method -------------------------------------------------------------------------------------------------- */

static int
method_traverse(Method *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->about);
    Py_VISIT(self->python);
    return 0;
}

static void
method_dealloc(Method *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->about);
    Py_XDECREF(self->python);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyObject *
method_bind(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    if (object == NULL) {
        return Py_NewRef(self);
    }
    return ((Method *)self)->is_special ? bind(self, object) : PyMethod_New(self, object);
}

static PyObject *
method_attribute(Method *self, void *name)
{
    return PyObject_GetAttrString(self->python, name);
}

/* Look the attribute up in the method, then in the Python function. */
static PyObject *
method_getattr(Method *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr((PyObject *)self, name);
    if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        found = PyObject_GetAttr(self->python, name);
    }
    return found;
}

/* A method is pickled and copied by name, as functions are. */
static PyObject *
method_reduce(Method *self, PyObject *Py_UNUSED(none))
{
    return PyObject_GetAttrString(self->python, "__qualname__");
}

static PyMethodDef method_methods[] = {
    {"__reduce__", (PyCFunction)method_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef method_attributes[] = {
    {"__doc__", (getter)method_attribute, NULL, NULL, "__doc__"},
    {"__module__", (getter)method_attribute, NULL, NULL, "__module__"},
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
    {Py_tp_getattro, method_getattr},
    {Py_tp_getset, method_attributes},
    {Py_tp_methods, method_methods},
    {Py_tp_members, method_members},
    {0, NULL},
};

static PyType_Spec method_spec = {
    .name = "trackside._native.Method",
    .basicsize = sizeof(Method),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR
             | Py_TPFLAGS_IMMUTABLETYPE /* else the interpreter would look the method up again in each call */
             | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = method_slots,
};

PyDoc_STRVAR(special_doc,
"special_method(method, /)\n--\n\nReturn the compiled *method* for a special name: cheap to bind to an object and call once.");

static PyObject *
special_method(PyObject *Py_UNUSED(module), PyObject *method)
{
    if (!Py_IS_TYPE(method, method_type)) {
        return PyErr_Format(PyExc_TypeError, "not a compiled method");
    }
    Method *other = (Method *)method;
    PyObject *made = ts_method(other->about, other->plain, other->python);
    if (made != NULL) {
        ((Method *)made)->is_special = 1;
    }
    return made;
}

static PyMethodDef functions[] = {
    {"special_method", special_method, METH_O, special_doc},
    {NULL, NULL, 0, NULL},
};

int
ts_add_methods(PyObject *module)
{
    method_type = (PyTypeObject *)PyType_FromSpec(&method_spec);
    bound_type = (PyTypeObject *)PyType_FromSpec(&bound_spec);
    return method_type == NULL || bound_type == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
