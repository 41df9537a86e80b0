/*
 * Building events of declared classes, as attrs's initializer does, without running it.
 *
 * A class is called through its tp_vectorcall. A class that is written in Python has none, and subclasses do not
 * inherit it. Ours is set on each declared class; attrs's __init__ stays in the class, for all who look it up or call
 * it by name. Calls with arguments that are not those of the plain case, and calls of classes that were changed since,
 * go through __init__.
 *
 * The plan of a class holds what is known of the class. Plans are in a table beside the classes, because those who copy
 * a class, as cloudpickle does, see all that is in it. A plan does not keep its class alive: a weak reference removes
 * the plan when the class is gone, and nothing that the plan owns, which the garbage collector cannot see, refers to it.
 */

#include "core.h"

#include <time.h>

enum { MOST_FIELDS = 64, ENVELOPE = 3 };
enum { AT_NS, SPAN_ID, STEP, PARENT_SPAN_ID };
static const char *const envelope_names[] = {"at_ns", "span_id", "step", "parent_span_id"};
enum { REQUIRED, DEFAULT, FACTORY };
enum { POST_INIT_OF_EVENT, POST_INIT_OF_SPAN, POST_INIT_OWN };

typedef struct {
    PyObject *name;    /* interned */
    Py_ssize_t offset; /* of the slot */
    int kind;
    PyObject *value;   /* the default or its factory; NULL if required */
} Field;

typedef struct {
    PyObject *weak;
    unsigned int version; /* of the class at the last check; 0 if it had none */
    PyObject *init, *post_init; /* the code of these methods, owned: unlike a function, code does not refer to the class */
    int post_init_kind;
    Py_ssize_t count;
    Field fields[];
} Plan;

typedef struct {
    PyTypeObject *type; /* borrowed; stays when the class is gone, for the next class at its address */
    Plan *plan;         /* NULL when the class is gone */
} Entry;

static Entry *table;
static size_t table_size, table_used;

static PyObject *from_ambient, *zero, *init_name, *post_init_name;
static PyObject *monotonic, *offset_ns; /* the function that reads the clock, and the int that is added */
static long long offset;                /* offset_ns as a number */
static int reads_real_clock;

/* --- the table --------------------------------------------------------------------------------------------------- */

static Entry *
find_entry(PyTypeObject *type)
{
    size_t place = ((size_t)type >> 4) * 0x9E3779B1u;
    for (;; place++) {
        Entry *entry = &table[place & (table_size - 1)];
        if (entry->type == type || entry->type == NULL) {
            return entry;
        }
    }
}

static int
grow_table(void)
{
    Entry *before = table;
    size_t size = table_size, larger = size ? 2 * size : 256;
    Entry *made = PyMem_Calloc(larger, sizeof(Entry));
    if (made == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    table = made;
    table_size = larger;
    for (size_t place = 0; place < size; place++) {
        if (before[place].type != NULL) {
            *find_entry(before[place].type) = before[place];
        }
    }
    PyMem_Free(before);
    return 0;
}

static void
free_plan(Plan *plan)
{
    for (Py_ssize_t place = 0; place < plan->count; place++) {
        Py_XDECREF(plan->fields[place].name);
        Py_XDECREF(plan->fields[place].value);
    }
    Py_XDECREF(plan->init);
    Py_XDECREF(plan->post_init);
    Py_XDECREF(plan->weak);
    PyMem_Free(plan);
}

/* Called with the weak reference when the class has gone; SELF is a capsule with the class's address. */
static PyObject *
forget_class(PyObject *self, PyObject *Py_UNUSED(weak))
{
    PyTypeObject *type = PyCapsule_GetPointer(self, NULL);
    if (type == NULL) {
        return NULL;
    }
    Entry *entry = find_entry(type);
    Plan *plan = entry->plan;
    entry->plan = NULL;
    if (plan != NULL) {
        free_plan(plan);
    }
    Py_RETURN_NONE;
}

static PyMethodDef forget_definition = {"forget", forget_class, METH_O, NULL};

static int
keep_plan(PyTypeObject *type, Plan *plan)
{
    if (2 * table_used >= table_size && grow_table() < 0) {
        return -1;
    }
    PyObject *capsule = PyCapsule_New(type, NULL, NULL);
    PyObject *forget = capsule == NULL ? NULL : PyCFunction_New(&forget_definition, capsule);
    Py_XDECREF(capsule);
    plan->weak = forget == NULL ? NULL : PyWeakref_NewRef((PyObject *)type, forget);
    Py_XDECREF(forget);
    if (plan->weak == NULL) {
        return -1;
    }
    Entry *entry = find_entry(type);
    table_used += entry->type == NULL;
    entry->type = type;
    entry->plan = plan;
    return 0;
}

/* --- building ---------------------------------------------------------------------------------------------------- */

/* Call the class as if it had no tp_vectorcall. */
static PyObject *
call_python(PyObject *type, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    PyObject *positional = PyTuple_New(count), *named = NULL, *made = NULL;
    if (positional == NULL) {
        return NULL;
    }
    for (Py_ssize_t place = 0; place < count; place++) {
        PyTuple_SET_ITEM(positional, place, Py_NewRef(args[place]));
    }
    if (keywords != NULL && PyTuple_GET_SIZE(keywords) > 0) {
        named = PyDict_New();
        if (named == NULL) {
            goto done;
        }
        for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(keywords); place++) {
            if (PyDict_SetItem(named, PyTuple_GET_ITEM(keywords, place), args[count + place]) < 0) {
                goto done;
            }
        }
    }
    made = Py_TYPE(type)->tp_call(type, positional, named);
done:
    Py_DECREF(positional);
    Py_XDECREF(named);
    return made;
}

/* Return the code of the method NAME of TYPE, NULL if it is no function: 0, or -1 with an exception. */
static int
read_code(PyTypeObject *type, PyObject *name, PyObject **code)
{
    PyObject *method = PyObject_GetAttr((PyObject *)type, name);
    *code = method != NULL && PyFunction_Check(method) ? Py_NewRef(PyFunction_GET_CODE(method)) : NULL;
    Py_XDECREF(method);
    if (method == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* Return whether attrs's initializer would do no more for instances of TYPE than fill new slots. */
static int
is_plain_class(PyTypeObject *type)
{
    return type->tp_new == PyBaseObject_Type.tp_new && type->tp_setattro == PyObject_GenericSetAttr;
}

/* Return whether the class still has the methods for which the plan was made: 1, 0, or -1 with an exception. */
static int
is_unchanged(PyTypeObject *type, Plan *plan)
{
    unsigned int version = type->tp_version_tag;
#if PY_VERSION_HEX < 0x030D0000
    if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) {
        version = 0;
    }
#endif
    if (version != 0 && version == plan->version) {
        return 1;
    }
    PyObject *init, *post_init = NULL;
    if (read_code(type, init_name, &init) < 0 || read_code(type, post_init_name, &post_init) < 0) { /* gives it a version */
        Py_XDECREF(init);
        return -1;
    }
    int is_same = init == plan->init && post_init == plan->post_init && is_plain_class(type);
    Py_XDECREF(init);
    Py_XDECREF(post_init);
    plan->version = is_same ? type->tp_version_tag : 0;
    return is_same;
}

TS_INLINE int
read_monotonic(long long *now)
{
    struct timespec read;
    if (!reads_real_clock || clock_gettime(CLOCK_MONOTONIC, &read) != 0) {
        return 0;
    }
    *now = (long long)read.tv_sec * 1000000000 + read.tv_nsec;
    return 1;
}

int
ts_read_monotonic(long long *now)
{
    return read_monotonic(now);
}

/* Read the time of events into NOW: 1, or 0 if they do not use the system's clock. */
static inline int
read_clock(long long *now)
{
    int is_real = read_monotonic(now);
    if (is_real) {
        *now += offset;
    }
    return is_real;
}

/*
 * Owned numbers without other references, grouped by their number of digits, which become the next times, durations and
 * ids. A number with a single reference is seen by its holder alone, so it may be changed. Allocating and freeing four
 * of them for each span took a twelfth of a step.
 */
enum { MOST_NUMBERS = 2048, MOST_DIGITS = 62 / PyLong_SHIFT + 1 };
enum { LARGEST_SHARED = 1024 }; /* the interpreter shares small numbers: up to 256, from 3.15 on up to 1,024 */
static int number_counts[MOST_DIGITS];
static PyObject *numbers[MOST_DIGITS][MOST_NUMBERS];

/*
 * Return how many digits NUMBER has if it is positive and not marked as shared, else a count that no number here has.
 */
#if PY_VERSION_HEX >= 0x030C0000
#define DIGITS_OF(number) (((PyLongObject *)(number))->long_value.ob_digit)
static inline size_t
count_digits(PyObject *number)
{
    uintptr_t tag = ((PyLongObject *)number)->long_value.lv_tag;
    return tag & 7 ? 0 : tag >> 3;
}
#else
#define DIGITS_OF(number) (((PyLongObject *)(number))->ob_digit)
#define count_digits(number) ((size_t)Py_SIZE(number))
#endif

void
ts_drop_number(PyObject *number)
{
    if (Py_REFCNT(number) == 1 && PyLong_CheckExact(number)) {
        size_t place = count_digits(number) - 1;
        int is_used_again = place > 0 || DIGITS_OF(number)[0] > LARGEST_SHARED; /* as in ts_number() */
        if (place < MOST_DIGITS && is_used_again && number_counts[place] < MOST_NUMBERS) {
            numbers[place][number_counts[place]++] = number;
            return;
        }
    }
    Py_DECREF(number);
}

PyObject *
ts_number(long long value)
{
    int place = MOST_DIGITS - 1; /* most are times */
    while (place > 0 && value >> place * PyLong_SHIFT == 0) {
        place--;
    }
    if (value <= LARGEST_SHARED || number_counts[place] == 0) {
        return PyLong_FromLongLong(value);
    }
    PyObject *number = numbers[place][--number_counts[place]];
    digit *digits = DIGITS_OF(number);
    for (int each = 0; each <= place; each++, value >>= PyLong_SHIFT) {
        digits[each] = (digit)(value & PyLong_MASK);
    }
    return number;
}

PyObject *
ts_now_ns(long long *number, int *is_real)
{
    *is_real = read_clock(number);
    if (*is_real) {
        return ts_number(*number);
    }
    PyObject *reading = PyObject_CallNoArgs(monotonic);
    PyObject *sum = reading == NULL ? NULL : PyNumber_Add(offset_ns, reading);
    Py_XDECREF(reading);
    return sum;
}

int
ts_since(PyObject *start, const long long *begun, PyObject **end, PyObject **duration)
{
    long long now, since = begun == NULL ? 0 : *begun, passed;
    int overflow = 0, is_real, is_plain = 0;
    PyObject *read = ts_now_ns(&now, &is_real);
    *duration = NULL;
    if (read != NULL) {
        if (begun == NULL && is_real && !ts_read_number(&start, &since)) {
            overflow = 1; /* another clock gave it */
        }
        is_plain = is_real && !overflow && !__builtin_sub_overflow(now, since, &passed);
        *duration = is_plain ? ts_number(passed) : PyNumber_Subtract(read, start);
    }
    if (*duration == NULL) {
        Py_CLEAR(read);
    }
    *end = read;
    return *duration == NULL ? -1 : is_plain;
}

static inline void
replace(PyObject **value, PyObject *by)
{
    Py_SETREF(*value, Py_NewRef(by));
}

/* Fill the values of the envelope that were not given, as __attrs_post_init__ does: 0, or -1 with an exception. */
static int
fill_envelope(PyObject **values, int is_of_span)
{
    PyObject *around = NULL;
    if (values[SPAN_ID] == from_ambient && is_of_span) {
        replace(&values[SPAN_ID], zero);
    }
    if (values[SPAN_ID] == from_ambient || values[STEP] == from_ambient
        || (is_of_span && values[PARENT_SPAN_ID] == from_ambient)) {
        around = ts_surroundings();
        if (around == NULL) {
            return -1;
        }
        if (!PyTuple_CheckExact(around) || PyTuple_GET_SIZE(around) != 2) {
            PyErr_SetString(PyExc_SystemError, "the ambient context is no pair");
            Py_XDECREF(around);
            return -1;
        }
        if (is_of_span && values[PARENT_SPAN_ID] == from_ambient) {
            replace(&values[PARENT_SPAN_ID], PyTuple_GET_ITEM(around, 0));
        }
        if (values[SPAN_ID] == from_ambient) {
            replace(&values[SPAN_ID], PyTuple_GET_ITEM(around, 0));
        }
        if (values[STEP] == from_ambient) {
            replace(&values[STEP], PyTuple_GET_ITEM(around, 1));
        }
        Py_DECREF(around);
    }
    if (values[AT_NS] == from_ambient) {
        long long number;
        int is_real;
        PyObject *now = ts_now_ns(&number, &is_real);
        if (now == NULL) {
            return -1;
        }
        Py_SETREF(values[AT_NS], now);
    }
    return 0;
}

static inline Py_ssize_t
place_of(const Plan *plan, PyObject *name, Py_ssize_t guess)
{
    for (Py_ssize_t step = 0; step < plan->count; step++) {
        Py_ssize_t place = (guess + step) % plan->count;
        if (plan->fields[place].name == name) {
            return place;
        }
    }
    return -1;
}

static PyObject *
construct(PyObject *callable, PyObject *const *args, size_t flags, PyObject *keywords)
{
    PyTypeObject *type = (PyTypeObject *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(flags), named = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    Plan *plan = find_entry(type)->plan;
    if (plan == NULL || count > ENVELOPE) {
        return call_python(callable, args, count, keywords);
    }
    int unchanged = is_unchanged(type, plan);
    if (unchanged <= 0) {
        return unchanged < 0 ? NULL : call_python(callable, args, count, keywords);
    }
    PyObject *values[MOST_FIELDS];
    Py_ssize_t size = plan->count;
    memset(values, 0, size * sizeof(PyObject *));
    for (Py_ssize_t place = 0; place < count; place++) {
        values[place] = args[place];
    }
    Py_ssize_t guess = ENVELOPE;
    for (Py_ssize_t each = 0; each < named; each++) {
        Py_ssize_t place = place_of(plan, PyTuple_GET_ITEM(keywords, each), guess);
        if (place < 0 || values[place] != NULL) {
            return call_python(callable, args, count, keywords);
        }
        values[place] = args[count + each];
        guess = place + 1;
    }
    for (Py_ssize_t place = 0; place < size; place++) {
        if (values[place] == NULL && plan->fields[place].kind == REQUIRED) {
            return call_python(callable, args, count, keywords);
        }
    }
    /* From here on the values are owned. A factory may run any code, but the class, and so its plan, stays in use. */
    PyObject *event = NULL;
    Py_ssize_t owned = 0;
    for (; owned < size; owned++) {
        const Field *field = &plan->fields[owned];
        if (values[owned] != NULL) {
            Py_INCREF(values[owned]);
        }
        else if (field->kind == DEFAULT) {
            values[owned] = Py_NewRef(field->value);
        }
        else {
            values[owned] = field->value == (PyObject *)&PyDict_Type   ? PyDict_New()
                            : field->value == (PyObject *)&PyList_Type ? PyList_New(0)
                                                                       : PyObject_CallNoArgs(field->value);
            if (values[owned] == NULL) {
                goto failed;
            }
        }
    }
    if (plan->post_init_kind != POST_INIT_OWN
        && fill_envelope(values, plan->post_init_kind == POST_INIT_OF_SPAN) < 0) {
        goto failed;
    }
    event = type->tp_alloc(type, 0);
    if (event == NULL) {
        goto failed;
    }
    for (Py_ssize_t place = 0; place < size; place++) {
        *(PyObject **)((char *)event + plan->fields[place].offset) = values[place];
    }
    if (plan->post_init_kind == POST_INIT_OWN) {
        PyObject *done = PyObject_CallMethodNoArgs(event, post_init_name);
        if (done == NULL) {
            Py_DECREF(event);
            return NULL;
        }
        Py_DECREF(done);
    }
    return event;

failed:
    for (Py_ssize_t place = 0; place < owned; place++) {
        Py_DECREF(values[place]);
    }
    return NULL;
}

/* --- declaring --------------------------------------------------------------------------------------------------- */

/* Return whether VALUE, a default or a factory, surely does not refer to a class. */
static int
is_ownable(PyObject *value)
{
    int is_ownable = !PyObject_IS_GC(value) || PyTuple_CheckExact(value);
    for (Py_ssize_t place = 0; is_ownable && PyTuple_CheckExact(value) && place < PyTuple_GET_SIZE(value); place++) {
        is_ownable = !PyObject_IS_GC(PyTuple_GET_ITEM(value, place));
    }
    return is_ownable;
}

PyDoc_STRVAR(compile_doc,
"compile_class(cls, fields, post_init_kind, /)\n--\n\n"
"Have calls of *cls* build its instances in C; return whether it can be.\n\n"
"Each of *fields* is a name, a kind (0: required, 1: default, 2: factory) and a value. They cannot be compiled if they do\n"
"not begin with the envelope, or if a value might refer to *cls*. The kind of __attrs_post_init__ is 0 for that of\n"
"events, 1 for that of events of spans, 2 for any other.");

static PyObject *
compile_class(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *cls;
    PyObject *fields;
    int post_init_kind;
    if (!PyArg_ParseTuple(args, "O!O!i", &PyType_Type, &cls, &PyTuple_Type, &fields, &post_init_kind)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(fields);
    Py_ssize_t envelope = post_init_kind == POST_INIT_OF_SPAN ? ENVELOPE + 1 : ENVELOPE;
    if (!Py_IS_TYPE(cls, &PyType_Type) || !is_plain_class(cls) || cls->tp_itemsize != 0
        || !PyType_HasFeature(cls, Py_TPFLAGS_HEAPTYPE) || cls->tp_vectorcall != NULL || count < envelope
        || count > MOST_FIELDS) {
        Py_RETURN_FALSE;
    }
    if (table == NULL && grow_table() < 0) {
        return NULL;
    }
    Plan *plan = PyMem_Calloc(1, sizeof(Plan) + count * sizeof(Field));
    if (plan == NULL) {
        return PyErr_NoMemory();
    }
    plan->post_init_kind = post_init_kind;
    plan->count = count;
    for (Py_ssize_t place = 0; place < count; place++) {
        Field *field = &plan->fields[place];
        PyObject *name, *value;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(fields, place), "UiO", &name, &field->kind, &value)) {
            goto failed;
        }
        field->value = field->kind == REQUIRED ? NULL : Py_NewRef(value);
        field->name = Py_NewRef(name);
        PyUnicode_InternInPlace(&field->name);
        int is_plain = ts_find_slot(cls, name, &field->offset);
        if (is_plain < 0) {
            goto failed;
        }
        is_plain &= (field->kind == REQUIRED || is_ownable(value))
                    && (place >= envelope || PyUnicode_CompareWithASCIIString(name, envelope_names[place]) == 0);
        if (!is_plain) {
            free_plan(plan);
            Py_RETURN_FALSE;
        }
    }
    if (read_code(cls, init_name, &plan->init) < 0 || read_code(cls, post_init_name, &plan->post_init) < 0) {
        goto failed;
    }
    if (plan->init == NULL || plan->post_init == NULL) {
        free_plan(plan);
        Py_RETURN_FALSE;
    }
    if (keep_plan(cls, plan) < 0) {
        goto failed;
    }
    cls->tp_vectorcall = construct;
    Py_RETURN_TRUE;

failed:
    free_plan(plan);
    return NULL;
}

PyDoc_STRVAR(set_clock_doc,
"set_clock(monotonic_ns, offset_ns, is_real, /)\n--\n\n"
"Read the time of events from *monotonic_ns*, which *is_real* if it is the system's.");

static PyObject *
set_clock(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *read, *added;
    int is_real, overflow;
    if (!PyArg_ParseTuple(args, "OO!p", &read, &PyLong_Type, &added, &is_real)) {
        return NULL;
    }
    offset = PyLong_AsLongLongAndOverflow(added, &overflow);
    reads_real_clock = is_real && overflow == 0;
    Py_XSETREF(monotonic, Py_NewRef(read));
    Py_XSETREF(offset_ns, Py_NewRef(added));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(set_mark_doc,
"set_mark(from_ambient, /)\n--\n\nTake a value of the envelope from the surroundings where it is *from_ambient*.");

static PyObject *
set_mark(PyObject *Py_UNUSED(module), PyObject *mark)
{
    Py_XSETREF(from_ambient, Py_NewRef(mark));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"compile_class", compile_class, METH_VARARGS, compile_doc},
    {"set_clock", set_clock, METH_VARARGS, set_clock_doc},
    {"set_mark", set_mark, METH_O, set_mark_doc},
    {NULL, NULL, 0, NULL},
};

int
ts_add_events(PyObject *module)
{
    zero = PyLong_FromLong(0);
    init_name = PyUnicode_InternFromString("__init__");
    post_init_name = PyUnicode_InternFromString("__attrs_post_init__");
    if (zero == NULL || init_name == NULL || post_init_name == NULL) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
