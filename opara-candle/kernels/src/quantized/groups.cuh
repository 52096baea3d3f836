// What the groups of a quantised weight have: weight.rs has the layouts.
#pragma once
#include <cuda_fp16.h>

// A scale and a minimum: an element is scale * code + minimum.
using Affine = __half2;
// A scale: an element is scale * code.
using Symmetric = __half;

// A scale in f32: codes are floats of 8 bits (e4m3: Micikevicius et al., "FP8 Formats for Deep Learning", 2022), and an element is
// scale * float.
struct Floats {
    float scale;
};

template <typename S> constexpr bool HAS_MINIMUM = false;
template <> constexpr bool HAS_MINIMUM<Affine> = true;
template <typename S> constexpr bool ARE_FLOATS = false;
template <> constexpr bool ARE_FLOATS<Floats> = true;

__device__ inline float2 scale_and_minimum(Affine group) {
    return __half22float2(group);
}
__device__ inline float2 scale_and_minimum(Symmetric group) {
    return make_float2(__half2float(group), 0);
}
__device__ inline float2 scale_and_minimum(Floats group) {
    return make_float2(group.scale, 0);
}

// The float that 8 bits stand for: exponent and mantissa have other places in one of 32 bits, whose exponents begin 120 lower.
__device__ inline float of_eight_bits(unsigned char code) {
    const unsigned sign = (unsigned)(code & 0x80) << 24, others = (unsigned)(code & 0x7f) << 20;
    return others == 0x7f << 20 ? NAN : __fmul_rn(__uint_as_float(sign | others), 0x1p120f);
}

// The floats of two neighbours.
__device__ inline float2 two_of_eight_bits(unsigned short codes) {
    unsigned two;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(two) : "h"(codes));
    return __half22float2(*reinterpret_cast<const __half2 *>(&two));
}
