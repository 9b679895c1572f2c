"""`--device cuda`: arrays in the memory of each rank's GPU, plain calls of nccl4py to compare with.

Of this package `packages` alone is imported before it is known that the packages for GPUs are there.
"""
