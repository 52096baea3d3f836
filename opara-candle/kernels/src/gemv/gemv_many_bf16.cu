// A module for each type: a program loads those that it uses. For other architectures no kernels are compiled, rather than empty ones.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#include "gemv_many.cuh"

ALL_GEMVS(__nv_bfloat16, bf16)

#endif
