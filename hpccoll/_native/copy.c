/* Copies to memory that is not read again soon. */

#include "copy.h"

#include <stdio.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define USUAL_CACHE_BYTES (32 << 20)
#define MOST_CACHE_BYTES (1LL << 40)
#define VECTOR 16
#define LINE 64

int64_t
last_cache_bytes(void)
{
    /* sysconf(_SC_LEVEL3_CACHE_SIZE) is the sum of all caches of the chip on some machines. */
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    long long found = 0;
    char unit = 0;
    if (file != NULL) {
        if (fscanf(file, "%lld%c", &found, &unit) != 2)
            found = 0;
        fclose(file);
    }
    found = unit == 'K' ? found << 10 : unit == 'M' ? found << 20 : 0;
    return found > 0 && found < MOST_CACHE_BYTES ? found : USUAL_CACHE_BYTES;
}

void
copy_past_caches(char *to, const char *from, size_t nbytes)
{
#if defined(__SSE2__)
    size_t before = -(uintptr_t)to % VECTOR;
    if (nbytes >= LINE + VECTOR) {
        memcpy(to, from, before);
        to += before, from += before, nbytes -= before;
        for (; nbytes >= LINE; to += LINE, from += LINE, nbytes -= LINE) {
            __m128i parts[LINE / VECTOR];
            memcpy(parts, from, LINE);
            for (int i = 0; i < LINE / VECTOR; ++i)
                _mm_stream_si128((__m128i *)to + i, parts[i]);
        }
        _mm_sfence(); /* flags that are set after this are seen after it */
    }
#endif
    memcpy(to, from, nbytes);
}
