/* The memory of the objects behind handles.  A destroyed object stays readable for a while, without its mark, so
 * that a stale handle gives an error and not a crash. */
#include "standin.h"

#include <stdlib.h>

enum { KEPT = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *graveyard[KEPT];
static size_t buried;

void *make_object(enum magic magic, size_t bytes)
{
    uint32_t *object = calloc(1, bytes);
    if (!object)
        abort();
    *object = magic;
    return object;
}

bool is_object(const void *object, enum magic magic)
{
    return object && (uintptr_t)object % sizeof(void *) == 0 && *(const uint32_t *)object == (uint32_t)magic;
}

void retire_object(void *object)
{
    *(uint32_t *)object = 0;
    pthread_mutex_lock(&lock);
    void *oldest = graveyard[buried % KEPT];
    graveyard[buried++ % KEPT] = object;
    pthread_mutex_unlock(&lock);
    free(oldest);
}
