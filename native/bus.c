/*
 * Bus.log and Bus.wants, for classes whose route is known and has only plain steps.
 *
 * A step leads to a plain callable through a Lane, or to the queue through an Admission; both count the arrival. Every
 * exception is left to Bus._recover, which delivers the event to the rest of the route.
 *
 * Python's frames show how deep handlers log, and a call here has no frame. So a thread is in at most one call here:
 * the events that its handlers log are left to Python.
 */

#include "core.h"

static const char *const bus_slots[] = {"_routes", "_is_closed", "_subscribers"};
static const char *const admission_slots[] = {"offered", "_queue", "_append", "_limit", "dropped", "_changeable_at",
                                              "_sized_at", "cls"};
enum { ARRIVED, FINISHED, CEILING, SUPPRESSED, LANE_SLOTS };
static const char *const lane_slots[] = {"arrived", "finished", "ceiling", "suppressed"};
static const char *const count_slots[] = {"_counter"};

/* All are set once and kept for ever, like the module trackside.bus._bus. */
Py_ssize_t ts_of_bus[BUS_SLOTS], ts_of_admission[ADMISSION_SLOTS];
PyTypeObject *ts_admission_type;
Py_ssize_t ts_place_bytes;
static Py_ssize_t of_lane[LANE_SLOTS], of_counter;
static PyTypeObject *lane_type, *count_type;
static PyObject *is_too_deep, *recover_name;
static _Thread_local int calls;

#define BUS(bus, name) (*ts_slot(bus, ts_of_bus[name]))
#define ADMISSION(admission, name) (*ts_slot(admission, ts_of_admission[name]))
#define LANE(lane, name) (*ts_slot(lane, of_lane[name]))

PyObject *
ts_counter_of(PyObject *count)
{
    return count != NULL && Py_IS_TYPE(count, count_type) ? *ts_slot(count, of_counter) : NULL;
}

/* Increment COUNT and return its value before; or -1 with an exception if it is not a ThreadSafeCount. */
static inline long long
add_one(PyObject *count)
{
    PyObject *counter = ts_counter_of(count);
    long long before = counter == NULL ? -1 : ts_count(counter);
    if (before < 0) {
        PyErr_SetString(PyExc_SystemError, "no count");
    }
    return before;
}

/*
 * Return the route of CLS in BUS, borrowed, if it is known and has only plain steps; else NULL, without an exception.
 */
static PyObject *
plain_route(PyObject *bus, PyTypeObject *cls)
{
    PyObject *table = BUS(bus, BUS_ROUTES);
    /* Classes are compared by identity, so nothing is called, unless a metaclass has a hash of its own. */
    if (table == NULL || !PyDict_CheckExact(table) || Py_TYPE(cls)->tp_hash != PyType_Type.tp_hash) {
        return NULL;
    }
    PyObject *route = PyDict_GetItemWithError(table, (PyObject *)cls);
    if (route == NULL) {
        PyErr_Clear();
        return NULL;
    }
    if (!PyTuple_CheckExact(route)) {
        return NULL;
    }
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(route); place++) {
        PyObject *step = PyTuple_GET_ITEM(route, place);
        if (!PyTuple_CheckExact(step) || PyTuple_GET_SIZE(step) != STEP_SIZE
            || (!Py_IS_TYPE(PyTuple_GET_ITEM(step, STEP_TARGET), lane_type)
                && !Py_IS_TYPE(PyTuple_GET_ITEM(step, STEP_TARGET), ts_admission_type))) {
            return NULL;
        }
    }
    return route;
}

/*
 * Queue EVENT, or a copy if its owner could change it, as Admission.admit and admit_sized do: None, or NULL with an
 * exception. If the queue is full, or EVENT is large or has more than scalars and lists and maps of them, call CALL,
 * which is Python's function for this.
 */
static PyObject *
admit(PyObject *call, PyObject *admission, PyObject *event, int is_lent)
{
    PyObject *queue = ADMISSION(admission, ADMISSION_QUEUE), *append = ADMISSION(admission, ADMISSION_APPEND);
    PyObject *limit = ADMISSION(admission, ADMISSION_LIMIT), *changeable = ADMISSION(admission, ADMISSION_CHANGEABLE_AT);
    PyObject *sized = ADMISSION(admission, ADMISSION_SIZED_AT);
    PySequenceMethods *sequence = queue == NULL ? NULL : Py_TYPE(queue)->tp_as_sequence;
    if (sequence != NULL && sequence->sq_length != NULL && append != NULL && PyCFunction_CheckExact(append)
        && PyCFunction_GET_FLAGS(append) == METH_O && limit != NULL && PyLong_CheckExact(limit) && changeable != NULL
        && PyBytes_CheckExact(changeable) && sized != NULL && PyBytes_CheckExact(sized)
        && ADMISSION(admission, ADMISSION_CLS) == (PyObject *)Py_TYPE(event)
        && ts_is_small(event, ts_offsets(sized), ts_count_offsets(sized))) {
        Py_ssize_t most = PyLong_AsSsize_t(limit); /* before the copy: the limit may change meanwhile */
        PyObject *detached = ts_detached(event, changeable, is_lent), *none;
        if (detached == NULL) {
            return PyObject_CallOneArg(call, event);
        }
        Py_ssize_t waiting = sequence->sq_length(queue);
        if (waiting >= 0 && waiting < most) {
            none = PyCFunction_GET_FUNCTION(append)(PyCFunction_GET_SELF(append), detached);
        }
        else {
            PyErr_Clear();
            none = PyObject_CallOneArg(call, detached);
        }
        Py_DECREF(detached);
        return none;
    }
    return PyObject_CallOneArg(call, event);
}

/*
 * Return whether handlers log too deep, or -1 with an exception. Python is asked only if BEFORE, the number of earlier
 * arrivals, is above the ceiling of LANE.
 */
static int
is_deep(PyObject *lane, long long before)
{
    PyObject *ceiling = LANE(lane, CEILING);
    if (ceiling != NULL && PyLong_CheckExact(ceiling) && before <= PyLong_AsLongLong(ceiling)) {
        return 0;
    }
    PyErr_Clear();
    PyObject *answer = PyObject_CallNoArgs(is_too_deep);
    int is_so = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return is_so;
}

/* Count the end of a delivery to LANE: 0, or -1 with an exception. */
static int
finish(PyObject *lane)
{
    long long before = add_one(LANE(lane, FINISHED));
    PyObject *ceiling = before < 0 ? NULL : ts_number(before), *old = LANE(lane, CEILING);
    if (ceiling == NULL) {
        return -1;
    }
    LANE(lane, CEILING) = ceiling;
    Py_XDECREF(old);
    return 0;
}

/*
 * Deliver EVENT by STEP: 0, or -1 with an exception. IS_LENT is as for ts_detached. Then *HAS_BEGUN is whether the delivery is still to be counted as
 * finished.
 */
static int
deliver(PyObject *step, PyObject *event, int is_lent, int *has_begun)
{
    PyObject *call = PyTuple_GET_ITEM(step, STEP_CALL), *target = PyTuple_GET_ITEM(step, STEP_TARGET), *done;
    *has_begun = 1;
    if (Py_IS_TYPE(target, ts_admission_type)) {
        done = add_one(ADMISSION(target, ADMISSION_OFFERED)) < 0 ? NULL : admit(call, target, event, is_lent);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    long long before = add_one(LANE(target, ARRIVED));
    int is_suppressed = before < 0 ? -1 : is_deep(target, before);
    if (is_suppressed < 0 || (is_suppressed && add_one(LANE(target, SUPPRESSED)) < 0)) {
        return -1;
    }
    done = is_suppressed ? Py_NewRef(Py_None) : PyObject_CallOneArg(call, event);
    if (done == NULL) {
        return -1;
    }
    *has_begun = 0;
    Py_DECREF(done);
    return finish(target);
}

/* Raise ERROR with its own traceback. Steals the reference to ERROR. */
static void
raise_again(PyObject *error)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(error);
#else
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), error, PyException_GetTraceback(error));
#endif
}

/* Have Bus._recover account for the delivery that ended in an exception: 0, or -1 with the exception to raise. */
static int
recover(PyObject *bus, PyObject *route, PyObject *target, int has_begun, PyObject *event)
{
    PyObject *error = ts_take_exception();
    PyObject *raised = PyObject_CallMethodObjArgs(
        bus, recover_name, route, target, has_begun ? target : Py_None, event, error, NULL);
    Py_DECREF(error);
    if (raised == Py_None) {
        Py_DECREF(raised);
        return 0;
    }
    if (raised != NULL) {
        raise_again(raised);
    }
    return -1;
}

/*
 * Return whether the stack has room for all that _recover may call. If it is nearly full, Python counts in another way.
 */
static inline int
has_room(void)
{
    enum { ENOUGH = 64 };
    PyThreadState *thread = PyThreadState_Get();
#if PY_VERSION_HEX >= 0x030C0000
    return thread->py_recursion_remaining > ENOUGH;
#elif PY_VERSION_HEX >= 0x030B0000
    return thread->recursion_remaining > ENOUGH;
#else
    return Py_GetRecursionLimit() - thread->recursion_depth > ENOUGH;
#endif
}

static PyObject *
log_event(PyObject *owner, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (count != 2 || keywords != NULL || (PyObject *)Py_TYPE(args[0]) != owner || calls > 0 || !has_room()) {
        return TS_TO_PYTHON;
    }
    int is_lent = ts_are_arguments_lent;
    PyObject *bus = args[0], *event = args[1], *route = plain_route(bus, Py_TYPE(event));
    if (route == NULL) {
        return TS_TO_PYTHON;
    }
    if (PyTuple_GET_SIZE(route) == 0) {
        Py_RETURN_NONE;
    }
    int failed = 0;
    Py_INCREF(route); /* a handler may replace the table */
    calls++;
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(route); place++) {
        PyObject *step = PyTuple_GET_ITEM(route, place);
        int has_begun;
        if (deliver(step, event, is_lent, &has_begun) < 0) {
            failed = recover(bus, route, PyTuple_GET_ITEM(step, STEP_TARGET), has_begun, event);
            break;
        }
    }
    calls--;
    Py_DECREF(route);
    if (failed) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
wants(PyObject *owner, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    if (count != 2 || keywords != NULL || (PyObject *)Py_TYPE(args[0]) != owner || !PyType_Check(args[1])) {
        return TS_TO_PYTHON;
    }
    PyObject *is_closed = BUS(args[0], BUS_IS_CLOSED), *route = plain_route(args[0], (PyTypeObject *)args[1]);
    if (route == NULL || (is_closed != Py_False && is_closed != Py_True)) {
        return TS_TO_PYTHON;
    }
    return PyBool_FromLong(PyTuple_GET_SIZE(route) > 0 && is_closed == Py_False);
}

PyDoc_STRVAR(calls_doc,
"calls_of_log()\n--\n\nReturn how many compiled calls of Bus.log this thread is in: they have no frames to be seen.");

static PyObject *
calls_of_log(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromLong(calls);
}

PyDoc_STRVAR(compile_bus_doc,
"compile_bus(bus, lane, admission, count, is_too_deep, place_bytes, /)\n--\n\n"
"Return the methods log and wants of the class of buses, compiled.\n\n"
"*lane*, *admission* and *count* are the classes of its targets and of their counts; *is_too_deep* answers whether the\n"
"handlers of this thread log too deep. The values of an event at one place of the queue have fewer than *place_bytes*.");

static PyObject *
compile_bus(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *bus, *lane, *admission, *counts;
    PyObject *deep;
    if (!PyArg_ParseTuple(args, "O!O!O!O!On", &PyType_Type, &bus, &PyType_Type, &lane, &PyType_Type, &admission, &PyType_Type,
                          &counts, &deep, &ts_place_bytes)) {
        return NULL;
    }
    if (ts_find_slots(bus, bus_slots, BUS_SLOTS, ts_of_bus) < 0 || ts_find_slots(lane, lane_slots, LANE_SLOTS, of_lane) < 0
        || ts_find_slots(admission, admission_slots, ADMISSION_SLOTS, ts_of_admission) < 0
        || ts_find_slots(counts, count_slots, 1, &of_counter) < 0) {
        return NULL;
    }
    Py_XSETREF(lane_type, (PyTypeObject *)Py_NewRef((PyObject *)lane));
    Py_XSETREF(ts_admission_type, (PyTypeObject *)Py_NewRef((PyObject *)admission));
    Py_XSETREF(count_type, (PyTypeObject *)Py_NewRef((PyObject *)counts));
    Py_XSETREF(is_too_deep, Py_NewRef(deep));
    PyObject *log = PyObject_GetAttrString((PyObject *)bus, "log");
    PyObject *asked = log == NULL ? NULL : PyObject_GetAttrString((PyObject *)bus, "wants");
    PyObject *methods = asked == NULL ? NULL
                                      : Py_BuildValue("(NN)", ts_method((PyObject *)bus, log_event, log),
                                                      ts_method((PyObject *)bus, wants, asked));
    Py_XDECREF(log);
    Py_XDECREF(asked);
    return methods;
}

static PyMethodDef functions[] = {
    {"calls_of_log", calls_of_log, METH_NOARGS, calls_doc},
    {"compile_bus", compile_bus, METH_VARARGS, compile_bus_doc},
    {NULL, NULL, 0, NULL},
};

int
ts_add_bus(PyObject *module)
{
    recover_name = PyUnicode_InternFromString("_recover");
    return recover_name == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
