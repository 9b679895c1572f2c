/* Words of wait.h between two threads: what was written before a word is there after it. */

#include "harness.h"

#include "wait.h"

#include <pthread.h>
#include <sched.h>

#define PAYLOAD 67 /* over nine cache lines */
#define STRIDE 8

typedef struct {
    word_t words[2 * STRIDE]; /* of the writer, of the reader */
    int64_t payload[PAYLOAD];
    int rounds;
} Shared;

static void
wait_for(word_t *word, uint64_t value)
{
    while (first_word_below(word, 1, STRIDE, value, 0) >= 0) {
        cpu_pause();
        sched_yield();
    }
}

static void *
write_all(void *argument)
{
    Shared *shared = argument;
    for (int round = 1; round <= shared->rounds; ++round) {
        for (int i = 0; i < PAYLOAD; ++i)
            shared->payload[i] = round;
        store_word(shared->words, (uint64_t)round);
        wait_for(shared->words + STRIDE, (uint64_t)round);
    }
    return NULL;
}

void
check_words(int rounds)
{
    static Shared shared;
    pthread_t writer;
    shared.rounds = rounds;
    MUST(pthread_create(&writer, NULL, write_all, &shared) == 0);
    for (int round = 1; round <= rounds; ++round) {
        wait_for(shared.words, (uint64_t)round);
        for (int i = 0; i < PAYLOAD; ++i)
            MUST(shared.payload[i] == round);
        store_word(shared.words + STRIDE, (uint64_t)round);
    }
    MUST(pthread_join(writer, NULL) == 0);
}
