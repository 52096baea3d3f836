// Splits a projection into attention heads: adds a bias, unless it is null, scales, and transposes.
#include "numbers.cuh"

// From (batch, seq, heads, dim), with `pitch` elements from one token to the next, to (batch, heads, seq, dim).
template <typename T>
__device__ inline void split_heads(unsigned numel, unsigned seq, unsigned heads, unsigned dim, unsigned pitch,
                                   double scale, const T *x, const T *bias, T *y) {
    using S = typename Sum<T>::type;
    constexpr int N = WIDE<T>;
    const bool vectors = dim % N == 0 && pitch % N == 0 && are_aligned(x, bias, y);
    const ThreadElements mine = ThreadElements::of<N>(numel, vectors);
    if (mine.count == 0) return;
    // For element i of y: its index in x, and through `column` its index in the bias.
    auto place = [&](unsigned i, unsigned &column) {
        unsigned d = i % dim, row = i / dim, s = row % seq, h = row / seq % heads, b = row / seq / heads;
        column = h * dim + d;
        return (b * seq + s) * pitch + column;
    };
    unsigned column;
    if (vectors) {
        Vec<T, N> v = load<T, N>(x + place(mine.first, column)), b{}, out;
        if (bias) b = load<T, N>(bias + column);
#pragma unroll
        for (int n = 0; n < N; n++) out.at[n] = narrow<T>(((S)widen(v.at[n]) + (S)widen(b.at[n])) * (S)scale);
        store<T, N>(y + mine.first, out);
        return;
    }
    for (unsigned n = 0, i = mine.first; n < mine.count; n++, i += mine.step) {
        S v = widen(x[place(i, column)]);
        if (bias) v += (S)widen(bias[column]);
        y[i] = narrow<T>(v * (S)scale);
    }
}

#define KERNELS(T, NAME)                                                                                               \
    extern "C" __global__ void opara_layout_split_heads_##NAME(unsigned numel, unsigned seq, unsigned heads, unsigned dim, \
        unsigned pitch, double scale, const T *x, const T *bias, T *y) {                                               \
        split_heads<T>(numel, seq, heads, dim, pitch, scale, x, bias, y);                                              \
    }

KERNELS(float, f32)
KERNELS(double, f64)
KERNELS(__half, f16)
KERNELS(__nv_bfloat16, bf16)
