// Totals of the errors of two results, against double precision. A block gives one total of each kind; the host adds those of all blocks.
#include "rows.cuh"

constexpr int THREADS = 256;

template <typename T> __device__ inline bool is_finite(T x) { return isfinite((double)widen(x)); }
template <typename T> __device__ inline bool is_nan(T x) { return isnan((double)widen(x)); }

template <typename F> __device__ inline void total(double value, double *to) {
    __shared__ double room[MAX_THREADS / 32];
    const double reduced = row_reduce<F>(value, room);
    if (threadIdx.x == 0) *to = reduced;
    // `room` serves the next total.
    __syncthreads();
}

// For each block: where all three are finite, how many and their references' squares; how many results are not what they may be.
template <typename T>
__device__ inline void moments(size_t numel, const double *reference, const T *candle, const T *other, double *y) {
    double count = 0, squares = 0, wrong = 0;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < numel; i += (size_t)gridDim.x * THREADS) {
        const double r = reference[i];
        const T c = candle[i], o = other[i];
        if (is_finite(o)) {
            if (isfinite(r) && is_finite(c)) count += 1, squares += r * r;
            else if (!isfinite(r) && !is_finite(c)) wrong += 1;
        } else if (widen(o) != widen(c) && !(is_nan(o) && is_nan(c))) {
            wrong += 1;
        }
    }
    total<Add>(count, y + blockIdx.x * 3);
    total<Add>(squares, y + blockIdx.x * 3 + 1);
    total<Add>(wrong, y + blockIdx.x * 3 + 2);
}

// For each block: the sums of squared errors, candle's first, and the largest errors, in units of `unit * max(|reference|, rms)`.
template <typename T>
__device__ inline void errors(size_t numel, double unit, const double *of_blocks, const double *reference, const T *candle,
                              const T *other, double *y) {
    __shared__ double sums[2];
    double count = 0, squares = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += THREADS) count += of_blocks[i * 3], squares += of_blocks[i * 3 + 1];
    total<Add>(count, sums);
    total<Add>(squares, sums + 1);
    const double scale = fmax(sqrt(sums[1] / sums[0]), 0x1p-1022);
    double squared[2] = {}, largest[2] = {};
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < numel; i += (size_t)gridDim.x * THREADS) {
        const double r = reference[i];
        const T c = candle[i], o = other[i];
        if (!isfinite(r) || !is_finite(c) || !is_finite(o)) continue;
        const double rounding = unit * fmax(fabs(r), scale);
        const double error[2] = {fabs((double)widen(c) - r) / rounding, fabs((double)widen(o) - r) / rounding};
#pragma unroll
        for (int of = 0; of < 2; of++) squared[of] += error[of] * error[of], largest[of] = fmax(largest[of], error[of]);
    }
#pragma unroll
    for (int of = 0; of < 2; of++) {
        total<Add>(squared[of], y + blockIdx.x * 4 + of);
        total<Max>(largest[of], y + blockIdx.x * 4 + 2 + of);
    }
}

#define TOTALS(T, NAME)                                                                                                \
    extern "C" __global__ void opara_reduction_error_moments_##NAME(size_t numel, const double *reference, const T *candle, \
                                                          const T *other, double *y) {                                 \
        moments<T>(numel, reference, candle, other, y);                                                                \
    }                                                                                                                  \
    extern "C" __global__ void opara_reduction_error_totals_##NAME(size_t numel, double unit, const double *moments,   \
                                                         const double *reference, const T *candle, const T *other,     \
                                                         double *y) {                                                  \
        errors<T>(numel, unit, moments, reference, candle, other, y);                                                  \
    }

TOTALS(double, f64)
TOTALS(float, f32)
TOTALS(__half, f16)
TOTALS(__nv_bfloat16, bf16)
