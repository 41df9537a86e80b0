/*
 * Telemetry from C and C++ extensions: record a value in a counter, stat or gauge; open and close a span.
 *
 * `trackside.get_include()` returns the directory of this file. Nothing is linked: trackside_import() finds the functions
 * in the installed package, so an extension that was built with one version of it works with later ones.
 *
 *     static int
 *     execute(PyObject *module)
 *     {
 *         if (trackside_import() < 0) {
 *             PyErr_Clear();  // goes without telemetry
 *         }
 *         return 0;
 *     }
 *
 * Each source file that calls the functions imports them for itself. Where that failed, they do nothing.
 *
 * Threads. The functions are called with the interpreter lock held; without such a lock, by a thread attached to the
 * interpreter. Where that is not so they do nothing and fail. Code that released it counts in a variable of its own and
 * records the sum when it has it again. A thread that was not made by Python gets it by PyGILState_Ensure().
 *
 * Errors. No function raises: one that fails returns -1, or NULL, and hands its exception to sys.unraisablehook, once for
 * a name that cannot be used. An exception that is set when a function is called stays set. A KeyboardInterrupt comes
 * again as soon as Python runs.
 *
 * Forks and strict buses. As for the functions of Python, which these are: docs/write-an-extension.md.
 */
#ifndef TRACKSIDE_API_H
#define TRACKSIDE_API_H

#include <Python.h>

/* Functions are added at the end, with a higher number; one that changes its meaning makes another capsule. */
#define TRACKSIDE_API_VERSION 1
#define TRACKSIDE_API_CAPSULE "trackside._native._C_API"

enum trackside_kind {
    TRACKSIDE_COUNTER, /* a sum that only grows: trackside.counter(name).add(value) */
    TRACKSIDE_STAT,    /* a distribution: trackside.stat(name).record(value) */
    TRACKSIDE_GAUGE    /* the latest value: trackside.gauge(name).set(value) */
};

/* As trackside.PROFILE and so on: how much a span matters where there is no room for all. */
enum trackside_priority {
    TRACKSIDE_PROFILE = 1,   /* several in a step */
    TRACKSIDE_ITERATION = 2, /* one in a step or so */
    TRACKSIDE_LIFECYCLE = 3  /* published at its start too: what a crash must not lose */
};

typedef struct {
    int version;
    int (*record)(int kind, const char *name, double value);
    PyObject *(*open_span)(const char *name, int priority);
    int (*close_span)(PyObject *span);
} trackside_functions;

static const trackside_functions *trackside_api = NULL;

/*
 * Find the functions: 0, or -1 with an exception where trackside is not installed, is older than this file, or runs
 * without its compiled core. An extension may clear it, and goes without telemetry.
 */
static inline int
trackside_import(void)
{
    const trackside_functions *found = (const trackside_functions *)PyCapsule_Import(TRACKSIDE_API_CAPSULE, 0);
    if (found == NULL) {
        return -1;
    }
    if (found->version < TRACKSIDE_API_VERSION) {
        PyErr_Format(PyExc_ImportError, "trackside has version %d of its C API, and %d is needed", found->version,
                     TRACKSIDE_API_VERSION);
        return -1;
    }
    trackside_api = found;
    return 0;
}

/*
 * Record VALUE in the counter, stat or gauge called NAME, in UTF-8, which is made at its first use: 0, or -1 if it was
 * not recorded. What Python counts as an invalid sample, NaN or a negative amount, is counted as one, and no failure.
 */
static inline int
trackside_record(enum trackside_kind kind, const char *name, double value)
{
    return trackside_api == NULL ? 0 : trackside_api->record(kind, name, value);
}

/*
 * Open a span called NAME, in UTF-8, within the one that is open here: the span, or NULL if there is none. The caller
 * owns it until trackside_close_span(), to be called once, by the same thread, spans within it first.
 */
static inline PyObject *
trackside_open_span(const char *name, enum trackside_priority priority)
{
    return trackside_api == NULL ? NULL : trackside_api->open_span(name, priority);
}

/*
 * Close SPAN and give up the reference to it; NULL is no span, and no failure. An exception that is set becomes the
 * span's error, and stays set. 0, or -1 if it could not be closed.
 */
static inline int
trackside_close_span(PyObject *span)
{
    return span == NULL ? 0 : trackside_api->close_span(span);
}

#endif
