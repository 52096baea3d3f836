// A module for each type: a program loads those that it uses. For older architectures no kernels are compiled.
#if __CUDA_ARCH__ >= 800

#include "causal_attention.cuh"

ATTENTIONS(__nv_bfloat16, bf16)

#endif
