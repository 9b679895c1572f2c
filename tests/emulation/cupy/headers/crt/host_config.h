/* What NVIDIA's compiler says about the host compiler; the wheel with CUDA's headers has it not.  Nothing is needed. */
