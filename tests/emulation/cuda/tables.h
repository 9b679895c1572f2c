/* The tables that generate.py writes. */
#ifndef STANDIN_TABLES_H
#define STANDIN_TABLES_H

#pragma GCC visibility push(hidden)

struct version {
    const char *name;
    int from;                      /* the CUDA version, 12000 for 12.0 */
    int per_thread;
    void *function;
};

struct error {
    CUresult code;
    const char *name, *text;
};

extern const struct version versions[];
extern const struct error errors[];

#pragma GCC visibility pop

#endif
