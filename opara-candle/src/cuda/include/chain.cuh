// What chains of candle's kernels are made of. The host writes the body of a chain's kernel (fuse/program.rs) behind this
// text, and compiles both at run time: what one of candle's kernels would store, and the next one load, stays with the thread.
// Every step does what the kernel that it stands for does, in that kernel's type, and adds up in its order, so the bits are
// the same.
#pragma once
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#include "candle_rows.cuh"

// The argument of a chain's kernel: where results are stored, and operands are. driver/kernels/chain.rs has the same.
struct Chain {
    void *to[12];
    const void *from[16];
};
static_assert(sizeof(Chain) == 224, "as there");

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
