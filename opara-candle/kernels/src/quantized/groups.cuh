// What the groups of a quantised weight have: weight.rs has the layouts.
#pragma once
#include <cuda_fp16.h>

// A scale and a minimum: an element is scale * code + minimum.
using Affine = __half2;
// A scale: an element is scale * code.
using Symmetric = __half;

template <typename S> constexpr bool HAS_MINIMUM = false;
template <> constexpr bool HAS_MINIMUM<Affine> = true;

__device__ inline float2 scale_and_minimum(Affine group) {
    return __half22float2(group);
}
__device__ inline float2 scale_and_minimum(Symmetric group) {
    return make_float2(__half2float(group), 0);
}
