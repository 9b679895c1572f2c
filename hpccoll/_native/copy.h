/* Copies of long runs of bytes. */

#ifndef HPCCOLL_COPY_H
#define HPCCOLL_COPY_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the last cache that a core shares with others; a guess where the system does not say. */
int64_t last_cache_bytes(void);

/* Whether so many bytes at one and at the other have none in common. */
int lie_apart(const char *one, const char *other, size_t nbytes);

/* As memmove, by vectors where the two lie apart.  The C library's takes `rep movsb` for long copies, which some
 * processors (AMD Zen 3 and 4) do at less than half the speed where both addresses are about the same within a page,
 * as those of arrays are. */
void copy_bytes(char *to, const char *from, size_t nbytes);

/* The same past the caches: the target's lines are not read before they are written, and what is in the caches stays
 * there.  For what is not read again soon. */
void copy_past_caches(char *to, const char *from, size_t nbytes);

#endif
