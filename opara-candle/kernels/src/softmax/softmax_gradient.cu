// The gradient before a softmax of rows: y * (gradient - sum of y * gradient).
#include "rows.cuh"

template <typename T, bool VECTORS>
__device__ inline void softmax_gradient(unsigned columns, const T *y, const T *gradient, T *x) {
    using S = typename Sum<T>::type;
    constexpr int N = WIDE<T>;
    __shared__ S room[MAX_THREADS / 32];
    const unsigned first = threadIdx.x * N, step = blockDim.x * N;
    S sum = 0;
    for (unsigned at = first; at < columns; at += step) {
        const Vec<T, N> p = load_some<T, N, VECTORS>(y + at, columns - at);
        const Vec<T, N> g = load_some<T, N, VECTORS>(gradient + at, columns - at);
#pragma unroll
        for (int n = 0; n < N; n++) sum = fma((S)widen(p.at[n]), (S)widen(g.at[n]), sum);
    }
    sum = row_reduce<Add>(sum, room);
    for (unsigned at = first; at < columns; at += step) {
        const Vec<T, N> p = load_some<T, N, VECTORS>(y + at, columns - at);
        const Vec<T, N> g = load_some<T, N, VECTORS>(gradient + at, columns - at);
        Vec<T, N> out;
#pragma unroll
        for (int n = 0; n < N; n++) out.at[n] = narrow<T>((S)widen(p.at[n]) * ((S)widen(g.at[n]) - sum));
        store_some<T, N, VECTORS>(x + at, out, columns - at);
    }
}

template <typename T>
__device__ inline void softmax_gradient(size_t rows, unsigned columns, const T *y, const T *gradient, T *x) {
    const size_t row = this_row();
    const unsigned end = row_end(row, rows, columns);
    const size_t from = end ? row * columns : 0;
    // The choice is the same for all lanes of a warp, so that all of them reach the same shuffles and barriers.
    if (!__all_sync(~0u, columns % WIDE<T> == 0 && are_aligned(y, gradient, (const T *)x)))
        softmax_gradient<T, false>(end, y + from, gradient + from, x + from);
    else
        softmax_gradient<T, true>(end, y + from, gradient + from, x + from);
}

#define GRADIENT(T, NAME)                                                                                              \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS) opara_softmax_gradient_##NAME(                           \
        size_t rows, unsigned columns, const T *y, const T *gradient, T *x) {                                          \
        softmax_gradient(rows, columns, y, gradient, x);                                                               \
    }

GRADIENT(float, f32)
GRADIENT(double, f64)
GRADIENT(__half, f16)
GRADIENT(__nv_bfloat16, bf16)
