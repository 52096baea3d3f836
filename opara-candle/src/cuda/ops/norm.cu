// Normalisation of rows, of the sum of x, a bias and a residual where they are not null. What is rounded once is written
// as `fma`.
#include "rows.cuh"

// How often a thread takes neighbours that it then keeps in registers: a warp keeps 1,024 numbers of 16 bits. What lies
// beyond in a longer row is read anew. Scale and shift, which all rows share, are kept less often.
constexpr int HELD = 4;
constexpr int HELD_VECTORS = 2;

// What is normalised; where `rounded` is not null, rounded and stored there, too.
template <typename T, bool TOGETHER> struct Row {
    using S = typename Sum<T>::type;
    static constexpr int N = WIDE<T>;
    unsigned columns;
    const T *x, *bias, *residual;
    T *rounded;

    __device__ Row(size_t row, unsigned columns, const T *x, const T *bias, const T *residual, T *rounded)
        : columns(columns), x(x + row * columns), bias(bias), residual(residual ? residual + row * columns : nullptr),
          rounded(rounded ? rounded + row * columns : nullptr) {}

    __device__ Vec<T, N> some(const T *from, unsigned at) const {
        return load_some<T, N, TOGETHER>(from + at, columns - at);
    }

    // Zeros beyond the end. No load waits for another.
    __device__ void read(unsigned at, S (&v)[N]) const {
        Vec<T, N> own = some(x, at), second{}, third{};
        if (bias) second = some(bias, at);
        if (residual) third = some(residual, at);
#pragma unroll
        for (int n = 0; n < N; n++) {
            v[n] = widen(own.at[n]);
            if (bias) v[n] += (S)widen(second.at[n]);
            if (residual) v[n] += (S)widen(third.at[n]);
        }
        if (!rounded) return;
#pragma unroll
        for (int n = 0; n < N; n++) v[n] = widen(own.at[n] = narrow<T>(v[n]));
        store_some<T, N, TOGETHER>(rounded + at, own, columns - at);
    }

    __device__ bool has(unsigned at, int n) const { return TOGETHER || at + n < columns; }

    __device__ S sum(const S (&v)[N]) const {
        S sum = 0;
#pragma unroll
        for (int n = 0; n < N; n++) sum += v[n];
        return sum;
    }

    __device__ S squares(unsigned at, const S (&v)[N], S mean) const {
        S sum = 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            S distance = has(at, n) ? v[n] - mean : (S)0;
            sum = fma(distance, distance, sum);
        }
        return sum;
    }

    __device__ void write(unsigned at, const S (&v)[N], S mean, S factor, Vec<T, N> scale, Vec<T, N> shift, T *y) const {
        Vec<T, N> out;
#pragma unroll
        for (int n = 0; n < N; n++)
            out.at[n] = narrow<T>(fma((v[n] - mean) * factor, (S)widen(scale.at[n]), (S)widen(shift.at[n])));
        store_some<T, N, TOGETHER>(y + at, out, columns - at);
    }
};

// By mean and variance if CENTRED, else by the mean of the squares alone and without a shift. It is there up to column
// `end`: all of it or nothing.
template <typename T, bool CENTRED, bool TOGETHER>
__device__ inline void norm(size_t index, unsigned columns, unsigned end, float eps, const T *x, const T *bias,
                            const T *residual, const T *scale, const T *shift, T *rounded, T *y) {
    using S = typename Sum<T>::type;
    constexpr int N = WIDE<T>;
    __shared__ S room[2][MOST / 32];
    Row<T, TOGETHER> row(index, columns, x, bias, residual, rounded);
    y += index * columns;
    const unsigned first = threadIdx.x * N, step = blockDim.x * N;

    // Scale and shift come along with the rest: to wait for them later would take as long again.
    S held[HELD][N];
    Vec<T, N> scales[HELD_VECTORS], shifts[HELD_VECTORS];
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        unsigned at = first + k * step;
        if (at >= end) continue;
        if (k < HELD_VECTORS) {
            scales[k] = row.some(scale, at);
            if (CENTRED) shifts[k] = row.some(shift, at);
        }
        row.read(at, held[k]);
    }

    S mean = 0;
    if (CENTRED) {
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (first + k * step < end) mean += row.sum(held[k]);
        for (unsigned at = first + HELD * step; at < end; at += step) {
            S v[N];
            row.read(at, v);
            mean += row.sum(v);
        }
        mean = of_row<Add>(mean, room[0]) / columns;
    }

    S squares = 0;
#pragma unroll
    for (int k = 0; k < HELD; k++)
        if (first + k * step < end) squares += row.squares(first + k * step, held[k], mean);
    for (unsigned at = first + HELD * step; at < end; at += step) {
        S v[N];
        row.read(at, v);
        squares += row.squares(at, v, mean);
    }
    S factor = (S)1 / sqrt(of_row<Add>(squares, room[1]) / columns + (S)eps);

    auto write = [&](unsigned at, const S(&v)[N]) {
        row.write(at, v, mean, factor, row.some(scale, at), CENTRED ? row.some(shift, at) : Vec<T, N>{}, y);
    };
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        unsigned at = first + k * step;
        if (at >= end) continue;
        if (k < HELD_VECTORS)
            row.write(at, held[k], mean, factor, scales[k], CENTRED ? shifts[k] : Vec<T, N>{}, y);
        else
            write(at, held[k]);
    }
    for (unsigned at = first + HELD * step; at < end; at += step) {
        S v[N];
        row.read(at, v);
        write(at, v);
    }
}

template <typename T, bool CENTRED>
__device__ inline void norm(size_t rows, unsigned columns, float eps, const T *x, const T *bias, const T *residual,
                            const T *scale, const T *shift, T *rounded, T *y) {
    const size_t row = this_row();
    const unsigned end = end_of(row, rows, columns);
    // Which is the same for all rows: no thread waits for one that goes the other way.
    if (columns % WIDE<T> == 0 && are_aligned(x, bias, residual, scale, shift, (const T *)rounded, (const T *)y))
        norm<T, CENTRED, true>(row, columns, end, eps, x, bias, residual, scale, shift, rounded, y);
    else
        norm<T, CENTRED, false>(row, columns, end, eps, x, bias, residual, scale, shift, rounded, y);
}

// The last one writes the sums, and behind them what they are normalised.
#define NORMS(T, NAME)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(MOST) opara_layer_norm_##NAME(size_t rows, unsigned columns,          \
        float eps, const T *x, const T *bias, const T *residual, const T *scale, const T *shift, T *y) {               \
        norm<T, true>(rows, columns, eps, x, bias, residual, scale, shift, nullptr, y);                                \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(MOST) opara_rms_norm_##NAME(size_t rows, unsigned columns, float eps, \
        const T *x, const T *scale, T *y) {                                                                            \
        norm<T, false>(rows, columns, eps, x, nullptr, nullptr, scale, nullptr, nullptr, y);                           \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(MOST) opara_add_rms_norm_##NAME(size_t rows, unsigned columns,        \
        float eps, const T *x, const T *residual, const T *scale, T *y) {                                              \
        norm<T, false>(rows, columns, eps, x, nullptr, residual, scale, nullptr, y, y + rows * columns);               \
    }

NORMS(float, f32)
NORMS(double, f64)
NORMS(__half, f16)
NORMS(__nv_bfloat16, bf16)
