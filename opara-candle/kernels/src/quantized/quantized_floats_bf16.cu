// A module for each type: a program loads those that it uses. For other architectures no kernels are compiled.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#include "quantized_floats.cuh"

FLOATS(__nv_bfloat16, bf16)

#endif
