// What chains of candle's kernels are made of. The host writes the body of a chain's kernel (fuse/program.rs) behind this text, and
// compiles both at run time: what one of candle's kernels would store, and the next one load, stays with the thread. Every
// step does what the kernel that it stands for does, in that kernel's type, and adds up in its order, so the bits are the
// same.
#pragma once
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#include "candle_rows.cuh"

constexpr int STEPS = 12, DIMS = 4, READS = 16;

// Where an operand is in memory. Element i is at place i, or, if there is a rank, at the place that dims and strides give.
struct Read {
    const void *from;
    unsigned dims[DIMS], strides[DIMS];
};
// The argument of a chain's kernel. driver/kernels/chain.rs has the same.
struct Chain {
    unsigned elements, columns; // Columns of a row, where a block makes one.
    void *to[STEPS]; // Where a step's result is stored, if it is.
    Read read[READS];
};
static_assert(sizeof(Chain) == 744, "as there");

// N elements of a thread, some of which may be beyond the last.
template <int N> struct Elements {
    unsigned first, apart, end;

    template <typename T, int RANK> __device__ Values<T, N> load(const Read &read) const {
        Values<T, N> to;
#pragma unroll
        for (int n = 0; n < N; n++) {
            unsigned place = min(first + n * apart, end - 1);
            if constexpr (RANK > 0) {
                unsigned rest = place;
                place = 0;
#pragma unroll
                for (int d = RANK - 1; d > 0; d--) {
                    const unsigned outer = rest / read.dims[d];
                    place += (rest - outer * read.dims[d]) * read.strides[d];
                    rest = outer;
                }
                place += rest * read.strides[0];
            }
            to.at[n] = ((const T *)read.from)[place];
        }
        return to;
    }

    template <typename T> __device__ void store(const Values<T, N> &from, void *to) const {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const unsigned i = first + n * apart;
            if (i < end) ((T *)to)[i] = from.at[n];
        }
    }
};

// Of all elements, those of this thread.
template <int N> __device__ inline Elements<N> share_of(const Chain &chain) {
    return {blockIdx.x * blockDim.x * N + threadIdx.x, blockDim.x, chain.elements};
}
// Of a block's row.
template <int N> __device__ inline Elements<N> share_of_row(const Chain &chain) {
    const unsigned first = blockIdx.x * chain.columns;
    return {first + threadIdx.x, blockDim.x, first + chain.columns};
}
// The row's one number, which all threads have, and one stores.
template <int N> __device__ inline Elements<N> number_to_load() { return {blockIdx.x, 0, blockIdx.x + 1}; }
template <int N> __device__ inline Elements<N> number_to_store() {
    return {blockIdx.x + threadIdx.x, 1, blockIdx.x + 1};
}

// To another type. All fit into f32.
template <typename T, typename S, int N> __device__ inline Values<T, N> cast(const Values<S, N> &xs) {
    Values<T, N> to;
#pragma unroll
    for (int n = 0; n < N; n++) to.at[n] = narrow<T>(widen(xs.at[n]));
    return to;
}

template <typename T, int N>
__device__ inline Values<T, N> affine(const Values<T, N> &xs, float factor, float summand) {
    const T mul = narrow<T>(factor), add = narrow<T>(summand);
    Values<T, N> to;
#pragma unroll
    for (int n = 0; n < N; n++) to.at[n] = scaled(xs.at[n], mul, add);
    return to;
}

#define OF_ONE(name, result)                                                                                           \
    template <typename T, int N> __device__ inline Values<T, N> name(const Values<T, N> &xs) {                         \
        const T one = (T)1.0, zero = (T)0.0;                                                                           \
        Values<T, N> to;                                                                                               \
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
    __device__ inline Values<T, N> name(const Values<T, N> &xs, const Values<T, N> &ys) {                              \
        Values<T, N> to;                                                                                               \
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
