// The logarithm of the softmax of rows, each at one class, and the gradient of the rows. Sums are in f32. A block has a row, whose elements
// it reads once from memory: the second time they come from the cache.
#include "rows.cuh"
#include <cstdint>

// Calls `one` with single places of a row, and `some` with the first places of vectors. `skew` is the place of the row's first element in a
// vector.
template <unsigned N, typename One, typename Some>
__device__ inline void each(unsigned columns, unsigned skew, One one, Some some) {
    const unsigned before = min(columns, (N - skew) % N), vectors = (columns - before) / N, behind = before + vectors * N;
    for (unsigned at = threadIdx.x; at < before; at += blockDim.x) one(at);
    for (unsigned at = threadIdx.x; at < vectors; at += blockDim.x) some(before + at * N);
    for (unsigned at = behind + threadIdx.x; at < columns; at += blockDim.x) one(at);
}

// The logarithm of the sum of a row's exponentials.
template <typename T> __device__ inline float log_sum(unsigned columns, unsigned skew, const T *x) {
    constexpr int N = WIDE<T>;
    __shared__ float room[2][MAX_THREADS / 32];
    float largest = -INFINITY, sum = 0;
    auto add = [&](const auto &v, float most) {
        if (most > largest) {
            sum *= expf(largest - most);
            largest = most;
        }
        const float base = largest == -INFINITY ? 0 : largest;
        for (float number : v) sum += expf(number - base);
    };
    each<N>(
        columns, skew,
        [&](unsigned at) {
            const float own[1] = {widen(x[at])};
            add(own, own[0]);
        },
        [&](unsigned at) {
            const Vec<T, N> own = load<T, N>(x + at);
            float v[N], most = -INFINITY;
#pragma unroll
            for (int n = 0; n < N; n++) most = Max::of(most, v[n] = widen(own.at[n]));
            add(v, most);
        });
    const float most = row_reduce<Max>(largest, room[0]), base = most == -INFINITY ? 0 : most;
    return most + logf(row_reduce<Add>(sum * expf(largest - base), room[1]));
}

template <typename T, typename I>
__device__ inline void log_softmax_at(unsigned columns, size_t pitch, const T *x, const I *classes, float *y) {
    const size_t row = blockIdx.x;
    x += row * pitch;
    const float all = log_sum(columns, row * pitch % WIDE<T>, x);
    const int64_t at = classes[row];
    if (threadIdx.x == 0) y[row] = at >= 0 && at < columns ? widen(x[at]) - all : NAN;
}

template <typename T, typename I>
__device__ inline void log_softmax_at_gradient(unsigned columns, size_t pitch, const T *x, const I *classes, const float *gradient, T *y) {
    constexpr int N = WIDE<T>;
    const size_t row = blockIdx.x;
    const unsigned skew = row * pitch % N;
    x += row * pitch, y += row * pitch;
    const float all = log_sum(columns, skew, x), factor = gradient[row];
    const int64_t own = classes[row];
    auto of = [&](unsigned at, float v) { return narrow<T>(factor * ((at == own ? 1.f : 0.f) - expf(v - all))); };
    each<N>(
        columns, skew, [&](unsigned at) { y[at] = of(at, widen(x[at])); },
        [&](unsigned at) {
            const Vec<T, N> v = load<T, N>(x + at);
            Vec<T, N> out;
#pragma unroll
            for (int n = 0; n < N; n++) out.at[n] = of(at + n, widen(v.at[n]));
            store<T, N>(y + at, out);
        });
    for (size_t at = columns + threadIdx.x; at < pitch; at += blockDim.x) y[at] = narrow<T>(0);
}

#define OF(I, ID, T, NAME)                                                                                             \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS) opara_reduction_log_softmax_at_##ID##_##NAME(            \
        unsigned columns, size_t pitch, const T *x, const I *classes, float *y) {                                      \
        log_softmax_at(columns, pitch, x, classes, y);                                                                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS) opara_softmax_log_softmax_at_gradient_##ID##_##NAME(     \
        size_t numel, unsigned columns, size_t pitch, const T *x, const I *classes, const float *gradient, T *y) {     \
        log_softmax_at_gradient(columns, pitch, x, classes, gradient, y);                                              \
    }
#define ALL(I, ID)                                                                                                     \
    OF(I, ID, float, f32)                                                                                              \
    OF(I, ID, __half, f16)                                                                                             \
    OF(I, ID, __nv_bfloat16, bf16)

ALL(uint32_t, u32)
ALL(int64_t, i64)
