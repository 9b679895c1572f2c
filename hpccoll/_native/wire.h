/* float32 as it travels between nodes: in half as many bytes (ops/wire.py). */

#ifndef HPCCOLL_WIRE_H
#define HPCCOLL_WIRE_H

#include <stdint.h>

#define WIRE_BYTES 2
#define CARRIED_BYTES 4

typedef enum { NO_WIRE, BFLOAT16, FLOAT16 } Wire;

/* "" is NO_WIRE; -1 for a name that there is not. */
int wire_named(const char *name);

/* `count` elements, which may lie at any address: to the nearest, to even in the middle; and back. */
void wire_round(Wire wire, const char *from, char *to, int64_t count);
void wire_widen(Wire wire, const char *from, char *to, int64_t count);

#endif
