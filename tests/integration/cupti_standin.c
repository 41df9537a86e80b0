/*
 * Stands in for NVIDIA's libcupti, as far as cupti-python needs it to record kernels, and for the libcuda that it looks for.
 *
 * Kernels are not run: a test says which were launched, with the records that CUPTI would have made of them.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MAX_LIMIT_REACHED 12 /* there is no further record, in cupti_result.h */
#define KINDS 256

typedef void (*request_fn)(uint8_t **buffer, size_t *size, size_t *most_records);
typedef void (*complete_fn)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid_size);

static request_fn requested;
static complete_fn completed;
static int is_enabled[KINDS];
static uint8_t *buffer;
static size_t room, used, record_size;

int cuDriverGetVersion(int *version) { *version = 13000; return 0; }

int cuptiGetVersion(uint32_t *version) { *version = 130000; return 0; }

int cuptiSubscribe(void **subscriber, void *callback, void *data) { (void)callback; (void)data; *subscriber = &requested; return 0; }

int cuptiUnsubscribe(void *subscriber) { (void)subscriber; return 0; }

int cuptiActivityRegisterCallbacks(request_fn request, complete_fn complete) { requested = request; completed = complete; return 0; }

int cuptiActivityEnable(uint32_t kind) { is_enabled[kind % KINDS] = 1; return 0; }

int cuptiActivityDisable(uint32_t kind) { is_enabled[kind % KINDS] = 0; return 0; }

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) { (void)context; (void)stream; *dropped = 0; return 0; }

int cuptiActivityFlushAll(uint32_t flag)
{
    uint8_t *full = buffer;
    (void)flag;
    buffer = NULL;
    if (full)
        completed(NULL, 0, full, room, used);
    return 0;
}

int cuptiActivityGetNextRecord(uint8_t *from, size_t valid_size, uint8_t **record)
{
    uint8_t *next = *record ? *record + record_size : from;
    if (next + record_size > from + valid_size)
        return MAX_LIMIT_REACHED;
    *record = next;
    return 0;
}

/* Launch a kernel, of which CUPTI would make this record; return whether it was recorded. */
int launch(uint32_t kind, const uint8_t *record, size_t size)
{
    size_t most_records;
    if (!is_enabled[kind % KINDS])
        return 0;
    record_size = size;
    if (buffer && used + size > room)
        cuptiActivityFlushAll(0);
    if (!buffer) {
        requested(&buffer, &room, &most_records);
        used = 0;
    }
    memcpy(buffer + used, record, size);
    used += size;
    return 1;
}
