/*
 * The compiled core of trackside: what every source file relies on.
 *
 * Plain case or Python. A compiled function handles the plain case, which nearly every call is. It leaves the rest,
 * wrong calls included, to the Python method that it stands for. So it raises nothing of its own, logs nothing and
 * knows no configuration, and each rule for the other cases is written once, in Python.
 *
 * Ownership. A function returns a new reference and borrows its arguments. A struct owns the references in it and shows
 * them to the garbage collector. No struct has a tp_clear: each reference cycle through a struct also leads through a
 * list, a dict or a class, which has one. So no function here can meet a struct that was emptied.
 *
 * Invariants.
 *   - All state is protected by the interpreter lock; the core is not built for interpreters without one.
 *   - Allocating may run the garbage collector, and dropping a reference may run a finalizer. Both, and each call of a
 *     Python function, may call any function here again, on the same object. A struct is therefore changed in one go:
 *     nothing is allocated, dropped or called between its first change and its last.
 *   - A signal handler runs only in Python code, never within a function here that calls none.
 *   - A fork copies every struct whole: it happens in Python code, which never runs while a struct is being changed.
 *   - Static variables belong to the main interpreter, the only one that may import the module.
 */
#ifndef TRACKSIDE_CORE_H
#define TRACKSIDE_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/*
 * For functions that are called once or twice in each opening and closing: a call would take as long as the function.
 */
#define TS_INLINE static inline __attribute__((always_inline))

/* The result of a plain function for a call that it leaves to Python: not an object, and never passed on. */
extern char ts_to_python;
#define TS_TO_PYTHON ((PyObject *)&ts_to_python)

/*
 * The plain case of a method or function: ARGS holds COUNT positional arguments, the object first, and then the values
 * of KEYWORDS, a tuple of names or NULL. ABOUT is the class of a method, and objects of its subclasses are left to
 * Python; for a function, ABOUT is the data for which it was compiled.
 */
typedef PyObject *(*ts_plain)(PyObject *about, PyObject *const *args, Py_ssize_t count, PyObject *keywords);

/* Return a method or function that does what PYTHON does: PLAIN handles the plain case, and PYTHON all others. */
PyObject *ts_method(PyObject *about, ts_plain plain, PyObject *python);

/* Find the slot in which instances of CLS hold NAME: 1, or 0 if there is none, or -1 with an exception. */
int ts_find_slot(PyTypeObject *cls, PyObject *name, Py_ssize_t *offset);

/* Find the COUNT slots of CLS called NAMES: 0, or -1 with an exception. */
int ts_find_slots(PyTypeObject *cls, const char *const *names, int count, Py_ssize_t *offsets);

/* Return the slot of OBJECT at OFFSET, which was found for its class. */
static inline PyObject **
ts_slot(PyObject *object, Py_ssize_t offset)
{
    return (PyObject **)((char *)object + offset);
}

/* Read the int in SLOT: whether there is one, of no subclass, that fits. */
static inline int
ts_read_number(PyObject *const *slot, long long *number)
{
    int overflow = 1;
    if (*slot != NULL && PyLong_CheckExact(*slot)) {
        *number = PyLong_AsLongLongAndOverflow(*slot, &overflow);
    }
    return overflow == 0;
}

/*
 * Instances of classes whose slots are read often, as the interpreter lays them out: the slots of a class follow those of
 * its base, in the order of their names. ts_check_layout() finds whether a class is laid out so.
 */
#define TS_EVENT PyObject_HEAD PyObject *seq, *source, *at_ns, *span_id, *step;
typedef struct {
    TS_EVENT
} Event;
typedef struct {
    TS_EVENT
    PyObject *parent_span_id;
} EventOfSpan;
typedef struct {
    TS_EVENT
    PyObject *parent_span_id, *attributes, *duration_ns, *error, *name;
} SpanEnded;
typedef struct {
    TS_EVENT
    PyObject *parent_span_id, *duration_ns, *failed, *flops, *kind, *loss, *samples, *tokens;
} IterationEnded;

typedef struct {
    const char *name;
    size_t offset;
} Place;
#define TS_PLACE(type, field) {#field, offsetof(type, field)}
#define TS_PRIVATE_PLACE(type, field) {"_" #field, offsetof(type, field)}

/* Check that CLS has the slots of PLACES, which end with one without a name: 0, or -1 with an exception. */
int ts_check_layout(PyTypeObject *cls, const Place *places);
/* The slots of the three structures above. */
extern const Place ts_places_of_events[], ts_places_of_spans[], ts_places_of_iterations[];

/* Store VALUE, a new reference or NULL, in SLOT: 0, or -1 with an exception. What it replaces may be freed. */
static inline int
ts_store(PyObject **slot, PyObject *value)
{
    if (value == NULL) {
        return -1;
    }
    Py_XSETREF(*slot, value);
    return 0;
}

/*
 * Prevent garbage collections, and so finalizers, between the calls of these two functions; the first returns the
 * argument of the second. From Python 3.12 on, allocating runs none.
 */
static inline int
ts_stop_collecting(void)
{
    return PY_VERSION_HEX < 0x030C0000 && PyGC_Disable();
}

static inline void
ts_go_on_collecting(int was_collecting)
{
    if (was_collecting) {
        PyGC_Enable();
    }
}

/* Return whether CLS is one of CLASSES, a tuple. */
static inline int
ts_is_among(PyTypeObject *cls, PyObject *classes)
{
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(classes); place++) {
        if (PyTuple_GET_ITEM(classes, place) == (PyObject *)cls) {
            return 1;
        }
    }
    return 0;
}

/* Return whether all keys of DICT are texts, of no subclass: only then does looking a key up run no foreign code. */
static inline int
ts_has_text_keys(PyObject *dict)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, &value)) {
        if (!PyUnicode_CheckExact(key)) {
            return 0;
        }
    }
    return 1;
}

/* The memory of instances of one class, kept for the next ones; see pool.c. */
typedef struct Pool Pool;

/*
 * Return the pool of TYPE, a class whose instances have nothing but slots; or NULL with an exception. The slots at the
 * COUNT offsets OF_NUMBERS, three at most, hold numbers that are reused.
 */
Pool *ts_pool(PyTypeObject *type, const Py_ssize_t *of_numbers, int count);

/*
 * Return an instance of the class of POOL with empty slots, which the garbage collector does not track; or NULL with an
 * exception. If it has to allocate memory, a garbage collection may run any code.
 */
PyObject *ts_new(Pool *pool);

/* Return whether instances of TYPE have nothing but slots, one after the other. */
int ts_has_slots_alone(PyTypeObject *type);

/* The offsets of some fields of a class, as slot_offsets() packs them in bytes. */
static inline const Py_ssize_t *
ts_offsets(PyObject *packed)
{
    return (const Py_ssize_t *)(void *)PyBytes_AS_STRING(packed);
}

static inline Py_ssize_t
ts_count_offsets(PyObject *packed)
{
    return PyBytes_GET_SIZE(packed) / (Py_ssize_t)sizeof(Py_ssize_t);
}

/*
 * Return EVENT, which is about to be queued, or a copy of it if its owner could change it meanwhile, with copies of what
 * can be changed in its fields at the offsets CHANGEABLE, which ts_is_small() has found to have scalars, or lists and maps
 * of them: a new reference, or NULL without an exception if that is left to Python. IS_LENT is whether the caller's caller
 * may keep the reference that the caller got. If its class has more than slots, EVENT is never copied: it is returned as
 * it is if nothing is CHANGEABLE, and otherwise left to Python if it would be copied. Runs no foreign code, except that
 * allocating may run the garbage collector.
 */
PyObject *ts_detached(PyObject *event, PyObject *changeable, int is_lent);

/*
 * Whether the caller of the compiled function that has just been entered may keep its references to the arguments, as
 * one does that calls with a tuple of them. C code that lends a reference with PyObject_CallOneArg is not recognized.
 */
extern int ts_are_arguments_lent;

/* Increment COUNT and return its value before, or -1 if it is not a Count. Runs no foreign code. */
long long ts_count(PyObject *count);

/*
 * The slots that are read here: of a bus, its table of routes and others; of an Admission, the target of a step that
 * leads to the queue. Then the items of a step. See bus.c; the offsets are set once.
 */
enum { BUS_ROUTES, BUS_IS_CLOSED, BUS_SUBSCRIBERS, BUS_SLOTS };
enum { ADMISSION_OFFERED, ADMISSION_QUEUE, ADMISSION_APPEND, ADMISSION_LIMIT, ADMISSION_DROPPED, ADMISSION_CHANGEABLE_AT,
       ADMISSION_SIZED_AT, ADMISSION_CLS, ADMISSION_SLOTS };
enum { STEP_ARRIVED, STEP_CALL, STEP_FINISHED, STEP_TARGET, STEP_SIZE };
extern Py_ssize_t ts_of_bus[BUS_SLOTS], ts_of_admission[ADMISSION_SLOTS];
extern PyTypeObject *ts_admission_type;

/* The bytes of values that an event has at one place of the queue. */
extern Py_ssize_t ts_place_bytes;

/*
 * Return whether EVENT takes one place of the queue: whether its COUNT fields at OFFSETS are as small as that, as
 * trackside.wire._size.size_of finds; 0 also if they have more than scalars and lists and maps of them. Runs no foreign
 * code.
 */
int ts_is_small(PyObject *event, const Py_ssize_t *offsets, Py_ssize_t count);

/* Return the counter of COUNT, borrowed, or NULL if COUNT is not a ThreadSafeCount. */
PyObject *ts_counter_of(PyObject *count);

/*
 * Encode EVENT as the row at OFFSET of its frame with ENCODING, which Python made: new bytes, or NULL with an exception,
 * or TS_TO_PYTHON. Runs no foreign code, except that allocating may run the garbage collector.
 */
PyObject *ts_row(PyObject *encoding, PyObject *event, unsigned long long offset);

/*
 * The context that the interpreter gave the thread, and the span and step around the code that runs there; see
 * ambient.c, which owns them and alone changes them.
 */
extern PyObject *ts_home, *ts_top;

static inline int
ts_is_at_home(void)
{
    return PyThreadState_Get()->context == ts_home;
}

/* Return the pair of span id and step around the running code: a new reference, or NULL with an exception. */
PyObject *ts_surroundings(void);

/* Make AROUND the surroundings of the code that runs from here on: 0, or -1 with an exception. */
int ts_surround(PyObject *around);

/*
 * The same when a part of a step is entered or left, which a copy of the context need not show. LEFT is the pair that
 * is left, or NULL.
 */
int ts_surround_part(PyObject *around, PyObject *left);

/* The same when a step of the training loop is left, which a copy of the context need not show. LEFT is its pair. */
int ts_surround_after_step(PyObject *around, PyObject *left);

/*
 * Return the time of the events' clock, in ns since the epoch: a new reference, or NULL with an exception. IS_REAL is
 * set if the time was read from the system's clock: then NUMBER is the same time, and no foreign code ran.
 */
PyObject *ts_now_ns(long long *number, int *is_real);

/*
 * Read the clock into END, and the ns since START into DURATION, both new references. Return 1 if no foreign code ran,
 * 0 if some may have run, or -1 with an exception and no references. BEGUN is START as a number, or NULL.
 */
int ts_since(PyObject *start, const long long *begun, PyObject **end, PyObject **duration);

/* Read the system's monotonic clock, in ns: 1, or 0 if another clock replaces it. Runs no foreign code. */
int ts_read_monotonic(long long *now);

/* Return VALUE as an int: a new reference, or NULL with an exception. Runs no foreign code. */
PyObject *ts_number(long long value);

/*
 * Drop a reference to NUMBER, the time, the duration or the id of a pooled object. If it was the only one, the
 * functions above reuse NUMBER.
 */
void ts_drop_number(PyObject *number);

/* Return the exception that is set, with its traceback, and clear it: a new reference, or NULL if none is set. */
PyObject *ts_take_exception(void);

/* Each file adds its functions and types to the module: 0, or -1 with an exception. */
int ts_add_methods(PyObject *module);
int ts_add_count(PyObject *module);
int ts_add_ambient(PyObject *module);
int ts_add_bus(PyObject *module);
int ts_add_counters(PyObject *module);
int ts_add_rows(PyObject *module);
int ts_add_decoder(PyObject *module);
int ts_add_delivery(PyObject *module);
int ts_add_events(PyObject *module);
int ts_add_goodput(PyObject *module);
int ts_add_kernels(PyObject *module);
int ts_add_metrics(PyObject *module);
int ts_add_sections(PyObject *module);
int ts_add_spans(PyObject *module);
int ts_add_extensions(PyObject *module);

#endif
