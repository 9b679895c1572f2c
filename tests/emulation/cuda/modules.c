/* Modules and kernels: shared objects for the host, loaded from memory, run by the worker of a stream (kernel.h). */
#include "kernel.h"
#include "standin.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_THREADS = 1024, MOST_SHARED = 232448, PROCESSORS = 4, THREADS_OF_PROCESSOR = 2048 };

struct CUfunc_st {
    uint32_t magic;
    CUmodule module;
    const struct standin_kernel *kernel;
    CUfunction next;
};

struct CUmod_st {
    uint32_t magic;
    CUcontext context;
    void *object;
    const struct standin_kernel *kernels;
    CUfunction functions;
};

/* ---- loading ---- */

/* The file stays open: dlopen knows objects by their path, and this one must not get another content. */
static void *open_object(const void *bytes, size_t size)
{
    int file = memfd_create("standin-module", MFD_CLOEXEC);
    if (file < 0 || write(file, bytes, size) != (ssize_t)size)
        return NULL;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static CUresult load(CUmodule *out, const void *image, CUcontext context)
{
    struct standin_module_header header;
    memcpy(&header, image, sizeof header.mark);
    if (memcmp(header.mark, STANDIN_MODULE_MARK, sizeof header.mark)) {
        complain("a module for a real GPU cannot be loaded");
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    memcpy(&header, image, sizeof header);
    void *object = open_object((const char *)image + sizeof header, header.bytes);
    const struct standin_kernel *kernels = object ? dlsym(object, "standin_kernels") : NULL;
    if (!kernels) {
        complain("a module cannot be loaded: %s", dlerror());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    *out = make_object(MODULE, sizeof **out);
    (*out)->context = context;
    (*out)->object = object;
    (*out)->kernels = kernels;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS && (!module || !image))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = refuse_unsafe();
    return result == CUDA_SUCCESS ? load(module, image, context) : result;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values)
{
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return CUDA_ERROR_FILE_NOT_FOUND;
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    char *image = calloc(1, size + sizeof(struct standin_module_header));
    size_t got = fread(image, 1, size, file);
    fclose(file);
    CUresult result = got == size ? cuModuleLoadData(module, image) : CUDA_ERROR_INVALID_IMAGE;
    free(image);
    return result;
}

/* The object stays in the process: operations that are still to run may need it. */
CUresult cuModuleUnload(CUmodule module)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result == CUDA_SUCCESS && !is_object(module, MODULE))
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result != CUDA_SUCCESS)
        return result;
    while (module->functions) {
        CUfunction function = module->functions;
        module->functions = function->next;
        retire_object(function);
    }
    retire_object(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

static CUfunction function_of(CUmodule module, const struct standin_kernel *kernel)
{
    pthread_mutex_lock(&big_lock);
    CUfunction function = module->functions;
    while (function && function->kernel != kernel)
        function = function->next;
    if (!function) {
        function = make_object(FUNCTION, sizeof *function);
        *function = (struct CUfunc_st){FUNCTION, module, kernel, module->functions};
        module->functions = function;
    }
    pthread_mutex_unlock(&big_lock);
    return function;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_object(module, MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    for (const struct standin_kernel *kernel = module->kernels; kernel->name; kernel++)
        if (!strcmp(kernel->name, name)) {
            *function = function_of(module, kernel);
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *size, CUmodule module, const char *name)
{
    CUcontext context;
    CUresult result = current_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_object(module, MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    void *address = dlsym(module->object, name);
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    if (!address || !dladdr1(address, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol)
        return CUDA_ERROR_NOT_FOUND;
    struct allocation found;
    if (!find_memory((uintptr_t)address, &found)) {
        found = (struct allocation){.id = new_memory_id(), .kind = MODULE_MEMORY, .state = LIVE,
                                    .address = (uintptr_t)address, .size = symbol->st_size, .mapped = symbol->st_size,
                                    .view = address, .device = context->device, .context = context};
        add_memory(&found);
    }
    if (pointer)
        *pointer = found.address;
    if (size)
        *size = found.size;
    return CUDA_SUCCESS;
}

/* ---- the newer names for the same ---- */

CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *options, void **values, unsigned count,
                           CUlibraryOption *library_options, void **library_values, unsigned library_count)
{
    (void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count;
    return cuModuleLoadData((CUmodule *)library, image);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    return cuModuleUnload((CUmodule)library);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    return cuModuleGetFunction((CUfunction *)kernel, (CUmodule)library, name);
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    *module = (CUmodule)library;
    return is_object(library, MODULE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    *function = (CUfunction)kernel;
    return is_object(kernel, FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- functions ---- */

static CUresult read_function(int *value, CUfunction_attribute attribute, CUfunction function)
{
    if (!is_object(function, FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? MOST_THREADS
             : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
             : attribute == CU_FUNC_ATTRIBUTE_BINARY_VERSION      ? 90
             : attribute == CU_FUNC_ATTRIBUTE_PTX_VERSION         ? 90
                                                                  : 0;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    CUcontext context;
    CUresult result = current_context(&context);
    return result == CUDA_SUCCESS ? read_function(value, attribute, function) : result;
}

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device)
{
    (void)device;
    return read_function(value, attribute, (CUfunction)kernel);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    (void)attribute, (void)value;
    CUcontext context;
    CUresult result = current_context(&context);
    return result == CUDA_SUCCESS && !is_object(function, FUNCTION) ? CUDA_ERROR_INVALID_HANDLE : result;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
    (void)config;
    return cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX, 0);
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
    if (!is_object(function, FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    *module = function->module;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name, CUfunction function)
{
    if (!is_object(function, FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    *name = function->kernel->name;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int threads,
                                                              size_t shared, unsigned flags)
{
    (void)shared, (void)flags;
    if (!is_object(function, FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    if (threads < 1)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks = threads > MOST_THREADS ? 0 : THREADS_OF_PROCESSOR / threads < 32 ? THREADS_OF_PROCESSOR / threads : 32;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of,
                                          size_t shared, int limit)
{
    (void)shared_of, (void)shared;
    if (!is_object(function, FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    *block = limit && limit < MOST_THREADS ? limit : MOST_THREADS;
    *grid = PROCESSORS * (THREADS_OF_PROCESSOR / *block);
    return CUDA_SUCCESS;
}

/* ---- launching ---- */

struct kernel_task {
    struct task task;
    const struct standin_kernel *kernel;
    CUcontext context;
    struct standin_launch launch;
    void **arguments;              /* each a copy */
};

static CUresult run_threads(void *argument)
{
    struct kernel_task *task = argument;
    return (CUresult)task->kernel->run(task->arguments, &task->launch);
}

static CUresult run_kernel(struct task *task)
{
    struct kernel_task *kernel = (struct kernel_task *)task;
    open_memory(kernel->context);
    CUresult result = run_guarded(run_threads, kernel);
    close_memory();
    return result;
}

static void drop_kernel(struct task *task)
{
    struct kernel_task *kernel = (struct kernel_task *)task;
    for (int i = 0; i < kernel->kernel->argument_count; i++)
        free(kernel->arguments[i]);
    free(kernel->arguments);
}

static struct task *kernel_task(CUfunction function, const struct standin_launch *launch, void **arguments)
{
    const struct standin_kernel *kernel = function->kernel;
    struct kernel_task *task = make_task(sizeof *task, kernel->name, CU_GRAPH_NODE_TYPE_KERNEL, run_kernel, drop_kernel);
    task->kernel = kernel;
    task->context = function->module->context;
    task->launch = *launch;
    task->arguments = calloc((size_t)kernel->argument_count + 1, sizeof(void *));
    for (int i = 0; i < kernel->argument_count; i++) {
        task->arguments[i] = malloc(kernel->argument_sizes[i] + 1);
        memcpy(task->arguments[i], arguments[i], kernel->argument_sizes[i]);
    }
    return &task->task;
}

static bool fits(const struct standin_launch *launch)
{
    const unsigned *grid = launch->grid, *block = launch->block;
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2])
        return false;
    if (grid[0] > 2147483647u || grid[1] > 65535 || grid[2] > 65535)
        return false;
    return block[2] <= 64 && (uint64_t)block[0] * block[1] * block[2] <= MOST_THREADS && launch->shared_bytes <= MOST_SHARED;
}

static CUresult launch_function(CUfunction function, const struct standin_launch *launch, CUstream handle, void **arguments,
                                void **extra)
{
    CUstream stream;
    if (extra)
        return unsupported("a launch with packed arguments");
    pthread_mutex_lock(&big_lock);
    CUresult result = stream_of(handle, &stream);
    if (result == CUDA_SUCCESS && (!is_object(function, FUNCTION) || function->module->context != stream->context))
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS && (!fits(launch) || (function->kernel->argument_count && !arguments)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = enqueue_on(stream, kernel_task(function, launch, arguments), false);
    pthread_mutex_unlock(&big_lock);
    return result;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments,
                        void **extra)
{
    struct standin_launch launch = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared};
    return launch_function(function, &launch, stream, arguments, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)
{
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && config->attrs[i].value.cooperative)
            return unsupported("a cooperative launch");
    struct standin_launch launch = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                                    {config->blockDimX, config->blockDimY, config->blockDimZ},
                                    config->sharedMemBytes};
    return launch_function(function, &launch, config->hStream, arguments, extra);
}
