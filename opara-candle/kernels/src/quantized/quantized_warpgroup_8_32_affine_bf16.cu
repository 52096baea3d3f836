// A module for each type and format: a program loads those that it uses. For other architectures no kernels are compiled.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#include "quantized_warpgroup.cuh"

ALL_PRODUCTS(__nv_bfloat16, bf16, 8, 32, affine, Affine)

#endif
