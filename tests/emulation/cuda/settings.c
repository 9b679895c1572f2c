/* The settings of the stand-in, from environment variables that begin with STANDIN_, and what it says on stderr. */
#include "standin.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct settings settings;

static long long number(const char *name, long long least, long long otherwise)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return otherwise;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || *end || value < least) {
        complain("%s=%s: expected a number, %lld or more", name, text, least);
        abort();
    }
    return value;
}

static enum mode mode_of(const char *text)
{
    if (!text || !*text || !strcmp(text, "lazy"))
        return LAZY;
    if (!strcmp(text, "delay"))
        return DELAY;
    if (!strcmp(text, "eager"))
        return EAGER;
    complain("STANDIN_MODE=%s: expected eager, delay or lazy", text);
    abort();
}

/* Part of the devices' UUIDs, so that those of two machines differ. */
static const char *host_name(void)
{
    static char name[256];
    const char *text = getenv("STANDIN_HOST");
    if (text && *text)
        snprintf(name, sizeof name, "%s", text);
    else if (gethostname(name, sizeof name - 1))
        snprintf(name, sizeof name, "standin");
    return name;
}

/* Processes of one job get different delays, and the same ones in every run. */
static uint64_t rank(void)
{
    static const char *const names[] = {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]))
            return (uint64_t)atoi(getenv(names[i])) + 1;
    return 0;
}

void read_settings(void)
{
    settings.devices = (int)number("STANDIN_DEVICES", 0, 4);
    if (settings.devices > MOST_DEVICES)
        settings.devices = MOST_DEVICES;
    settings.mode = mode_of(getenv("STANDIN_MODE"));
    settings.delay_us = number("STANDIN_DELAY_US", 0, 2000);
    settings.lazy_us = number("STANDIN_LAZY_US", 0, 20000);
    settings.seed = mix((uint64_t)number("STANDIN_SEED", 0, 0)) ^ mix(rank());
    settings.memory = (size_t)number("STANDIN_MEMORY_MIB", 1, 1024) << 20;
    settings.log = number("STANDIN_LOG", 0, 0) > 0;
    settings.host = host_name();
}

static void say(const char *format, va_list arguments)
{
    char line[512];
    int used = snprintf(line, sizeof line, "CUDA stand-in (%d): ", (int)getpid());
    used += vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    if (used > (int)sizeof line - 2)
        used = (int)sizeof line - 2;
    line[used++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)used) < 0)
        return;
}

void complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}

void note(const char *format, ...)
{
    if (!settings.log)
        return;
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}

/* splitmix64: delays and UUIDs that look random and are the same for the same seed. */
uint64_t mix(uint64_t value)
{
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

CUresult unsupported(const char *function)
{
    note("%s is not supported", function);
    return CUDA_ERROR_NOT_SUPPORTED;
}
