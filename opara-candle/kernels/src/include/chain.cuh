// Device functions of fused kernels. fuse/fused_kernel.rs generates a kernel body that follows this text, and both are
// compiled at run time. Intermediate results stay in registers instead of going through memory between candle's
// kernels. Each function computes in the same type and sums in the same order as candle's kernel, so that results keep
// their bits.
#pragma once
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#include "candle_rows.cuh"

// The argument of a fused kernel: pointers to results and operands in memory. driver/kernels/fused.rs declares the same
// struct.
struct FusedArgument {
    void *to[12];
    const void *from[16];
};
static_assert(sizeof(FusedArgument) == 224, "as in driver/kernels/fused.rs");

// Casts go through f32, which holds every value of the three types.
template <typename T, typename S, int N> __device__ inline Vec<T, N> cast(const Vec<S, N> &xs) {
    Vec<T, N> to;
#pragma unroll
    for (int n = 0; n < N; n++) to.at[n] = narrow<T>(widen(xs.at[n]));
    return to;
}

template <typename T, int N>
__device__ inline Vec<T, N> affine(const Vec<T, N> &xs, float factor, float summand) {
    const T mul = narrow<T>(factor), add = narrow<T>(summand);
    Vec<T, N> to;
#pragma unroll
    for (int n = 0; n < N; n++) to.at[n] = scaled(xs.at[n], mul, add);
    return to;
}

#define UNARY(name, result)                                                                                            \
    template <typename T, int N> __device__ inline Vec<T, N> name(const Vec<T, N> &xs) {                               \
        const T one = (T)1.0, zero = (T)0.0;                                                                           \
        Vec<T, N> to;                                                                                                  \
        _Pragma("unroll") for (int n = 0; n < N; n++) {                                                                \
            const T x = xs.at[n];                                                                                      \
            to.at[n] = (T)(result);                                                                                    \
        }                                                                                                              \
        return to;                                                                                                     \
    }
UNARY(sqr, mul_rn(x, x))
UNARY(sqrt, root(x))
UNARY(neg, -x)
UNARY(abs, magnitude(x))
UNARY(recip, one / x)
UNARY(relu, larger(x, zero))
UNARY(sign, (x > zero ? one : zero) - (x < zero ? one : zero))
UNARY(exp, exponential(x))
UNARY(log, logarithm(x))
UNARY(sin, sine(x))
UNARY(cos, cosine(x))
UNARY(tanh, narrow<T>(tanhf(widen(x))))
UNARY(silu, logistic(x, x))
UNARY(gelu, gelu_tanh(x))
UNARY(gelu_erf, mul_rn(x, narrow<T>(normcdff(widen(x)))))
UNARY(sigmoid, logistic(one, x))
#undef UNARY

#define BINARY(name, result)                                                                                           \
    template <typename T, int N>                                                                                       \
    __device__ inline Vec<T, N> name(const Vec<T, N> &xs, const Vec<T, N> &ys) {                                       \
        Vec<T, N> to;                                                                                                  \
        _Pragma("unroll") for (int n = 0; n < N; n++) {                                                                \
            const T x = xs.at[n], y = ys.at[n];                                                                        \
            to.at[n] = (T)(result);                                                                                    \
        }                                                                                                              \
        return to;                                                                                                     \
    }
BINARY(add, x + y)
BINARY(sub, x - y)
BINARY(mul, mul_rn(x, y))
BINARY(div, x / y)
BINARY(max, larger(x, y))
BINARY(min, smaller(x, y))
#undef BINARY
