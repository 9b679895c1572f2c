/* copy.c: every length around the sizes of vectors, lines and pages, at every place in a line; and what overlaps. */

#include "harness.h"

#include "copy.h"

#include <string.h>

#define LINE 64
#define MOST 8400
#define GUARD 160

typedef void (*Copy)(char *, const char *, size_t);

static unsigned char *source, *target;

static unsigned char
mixed(size_t i)
{
    return (unsigned char)(i * 131 + (i >> 8) * 29 + 7);
}

static void
check_one(Copy copy, size_t from, size_t to, size_t nbytes)
{
    memset(target, 0xA5, to + nbytes + 2 * GUARD);
    copy((char *)target + GUARD + to, (char *)source + from, nbytes);
    MUST(memcmp(target + GUARD + to, source + from, nbytes) == 0);
    for (size_t i = 0; i < GUARD; ++i) {
        MUST(target[to + i] == 0xA5);
        MUST(target[GUARD + to + nbytes + i] == 0xA5);
    }
}

/* As memmove, where the target begins `apart` bytes after the source, or before it. */
static void
check_overlap(Copy copy, size_t from, long apart, size_t nbytes)
{
    unsigned char *at = target + GUARD + LINE + MOST, *wanted = source;
    for (size_t i = 0; i < nbytes; ++i)
        at[(long)from + (long)i] = wanted[i];
    copy((char *)at + (long)from + apart, (char *)at + from, nbytes);
    MUST(memcmp(at + (long)from + apart, wanted, nbytes) == 0);
}

static void
check_length(Copy copy, size_t nbytes)
{
    for (size_t offset = 0; offset < LINE; ++offset) {
        check_one(copy, offset, offset, nbytes);
        check_one(copy, offset, (offset * 37 + nbytes) % LINE, nbytes);
        check_one(copy, 0, offset, nbytes);
        check_one(copy, offset, 16, nbytes);
    }
    for (long apart = -80; apart <= 80; apart += 5)
        check_overlap(copy, (size_t)(nbytes % LINE), apart, nbytes);
    check_overlap(copy, 3, (long)nbytes - 1, nbytes);
    check_overlap(copy, 3, 1 - (long)nbytes, nbytes);
}

void
check_copies(void)
{
    static const size_t edges[] = {1024, 1088, 2048, 4096, 8192};
    source = malloc(MOST + LINE);
    target = malloc(3 * (MOST + LINE) + 2 * GUARD);
    MUST(source != NULL && target != NULL);
    for (size_t i = 0; i < MOST + LINE; ++i)
        source[i] = mixed(i);
    for (int past = 0; past < 2; ++past) {
        Copy copy = past ? copy_past_caches : copy_bytes;
        for (size_t nbytes = 0; nbytes <= 300; ++nbytes)
            check_length(copy, nbytes);
        for (size_t i = 0; i < sizeof edges / sizeof *edges; ++i)
            for (size_t nbytes = edges[i] - 18; nbytes <= edges[i] + 18; ++nbytes)
                check_length(copy, nbytes);
    }
    MUST(last_cache_bytes() > 0);
    free(source);
    free(target);
}
