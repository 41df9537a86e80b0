/*
 * The times of the GPU's kernels, by name and launch shape, through NVIDIA's CUPTI.
 *
 * CUPTI requests buffers, and returns them full, on its own threads or within any call of CUDA. So no function that it
 * calls here takes the interpreter lock, or waits for a thread that may hold it. There is no form of this in Python: a
 * call for each record would hold the lock for several times as long as a launch takes.
 *
 * The functions that Python calls rely on the interpreter lock. `guard` protects the state that CUPTI's threads change
 * too, and is held for a few records at most.
 */

#include "core.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

/* The beginning of CUpti_ActivityKernel4 and of all later ones, up to 13 in CUPTI 13.5; the rest is not read. */
typedef struct {
    uint32_t kind;
    uint8_t configuration[12];
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t shared_memory[2];
    uint32_t local_memory[2];
    uint32_t correlation;
    int64_t grid_id;
    const char *name;
} Record;

enum { SUCCESS = 0, CONCURRENT_KERNEL = 10 };
enum { BUFFERS = 8, BUFFER_BYTES = 1 << 20, MOST_KERNELS = 8192, MOST_KEPT = 1024, AT_ONCE = 64 };

static struct {
    int (*register_callbacks)(void (*)(uint8_t **, size_t *, size_t *), void (*)(void *, uint32_t, uint8_t *, size_t, size_t));
    int (*enable)(uint32_t kind);
    int (*disable)(uint32_t kind);
    int (*flush)(uint32_t is_forced);
    int (*next_record)(uint8_t *buffer, size_t valid, uint8_t **record);
    int (*count_dropped)(void *context, uint32_t stream, size_t *dropped);
    int (*describe)(int result, const char **text);
} cupti;

static const char *const symbols[] = {
    "cuptiActivityRegisterCallbacks", "cuptiActivityEnable", "cuptiActivityDisable", "cuptiActivityFlushAll",
    "cuptiActivityGetNextRecord", "cuptiActivityGetNumDroppedRecords", "cuptiGetResultString",
};

/* One kernel with one launch shape; its statistics follow the rules of SectionTimes in instruments/_section.py. */
typedef struct {
    char *name;
    int32_t shape[6];
    uint64_t hash;
    long long count;
    double mean, squares;
    uint64_t least, most;
    uint64_t *kept;
    int kept_count, kept_room;
    long long stride;
} Kernel;

typedef struct {
    Kernel *slots; /* open addressing; a slot without a name is free */
    size_t room, used;
} Kernels;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static Kernels kernels;
static long long launches, lost;
static struct {
    uint8_t *memory;
    int is_out; /* whether CUPTI has it */
} buffers[BUFFERS];

/* Protected by the interpreter lock. */
static int is_on;
static long long entered;

static uint64_t
hash_of(const char *name, size_t length, const int32_t *shape)
{
    uint64_t hash = 1469598103934665603u, word;
    for (; length >= 8; name += 8, length -= 8) {
        memcpy(&word, name, 8);
        hash = (hash ^ word) * 1099511628211u;
        hash ^= hash >> 29;
    }
    for (; length; name++, length--) {
        hash = (hash ^ (uint8_t)*name) * 1099511628211u;
    }
    for (int i = 0; i < 6; i++) {
        hash = (hash ^ (uint32_t)shape[i]) * 1099511628211u;
    }
    return hash ^ hash >> 31;
}

static Kernel *
slot_of(Kernels *in, uint64_t hash, const char *name, const int32_t *shape)
{
    for (size_t at = hash;; at++) {
        Kernel *slot = &in->slots[at & (in->room - 1)];
        if (slot->name == NULL || (slot->hash == hash && memcmp(slot->shape, shape, sizeof slot->shape) == 0
                                   && strcmp(slot->name, name) == 0)) {
            return slot;
        }
    }
}

/* Make room for one more kernel: 0, or -1 if there is no room. */
static int
make_room(void)
{
    if (kernels.used >= MOST_KERNELS) {
        return -1;
    }
    if (2 * (kernels.used + 1) <= kernels.room) {
        return 0;
    }
    Kernels larger = {.room = kernels.room ? 2 * kernels.room : 256, .used = kernels.used};
    larger.slots = calloc(larger.room, sizeof(Kernel));
    if (larger.slots == NULL) {
        return -1;
    }
    for (size_t i = 0; i < kernels.room; i++) {
        Kernel *old = &kernels.slots[i];
        if (old->name != NULL) {
            *slot_of(&larger, old->hash, old->name, old->shape) = *old;
        }
    }
    free(kernels.slots);
    kernels = larger;
    return 0;
}

static Kernel *
kernel_of(const Record *record)
{
    const char *name = record->name == NULL ? "" : record->name;
    int32_t shape[6];
    memcpy(shape, record->block, sizeof record->block);
    memcpy(shape + 3, record->grid, sizeof record->grid);
    uint64_t hash = hash_of(name, strlen(name), shape);
    Kernel *found = kernels.room ? slot_of(&kernels, hash, name, shape) : NULL;
    if (found != NULL && found->name != NULL) {
        return found;
    }
    char *copy = make_room() < 0 ? NULL : strdup(name);
    if (copy == NULL) {
        return NULL;
    }
    found = slot_of(&kernels, hash, name, shape);
    *found = (Kernel){.name = copy, .hash = hash, .least = UINT64_MAX, .stride = 1};
    memcpy(found->shape, shape, sizeof shape);
    kernels.used++;
    return found;
}

/* Keep TIME for the median if its turn has come: 0, or -1 without memory. */
static int
keep(Kernel *kernel, uint64_t time)
{
    if (kernel->count % kernel->stride) {
        return 0;
    }
    if (kernel->kept_count == MOST_KEPT) {
        for (int i = 0; i < MOST_KEPT / 2; i++) {
            kernel->kept[i] = kernel->kept[2 * i];
        }
        kernel->kept_count = MOST_KEPT / 2;
        kernel->stride *= 2; /* TIME still has its turn: MOST_KEPT is even */
    }
    if (kernel->kept_count == kernel->kept_room) {
        int room = kernel->kept_room ? 2 * kernel->kept_room : 8;
        uint64_t *larger = realloc(kernel->kept, room * sizeof *larger);
        if (larger == NULL) {
            return -1;
        }
        kernel->kept = larger;
        kernel->kept_room = room;
    }
    kernel->kept[kernel->kept_count++] = time;
    return 0;
}

static void
add(const Record *record)
{
    launches++;
    Kernel *kernel = !record->start || record->end <= record->start ? NULL : kernel_of(record);
    uint64_t time = record->end - record->start;
    if (kernel == NULL || keep(kernel, time) < 0) {
        lost++;
        return;
    }
    double apart = (double)time - kernel->mean;
    kernel->count++;
    kernel->mean += apart / (double)kernel->count;
    kernel->squares += apart * ((double)time - kernel->mean);
    kernel->least = time < kernel->least ? time : kernel->least;
    kernel->most = time > kernel->most ? time : kernel->most;
}

static void
on_requested(uint8_t **buffer, size_t *size, size_t *most_records)
{
    *buffer = NULL; /* without a buffer, CUPTI counts launched kernels as dropped */
    *size = *most_records = 0;
    pthread_mutex_lock(&guard);
    for (int i = 0; i < BUFFERS && *buffer == NULL; i++) {
        if (!buffers[i].is_out && (buffers[i].memory != NULL || (buffers[i].memory = malloc(BUFFER_BYTES)) != NULL)) {
            buffers[i].is_out = 1;
            *buffer = buffers[i].memory;
            *size = BUFFER_BYTES;
        }
    }
    pthread_mutex_unlock(&guard);
}

static void
on_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    (void)context, (void)stream, (void)size;
    int ours = 0;
    while (ours < BUFFERS && buffers[ours].memory != buffer) {
        ours++;
    }
    if (ours == BUFFERS || buffer == NULL) {
        return; /* a buffer of another profiler that has released CUPTI: neither to be read nor to be freed */
    }
    uint8_t *record = NULL;
    int is_more = valid > 0;
    pthread_mutex_lock(&guard);
    while (is_more) {
        for (int i = 0; i < AT_ONCE && (is_more = cupti.next_record(buffer, valid, &record) == SUCCESS); i++) {
            if (((Record *)record)->kind == CONCURRENT_KERNEL) {
                add((Record *)record);
            }
        }
        pthread_mutex_unlock(&guard); /* so that a waiting thread can go first */
        pthread_mutex_lock(&guard);
    }
    buffers[ours].is_out = 0;
    pthread_mutex_unlock(&guard);
}

/* Return None, or raise CUPTI's description of RESULT. */
static PyObject *
checked(int result)
{
    const char *text = NULL;
    if (result == SUCCESS) {
        Py_RETURN_NONE;
    }
    if (cupti.describe(result, &text) != SUCCESS || text == NULL) {
        text = "unknown error";
    }
    return PyErr_Format(PyExc_RuntimeError, "CUPTI: %s (%d)", text, result);
}

PyDoc_STRVAR(open_doc,
"open_kernels(libraries, /)\n--\n\n"
"Find CUPTI in the first of *libraries*, names or paths, that this process has loaded, or else can load.\n\n"
"RuntimeError, with the reason, if there is none.");

static PyObject *
open_kernels(PyObject *module, PyObject *libraries)
{
    (void)module;
    void *library = NULL;
    for (int mode = RTLD_NOW | RTLD_NOLOAD; library == NULL; mode = RTLD_NOW) {
        for (Py_ssize_t i = 0; library == NULL && i < PyTuple_GET_SIZE(libraries); i++) {
            const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(libraries, i));
            if (name == NULL) {
                return NULL;
            }
            library = dlopen(name, mode);
        }
        if (mode == RTLD_NOW) {
            break;
        }
    }
    if (library == NULL) {
        return PyErr_Format(PyExc_RuntimeError, "there is no CUPTI: %s", dlerror());
    }
    void *found[sizeof symbols / sizeof *symbols];
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        found[i] = dlsym(library, symbols[i]);
        if (found[i] == NULL) {
            return PyErr_Format(PyExc_RuntimeError, "CUPTI has no %s", symbols[i]);
        }
    }
    _Static_assert(sizeof found == sizeof cupti, "a symbol for each function");
    memcpy(&cupti, found, sizeof cupti);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(take_doc,
"take_kernels()\n--\n\n"
"Have CUPTI call this module from now on, and nobody else. RuntimeError if it refuses.");

static PyObject *
take_kernels(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return checked(cupti.register_callbacks(on_requested, on_completed));
}

PyDoc_STRVAR(begin_doc,
"begin_kernels()\n--\n\n"
"Record the kernels that are launched from now on; False, and one loss counted, while CUPTI has all buffers.");

static PyObject *
begin_kernels(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    if (!is_on) {
        int out = 0;
        pthread_mutex_lock(&guard);
        for (int i = 0; i < BUFFERS; i++) {
            out += buffers[i].is_out;
        }
        lost += out == BUFFERS;
        pthread_mutex_unlock(&guard);
        if (out == BUFFERS) {
            Py_RETURN_FALSE;
        }
        int result = cupti.enable(CONCURRENT_KERNEL);
        if (result != SUCCESS) {
            return checked(result);
        }
        is_on = 1;
    }
    entered++;
    Py_RETURN_TRUE;
}

static PyObject *
turn_off(void)
{
    entered = 0;
    if (!is_on) {
        Py_RETURN_NONE;
    }
    is_on = 0;
    return checked(cupti.disable(CONCURRENT_KERNEL));
}

PyDoc_STRVAR(end_doc,
"end_kernels()\n--\n\n"
"Record no more, unless it was begun more often.");

static PyObject *
end_kernels(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    if (entered > 1) {
        entered--;
        Py_RETURN_NONE;
    }
    return turn_off();
}

/* Take the records from CUPTI: if IS_FORCED, those of all buffers, unfinished ones included. */
static PyObject *
flush(uint32_t is_forced)
{
    int result;
    size_t dropped = 0;
    Py_BEGIN_ALLOW_THREADS
    result = cupti.flush(is_forced);
    if (result == SUCCESS && cupti.count_dropped(NULL, 0, &dropped) == SUCCESS && dropped) {
        pthread_mutex_lock(&guard);
        lost += (long long)dropped;
        pthread_mutex_unlock(&guard);
    }
    Py_END_ALLOW_THREADS
    return checked(result);
}

PyDoc_STRVAR(flush_doc,
"flush_kernels()\n--\n\n"
"Take the records of finished kernels from CUPTI. Waits for no kernel.");

static PyObject *
flush_kernels(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return flush(0);
}

/* Order the COUNT values just enough that the one at RANK is in its place, with no larger one before it; return it. */
static uint64_t
select_rank(uint64_t *values, int count, int rank)
{
    int low = 0, high = count - 1;
    while (low < high) {
        uint64_t pivot = values[(low + high) / 2];
        int i = low, j = high;
        while (i <= j) {
            while (values[i] < pivot) {
                i++;
            }
            while (values[j] > pivot) {
                j--;
            }
            if (i <= j) {
                uint64_t swapped = values[i];
                values[i++] = values[j];
                values[j--] = swapped;
            }
        }
        if (rank <= j) {
            high = j;
        }
        else if (rank >= i) {
            low = i;
        }
        else {
            break;
        }
    }
    return values[rank];
}

static double
median_of(uint64_t *values, int count)
{
    int half = count / 2;
    uint64_t upper = select_rank(values, count, half), lower = 0;
    if (count % 2) {
        return (double)upper;
    }
    for (int i = 0; i < half; i++) {
        lower = values[i] > lower ? values[i] : lower;
    }
    return ((double)lower + (double)upper) / 2;
}

static PyObject *
summary_of(Kernel *kernel)
{
    PyObject *name = PyUnicode_DecodeUTF8(kernel->name, (Py_ssize_t)strlen(kernel->name), "replace");
    if (name == NULL) {
        return NULL;
    }
    const int32_t *shape = kernel->shape;
    return Py_BuildValue("N(iiiiii)(LLdddd d)", name, shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], kernel->count,
                         kernel->count, (double)kernel->least, (double)kernel->most,
                         median_of(kernel->kept, kernel->kept_count), kernel->mean,
                         sqrt(kernel->squares / (double)kernel->count));
}

PyDoc_STRVAR(drain_doc,
"drain_kernels()\n--\n\n"
"Return what came since the last call: the kernels, how many launches they are, and how many were lost.\n\n"
"Of each kernel its name, its launch shape (the block's three sizes, the grid's) and its times in ns as a SectionSummary\n"
"has them.");

static PyObject *
drain_kernels(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    pthread_mutex_lock(&guard);
    Kernels taken = kernels;
    long long were_launched = launches, were_lost = lost;
    kernels = (Kernels){0};
    launches = lost = 0;
    pthread_mutex_unlock(&guard);
    PyObject *found = PyList_New(0);
    for (size_t i = 0; i < taken.room; i++) {
        Kernel *kernel = &taken.slots[i];
        if (kernel->name != NULL && kernel->count && found != NULL) {
            PyObject *summary = summary_of(kernel);
            if (summary == NULL || PyList_Append(found, summary) < 0) {
                Py_CLEAR(found);
            }
            Py_XDECREF(summary);
        }
        free(kernel->name);
        free(kernel->kept);
    }
    free(taken.slots);
    return found == NULL ? NULL : Py_BuildValue("NLL", found, were_launched, were_lost);
}

PyDoc_STRVAR(leave_doc,
"leave_kernels()\n--\n\n"
"Record no more, however often it was begun, and take back the buffers: what is not finished is lost.");

static PyObject *
leave_kernels(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    PyObject *done = turn_off();
    if (done == NULL) {
        return NULL;
    }
    Py_DECREF(done);
    return flush(1);
}

static PyMethodDef functions[] = {
    {"open_kernels", open_kernels, METH_O, open_doc},
    {"take_kernels", take_kernels, METH_NOARGS, take_doc},
    {"begin_kernels", begin_kernels, METH_NOARGS, begin_doc},
    {"end_kernels", end_kernels, METH_NOARGS, end_doc},
    {"flush_kernels", flush_kernels, METH_NOARGS, flush_doc},
    {"drain_kernels", drain_kernels, METH_NOARGS, drain_doc},
    {"leave_kernels", leave_kernels, METH_NOARGS, leave_doc},
    {NULL, NULL, 0, NULL},
};

int
ts_add_kernels(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
