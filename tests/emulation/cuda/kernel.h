/* What a module for the stand-in is: this header, and then the bytes of a shared object for the host.
 *
 * The object exports `standin_kernels`, which ends with an entry without a name.  A kernel gets its arguments as
 * cuLaunchKernel does, one pointer for each; it runs all threads of all blocks and returns 0 or the CUresult that the
 * context shall have from then on.  Device addresses can be used as they are while it runs, those of memory that is
 * allocated only.  Variables that cuModuleGetGlobal shall find are exported by their names.
 */
#ifndef STANDIN_KERNEL_H
#define STANDIN_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#define STANDIN_MODULE_MARK "STANDIN-MODULE\0"

struct standin_module_header {
    char mark[16];
    uint64_t bytes;                /* of the shared object that follows */
};

struct standin_launch {
    unsigned grid[3], block[3];
    size_t shared_bytes;           /* dynamic shared memory */
};

struct standin_kernel {
    const char *name;
    int argument_count;
    const size_t *argument_sizes;
    int (*run)(void *const *arguments, const struct standin_launch *launch);
};

#endif
