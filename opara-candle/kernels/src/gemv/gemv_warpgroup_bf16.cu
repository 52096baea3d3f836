// A module for each type: a program loads those that it uses. For other architectures no kernels are compiled, rather than empty ones.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#include "gemv_warpgroup.cuh"

#define GEMVS(N)                                                                                                       \
    GEMV(__nv_bfloat16, bf16, N, 1)                                                                                    \
    GEMV(__nv_bfloat16, bf16, N, 2)                                                                                    \
    GEMV(__nv_bfloat16, bf16, N, 4)                                                                                    \
    GEMV(__nv_bfloat16, bf16, N, 8)
GEMVS(8)
GEMVS(16)
GEMVS(32)
GEMVS(64)

#endif
