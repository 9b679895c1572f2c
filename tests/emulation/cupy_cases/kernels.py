"""Kernels of the program's own: blocks, shared memory, barriers, lanes, atomics, what is refused."""

from __future__ import annotations

import cupy
import numpy as np
from cupy.cuda.compiler import CompileException

from tests.emulation.cupy_cases import numbers, raises, same


def case_elementwise_and_reduction_kernels() -> None:
    a = cupy.asarray(numbers("f4", 100))
    square = cupy.ElementwiseKernel("T x, T y", "T z", "z = (x - y) * (x - y)", "square_of_difference")
    same(square(a, np.float32(2)), (a.get() - np.float32(2)) ** 2, 1e-6)
    norm = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
    same(norm(a), np.asarray(np.linalg.norm(a.get())), 1e-5)


def case_a_grid_has_three_dimensions() -> None:
    kernel = cupy.RawKernel(
        """extern "C" __global__ void place(int *out) {
            int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
            int z = blockIdx.z * blockDim.z + threadIdx.z;
            int width = gridDim.x * blockDim.x, height = gridDim.y * blockDim.y;
            out[(z * height + y) * width + x] = 10000 * z + 100 * y + x;
        }""",
        "place",
    )
    out = cupy.zeros((6, 4, 10), "i4")
    kernel((2, 2, 3), (5, 2, 2), (out,))
    z, y, x = np.indices((6, 4, 10))
    same(out, (10000 * z + 100 * y + x).astype("i4"))


REVERSE = """extern "C" __global__ void reverse(float *data) {
    %s
    int block = blockIdx.x * blockDim.x;
    kept[threadIdx.x] = data[block + threadIdx.x];
    __syncthreads();
    data[block + threadIdx.x] = kept[blockDim.x - 1 - threadIdx.x];
}"""


def case_shared_memory_and_barriers() -> None:
    data = numbers("f4", 3, 100)
    for shared, size in (("__shared__ float kept[100];", 0), ("extern __shared__ float kept[];", 400)):
        array = cupy.asarray(data)
        cupy.RawKernel(REVERSE % shared, "reverse")((3,), (100,), (array,), shared_mem=size)
        same(array, data[:, ::-1])


def case_votes_of_a_block() -> None:
    kernel = cupy.RawKernel(
        """extern "C" __global__ void vote(int *out) {
            int lane = threadIdx.x;
            out[3 * lane] = __syncthreads_count(lane < 7);
            out[3 * lane + 1] = __syncthreads_or(lane == 40);
            out[3 * lane + 2] = __syncthreads_and(lane != 3);
        }""",
        "vote",
    )
    out = cupy.zeros((50, 3), "i4")
    kernel((1,), (50,), (out,))
    same(out, np.tile(np.array([7, 1, 0], "i4"), (50, 1)))


def case_lanes_exchange_values() -> None:
    kernel = cupy.RawKernel(
        """extern "C" __global__ void exchange(int *out) {
            int lane = threadIdx.x, value = 100 + lane;
            out[lane] = __shfl_sync(0xffffffff, value, 5);
            out[64 + lane] = __shfl_up_sync(0xffffffff, value, 2, 8);
            out[128 + lane] = __shfl_down_sync(0xffffffff, value, 3);
            out[192 + lane] = __shfl_xor_sync(0xffffffff, value, 1);
            double wide = __shfl_down_sync(0xffffffff, lane + 0.5, 1, 16);
            out[256 + lane] = (int)(2 * wide);
        }""",
        "exchange",
    )
    out = cupy.zeros((5, 64), "i4")
    kernel((1,), (64,), (out,))
    lane = np.arange(64)
    in_warp, in_eight, in_half = lane % 32, lane % 8, lane % 16
    want = [
        100 + lane // 32 * 32 + 5,
        100 + np.where(in_eight >= 2, lane - 2, lane),
        100 + np.where(in_warp + 3 < 32, lane + 3, lane),
        100 + (lane ^ 1),
        2 * np.where(in_half < 15, lane + 1, lane) + 1,
    ]
    same(out, np.array(want, "i4"))


def case_lanes_vote() -> None:
    kernel = cupy.RawKernel(
        """extern "C" __global__ void vote(unsigned *out) {
            int lane = threadIdx.x;
            if (lane < 32) {
                unsigned odd = __ballot_sync(0xffffffff, lane & 1);
                int any = __any_sync(0xffffffff, lane == 9), all = __all_sync(0xffffffff, lane != 9);
                out[lane] = odd + any + 2 * all;
            } else if (lane < 48) {
                __syncwarp(0xffff);
                out[lane] = __ballot_sync(0xffff, 1);
            }
        }""",
        "vote",
    )
    out = cupy.zeros(64, "u4")
    kernel((1,), (64,), (out,))
    same(out, np.repeat(np.array([0xAAAAAAAB, 0xFFFF, 0], "u4"), (32, 16, 16)))


def case_atomics_of_many_blocks() -> None:
    kernel = cupy.RawKernel(
        """extern "C" __global__ void count(int *sum, float *total, int *most, unsigned long long *bits) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            atomicAdd(sum, i);
            atomicAdd(total, 0.5f);
            atomicMax(most, i);
            atomicOr(bits, 1ull << (i % 60));
            if (i == 0)
                atomicCAS(sum + 1, 7, 9);
        }""",
        "count",
    )
    sums, total, most, bits = (
        cupy.asarray([0, 7], "i4"),
        cupy.zeros(1, "f4"),
        cupy.zeros(1, "i4"),
        cupy.zeros(1, "u8"),
    )
    kernel((10,), (32,), (sums, total, most, bits))
    same(sums, np.array([320 * 319 // 2, 9], "i4"))
    same(total, np.array([160], "f4"))
    same(most, np.array([319], "i4"))
    same(bits, np.array([2**60 - 1], "u8"))


def case_templates_and_variables() -> None:
    module = cupy.RawModule(
        code="""
        __device__ int offset;   // __global__ void not_a_kernel()
        template <typename T> __global__ void shift(T *data, T by) { data[threadIdx.x] += by + offset; }
        """,
        name_expressions=("shift<float>", "shift<long long>"),
    )
    cell = cupy.ndarray((1,), "i4", module.get_global("offset"))
    cell[...] = 5
    for name, dtype in (("shift<float>", "f4"), ("shift<long long>", "i8")):
        data = cupy.zeros(4, dtype)
        module.get_function(name)((1,), (4,), (data, data.dtype.type(2)))
        same(data, np.full(4, 7, dtype))


def case_a_kernel_of_two_streams_at_once() -> None:
    """Shared memory and the place of a thread are those of one worker."""
    data = numbers("f4", 3, 100)
    kernel = cupy.RawKernel(REVERSE % "__shared__ float kept[100];", "reverse")
    arrays = [cupy.asarray(data) for _ in range(4)]
    cupy.cuda.runtime.deviceSynchronize()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in arrays]
    for _ in range(5):
        for stream, array in zip(streams, arrays, strict=True):
            with stream:
                kernel((3,), (100,), (array,))
    for stream, array in zip(streams, arrays, strict=True):
        stream.synchronize()
        same(array, data[:, ::-1])


def case_a_mistake_is_told_with_its_line() -> None:
    kernel = cupy.RawKernel('extern "C" __global__ void wrong(int *out) {\n    *out = nothing;\n}', "wrong")
    raises(CompileException, ":2:12: error: ‘nothing’ was not declared", kernel.compile)


def case_what_is_not_there_does_not_compile() -> None:
    for line in ("__nanosleep(10);", "__match_any_sync(1, 1);", "cooperative_groups::this_grid();"):
        source = f'extern "C" __global__ void absent() {{ {line} }}'
        raises(CompileException, "error: ", cupy.RawKernel(source, "absent").compile)
    raises(
        CompileException,
        "does not know the option --relocatable-device-code=true",
        cupy.RawKernel(
            'extern "C" __global__ void f() {}', "f", options=("--relocatable-device-code=true",)
        ).compile,
    )
