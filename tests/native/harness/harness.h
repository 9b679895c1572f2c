/* A program that drives the C files of hpccoll/_native from threads, without Python: for sanitizers and other machines. */

#ifndef HARNESS_H
#define HARNESS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MUST(condition)                                                                                    \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                        \
            _Exit(1);                                                                                      \
        }                                                                                                  \
    } while (0)

/* A number below `limit` (xorshift64*), the same on every machine. */
static inline int64_t
draw(uint64_t *state, int64_t limit)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (int64_t)((*state * 0x2545f4914f6cdd1du >> 33) % (uint64_t)limit);
}

/* Each runs its checks and ends the process with status 1 where one fails. */
void check_copies(void);
void check_words(int rounds);
void check_calls(uint64_t seed, int rounds);

#endif
