"""A CPU stand-in for CUDA devices, so that every line of the GPU path runs on a machine without one.

It is: `libcuda.so.1`, `libnvidia-ml.so.1` and `libnccl.so.2` written for memory of the host, with the
driver's rules of order (streams, events, capture), NCCL's arithmetic and the errors of both; where hardware
would let a mistake pass most of the time, it lets it pass never (`cuda/queue.c`, `cuda/memory.c`).

It is not: a GPU. What ran on it is "run on the CPU stand-in", never "tested on a GPU"; it says nothing about
speed. It is never installed with the package, and refuses to be built or loaded where there is a real driver.

    python -m tests.emulation mpiexec -n 4 python program.py      # four devices, lazy mode

| module | |
|---|---|
| `build` | compiles the libraries into `build/emulation/` |
| `load` | loads them into a Python process; the environment of a process that shall load them |
| `cupy/` | what CuPy needs: a runtime, a compiler for its kernels, matrices multiplied |
| `site/` | what makes any Python below that environment load them |

| variable | default | |
|---|---|---|
| `STANDIN_FOLDER` | | where the libraries are; without it nothing is loaded |
| `STANDIN_DEVICES` | 4 | devices of the machine; `CUDA_VISIBLE_DEVICES` picks among them |
| `STANDIN_MODE` | lazy | eager: done at the call's return; delay: at a random time; lazy: when waited for |
| `STANDIN_DELAY_US` | 2000 | delay mode: the longest time |
| `STANDIN_LAZY_US` | 20000 | lazy mode: after this time an operation runs though nobody waits for it |
| `STANDIN_SEED` | 0 | of the random times |
| `STANDIN_MEMORY_MIB` | 1024 | memory of a device, for each process |
| `STANDIN_MEETING` | /dev/shm | where ranks meet: for several virtual hosts a folder that they share |
| `STANDIN_HOST` | host name | devices of different hosts have different UUIDs |
| `STANDIN_NVLINK` | all | all, none, or pairs such as `0-1,2-3`: which devices NVML says are linked |
| `STANDIN_FABRIC` | none | `name:clique` of the NVLink fabric that NVML gives, which may span hosts |
| `STANDIN_CUPY` | | what CuPy needs (`cupy/`); where that cannot be had, `STANDIN_CUPY_MISSING` says why |
| `STANDIN_LOG` | 0 | 1: say which entry points are missed |
"""
