/* Copies to memory that is not read again soon. */

#ifndef HPCCOLL_COPY_H
#define HPCCOLL_COPY_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the last cache that a core shares with others; a guess where the system does not say. */
int64_t last_cache_bytes(void);

/* As memcpy, past the caches where the processor can: the target's lines are not read before they are written, and what
 * is in the caches stays there. */
void copy_past_caches(char *to, const char *from, size_t nbytes);

#endif
