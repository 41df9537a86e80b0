/*
 * The memory of spans and of the events of their ends, kept for the next ones of the same class.
 *
 * The interpreter searches the slots of each base class, and counts allocations towards the next garbage collection.
 * Allocating and freeing such an object by the interpreter therefore took a seventh of a step.
 *
 * A class that is written in Python gets our tp_dealloc. Its subclasses keep the interpreter's, which calls ours for
 * the slots of the class itself. Objects with a finalizer are not kept: the garbage collector notes in their memory
 * that it ran.
 */

#include "core.h"

enum { MOST_KEPT = 1024, MOST_NUMBERS = 3 };

struct Pool {
    PyTypeObject *type; /* owned for ever, like the pool */
    int number_count;
    Py_ssize_t of_numbers[MOST_NUMBERS]; /* the slots with numbers that are reused */
    struct Pool *next;
    int kept_count;
    PyObject *kept[MOST_KEPT]; /* with empty slots and a reference to the class; untracked */
};

static Pool *first;

static inline Pool *
pool_of(PyTypeObject *type)
{
    Pool *pool = first;
    while (pool != NULL && pool->type != type) {
        pool = pool->next;
    }
    return pool;
}

static inline void
drop_number(PyObject *self, Py_ssize_t offset)
{
    PyObject **slot = (PyObject **)((char *)self + offset), *number = *slot;
    if (number != NULL) {
        *slot = NULL;
        ts_drop_number(number);
    }
}

static void
pooled_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self), *base = type;
    Pool *pool = pool_of(type);
    int is_own = pool != NULL;
    if (is_own && type->tp_finalize != NULL) {
        if (PyObject_CallFinalizerFromDealloc(self) < 0) {
            return; /* it lives again */
        }
        if (Py_TYPE(self) != type) {
            Py_TYPE(self)->tp_dealloc(self); /* it was given another class, and is not finalized twice */
            return;
        }
    }
    PyObject_GC_UnTrack(self);
    Py_TRASHCAN_BEGIN(self, pooled_dealloc)
    while (pool == NULL) {
        base = base->tp_base;
        pool = pool_of(base);
    }
    for (int each = 0; each < pool->number_count; each++) {
        drop_number(self, pool->of_numbers[each]);
    }
    PyObject **end = (PyObject **)((char *)self + pool->type->tp_basicsize);
    for (PyObject **slot = (PyObject **)(self + 1); slot < end; slot++) {
        PyObject *value = *slot;
        if (value != NULL) {
            *slot = NULL;
            Py_DECREF(value);
        }
    }
    if (is_own && type->tp_finalize == NULL && pool->kept_count < MOST_KEPT) {
        pool->kept[pool->kept_count++] = self;
    }
    else {
        type->tp_free(self);
        Py_DECREF(type);
    }
    Py_TRASHCAN_END
}

PyObject *
ts_new(Pool *pool)
{
    if (pool->kept_count > 0) {
        PyObject *self = pool->kept[--pool->kept_count];
        Py_SET_REFCNT(self, 1);
        return self;
    }
    PyObject *made = pool->type->tp_alloc(pool->type, 0);
    if (made != NULL) {
        PyObject_GC_UnTrack(made);
    }
    return made;
}

int
ts_has_slots_alone(PyTypeObject *type)
{
    Py_ssize_t size = sizeof(PyObject);
    for (PyTypeObject *base = type; base != NULL; base = base->tp_base) {
        for (PyMemberDef *member = base->tp_members; member != NULL && member->name != NULL; member++) {
            size += member->type == T_OBJECT_EX ? sizeof(PyObject *) : 0;
        }
    }
    return size == type->tp_basicsize && type->tp_dictoffset == 0 && type->tp_weaklistoffset == 0
           && type->tp_itemsize == 0 && PyType_IS_GC(type);
}

Pool *
ts_pool(PyTypeObject *type, const Py_ssize_t *of_numbers, int count)
{
    Pool *pool = pool_of(type);
    if (pool != NULL) {
        return pool;
    }
    if (!ts_has_slots_alone(type)) {
        PyErr_Format(PyExc_SystemError, "instances of %s have more than slots", type->tp_name);
        return NULL;
    }
    pool = PyMem_Calloc(1, sizeof(Pool));
    if (pool == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    pool->type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    pool->number_count = count;
    memcpy(pool->of_numbers, of_numbers, count * sizeof *of_numbers);
    pool->next = first;
    first = pool;
    type->tp_dealloc = pooled_dealloc;
    return pool;
}
