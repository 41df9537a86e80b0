/*
 * Encoding events to rows, as trackside.wire.RowEncoder does, if the row is small and its values are of the declared
 * types.
 *
 * The bytes are those of msgpack's packer: each value in its shortest form. Values are read from the slots of an event,
 * and nothing is called meanwhile, so no other thread can change them. A value that is not of the declared types, a row
 * above the limit and a text without a UTF-8 form are left to Python, which encodes the row from its beginning.
 */

#include "core.h"

enum { LIMIT = 1024 };

/* Scalar types, as bits of a set, in the order in which trackside.events lists them. */
enum { BOOL = 1, INT = 2, FLOAT = 4, STR = 8, BYTES = 16, NONE = 32 };

typedef struct {
    Py_ssize_t offset; /* of the slot in the event */
    int scalars;       /* the types that the value may have */
    int entries;       /* the types of a map's values; -1 if the value may not be a map with text keys */
    int elements;      /* the types of a list's elements; -1 if the value may not be a list */
} Field;

typedef struct {
    PyObject_VAR_HEAD
    vectorcallfunc vectorcall;
    PyTypeObject *cls;
    PyObject *python;
    unsigned long long number;
    Py_ssize_t limit;
    Field fields[1]; /* as many as ob_size says */
} Encoding;

static PyTypeObject *encoding_type;

typedef struct {
    unsigned char *next, *end;
} Buffer;

/* --- msgpack: each function returns whether there was room ------------------------------------------------------ */

static inline int
put(Buffer *buffer, const void *bytes, Py_ssize_t size)
{
    if (buffer->end - buffer->next < size) {
        return 0;
    }
    memcpy(buffer->next, bytes, size);
    buffer->next += size;
    return 1;
}

/* Write HEAD and the lowest SIZE bytes of VALUE, the most significant one first. */
static inline int
put_number(Buffer *buffer, int head, unsigned long long value, int size)
{
    if (buffer->end - buffer->next < size + 1) {
        return 0;
    }
    *buffer->next++ = (unsigned char)head;
    for (int shift = 8 * (size - 1); shift >= 0; shift -= 8) {
        *buffer->next++ = (unsigned char)(value >> shift);
    }
    return 1;
}

static inline int
put_positive(Buffer *buffer, unsigned long long value)
{
    if (value < 1 << 7) {
        return put_number(buffer, (int)value, 0, 0);
    }
    if (value < 1 << 8) {
        return put_number(buffer, 0xcc, value, 1);
    }
    if (value < 1 << 16) {
        return put_number(buffer, 0xcd, value, 2);
    }
    if (value < 1ULL << 32) {
        return put_number(buffer, 0xce, value, 4);
    }
    return put_number(buffer, 0xcf, value, 8);
}

static inline int
put_negative(Buffer *buffer, long long value)
{
    unsigned long long bits = (unsigned long long)value;
    if (value >= -32) {
        return put_number(buffer, (int)(bits & 0xff), 0, 0);
    }
    if (value >= INT8_MIN) {
        return put_number(buffer, 0xd0, bits, 1);
    }
    if (value >= INT16_MIN) {
        return put_number(buffer, 0xd1, bits, 2);
    }
    if (value >= INT32_MIN) {
        return put_number(buffer, 0xd2, bits, 4);
    }
    return put_number(buffer, 0xd3, bits, 8);
}

static int
put_int(Buffer *buffer, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow == 0) {
        return number < 0 ? put_negative(buffer, number) : put_positive(buffer, (unsigned long long)number);
    }
    unsigned long long large = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return put_positive(buffer, large);
}

static inline int
put_float(Buffer *buffer, double value)
{
    unsigned long long bits;
    memcpy(&bits, &value, sizeof bits);
    return put_number(buffer, 0xcb, bits, 8);
}

/* Lengths above 65,535 need no form here: such a row is too large. */
static inline int
put_length(Buffer *buffer, Py_ssize_t length, int fix, int fix_limit, int head8, int head16)
{
    if (length < fix_limit) {
        return put_number(buffer, fix | (int)length, 0, 0);
    }
    if (head8 && length < 1 << 8) {
        return put_number(buffer, head8, length, 1);
    }
    return length < 1 << 16 && put_number(buffer, head16, length, 2);
}

static int
put_text(Buffer *buffer, PyObject *value)
{
    Py_ssize_t size;
    const char *text;
    if (PyUnicode_IS_COMPACT_ASCII(value)) {
        text = PyUnicode_DATA(value);
        size = PyUnicode_GET_LENGTH(value);
    }
    else {
        /* A text that is too large is not converted at all: the string would keep its UTF-8 form. */
        text = PyUnicode_GET_LENGTH(value) > LIMIT ? NULL : PyUnicode_AsUTF8AndSize(value, &size);
        if (text == NULL) {
            PyErr_Clear();
            return 0;
        }
    }
    return put_length(buffer, size, 0xa0, 32, 0xd9, 0xda) && put(buffer, text, size);
}

static int
put_bytes(Buffer *buffer, PyObject *value)
{
    Py_ssize_t size = PyBytes_GET_SIZE(value);
    int has_head = size < 1 << 8 ? put_number(buffer, 0xc4, size, 1) : put_number(buffer, 0xc5, size, 2);
    return size <= LIMIT && has_head && put(buffer, PyBytes_AS_STRING(value), size);
}

/* --- values ------------------------------------------------------------------------------------------------------ */

/* Write VALUE if its type is exactly one of TYPES. */
static int
put_scalar(Buffer *buffer, PyObject *value, int types)
{
    if (PyLong_CheckExact(value)) {
        return (types & INT) && put_int(buffer, value);
    }
    if (PyUnicode_CheckExact(value)) {
        return (types & STR) && put_text(buffer, value);
    }
    if (PyFloat_CheckExact(value)) {
        return (types & FLOAT) && put_float(buffer, PyFloat_AS_DOUBLE(value));
    }
    if (value == Py_None) {
        return (types & NONE) && put_number(buffer, 0xc0, 0, 0);
    }
    if (PyBool_Check(value)) {
        return (types & BOOL) && put_number(buffer, value == Py_True ? 0xc3 : 0xc2, 0, 0);
    }
    return (types & BYTES) && PyBytes_CheckExact(value) && put_bytes(buffer, value);
}

static int
put_map(Buffer *buffer, PyObject *map, int types)
{
    PyObject *key, *value;
    Py_ssize_t place = 0;
    if (!put_length(buffer, PyDict_GET_SIZE(map), 0x80, 16, 0, 0xde)) {
        return 0;
    }
    while (PyDict_Next(map, &place, &key, &value)) {
        if (!PyUnicode_CheckExact(key) || !put_text(buffer, key) || !put_scalar(buffer, value, types)) {
            return 0;
        }
    }
    return 1;
}

static int
put_list(Buffer *buffer, PyObject *list, int types)
{
    Py_ssize_t length = PyList_GET_SIZE(list);
    if (!put_length(buffer, length, 0x90, 16, 0, 0xdc)) {
        return 0;
    }
    for (Py_ssize_t place = 0; place < length; place++) {
        if (!put_scalar(buffer, PyList_GET_ITEM(list, place), types)) {
            return 0;
        }
    }
    return 1;
}

static inline int
put_field(Buffer *buffer, const Field *field, PyObject *event)
{
    PyObject *value = *(PyObject **)((char *)event + field->offset);
    if (value == NULL) {
        return 0;
    }
    if (PyDict_CheckExact(value)) {
        return field->entries >= 0 && put_map(buffer, value, field->entries);
    }
    if (PyList_CheckExact(value)) {
        return field->elements >= 0 && put_list(buffer, value, field->elements);
    }
    return put_scalar(buffer, value, field->scalars);
}

/* --- rows -------------------------------------------------------------------------------------------------------- */

PyObject *
ts_row(PyObject *encoding, PyObject *event, unsigned long long offset)
{
    Encoding *self = (Encoding *)encoding;
    unsigned char bytes[LIMIT];
    Buffer buffer = {bytes, NULL};
    if (!Py_IS_TYPE(encoding, encoding_type) || Py_TYPE(event) != self->cls) {
        return TS_TO_PYTHON;
    }
    buffer.end = bytes + self->limit;
    if (!put_length(&buffer, Py_SIZE(self) + 2, 0x90, 16, 0, 0xdc) || !put_positive(&buffer, self->number)
        || !put_positive(&buffer, offset)) {
        return TS_TO_PYTHON;
    }
    for (Py_ssize_t place = 0; place < Py_SIZE(self); place++) {
        if (!put_field(&buffer, &self->fields[place], event)) {
            return TS_TO_PYTHON;
        }
    }
    return PyBytes_FromStringAndSize((char *)bytes, buffer.next - bytes);
}

static PyObject *
encode(PyObject *callable, PyObject *const *args, size_t flags, PyObject *keywords)
{
    PyObject *row = TS_TO_PYTHON;
    if (PyVectorcall_NARGS(flags) == 2 && keywords == NULL && PyLong_CheckExact(args[1])) {
        int overflow;
        long long offset = PyLong_AsLongLongAndOverflow(args[1], &overflow);
        row = offset < 0 ? TS_TO_PYTHON : ts_row(callable, args[0], (unsigned long long)offset);
    }
    return row == TS_TO_PYTHON ? PyObject_Vectorcall(((Encoding *)callable)->python, args, flags, keywords) : row;
}

int
ts_find_slot(PyTypeObject *cls, PyObject *name, Py_ssize_t *offset)
{
    PyObject *found = PyObject_GetAttr((PyObject *)cls, name);
    int is_slot = 0;
    if (found == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    if (Py_IS_TYPE(found, &PyMemberDescr_Type) && PyType_IsSubtype(cls, PyDescr_TYPE(found))) {
        const PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        is_slot = member->type == T_OBJECT_EX;
        *offset = member->offset;
    }
    Py_DECREF(found);
    return is_slot;
}

int
ts_find_slots(PyTypeObject *cls, const char *const *names, int count, Py_ssize_t *offsets)
{
    for (int place = 0; place < count; place++) {
        PyObject *name = PyUnicode_InternFromString(names[place]);
        int is_slot = name == NULL ? -1 : ts_find_slot(cls, name, &offsets[place]);
        if (is_slot == 0) {
            PyErr_Format(PyExc_SystemError, "%s has no slot %U", cls->tp_name, name);
        }
        Py_XDECREF(name);
        if (is_slot <= 0) {
            return -1;
        }
    }
    return 0;
}

int
ts_check_layout(PyTypeObject *cls, const Place *places)
{
    for (; places->name != NULL; places++) {
        Py_ssize_t offset;
        if (ts_find_slots(cls, &places->name, 1, &offset) < 0) {
            return -1;
        }
        if (offset != (Py_ssize_t)places->offset) {
            PyErr_Format(PyExc_SystemError, "%s has its slot %s elsewhere than the core expects it", cls->tp_name, places->name);
            return -1;
        }
    }
    return 0;
}

#define PLACES_OF_EVENTS(type) \
    TS_PRIVATE_PLACE(type, seq), TS_PRIVATE_PLACE(type, source), TS_PLACE(type, at_ns), TS_PLACE(type, span_id), TS_PLACE(type, step)

const Place ts_places_of_events[] = {PLACES_OF_EVENTS(Event), {NULL, 0}};
const Place ts_places_of_spans[] = {
    PLACES_OF_EVENTS(SpanEnded),         TS_PLACE(SpanEnded, parent_span_id), TS_PLACE(SpanEnded, attributes),
    TS_PLACE(SpanEnded, duration_ns),    TS_PLACE(SpanEnded, error),          TS_PLACE(SpanEnded, name),
    {NULL, 0},
};
const Place ts_places_of_iterations[] = {
    PLACES_OF_EVENTS(IterationEnded),      TS_PLACE(IterationEnded, parent_span_id), TS_PLACE(IterationEnded, duration_ns),
    TS_PLACE(IterationEnded, failed),      TS_PLACE(IterationEnded, flops),          TS_PLACE(IterationEnded, kind),
    TS_PLACE(IterationEnded, loss),        TS_PLACE(IterationEnded, samples),        TS_PLACE(IterationEnded, tokens),
    {NULL, 0},
};

PyDoc_STRVAR(encoding_doc,
"row_encoding(cls, number, fields, limit, python, /)\n--\n\n"
"Return the function *python*, which encodes events of *cls* to rows, compiled; itself if they have no slots.\n\n"
"Each of *fields* is a name and three sets of scalar types: of the value, of a map's values and of a list's elements.");

static PyObject *
row_encoding(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *cls;
    PyObject *fields, *python;
    unsigned long long number;
    Py_ssize_t limit;
    if (!PyArg_ParseTuple(args, "O!KO!nO", &PyType_Type, &cls, &number, &PyTuple_Type, &fields, &limit, &python)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(fields);
    Encoding *self = PyObject_GC_NewVar(Encoding, encoding_type, count);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = encode;
    self->cls = (PyTypeObject *)Py_NewRef((PyObject *)cls);
    self->python = Py_NewRef(python);
    self->number = number;
    self->limit = limit < LIMIT ? limit : LIMIT;
    PyObject_GC_Track(self);
    for (Py_ssize_t place = 0; place < count; place++) {
        Field *field = &self->fields[place];
        PyObject *name;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(fields, place), "Uiii", &name, &field->scalars, &field->entries,
                              &field->elements)) {
            Py_DECREF(self);
            return NULL;
        }
        int is_slot = ts_find_slot(cls, name, &field->offset);
        if (is_slot <= 0) {
            Py_DECREF(self);
            return is_slot < 0 ? NULL : Py_NewRef(python);
        }
    }
    return (PyObject *)self;
}

static int
encoding_traverse(Encoding *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->cls);
    Py_VISIT(self->python);
    return 0;
}

static void
encoding_dealloc(Encoding *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->cls);
    Py_XDECREF(self->python);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMemberDef encoding_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Encoding, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot encoding_slots[] = {
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, encoding_traverse},
    {Py_tp_dealloc, encoding_dealloc},
    {Py_tp_members, encoding_members},
    {0, NULL},
};

static PyType_Spec encoding_spec = {
    .name = "trackside._native.RowEncoding",
    .basicsize = offsetof(Encoding, fields),
    .itemsize = sizeof(Field),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
             | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = encoding_slots,
};

PyDoc_STRVAR(offsets_doc,
"slot_offsets(cls, names, /)\n--\n\n"
"Return the offsets of the slots *names*, a tuple, in instances of *cls*, packed in bytes; None if one is no slot.");

static PyObject *
slot_offsets(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *cls;
    PyObject *names;
    if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &cls, &PyTuple_Type, &names)) {
        return NULL;
    }
    PyObject *packed = PyBytes_FromStringAndSize(NULL, PyTuple_GET_SIZE(names) * (Py_ssize_t)sizeof(Py_ssize_t));
    for (Py_ssize_t place = 0; packed != NULL && place < PyTuple_GET_SIZE(names); place++) {
        int is_slot = ts_find_slot(cls, PyTuple_GET_ITEM(names, place), (Py_ssize_t *)ts_offsets(packed) + place);
        if (is_slot <= 0) {
            Py_DECREF(packed);
            return is_slot < 0 ? NULL : Py_NewRef(Py_None);
        }
    }
    return packed;
}

static PyMethodDef functions[] = {
    {"row_encoding", row_encoding, METH_VARARGS, encoding_doc},
    {"slot_offsets", slot_offsets, METH_VARARGS, offsets_doc},
    {NULL, NULL, 0, NULL},
};

int
ts_add_rows(PyObject *module)
{
    encoding_type = (PyTypeObject *)PyType_FromSpec(&encoding_spec);
    return encoding_type == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
