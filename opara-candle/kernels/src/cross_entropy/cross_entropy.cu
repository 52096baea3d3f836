// Softmax cross-entropy of rows of logits: losses, their mean, and gradients. Sums are in f32.
#include "rows.cuh"
#include <cstdint>

// The weight of a row's own class, and of each class.
struct Targets {
    float own, each;

    __device__ Targets(float smoothing, unsigned columns) : own(1 - smoothing), each(smoothing / columns) {}
};

template <typename T, bool VECTORS, typename F> __device__ inline void each_vector(unsigned columns, const T *x, F f) {
    constexpr int N = WIDE<T>;
    for (unsigned at = threadIdx.x * N; at < columns; at += blockDim.x * N) {
        const Vec<T, N> v = load_some<T, N, VECTORS>(x + at, columns - at);
        f(at, v, VECTORS ? N : min((unsigned)N, columns - at));
    }
}

// For each row its loss, and behind all losses the logarithm of its sum of exponentials. A row that is ignored has loss 0. A class that
// does not exist has a loss that is not a number.
template <typename T, bool VECTORS>
__device__ inline void losses(unsigned columns, bool is_ignored, bool is_class, unsigned target, float smoothing, const T *x,
                              float *loss, float *log_sum) {
    constexpr int N = WIDE<T>;
    __shared__ float room[4][MAX_THREADS / 32];
    float largest = -INFINITY, total = 0;
    each_vector<T, VECTORS>(columns, x, [&](unsigned, const Vec<T, N> &v, unsigned count) {
        for (unsigned n = 0; n < count; n++) {
            largest = Max::of(largest, widen(v.at[n]));
            total += widen(v.at[n]);
        }
    });
    largest = row_reduce<Max>(largest, room[0]);
    float sum = 0;
    each_vector<T, VECTORS>(columns, x, [&](unsigned, const Vec<T, N> &v, unsigned count) {
        for (unsigned n = 0; n < count; n++) sum += expf(widen(v.at[n]) - largest);
    });
    sum = row_reduce<Add>(sum, room[1]);
    total = row_reduce<Add>(total, room[2]);
    if (threadIdx.x > 0) return;
    const Targets of(smoothing, columns);
    const float all = largest + logf(sum);
    *log_sum = all;
    const float own = is_class ? widen(x[target]) : NAN;
    // Of each class, so that large logits do not cancel.
    const float spread = smoothing == 0 ? 0.f : of.each * (columns * all - total);
    *loss = is_ignored ? 0.f : fmaf(of.own, all - own, spread);
}

template <typename T, typename I>
__device__ inline void cross_entropy(unsigned columns, int64_t ignored, float smoothing, const T *logits, const I *targets,
                                     float *y) {
    const size_t row = blockIdx.x;
    const T *x = logits + row * columns;
    const int64_t target = targets[row];
    const bool is_class = target >= 0 && target < columns;
    float *loss = y + row, *log_sum = y + gridDim.x + row;
    if (columns % WIDE<T> == 0 && are_aligned(x))
        losses<T, true>(columns, target == ignored, is_class, (unsigned)target, smoothing, x, loss, log_sum);
    else
        losses<T, false>(columns, target == ignored, is_class, (unsigned)target, smoothing, x, loss, log_sum);
}

// The mean of the losses of rows that are not ignored. The reciprocal of their number takes the place of the first loss. One block.
template <typename I>
__device__ inline void mean(unsigned rows, int64_t ignored, const I *targets, float *losses, float *y) {
    __shared__ float room[2][MAX_THREADS / 32];
    float sum = 0, count = 0;
    for (unsigned row = threadIdx.x; row < rows; row += blockDim.x) {
        sum += losses[row];
        count += targets[row] != ignored;
    }
    sum = row_reduce<Add>(sum, room[0]);
    count = row_reduce<Add>(count, room[1]);
    if (threadIdx.x > 0) return;
    *y = sum / count;
    losses[0] = 1 / count;
}

template <typename T, bool VECTORS>
__device__ inline void gradients(unsigned columns, unsigned target, float smoothing, float factor, float log_sum, const T *x, T *y) {
    constexpr int N = WIDE<T>;
    const Targets of(smoothing, columns);
    each_vector<T, VECTORS>(columns, x, [&](unsigned at, const Vec<T, N> &v, unsigned count) {
        Vec<T, N> out;
        for (unsigned n = 0; n < count; n++) {
            const float wanted = of.each + (at + n == target ? of.own : 0.f);
            out.at[n] = narrow<T>(factor * (expf(widen(v.at[n]) - log_sum) - wanted));
        }
        store_some<T, N, VECTORS>(y + at, out, columns - at);
    });
}

template <typename T, typename I>
__device__ inline void cross_entropy_gradient(unsigned columns, int64_t ignored, float smoothing, const T *logits,
                                              const I *targets, const float *losses, const float *gradient, T *y) {
    constexpr int N = WIDE<T>;
    const size_t row = blockIdx.x;
    const T *x = logits + row * columns;
    const int64_t target = targets[row];
    y += row * columns;
    const bool vectors = columns % N == 0 && are_aligned(x, (const T *)y);
    if (target == ignored) {
        for (unsigned at = threadIdx.x; at < columns; at += blockDim.x) y[at] = narrow<T>(0);
        return;
    }
    const float factor = *gradient * losses[0], log_sum = losses[gridDim.x + row];
    if (vectors) gradients<T, true>(columns, (unsigned)target, smoothing, factor, log_sum, x, y);
    else gradients<T, false>(columns, (unsigned)target, smoothing, factor, log_sum, x, y);
}

#define OF(I, ID, T, NAME)                                                                                             \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS) opara_reduction_cross_entropy_##ID##_##NAME(             \
        unsigned columns, long long ignored, float smoothing, const T *logits, const I *targets, float *y) {           \
        cross_entropy(columns, (int64_t)ignored, smoothing, logits, targets, y);                                       \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS) opara_softmax_cross_entropy_gradient_##ID##_##NAME(      \
        unsigned columns, long long ignored, float smoothing, const T *logits, const I *targets, const float *losses,  \
        const float *gradient, T *y) {                                                                                 \
        cross_entropy_gradient(columns, (int64_t)ignored, smoothing, logits, targets, losses, gradient, y);            \
    }
#define ALL(I, ID)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS) opara_reduction_mean_loss_##ID(                          \
        unsigned rows, long long ignored, const I *targets, float *losses, float *y) {                                 \
        mean(rows, (int64_t)ignored, targets, losses, y);                                                              \
    }                                                                                                                  \
    OF(I, ID, float, f32)                                                                                              \
    OF(I, ID, __half, f16)                                                                                             \
    OF(I, ID, __nv_bfloat16, bf16)

ALL(uint32_t, u32)
ALL(int64_t, i64)
