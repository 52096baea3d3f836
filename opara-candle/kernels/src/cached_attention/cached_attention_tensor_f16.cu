// A module for each type: a program loads those that it uses. For older architectures no kernels are compiled.
#if __CUDA_ARCH__ >= 800

#include "cached_attention_tensor.cuh"

ATTENTIONS(__half, f16)

#endif
