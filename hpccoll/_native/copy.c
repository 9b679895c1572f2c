/* Copies of long runs of bytes. */

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
#define LEAST_BY_LINES 1024

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

#if defined(__SSE2__)

/* Copies by lines to where the target is aligned; returns how many bytes. */
static inline __attribute__((always_inline)) size_t
copy_lines(char *to, const char *from, size_t nbytes, int past)
{
    size_t done = -(uintptr_t)to % VECTOR;
    memcpy(to, from, done);
    for (; done + LINE <= nbytes; done += LINE) {
        __m128i *into = (__m128i *)(to + done);
        const __m128i *out_of = (const __m128i *)(from + done);
        __m128i a = _mm_loadu_si128(out_of), b = _mm_loadu_si128(out_of + 1);
        __m128i c = _mm_loadu_si128(out_of + 2), d = _mm_loadu_si128(out_of + 3);
        if (past) {
            _mm_stream_si128(into, a), _mm_stream_si128(into + 1, b);
            _mm_stream_si128(into + 2, c), _mm_stream_si128(into + 3, d);
        }
        else {
            _mm_store_si128(into, a), _mm_store_si128(into + 1, b);
            _mm_store_si128(into + 2, c), _mm_store_si128(into + 3, d);
        }
    }
    return done;
}

#else

static inline size_t
copy_lines(char *to, const char *from, size_t nbytes, int past)
{
    (void)to, (void)from, (void)nbytes, (void)past;
    return 0;
}

#endif

static inline int
lie_apart(const char *one, const char *other, size_t nbytes)
{
    return one + nbytes <= other || other + nbytes <= one;
}

void
copy_bytes(char *to, const char *from, size_t nbytes)
{
    size_t done = 0;
    if (nbytes >= LEAST_BY_LINES && lie_apart(to, from, nbytes))
        done = copy_lines(to, from, nbytes, 0);
    memmove(to + done, from + done, nbytes - done);
}

void
copy_past_caches(char *to, const char *from, size_t nbytes)
{
    size_t done = 0;
    if (nbytes >= LEAST_BY_LINES && lie_apart(to, from, nbytes)) {
        done = copy_lines(to, from, nbytes, 1);
#if defined(__SSE2__)
        _mm_sfence(); /* flags that are set after this are seen after it */
#endif
    }
    memmove(to + done, from + done, nbytes - done);
}
