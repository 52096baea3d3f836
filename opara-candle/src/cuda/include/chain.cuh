// The functions of fused kernels. fuse/fused_kernel.rs generates the body of a kernel behind this text, and both are compiled
// at run time: a result that one of candle's kernels would store, and the next one load, stays in registers. Each function
// computes as candle's kernel does, in the same type, and adds up in the same order, so that results keep their bits.
#pragma once
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#include "candle_rows.cuh"

// The argument of a fused kernel: pointers to results and operands in memory. driver/kernels/fused.rs declares the same.
struct FusedArgument {
    void *to[12];
    const void *from[16];
};
static_assert(sizeof(FusedArgument) == 224, "as in driver/kernels/fused.rs");

// To another type. All fit into f32.
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

#define OF_ONE(name, result)                                                                                           \
    template <typename T, int N> __device__ inline Vec<T, N> name(const Vec<T, N> &xs) {                               \
        const T one = (T)1.0, zero = (T)0.0;                                                                           \
        Vec<T, N> to;                                                                                                  \
        _Pragma("unroll") for (int n = 0; n < N; n++) {                                                                \
            const T x = xs.at[n];                                                                                      \
            to.at[n] = (T)(result);                                                                                    \
        }                                                                                                              \
        return to;                                                                                                     \
    }
OF_ONE(sqr, product(x, x))
OF_ONE(sqrt, root(x))
OF_ONE(neg, -x)
OF_ONE(abs, magnitude(x))
OF_ONE(recip, one / x)
OF_ONE(relu, larger(x, zero))
OF_ONE(exp, exponential(x))
OF_ONE(tanh, narrow<T>(tanhf(widen(x))))
OF_ONE(silu, x / (one + exponential(-x)))
OF_ONE(gelu, gelu_tanh(x))
OF_ONE(gelu_erf, product(x, narrow<T>(normcdff(widen(x)))))
OF_ONE(sigmoid, one / (one + exponential(-x)))
#undef OF_ONE

#define OF_TWO(name, result)                                                                                           \
    template <typename T, int N>                                                                                       \
    __device__ inline Vec<T, N> name(const Vec<T, N> &xs, const Vec<T, N> &ys) {                                       \
        Vec<T, N> to;                                                                                                  \
        _Pragma("unroll") for (int n = 0; n < N; n++) {                                                                \
            const T x = xs.at[n], y = ys.at[n];                                                                        \
            to.at[n] = (T)(result);                                                                                    \
        }                                                                                                              \
        return to;                                                                                                     \
    }
OF_TWO(add, x + y)
OF_TWO(sub, x - y)
OF_TWO(mul, product(x, y))
OF_TWO(div, x / y)
OF_TWO(max, larger(x, y))
OF_TWO(min, smaller(x, y))
#undef OF_TWO
