"""What CuPy needs on the stand-in: a runtime, a compiler for its kernels, the product of matrices.

CuPy's wheel is used as it is but for one extension, `cupy_backends.cuda.api.runtime`: in the wheel NVIDIA's
own runtime is linked into it, which runs on no other driver than NVIDIA's. It is compiled again from CuPy's
published source, with a runtime of ours.

| | |
|---|---|
| `build.py` | fetches that source and compiles all that is below into `build/emulation/cupy-<hash>/` |
| `cudart/` | libcudart.so.12 on the driver API |
| `nvrtc/` | libnvrtc.so.12: kernels compiled by g++; what runs their threads |
| `device/` | what NVIDIA's compiler knows without a header, and CUDA's headers for kernels |
| `cublas/` | libcublas.so.12: matrices of real numbers multiplied |
| `headers/` | small headers that the wheel with CUDA's headers lacks |
| `generate.py` | C that is made from what is installed |

Not there: sort, random, FFT, solvers, sparse matrices, textures, cooperative groups, kernels from PTX.
"""
