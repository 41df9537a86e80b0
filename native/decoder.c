/*
 * Decoding: the rows of a frame to events, in one pass over its bytes.
 *
 * Everything here works on bytes of other processes. One rule keeps it small: only the plain case is handled here.
 * Bytes that are malformed, beyond a limit or of a kind that is seldom written (msgpack's extensions) make
 * decode_rows() return None. Then the decoder in Python (trackside.wire) decodes the whole frame and reports what is
 * wrong. A row whose values are well-formed but not of the declared types is returned as a list, from which the decoder
 * in Python makes an event. So each error and each conversion exists once.
 *
 * Ownership: a RowLayout owns its class and its constants and never changes. A call of decode_rows() owns all else, on
 * its stack or in its result. There is no other state, so threads share nothing.
 *
 * Bounds: the bytes are read only through a Cursor, which knows their end. Recursion ends at MAX_DEPTH. The length that
 * a list or a map claims is compared with the bytes that are left before anything is allocated for it.
 */

#include "core.h"

#include <stdint.h>

/* The limits of trackside.wire._values and trackside.events._fields. */
#define MAX_FRAME_BYTES (640 << 10)
#define MAX_FRAME_ROWS (1 << 14)
#define MAX_BYTES_BYTES (1 << 18)
#define MAX_STRING_BYTES (1 << 16)
#define MAX_ARRAY_LENGTH (1 << 16)
#define MAX_MAP_LENGTH (1 << 10)
#define MAX_DEPTH 32

/* Kinds of values; each column of a row admits a set of them. */
enum {
    NIL = 1,
    BOOLEAN = 2,
    INTEGER = 4,
    DOUBLE = 8,
    TEXT = 16,
    BYTES = 32,
    LIST = 64,
    MAP = 128,
    ANYTHING = 255,
};

/*
 * The kinds that a value may have, and those that its elements may have if it is a list or a map. Deeper down, all
 * kinds are admitted.
 */
typedef struct {
    unsigned char value;
    unsigned char elements;
    unsigned char entries;
} Admitted;

/* --- layouts ------------------------------------------------------------------------------------------------- */

/*
 * A column of a row: the kinds that it admits, and the offset of the slot that stores it; 0 if the event has no such
 * slot.
 */
typedef struct {
    Py_ssize_t slot;
    Admitted admitted;
} Column;

typedef struct {
    Py_ssize_t slot;
    PyObject *value;
} Constant;

typedef struct {
    PyObject_HEAD
    Py_ssize_t width;
    PyTypeObject *cls; /* NULL: all rows are returned as lists */
    Py_ssize_t source_slot, seq_slot;
    Py_ssize_t column_count, constant_count;
    Column *columns; /* of the values after type and number */
    Constant *constants;
} RowLayout;

/* Return the offset of the slot of CLS called NAME; 0 with an exception if there is no such ordinary slot. */
static Py_ssize_t
slot_of(PyTypeObject *cls, PyObject *name)
{
    PyObject *found = PyObject_GetAttr((PyObject *)cls, name);
    if (found == NULL) {
        return 0;
    }
    Py_ssize_t offset = 0;
    if (Py_IS_TYPE(found, &PyMemberDescr_Type)) {
        PyMemberDescrObject *slot = (PyMemberDescrObject *)found;
        if (slot->d_member->type == T_OBJECT_EX && PyType_IsSubtype(cls, PyDescr_TYPE(found))) {
            offset = slot->d_member->offset;
        }
    }
    Py_DECREF(found);
    if (offset <= 0) {
        PyErr_Format(PyExc_TypeError, "%R is no slot of %R", name, cls);
        return 0;
    }
    return offset;
}

static int
layout_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((RowLayout *)self)->cls);
    return 0; /* the constants are scalars */
}

static void
layout_dealloc(PyObject *self)
{
    RowLayout *layout = (RowLayout *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; i < layout->constant_count; i++) {
        Py_XDECREF(layout->constants[i].value);
    }
    PyMem_Free(layout->constants);
    PyMem_Free(layout->columns);
    Py_XDECREF(layout->cls);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Fill in the parts of a layout that has a class: 0, or -1 with an exception set. */
static int
layout_fill(RowLayout *layout, PyTypeObject *cls, PyObject *columns, PyObject *constants, PyObject *stamps)
{
    PyObject *source, *seq;
    if (!PyArg_ParseTuple(stamps, "UU", &source, &seq)) {
        return -1;
    }
    if (!(layout->source_slot = slot_of(cls, source)) || !(layout->seq_slot = slot_of(cls, seq))) {
        return -1;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(columns);
    if (!(layout->columns = PyMem_New(Column, count))) {
        PyErr_NoMemory();
        return -1;
    }
    layout->column_count = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        Column *column = &layout->columns[i];
        PyObject *name, *item = PyTuple_GET_ITEM(columns, i);
        if (!PyTuple_Check(item)) {
            PyErr_SetString(PyExc_TypeError, "a column is a tuple");
            return -1;
        }
        if (!PyArg_ParseTuple(item, "Obbb", &name, &column->admitted.value, &column->admitted.elements,
                              &column->admitted.entries)) {
            return -1;
        }
        column->slot = 0;
        if (name != Py_None && !(column->slot = slot_of(cls, name))) {
            return -1;
        }
    }
    count = PyTuple_GET_SIZE(constants);
    if (!(layout->constants = PyMem_New(Constant, count))) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name, *value, *item = PyTuple_GET_ITEM(constants, i);
        if (!PyTuple_Check(item)) {
            PyErr_SetString(PyExc_TypeError, "a constant is a tuple");
            return -1;
        }
        if (!PyArg_ParseTuple(item, "UO", &name, &value)) {
            return -1;
        }
        if (!(layout->constants[i].slot = slot_of(cls, name))) {
            return -1;
        }
        Py_INCREF(value);
        layout->constants[i].value = value;
        layout->constant_count = i + 1;
    }
    Py_INCREF(cls);
    layout->cls = cls; /* last: a layout that has a class is complete */
    return 0;
}

static PyObject *
layout_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    Py_ssize_t width;
    PyObject *cls = NULL, *columns = NULL, *constants = NULL, *stamps = NULL;
    if (keywords != NULL && PyDict_GET_SIZE(keywords)) {
        PyErr_SetString(PyExc_TypeError, "RowLayout takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "n|O!O!O!O!", &width, &PyType_Type, &cls, &PyTuple_Type, &columns, &PyTuple_Type,
                          &constants, &PyTuple_Type, &stamps)) {
        return NULL;
    }
    if (width < 2 || (cls != NULL && (stamps == NULL || PyTuple_GET_SIZE(columns) != width - 2))) {
        PyErr_SetString(PyExc_TypeError, "RowLayout takes a width, and a class, its columns, constants and stamps");
        return NULL;
    }
    RowLayout *layout = (RowLayout *)type->tp_alloc(type, 0);
    if (layout == NULL) {
        return NULL;
    }
    layout->width = width;
    if (cls != NULL && layout_fill(layout, (PyTypeObject *)cls, columns, constants, stamps) < 0) {
        Py_DECREF(layout);
        return NULL;
    }
    return (PyObject *)layout;
}

static PyType_Slot layout_slots[] = {
    {Py_tp_doc, "How rows of one schema become events: RowLayout(width[, cls, columns, constants, stamps])."},
    {Py_tp_new, layout_new},
    {Py_tp_dealloc, layout_dealloc},
    {Py_tp_traverse, layout_traverse},
    {0, NULL},
};

static PyType_Spec layout_spec = {
    .name = "trackside._native.RowLayout",
    .basicsize = sizeof(RowLayout),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = layout_slots,
};

/* --- reading ------------------------------------------------------------------------------------------------- */

/* The reason why a read function returned NULL. */
typedef enum {
    REFUSED, /* the decoder in Python has to decode the frame */
    WRONG_TYPE,  /* the value is well-formed so far, but of a kind that is not admitted here */
    RAISED,  /* an exception is set */
} Failure;

#define CACHED_TEXTS 256
#define CACHED_BYTES 32 /* longer texts are seldom the same twice */

typedef struct {
    const unsigned char *at, *end;
    Failure failure;
    /* Texts of this frame, by a hash of their bytes: the same few names are in most rows. */
    PyObject *texts[CACHED_TEXTS];
} Cursor;

static inline size_t
left(const Cursor *cursor)
{
    return (size_t)(cursor->end - cursor->at);
}

static PyObject *
fail(Cursor *cursor, Failure failure)
{
    cursor->failure = failure;
    return NULL;
}

/* Return OBJECT. If it could not be made, record that an exception is set: this is no fault of the bytes. */
static PyObject *
made(Cursor *cursor, PyObject *object)
{
    if (object == NULL) {
        cursor->failure = RAISED;
    }
    return object;
}

static inline uint64_t
big_endian(const unsigned char *at, int size)
{
    uint64_t value = 0;
    for (int i = 0; i < size; i++) {
        value = value << 8 | at[i];
    }
    return value;
}

/* The head of a value: its kind, and its number, length or bits. */
typedef struct {
    int kind;        /* 0 for bytes that msgpack does not use, and for extensions */
    int is_unsigned; /* of an integer: whether bits are those of a uint64_t beyond INT64_MAX */
    uint64_t bits;
} Head;

/* Read the head of the next value: 0, or -1 if the bytes end within it. */
static inline int
read_head(Cursor *cursor, Head *head)
{
    static const struct {
        unsigned char kind, size;
    } tags[32] = {
        /* c0 … c7 */ {NIL, 0}, {0, 0}, {BOOLEAN, 0}, {BOOLEAN, 0}, {BYTES, 1}, {BYTES, 2}, {BYTES, 4}, {0, 0},
        /* c8 … cf */ {0, 0}, {0, 0}, {DOUBLE, 4}, {DOUBLE, 8}, {INTEGER, 1}, {INTEGER, 2}, {INTEGER, 4}, {INTEGER, 8},
        /* d0 … d7 */ {INTEGER, 1}, {INTEGER, 2}, {INTEGER, 4}, {INTEGER, 8}, {0, 0}, {0, 0}, {0, 0}, {0, 0},
        /* d8 … df */ {0, 0}, {TEXT, 1}, {TEXT, 2}, {TEXT, 4}, {LIST, 2}, {LIST, 4}, {MAP, 2}, {MAP, 4},
    };
    if (!left(cursor)) {
        return -1;
    }
    unsigned char tag = *cursor->at++;
    head->is_unsigned = 0;
    if (tag < 0x80) {
        head->kind = INTEGER;
        head->bits = tag;
    }
    else if (tag >= 0xe0) {
        head->kind = INTEGER;
        head->bits = (uint64_t)(int64_t)(int8_t)tag;
    }
    else if (tag < 0xc0) {
        head->kind = tag < 0x90 ? MAP : tag < 0xa0 ? LIST : TEXT;
        head->bits = tag & (head->kind == TEXT ? 31 : 15);
    }
    else {
        int size = tags[tag - 0xc0].size;
        head->kind = tags[tag - 0xc0].kind;
        if (left(cursor) < (size_t)size) {
            return -1;
        }
        head->bits = big_endian(cursor->at, size);
        cursor->at += size;
        if (head->kind == INTEGER) {
            switch (tag) {
            case 0xcf: head->is_unsigned = head->bits > INT64_MAX; break;
            case 0xd0: head->bits = (uint64_t)(int64_t)(int8_t)head->bits; break;
            case 0xd1: head->bits = (uint64_t)(int64_t)(int16_t)head->bits; break;
            case 0xd2: head->bits = (uint64_t)(int64_t)(int32_t)head->bits; break;
            default: break;
            }
        }
        else if (head->kind == DOUBLE) {
            if (size == 4) {
                float single;
                uint32_t bits = (uint32_t)head->bits;
                memcpy(&single, &bits, sizeof single);
                double value = single;
                memcpy(&head->bits, &value, sizeof value);
            }
        }
        else if (head->kind == BOOLEAN) {
            head->bits = tag == 0xc3;
        }
    }
    return 0;
}

static PyObject *
read_text(Cursor *cursor, uint64_t length)
{
    if (length > MAX_STRING_BYTES || length > left(cursor)) {
        return fail(cursor, REFUSED);
    }
    const char *bytes = (const char *)cursor->at;
    cursor->at += length;
    PyObject **place = NULL;
    if (length <= CACHED_BYTES) {
        uint32_t hash = 2166136261u; /* FNV-1a; texts that collide on purpose only defeat the cache */
        for (uint64_t i = 0; i < length; i++) {
            hash = (hash ^ (unsigned char)bytes[i]) * 16777619u;
        }
        place = &cursor->texts[(hash ^ hash >> 16) % CACHED_TEXTS];
        PyObject *known = *place;
        if (known != NULL && PyUnicode_GET_LENGTH(known) == (Py_ssize_t)length
            && memcmp(PyUnicode_1BYTE_DATA(known), bytes, length) == 0) {
            Py_INCREF(known);
            return known;
        }
    }
    PyObject *text = PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)length, NULL);
    if (text == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            return fail(cursor, RAISED);
        }
        PyErr_Clear();
        return fail(cursor, REFUSED);
    }
    if (place != NULL && PyUnicode_IS_ASCII(text)) {
        Py_INCREF(text);
        Py_XSETREF(*place, text);
    }
    return text;
}

static PyObject *read_value(Cursor *cursor, Admitted admitted, int depth);

static inline PyObject *
read_nested(Cursor *cursor, int kinds, int depth)
{
    Admitted admitted = {(unsigned char)kinds, ANYTHING, ANYTHING};
    return read_value(cursor, admitted, depth);
}

static PyObject *
read_list(Cursor *cursor, uint64_t length, int elements, int depth)
{
    if (length > MAX_ARRAY_LENGTH || length > left(cursor) || depth > MAX_DEPTH) {
        return fail(cursor, REFUSED);
    }
    PyObject *list = made(cursor, PyList_New((Py_ssize_t)length));
    for (Py_ssize_t i = 0; list != NULL && i < (Py_ssize_t)length; i++) {
        PyObject *element = read_nested(cursor, elements, depth);
        if (element == NULL) {
            Py_CLEAR(list);
        }
        else {
            PyList_SET_ITEM(list, i, element);
        }
    }
    return list;
}

static PyObject *
read_map(Cursor *cursor, uint64_t length, int entries, int depth)
{
    if (length > MAX_MAP_LENGTH || 2 * length > left(cursor) || depth > MAX_DEPTH) {
        return fail(cursor, REFUSED);
    }
    PyObject *map = made(cursor, PyDict_New());
    for (uint64_t i = 0; map != NULL && i < length; i++) {
        Head head;
        PyObject *key = NULL, *value = NULL;
        if (read_head(cursor, &head) < 0 || head.kind != TEXT) {
            fail(cursor, REFUSED);
        }
        else if ((key = read_text(cursor, head.bits)) != NULL) {
            value = read_nested(cursor, entries, depth);
        }
        if (value == NULL) {
            Py_CLEAR(map);
        }
        else if (PyDict_SetItem(map, key, value) < 0) {
            fail(cursor, RAISED);
            Py_CLEAR(map);
        }
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return map;
}

/* Return the next value, which is nested DEPTH deep; or NULL, with the reason in cursor->failure. */
static PyObject *
read_value(Cursor *cursor, Admitted admitted, int depth)
{
    Head head;
    if (read_head(cursor, &head) < 0 || !head.kind) {
        return fail(cursor, REFUSED);
    }
    if (!(head.kind & admitted.value)) {
        return fail(cursor, WRONG_TYPE);
    }
    switch (head.kind) {
    case NIL: {
        Py_INCREF(Py_None);
        return Py_None;
    }
    case BOOLEAN: return PyBool_FromLong((long)head.bits);
    case INTEGER:
        return made(cursor, head.is_unsigned ? PyLong_FromUnsignedLongLong(head.bits)
                                             : PyLong_FromLongLong((int64_t)head.bits));
    case DOUBLE: {
        double value;
        memcpy(&value, &head.bits, sizeof value);
        return made(cursor, PyFloat_FromDouble(value));
    }
    case TEXT: return read_text(cursor, head.bits);
    case BYTES: {
        if (head.bits > MAX_BYTES_BYTES || head.bits > left(cursor)) {
            return fail(cursor, REFUSED);
        }
        const char *bytes = (const char *)cursor->at;
        cursor->at += head.bits;
        return made(cursor, PyBytes_FromStringAndSize(bytes, (Py_ssize_t)head.bits));
    }
    case LIST: return read_list(cursor, head.bits, admitted.elements, depth + 1);
    default: return read_map(cursor, head.bits, admitted.entries, depth + 1);
    }
}

/* Read a whole number from 0 to 2**63 - 1; the result is negative if the next value is anything else. */
static int64_t
read_count(Cursor *cursor)
{
    Head head;
    if (read_head(cursor, &head) < 0 || head.kind != INTEGER || head.is_unsigned) {
        return -1;
    }
    return (int64_t)head.bits;
}

/* Read the length of a list; -1 if the next value is anything else. */
static int64_t
read_length(Cursor *cursor)
{
    Head head;
    if (read_head(cursor, &head) < 0 || head.kind != LIST) {
        return -1;
    }
    return (int64_t)head.bits;
}

/* --- rows ---------------------------------------------------------------------------------------------------- */

static inline void
store(PyObject *event, Py_ssize_t slot, PyObject *value)
{
    *(PyObject **)((char *)event + slot) = value; /* the slot was NULL: each is stored once */
}

/* Return an event of the values after type and number; or NULL, with the reason in cursor->failure. */
static PyObject *
read_event(Cursor *cursor, const RowLayout *layout, PyObject *source, int64_t seq)
{
    PyObject *event = made(cursor, layout->cls->tp_alloc(layout->cls, 0));
    if (event == NULL) {
        return NULL;
    }
    int holds_tracked = 0;
    for (Py_ssize_t i = 0; i < layout->column_count; i++) {
        const Column *column = &layout->columns[i];
        PyObject *value = read_value(cursor, column->admitted, 0);
        if (value == NULL) {
            Py_DECREF(event);
            return NULL;
        }
        if (column->slot) {
            holds_tracked |= PyObject_GC_IsTracked(value);
            store(event, column->slot, value);
        }
        else {
            Py_DECREF(value);
        }
    }
    for (Py_ssize_t i = 0; i < layout->constant_count; i++) {
        Py_INCREF(layout->constants[i].value);
        store(event, layout->constants[i].slot, layout->constants[i].value);
    }
    PyObject *number = made(cursor, PyLong_FromLongLong(seq));
    if (number == NULL) {
        Py_DECREF(event);
        return NULL;
    }
    store(event, layout->seq_slot, number);
    Py_INCREF(source);
    store(event, layout->source_slot, source);
    if (!holds_tracked) {
        /*
         * As CPython does with tuples and dicts of scalars: no reference cycle leads through the event, and looking for
         * one in each event that a program reads would take as long as decoding it.
         */
        PyObject_GC_UnTrack(event);
    }
    return event;
}

/* Return the row at the cursor as a list, which is also added to REST; or NULL, with the reason in cursor->failure. */
static PyObject *
read_rest(Cursor *cursor, PyObject *rest, PyObject *number)
{
    PyObject *row = read_nested(cursor, LIST, -1); /* the row itself does not count as nesting */
    if (row == NULL) {
        return NULL;
    }
    PyObject *rows = PyDict_GetItemWithError(rest, number);
    if (rows == NULL && !PyErr_Occurred() && (rows = PyList_New(0)) != NULL) {
        int is_kept = PyDict_SetItem(rest, number, rows);
        Py_DECREF(rows); /* the dict holds it now */
        if (is_kept < 0) {
            rows = NULL;
        }
    }
    if (rows == NULL || PyList_Append(rows, row) < 0) {
        Py_DECREF(row);
        return fail(cursor, RAISED);
    }
    return row;
}

/* Return the next row: an event, or a list that is also in REST; or NULL, with the reason in cursor->failure. */
static PyObject *
read_row(Cursor *cursor, PyObject *layouts, PyObject *rest, PyObject *source, int64_t first, int64_t *next,
         int64_t last)
{
    const unsigned char *begin = cursor->at;
    int64_t width = read_length(cursor), number = read_count(cursor), offset = read_count(cursor);
    if (width < 2 || number < 0 || offset < *next || offset > last - first) {
        return fail(cursor, REFUSED);
    }
    *next = offset + 1;
    PyObject *key = made(cursor, PyLong_FromLongLong(number));
    if (key == NULL) {
        return NULL;
    }
    PyObject *found = PyDict_GetItemWithError(layouts, key), *event = NULL;
    if (found == NULL || Py_TYPE(found)->tp_dealloc != layout_dealloc || ((RowLayout *)found)->width != width) {
        fail(cursor, found == NULL && PyErr_Occurred() ? RAISED : REFUSED);
    }
    else {
        const RowLayout *layout = (RowLayout *)found;
        cursor->failure = WRONG_TYPE;
        if (layout->cls != NULL) {
            event = read_event(cursor, layout, source, first + offset);
        }
        if (event == NULL && cursor->failure == WRONG_TYPE) {
            cursor->at = begin;
            event = read_rest(cursor, rest, key);
        }
    }
    Py_DECREF(key);
    return event;
}

PyDoc_STRVAR(decode_rows_doc,
             "decode_rows(frame, offset, layouts, first, last, source, /)\n--\n\n"
             "Return the events of the rows that begin at *offset* of *frame*, and by type the rows that are not plain.\n\n"
             "Such a row stands among the events as a list. None if the decoder in Python is to look at the frame.");

static PyObject *
decode_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *data, *layouts, *source;
    Py_ssize_t offset;
    long long first, last;
    if (!PyArg_ParseTuple(args, "O!nO!LLO", &PyBytes_Type, &data, &offset, &PyDict_Type, &layouts, &first, &last,
                          &source)) {
        return NULL;
    }
    if (offset < 0 || offset > PyBytes_GET_SIZE(data) || first < 0 || last < -1) {
        PyErr_SetString(PyExc_ValueError, "an offset beyond the frame, or numbers below 0");
        return NULL;
    }
    Cursor cursor;
    memset(cursor.texts, 0, sizeof cursor.texts);
    cursor.at = (const unsigned char *)PyBytes_AS_STRING(data) + offset;
    cursor.end = (const unsigned char *)PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data);
    cursor.failure = REFUSED;
    int64_t count = read_length(&cursor), next = 0;
    if (count < 0 || count > MAX_FRAME_ROWS || (uint64_t)count > left(&cursor)) {
        Py_RETURN_NONE;
    }
    PyObject *events = PyList_New((Py_ssize_t)count), *rest = PyDict_New(), *result = NULL;
    cursor.failure = RAISED;
    Py_ssize_t done = 0;
    if (events != NULL && rest != NULL) {
        for (; done < (Py_ssize_t)count; done++) {
            PyObject *event = read_row(&cursor, layouts, rest, source, first, &next, last);
            if (event == NULL) {
                break;
            }
            PyList_SET_ITEM(events, done, event);
        }
        if (done == (Py_ssize_t)count) {
            if (left(&cursor)) {
                cursor.failure = REFUSED;
            }
            else {
                result = PyTuple_Pack(2, events, rest);
            }
        }
        if (result == NULL && cursor.failure != RAISED) {
            Py_INCREF(Py_None);
            result = Py_None;
        }
    }
    for (int i = 0; i < CACHED_TEXTS; i++) {
        Py_XDECREF(cursor.texts[i]);
    }
    Py_XDECREF(events);
    Py_XDECREF(rest);
    return result;
}

PyDoc_STRVAR(rows_offset_doc,
             "rows_offset(frame, /)\n--\n\n"
             "Return where the rows of *frame* begin; -1 if it has no such place or is no bytes of allowed size.");

static PyObject *
rows_offset(PyObject *Py_UNUSED(module), PyObject *data)
{
    if (!PyBytes_CheckExact(data) || PyBytes_GET_SIZE(data) > MAX_FRAME_BYTES) {
        return PyLong_FromLong(-1);
    }
    const unsigned char *begin = (const unsigned char *)PyBytes_AS_STRING(data);
    Cursor cursor = {.at = begin, .end = begin + PyBytes_GET_SIZE(data)};
    if (read_length(&cursor) != 7) {
        return PyLong_FromLong(-1);
    }
    /*
     * Without recursion: `values` is the number of values that are left of the six, and of those within them. Each
     * takes at least one byte.
     */
    uint64_t values = 6;
    while (values) {
        Head head;
        if (read_head(&cursor, &head) < 0 || !head.kind) {
            return PyLong_FromLong(-1);
        }
        values--;
        if (head.kind & (TEXT | BYTES)) {
            if (head.bits > left(&cursor)) {
                return PyLong_FromLong(-1);
            }
            cursor.at += head.bits;
        }
        else if (head.kind & (LIST | MAP)) {
            values += head.kind == MAP ? 2 * head.bits : head.bits;
        }
        if (values > left(&cursor)) {
            return PyLong_FromLong(-1);
        }
    }
    return PyLong_FromSsize_t(cursor.at - begin);
}

static PyMethodDef functions[] = {
    {"decode_rows", decode_rows, METH_VARARGS, decode_rows_doc},
    {"rows_offset", rows_offset, METH_O, rows_offset_doc},
    {NULL, NULL, 0, NULL},
};

int
ts_add_decoder(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &layout_spec, NULL);
    int is_added = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return is_added < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
