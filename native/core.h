/*
 * The compiled core of trackside: what every source file relies on.
 *
 * Plain case or Python. A compiled function handles the case that nearly every call is, and leaves the rest, wrong
 * calls included, to the Python method that it stands for. So it raises nothing of its own, logs nothing and knows no
 * configuration, and each rule that is not plain is written once, in Python.
 *
 * Ownership. A function returns a new reference and borrows its arguments. A struct owns the references in it and shows
 * them to the garbage collector. None has a tp_clear: each cycle that leads through a struct leads through a list, a
 * dict or a class too, which has one. So no function here can meet a struct that was emptied.
 *
 * Invariants.
 *   - All state is protected by the interpreter lock; the core is not built for interpreters without one.
 *   - Allocating may run the garbage collector, and dropping a reference may run a finalizer; either may call any
 *     function here again, on the same object, and so may each call of a Python function. A struct is therefore
 *     changed in one go: nothing is allocated, dropped or called between its first change and its last.
 *   - A signal handler runs in Python code alone, never within a function here that calls none.
 *   - A fork copies every struct whole, because the thread that forks is in none of these functions.
 *   - Static variables belong to the main interpreter, the only one that may import the module.
 */
#ifndef TRACKSIDE_CORE_H
#define TRACKSIDE_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/* For functions that are called once or twice in each opening and closing: the call would take as long as they do. */
#define TS_INLINE static inline __attribute__((always_inline))

/* The result of a plain function for a call that it leaves to Python: not an object, and never passed on. */
extern char ts_to_python;
#define TS_TO_PYTHON ((PyObject *)&ts_to_python)

/*
 * A compiled method: ARGS holds COUNT positional arguments, the object first, and then the values of KEYWORDS, a tuple
 * of names or NULL. ABOUT is the class for whose own instances, not those of subclasses, it may do its work; of a function,
 * what it was compiled for.
 */
typedef PyObject *(*ts_plain)(PyObject *about, PyObject *const *args, Py_ssize_t count, PyObject *keywords);

/* Return a method, or a function, that does what PYTHON does, by way of PLAIN where it can. */
PyObject *ts_method(PyObject *about, ts_plain plain, PyObject *python);

/* Find the slot in which instances of CLS hold NAME: 1, 0 if there is none, -1 with an exception. */
int ts_find_slot(PyTypeObject *cls, PyObject *name, Py_ssize_t *offset);

/* Find COUNT slots of CLS, by NAMES: 0, or -1 with an exception. */
int ts_find_slots(PyTypeObject *cls, const char *const *names, int count, Py_ssize_t *offsets);

/* The place in OBJECT at OFFSET, one that was found for its class. */
static inline PyObject **
ts_slot(PyObject *object, Py_ssize_t offset)
{
    return (PyObject **)((char *)object + offset);
}

/* The memory of instances of one class, kept for the next ones; see pool.c. */
typedef struct Pool Pool;

/*
 * Return the pool of TYPE, a class whose instances have slots and nothing else, those at the COUNT offsets OF_NUMBERS, three
 * at most, with a number that is used again; or NULL with an exception.
 */
Pool *ts_pool(PyTypeObject *type, const Py_ssize_t *of_numbers, int count);

/*
 * Return an instance of the class of POOL with empty slots, which the garbage collector does not know, or NULL with an
 * exception. Where memory is new, collecting garbage may have run anything.
 */
PyObject *ts_new(Pool *pool);

/* Raise COUNT by one, and return how many there were before; -1 if it is no Count. Calls nothing foreign. */
long long ts_count(PyObject *count);

/*
 * The slots of a bus with its table of routes and the other attributes that are read here, and the slots of an
 * Admission, the target of a step that leads to the queue; see bus.c. All set once.
 */
enum { BUS_ROUTES, BUS_IS_CLOSED, BUS_SUBSCRIBERS, BUS_SLOTS };
enum { ADMISSION_OFFERED, ADMISSION_QUEUE, ADMISSION_APPEND, ADMISSION_LIMIT, ADMISSION_DROPPED, ADMISSION_CHANGEABLE, ADMISSION_SLOTS };
enum { STEP_ARRIVED, STEP_CALL, STEP_FINISHED, STEP_TARGET, STEP_SIZE };
extern Py_ssize_t ts_of_bus[BUS_SLOTS], ts_of_admission[ADMISSION_SLOTS];
extern PyTypeObject *ts_admission_type;

/* Return the Count of COUNT, a ThreadSafeCount or anything else, borrowed; NULL if there is none. */
PyObject *ts_counter_of(PyObject *count);

/*
 * The context that the interpreter gave the thread, and the span and step around the code that runs there; see
 * ambient.c. Owned, and changed there alone.
 */
extern PyObject *ts_home, *ts_top;

static inline int
ts_is_at_home(void)
{
    return PyThreadState_Get()->context == ts_home;
}

/* Return what surrounds the running code, a pair: a new reference, or NULL with an exception. */
PyObject *ts_surroundings(void);

/* Have AROUND surround what runs from here on: 0, or -1 with an exception. */
int ts_surround(PyObject *around);

/* The same when a part of a step is entered or left, which a copy of the context need not show; LEFT is its own. */
int ts_surround_part(PyObject *around, PyObject *left);

/* The same when a step of the training loop is left, which a copy of the context need not show. */
int ts_surround_after_step(PyObject *around, PyObject *left);

/*
 * Return the time as the clock of events has it, in ns since the epoch: a new reference, or NULL with an exception. Where
 * it IS_REAL, read from the system, NUMBER is the same, and nothing foreign was run.
 */
PyObject *ts_now_ns(long long *number, int *is_real);

/*
 * Read the clock into END, and into DURATION what passed since START, in ns, both new references: 1 if it ran nothing
 * foreign, 0 if it may have, -1 with an exception and neither. BEGUN is START as a number, or NULL.
 */
int ts_since(PyObject *start, const long long *begun, PyObject **end, PyObject **duration);

/* Read the system's monotonic clock, in ns: 1, or 0 if another clock was put in its place. Calls nothing foreign. */
int ts_read_monotonic(long long *now);

/* Return VALUE as an int: a new reference, or NULL with an exception. Calls nothing foreign. */
PyObject *ts_number(long long value);

/*
 * Give up a reference to NUMBER, what a pooled object has as its time, its duration or its id. One that nobody else has
 * becomes the next one that the functions above return.
 */
void ts_drop_number(PyObject *number);

/* Take the exception that is set, if any: a new reference, with its traceback, or NULL. */
PyObject *ts_take_exception(void);

/* Each file adds what it has to the module: 0, or -1 with an exception. */
int ts_add_methods(PyObject *module);
int ts_add_count(PyObject *module);
int ts_add_ambient(PyObject *module);
int ts_add_bus(PyObject *module);
int ts_add_counters(PyObject *module);
int ts_add_rows(PyObject *module);
int ts_add_decoder(PyObject *module);
int ts_add_events(PyObject *module);
int ts_add_kernels(PyObject *module);
int ts_add_sections(PyObject *module);
int ts_add_spans(PyObject *module);
int ts_add_extensions(PyObject *module);

#endif
