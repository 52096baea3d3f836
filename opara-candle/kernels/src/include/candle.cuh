// Element functions of candle's kernels, in the arithmetic of the element type.
#pragma once
#include "numbers.cuh"

__device__ inline float scaled(float x, float mul, float add) { return fmaf(x, mul, add); }
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline float smaller(float a, float b) { return fminf(a, b); }
__device__ inline float root(float x) { return sqrtf(x); }
__device__ inline float magnitude(float x) { return fabsf(x); }
__device__ inline float exponential(float x) { return expf(x); }
__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline float sine(float x) { return sinf(x); }
__device__ inline float cosine(float x) { return cosf(x); }
// Rounds the product, so that the compiler cannot contract it with an addition of the next op: candle runs that in
// another kernel.
__device__ inline float mul_rn(float a, float b) { return __fmul_rn(a, b); }

// Both 16-bit types. The multiply-add may be contracted, as in candle's kernels.
#define HALF_FUNCTIONS(T)                                                                                              \
    __device__ inline T scaled(T x, T mul, T add) { return x * mul + add; }                                            \
    __device__ inline T larger(T a, T b) { return __hmax_nan(a, b); }                                                  \
    __device__ inline T smaller(T a, T b) { return __hmin_nan(a, b); }                                                 \
    __device__ inline T root(T x) { return hsqrt(x); }                                                                 \
    __device__ inline T magnitude(T x) { return __habs(x); }                                                           \
    __device__ inline T exponential(T x) { return hexp(x); }                                                           \
    __device__ inline T logarithm(T x) { return hlog(x); }                                                             \
    __device__ inline T sine(T x) { return hsin(x); }                                                                  \
    __device__ inline T cosine(T x) { return hcos(x); }                                                                \
    __device__ inline T mul_rn(T a, T b) { return __hmul_rn(a, b); }
HALF_FUNCTIONS(__half)
HALF_FUNCTIONS(__nv_bfloat16)

// numerator / (1 + exp(-x)): silu with numerator x, sigmoid with 1. candle computes both in f32 for bf16.
template <typename T> __device__ inline T logistic(T numerator, T x) { return numerator / ((T)1.0 + exponential(-x)); }
__device__ inline __nv_bfloat16 logistic(__nv_bfloat16 numerator, __nv_bfloat16 x) {
    return narrow<__nv_bfloat16>(logistic(widen(numerator), widen(x)));
}

template <typename T> __device__ inline T gelu_tanh(T x) {
    T cube = x * x * x;
    T inner = x + (T)0.044715 * cube;
    T tangent = narrow<T>(tanhf(widen((T)(1.12837916709551257390 * 0.70710678118654752440) * inner)));
    return mul_rn((T)0.5 * x, (T)1.0 + tangent);
}
