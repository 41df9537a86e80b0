/*
 * Delivering the events at the front of the queue, as trackside.bus._delivery.deliver_plain does: each gets a row, its
 * number and its source, and is appended to the lists that its subscribers read. An event that is not the plain case is
 * left in the queue, and Dispatcher._deliver comes to it next. And copying what could change of an event that is about
 * to be queued, as trackside.wire._detached.detached_event does.
 *
 * Only the dispatcher delivers. Nothing is called between the moment at which an event leaves the queue and that at
 * which it is counted, except methods of deques and lists.
 */

#include "core.h"

enum { ENCODE, APPENDS, PENDS, BATCH, IS_PLAIN, NEEDS_NUMBER, OF_ADMISSION, FAN_OUT_SLOTS };
static const char *const fan_out_slots[] = {"encode", "appends", "pends", "batch", "is_plain", "needs_number", "admission"};
enum { NUMBER, FIRST_SEQ, OFFSET, ROOM, BATCHER_SLOTS };
static const char *const batcher_slots[] = {"batch", "first_seq", "offset", "room_bytes"};
static const char *const admission_slots[] = {"taken"};

/* All are set once and kept for ever, like the module trackside.bus._delivery. */
static Py_ssize_t of_fan_out[FAN_OUT_SLOTS], of_batcher[BATCHER_SLOTS], of_taken;
static PyTypeObject *fan_out_type, *batcher_type, *admission_type, *event_type;
static long long extra_bytes;
static PyObject *popleft_name;

/* Return whether somebody may hold EVENT besides the caller, who has one reference, perhaps one that IS_LENT. */
static inline int
is_held(PyObject *event, int is_lent)
{
#if PY_VERSION_HEX >= 0x030E0000
    /* The interpreter may lend an argument that a variable holds, without a reference of its own. */
    return is_lent || !PyUnstable_Object_IsUniqueReferencedTemporary(event);
#else
    return is_lent || Py_REFCNT(event) > 1;
#endif
}

/* Return whether events of TYPE can be copied here. The last such class is kept: asking takes as long as copying. */
static int
is_copied_here(PyTypeObject *type)
{
    static PyTypeObject *known;
    if (type != known) {
        if (!ts_has_slots_alone(type) || !PyType_IsSubtype(type, event_type)) {
            return 0;
        }
        Py_XSETREF(known, (PyTypeObject *)Py_NewRef((PyObject *)type));
    }
    return 1;
}

/*
 * Return a copy of EVENT without its number and source: a new reference, or NULL with an exception, or TS_TO_PYTHON if
 * instances of its class have more than slots.
 */
static PyObject *
copy_event(PyObject *event)
{
    PyTypeObject *type = Py_TYPE(event);
    if (!is_copied_here(type)) {
        return TS_TO_PYTHON;
    }
    PyObject *copy = type->tp_alloc(type, 0);
    if (copy == NULL) {
        return NULL;
    }
    if (!PyObject_GC_IsTracked(event)) {
        PyObject_GC_UnTrack(copy); /* it holds scalars alone, as EVENT does */
    }
    PyObject **to = (PyObject **)(copy + 1), **end = (PyObject **)((char *)copy + type->tp_basicsize);
    for (PyObject **from = (PyObject **)(event + 1); to < end; from++, to++) {
        *to = Py_XNewRef(*from);
    }
    Py_CLEAR(((Event *)copy)->source);
    Py_CLEAR(((Event *)copy)->seq);
    return copy;
}

/* Return whether nobody can change VALUE. */
static inline int
is_scalar(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    return type == &PyFloat_Type || type == &PyUnicode_Type || type == &PyLong_Type || type == &PyBool_Type
           || value == Py_None || type == &PyBytes_Type;
}

/*
 * Return VALUE, or a copy of it if anything but the slot that it is in refers to it: a new reference, or NULL with an
 * exception. It is a scalar, or a list, tuple or dict of scalars.
 */
static PyObject *
copy_value(PyObject *value)
{
    int is_alone = Py_REFCNT(value) == 1;
    if (PyDict_CheckExact(value) && !is_alone) {
        return PyDict_Copy(value);
    }
    if (PyList_CheckExact(value) && !is_alone) {
        return PyList_GetSlice(value, 0, PyList_GET_SIZE(value));
    }
    return Py_NewRef(value);
}

/* Return the bytes that VALUE takes, as trackside.wire._size does; more than any place has if it is not a scalar. */
static inline Py_ssize_t
size_of(PyObject *value)
{
    if (PyUnicode_CheckExact(value)) {
        return 64 + PyUnicode_GET_LENGTH(value) * (PyUnicode_IS_ASCII(value) ? 1 : 4);
    }
    if (PyBytes_CheckExact(value)) {
        return 64 + PyBytes_GET_SIZE(value);
    }
    return is_scalar(value) ? 32 : ts_place_bytes;
}

int
ts_is_small(PyObject *event, const Py_ssize_t *offsets, Py_ssize_t count)
{
    Py_ssize_t size = 0;
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *value = *ts_slot(event, offsets[place]), *key, *item;
        Py_ssize_t at = 0;
        if (value == NULL) {
            continue;
        }
        if (PyDict_CheckExact(value)) {
            while (size < ts_place_bytes && PyDict_Next(value, &at, &key, &item)) {
                size += 64 + size_of(key) + size_of(item);
            }
        }
        else if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
            for (; size < ts_place_bytes && at < PySequence_Fast_GET_SIZE(value); at++) {
                size += 16 + size_of(PySequence_Fast_GET_ITEM(value, at));
            }
        }
        else {
            size += size_of(value);
        }
    }
    return size < ts_place_bytes;
}

/* Have the garbage collector leave out EVENT, whose class has slots alone, if it need not visit what EVENT holds. */
static void
untrack(PyObject *event)
{
    for (PyObject **slot = (PyObject **)(event + 1); (char *)slot < (char *)event + Py_TYPE(event)->tp_basicsize; slot++) {
        if (*slot != NULL && !is_scalar(*slot) && (!PyDict_CheckExact(*slot) || PyObject_GC_IsTracked(*slot))) {
            return;
        }
    }
    PyObject_GC_UnTrack(event);
}

PyObject *
ts_detached(PyObject *event, PyObject *changeable, int is_lent)
{
    PyObject *detached = is_held(event, is_lent) ? copy_event(event) : Py_NewRef(event);
    if (detached == TS_TO_PYTHON && ts_count_offsets(changeable) == 0) {
        return Py_NewRef(event);
    }
    for (Py_ssize_t place = 0; detached != NULL && detached != TS_TO_PYTHON && place < ts_count_offsets(changeable); place++) {
        Py_ssize_t offset = ts_offsets(changeable)[place];
        PyObject *value = *ts_slot(detached, offset);
        PyObject *copy = value == NULL ? NULL : copy_value(value);
        if (copy == NULL) {
            Py_CLEAR(detached);
        }
        else {
            Py_XSETREF(*ts_slot(detached, offset), copy); /* frees nothing: the event, or its owner, has the value */
        }
    }
    PyErr_Clear();
    if (detached != NULL && detached != TS_TO_PYTHON && PyObject_GC_IsTracked(detached) && is_copied_here(Py_TYPE(detached))) {
        untrack(detached);
    }
    return detached == TS_TO_PYTHON ? NULL : detached;
}

static PyObject *
copy_plain(PyObject *Py_UNUSED(about), PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (count != 1 || keywords != NULL) {
        return TS_TO_PYTHON;
    }
    PyObject *copy = copy_event(args[0]);
    if (copy != NULL && copy != TS_TO_PYTHON && !PyObject_GC_IsTracked(copy)) {
        PyObject_GC_Track(copy); /* its values are replaced: they may be lists and dicts */
    }
    return copy;
}

/* Return the FanOut of events of CLS, borrowed, if it is known and plain, and its schema is in the batch; else NULL. */
static PyObject *
plain_fan_out(PyObject *fan_outs, PyTypeObject *cls, long long batch)
{
    long long introduced;
    /* Classes are compared by identity, so nothing is called, unless a metaclass has a hash of its own. */
    if (Py_TYPE(cls)->tp_hash != PyType_Type.tp_hash) {
        return NULL;
    }
    PyObject *found = PyDict_GetItemWithError(fan_outs, (PyObject *)cls);
    if (found == NULL) {
        PyErr_Clear();
        return NULL;
    }
    if (!Py_IS_TYPE(found, fan_out_type) || *ts_slot(found, of_fan_out[IS_PLAIN]) != Py_True
        || !ts_read_number(ts_slot(found, of_fan_out[BATCH]), &introduced) || introduced != batch) {
        return NULL;
    }
    for (int name = ENCODE; name < FAN_OUT_SLOTS; name++) {
        if (*ts_slot(found, of_fan_out[name]) == NULL) {
            return NULL;
        }
    }
    return PyTuple_CheckExact(*ts_slot(found, of_fan_out[APPENDS])) && PyTuple_CheckExact(*ts_slot(found, of_fan_out[PENDS]))
               && Py_IS_TYPE(*ts_slot(found, of_fan_out[OF_ADMISSION]), admission_type)
           ? found
           : NULL;
}

/* Call each of CALLS, methods of lists, with ITEM: 0, or -1 with an exception. */
static int
call_each(PyObject *calls, PyObject *item)
{
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(calls); place++) {
        PyObject *done = PyObject_CallOneArg(PyTuple_GET_ITEM(calls, place), item);
        if (done == NULL) {
            return -1;
        }
        Py_DECREF(done);
    }
    return 0;
}

/*
 * Deliver EVENT, the first of the queue, with the number SEQ: the size of its row, or 0 if it is left in the queue, or
 * -1 with an exception.
 */
static long long
deliver(PyObject *fan_out, PyObject *event, PyObject *popleft, PyObject *source, long long seq, long long offset)
{
    PyObject **taken_slot = ts_slot(*ts_slot(fan_out, of_fan_out[OF_ADMISSION]), of_taken), *number = NULL, *counted = NULL;
    int needs_number = *ts_slot(fan_out, of_fan_out[NEEDS_NUMBER]) == Py_True;
    long long taken, size = 0;
    if (needs_number && ((Event *)event)->seq != NULL) {
        return 0; /* it was logged before: Python makes a copy */
    }
    PyObject *row = ts_row(*ts_slot(fan_out, of_fan_out[ENCODE]), event, (unsigned long long)offset);
    if (row == TS_TO_PYTHON) {
        return 0;
    }
    if (row != NULL && ts_read_number(taken_slot, &taken)) {
        number = needs_number ? PyLong_FromLongLong(seq) : Py_NewRef(Py_None);
        counted = PyLong_FromLongLong(taken + 1);
    }
    PyObject *left = number == NULL || counted == NULL ? NULL : PyObject_CallNoArgs(popleft);
    if (left != NULL) {
        size = PyBytes_GET_SIZE(row);
        Py_XSETREF(*taken_slot, Py_NewRef(counted));
        if (needs_number) {
            Py_XSETREF(((Event *)event)->source, Py_NewRef(source));
            Py_XSETREF(((Event *)event)->seq, Py_NewRef(number));
        }
        if (call_each(*ts_slot(fan_out, of_fan_out[APPENDS]), row) < 0
            || call_each(*ts_slot(fan_out, of_fan_out[PENDS]), event) < 0) {
            size = -1;
        }
    }
    else {
        PyErr_Clear(); /* memory is short: Python comes to the same event, and counts it */
    }
    Py_XDECREF(row);
    Py_XDECREF(number);
    Py_XDECREF(counted);
    Py_XDECREF(left);
    return size;
}

static PyObject *
deliver_plain(PyObject *Py_UNUSED(about), PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    long long batch, first_seq, offset, room, delivered = 0, size = 1;
    if (count != 5 || keywords != NULL || !PyDict_CheckExact(args[1]) || !Py_IS_TYPE(args[2], batcher_type)
        || !PyLong_CheckExact(args[4])) {
        return TS_TO_PYTHON;
    }
    PyObject *queue = args[0], *fan_outs = args[1], *batcher = args[2], *source = args[3];
    PySequenceMethods *sequence = Py_TYPE(queue)->tp_as_sequence;
    Py_ssize_t most = PyLong_AsSsize_t(args[4]);
    if (most < 0 || sequence == NULL || sequence->sq_item == NULL || !ts_read_number(ts_slot(batcher, of_batcher[NUMBER]), &batch)
        || !ts_read_number(ts_slot(batcher, of_batcher[FIRST_SEQ]), &first_seq)
        || !ts_read_number(ts_slot(batcher, of_batcher[OFFSET]), &offset)
        || !ts_read_number(ts_slot(batcher, of_batcher[ROOM]), &room)) {
        PyErr_Clear();
        return TS_TO_PYTHON;
    }
    PyObject *popleft = PyObject_GetAttr(queue, popleft_name);
    if (popleft == NULL) {
        return NULL;
    }
    while (delivered < most && room > 0 && size > 0) {
        PyObject *event = sequence->sq_item(queue, 0);
        if (event == NULL) {
            PyErr_Clear();
            break;
        }
        PyObject *fan_out = plain_fan_out(fan_outs, Py_TYPE(event), batch);
        size = fan_out == NULL ? 0 : deliver(fan_out, event, popleft, source, first_seq + offset, offset);
        if (size != 0) {
            delivered++;
            offset++;
            room -= size + extra_bytes;
        }
        Py_DECREF(event); /* may run any code, which finds the dispatcher busy */
    }
    Py_DECREF(popleft);
    PyObject *new_offset = PyLong_FromLongLong(offset), *new_room = PyLong_FromLongLong(room);
    if (new_offset == NULL || new_room == NULL) {
        Py_XDECREF(new_offset);
        Py_XDECREF(new_room);
        return NULL;
    }
    Py_XSETREF(*ts_slot(batcher, of_batcher[OFFSET]), new_offset);
    Py_XSETREF(*ts_slot(batcher, of_batcher[ROOM]), new_room);
    return size < 0 ? NULL : PyLong_FromLongLong(delivered);
}

/* Store EVENT, the class of all events: 0, or -1 with an exception. */
static int
know_events(PyTypeObject *event)
{
    if (ts_check_layout(event, ts_places_of_events) < 0) {
        return -1;
    }
    Py_XSETREF(event_type, (PyTypeObject *)Py_NewRef((PyObject *)event));
    return 0;
}

PyDoc_STRVAR(compile_copy_doc,
"compile_copy(python, event, /)\n--\n\n"
"Return the function *python*, which copies events, compiled; the copy has no number yet.\n\n"
"*event* is the class of all events.");

static PyObject *
compile_copy(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *python;
    PyTypeObject *event;
    if (!PyArg_ParseTuple(args, "OO!", &python, &PyType_Type, &event) || know_events(event) < 0) {
        return NULL;
    }
    return ts_method(python, copy_plain, python);
}

PyDoc_STRVAR(compile_delivery_doc,
"compile_delivery(python, fan_out, batcher, admission, event, extra_bytes, /)\n--\n\n"
"Return the function *python*, which delivers plain events, compiled.\n\n"
"*fan_out*, *batcher*, *admission* and *event* are the classes of what it reads; *extra_bytes* is what a row takes of a\n"
"batch besides its own bytes.");

static PyObject *
compile_delivery(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *python;
    PyTypeObject *fan_out, *batcher, *admission, *event;
    if (!PyArg_ParseTuple(args, "OO!O!O!O!L", &python, &PyType_Type, &fan_out, &PyType_Type, &batcher, &PyType_Type,
                          &admission, &PyType_Type, &event, &extra_bytes)) {
        return NULL;
    }
    if (ts_find_slots(fan_out, fan_out_slots, FAN_OUT_SLOTS, of_fan_out) < 0
        || ts_find_slots(batcher, batcher_slots, BATCHER_SLOTS, of_batcher) < 0
        || ts_find_slots(admission, admission_slots, 1, &of_taken) < 0 || know_events(event) < 0) {
        return NULL;
    }
    Py_XSETREF(fan_out_type, (PyTypeObject *)Py_NewRef((PyObject *)fan_out));
    Py_XSETREF(batcher_type, (PyTypeObject *)Py_NewRef((PyObject *)batcher));
    Py_XSETREF(admission_type, (PyTypeObject *)Py_NewRef((PyObject *)admission));
    return ts_method(python, deliver_plain, python);
}

static PyMethodDef functions[] = {
    {"compile_copy", compile_copy, METH_VARARGS, compile_copy_doc},
    {"compile_delivery", compile_delivery, METH_VARARGS, compile_delivery_doc},
    {NULL, NULL, 0, NULL},
};

int
ts_add_delivery(PyObject *module)
{
    popleft_name = PyUnicode_InternFromString("popleft");
    return popleft_name == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
