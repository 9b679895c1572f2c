/* What NCCL says: warnings, which ncclGetLastError repeats, lines of NCCL_DEBUG=INFO, names of errors. */
#define _GNU_SOURCE
#include "nccl_standin.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum level { SILENT, VERSION, WARNINGS, ALL };

#define TEXT(x) #x
#define VALUE(x) TEXT(x)

/* Programs look for this line in the library's file. */
static const char version[] = "NCCL version " VALUE(NCCL_MAJOR) "." VALUE(NCCL_MINOR) "." VALUE(NCCL_PATCH) "+cuda12.9";

static char last_error[1024];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static enum level level(void)
{
    const char *text = getenv("NCCL_DEBUG");
    if (!text)
        return SILENT;
    if (!strcasecmp(text, "VERSION"))
        return VERSION;
    if (!strcasecmp(text, "WARN"))
        return WARNINGS;
    return strcasecmp(text, "INFO") && strcasecmp(text, "TRACE") ? SILENT : ALL;
}

static void say(const char *kind, int device, const char *text)
{
    char host[256] = "localhost";
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = 0;
    printf("%s:%d:%ld [%d] NCCL %s %s\n", host, getpid(), syscall(SYS_gettid), device, kind, text);
    fflush(stdout);
}

void warn(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&lock);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    if (level() >= WARNINGS)
        say("WARN", 0, last_error);
    pthread_mutex_unlock(&lock);
    va_end(arguments);
}

void info(int device, const char *format, ...)
{
    if (level() < ALL)
        return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    say("INFO", device, text);
}

/* Lines of single calls, as NCCL has them. */
bool shows_calls(void)
{
    const char *systems = getenv("NCCL_DEBUG_SUBSYS");
    return level() >= ALL && systems && (strcasestr(systems, "COLL") || !strcasecmp(systems, "ALL"));
}

void report(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "NCCL stand-in [%d]: %s\n", getpid(), text);
}

void show_version(void)
{
    static atomic_bool shown;
    if (level() < VERSION || atomic_exchange(&shown, true))
        return;
    printf("%s\n", version);
    fflush(stdout);
    info(0, "this is the CPU stand-in for tests: memory of the host, no GPU");
}

double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

ncclResult_t ncclGetVersion(int *code)
{
    if (!code) {
        warn("GetVersion : version argument is NULL");
        return ncclInvalidArgument;
    }
    *code = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
    }
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return last_error;
}
