/*
 * Stands in for NVIDIA's libcupti, as far as native/kernels.c needs it to record kernels.
 *
 * Kernels are not run: a test says which were launched, with the record that CUPTI would have made of them.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LIMIT_REACHED 12 /* there is no further record, in cupti_result.h */
#define RECORD_SIZE 208

typedef void (*request_fn)(uint8_t **buffer, size_t *size, size_t *most_records);
typedef void (*complete_fn)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid_size);

static request_fn requested;
static complete_fn completed;
static uint8_t *buffer;
static size_t room, used, dropped;

/* What a test sets and reads. */
int is_enabled, registrations, flushes, forced_flushes, refuses;

int cuptiGetResultString(int result, const char **text) { *text = "no"; return result < 0; }

int cuptiActivityRegisterCallbacks(request_fn request, complete_fn complete)
{
    if (refuses)
        return refuses;
    registrations++;
    requested = request;
    completed = complete;
    return 0;
}

int cuptiActivityEnable(uint32_t kind) { if (refuses) return refuses; is_enabled += kind == 10; return 0; }

int cuptiActivityDisable(uint32_t kind) { is_enabled -= kind == 10; return 0; }

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count)
{
    (void)context, (void)stream;
    *count = dropped;
    dropped = 0;
    return 0;
}

int cuptiActivityFlushAll(uint32_t flag)
{
    uint8_t *full = buffer;
    flushes++;
    forced_flushes += flag == 1;
    buffer = NULL;
    if (full)
        completed(NULL, 0, full, room, used);
    return 0;
}

int cuptiActivityGetNextRecord(uint8_t *from, size_t valid_size, uint8_t **record)
{
    uint8_t *next = *record ? *record + RECORD_SIZE : from;
    if (next + RECORD_SIZE > from + valid_size)
        return MAX_LIMIT_REACHED;
    *record = next;
    return 0;
}

/* Take a buffer of whoever gives them, and keep it; return whether there was one. */
int take_buffer(uint8_t **taken)
{
    size_t size, most_records;
    requested(taken, &size, &most_records);
    return *taken != NULL;
}

/* Hand over a buffer, with so many bytes of records in it. */
void return_buffer(uint8_t *taken, size_t valid) { completed(NULL, 0, taken, valid, valid); }

/* Have another profiler take the callbacks: what is recorded is its own. */
static void their_request(uint8_t **given, size_t *size, size_t *most_records) { *given = malloc(*size = 1 << 16); *most_records = 0; }
static void their_complete(void *context, uint32_t stream, uint8_t *given, size_t size, size_t valid)
{
    (void)context, (void)stream, (void)size, (void)valid;
    free(given);
}
void taken_by_another(void) { requested = their_request; completed = their_complete; }

/* Launch a kernel so often, of which CUPTI would make this record; return how many were recorded. */
int launch(const uint8_t *record, size_t size, int count)
{
    size_t most_records;
    int recorded = 0;
    if (!is_enabled)
        return 0;
    for (int i = 0; i < count; i++) {
        if (buffer && used + RECORD_SIZE > room)
            cuptiActivityFlushAll(0);
        if (!buffer) {
            requested(&buffer, &room, &most_records);
            used = 0;
        }
        if (!buffer) {
            dropped++;
            continue;
        }
        memset(buffer + used, 0, RECORD_SIZE);
        memcpy(buffer + used, record, size);
        used += RECORD_SIZE;
        recorded++;
    }
    return recorded;
}
