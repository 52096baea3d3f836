// Layer norm and RMS norm of rows of x + bias + residual; bias and residual may be null. `fma` is written out wherever
// a result is rounded once, so that its bits do not depend on the compiler.
#include "dependent.cuh"
#include "rows.cuh"

// In f32 and f64 an approximate root would be seen in the result.
template <typename T> constexpr bool is_exact = sizeof(T) > 2;

// 1 / sqrt(of), by which all elements of a row are multiplied. They would share its rounding, so that it would not average out: outside 16
// bits a second number has the first one's error, by a step of Newton's.
template <typename T> struct Factor {
    using S = typename Sum<T>::type;
    S high, low = 0;

    __device__ explicit Factor(S of) {
        if constexpr (!is_exact<T>) {
            high = rsqrt(of);
            return;
        }
        high = 1 / sqrt(of);
        const S product = of * high, rest = fma(of, high, -product);
        const S error = fma(-rest, high, fma(-product, high, (S)1));
        if (isfinite(error)) low = (S)0.5 * high * error;
    }

    __device__ S times(S x) const { return is_exact<T> ? fma(x, high, x * low) : x * high; }
};

// The row to normalise, x + bias + residual. Unless `rounded` is null, the sum is rounded to T, stored there, and
// normalised in that precision.
template <typename T, bool VECTORS> struct Row {
    using S = typename Sum<T>::type;
    static constexpr int N = WIDE<T>;
    unsigned columns;
    const T *x, *bias, *residual;
    T *rounded;

    __device__ Row(size_t row, unsigned columns, const T *x, const T *bias, const T *residual, T *rounded)
        : columns(columns), x(x + row * columns), bias(bias), residual(residual ? residual + row * columns : nullptr),
          rounded(rounded ? rounded + row * columns : nullptr) {}

    __device__ Vec<T, N> some(const T *from, unsigned at) const {
        return load_some<T, N, VECTORS>(from + at, columns - at);
    }

    // Reads N elements of the sum; past the end they are zero. The three loads are independent of each other.
    __device__ void read(unsigned at, S (&v)[N]) const {
        Vec<T, N> own = some(x, at), second{}, third{};
        if (bias) second = some(bias, at);
        if (residual) third = some(residual, at);
#pragma unroll
        for (int n = 0; n < N; n++) v[n] = (S)widen(own.at[n]) + (S)widen(second.at[n]) + (S)widen(third.at[n]);
        if (!rounded) return;
#pragma unroll
        for (int n = 0; n < N; n++) v[n] = widen(own.at[n] = narrow<T>(v[n]));
        store_some<T, N, VECTORS>(rounded + at, own, columns - at);
    }

    __device__ bool has(unsigned at, int n) const { return VECTORS || at + n < columns; }

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

    __device__ void write(unsigned at, const S (&v)[N], S mean, Factor<T> factor, Vec<T, N> scale, Vec<T, N> shift, T *y) const {
        Vec<T, N> out;
#pragma unroll
        for (int n = 0; n < N; n++)
            out.at[n] = narrow<T>(fma(factor.times(v[n] - mean), (S)widen(scale.at[n]), (S)widen(shift.at[n])));
        store_some<T, N, VECTORS>(y + at, out, columns - at);
    }
};

template <typename T, typename S> __device__ inline S mean_of(S sum, unsigned columns) {
    return is_exact<T> ? sum / columns : sum * ((S)1 / columns);
}

// Layer norm if CENTRED, otherwise RMS norm (no mean, no shift). A thread keeps its first vector in registers. If the
// row is SHORT that is its whole share; otherwise the further vectors are read again in each pass.
template <typename T, bool CENTRED, bool VECTORS, bool SHORT>
__device__ inline void norm(size_t rows, unsigned columns, float eps, const T *x, const T *bias, const T *residual,
                            const T *scale, const T *shift, T *rounded, T *y) {
    using S = typename Sum<T>::type;
    constexpr int N = WIDE<T>;
    __shared__ S room[2][MAX_THREADS / 32];
    const size_t index = this_row();
    const unsigned first = threadIdx.x * N, step = blockDim.x * N, end = row_end(index, rows, columns);
    const Row<T, VECTORS> row(index, columns, x, bias, residual, rounded);
    y += index * columns;

    // Load scale and shift together with the row: loading them later would add a second memory latency.
    S held[N] = {};
    Vec<T, N> held_scale{}, held_shift{};
    if (first < end) {
        held_scale = row.some(scale, first);
        if (CENTRED) held_shift = row.some(shift, first);
        row.read(first, held);
    }
    // Calls f with each further vector of this thread.
    auto each = [&](auto f) {
        if (SHORT) return;
        for (unsigned at = first + step; at < end; at += step) {
            S v[N];
            row.read(at, v);
            f(at, v);
        }
    };

    S mean = 0;
    if (CENTRED) {
        mean = row.sum(held);
        each([&](unsigned, const S(&v)[N]) { mean += row.sum(v); });
        mean = mean_of<T>(row_reduce<Add>(mean, room[0]), columns);
    }
    S squares = first < end ? row.squares(first, held, mean) : 0;
    each([&](unsigned at, const S(&v)[N]) { squares += row.squares(at, v, mean); });
    const S variance = mean_of<T>(row_reduce<Add>(squares, room[1]), columns) + (S)eps;
    const Factor<T> factor(variance);

    if (first < end) row.write(first, held, mean, factor, held_scale, held_shift, y);
    each([&](unsigned at, const S(&v)[N]) {
        row.write(at, v, mean, factor, row.some(scale, at), CENTRED ? row.some(shift, at) : Vec<T, N>{}, y);
    });
}

template <typename T, bool CENTRED, bool SHORT>
__device__ inline void norm(size_t rows, unsigned columns, float eps, const T *x, const T *bias, const T *residual,
                            const T *scale, const T *shift, T *rounded, T *y) {
    // The choice is the same for all rows, so that all threads of a block reach the same barriers.
    if (SHORT || (columns % WIDE<T> == 0 && are_aligned(x, bias, residual, scale, shift, (const T *)rounded, (const T *)y)))
        norm<T, CENTRED, true, SHORT>(rows, columns, eps, x, bias, residual, scale, shift, rounded, y);
    else
        norm<T, CENTRED, false, SHORT>(rows, columns, eps, x, bias, residual, scale, shift, rounded, y);
}

// Kernels for rows of any length, and SHORT ones for rows of at most one 16-byte vector per thread. `add_rms_norm`
// writes the sum, and behind it the normalised sum. A decoder's steps have an RMS norm between products, whose kernels ask for weights
// while it runs.
#define NORMS(T, SHORT, NAME)                                                                                          \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS) opara_norm_layer_##NAME(size_t rows, unsigned columns,   \
        float eps, const T *x, const T *bias, const T *residual, const T *scale, const T *shift, T *y) {               \
        norm<T, true, SHORT>(rows, columns, eps, x, bias, residual, scale, shift, nullptr, y);                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS) opara_norm_rms_##NAME(size_t rows, unsigned columns, float eps, \
        const T *x, const T *scale, T *y) {                                                                            \
        trigger_dependents();                                                                                          \
        wait_for_predecessors();                                                                                       \
        norm<T, false, SHORT>(rows, columns, eps, x, nullptr, nullptr, scale, nullptr, nullptr, y);                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS) opara_norm_add_rms_##NAME(size_t rows, unsigned columns, \
        float eps, const T *x, const T *residual, const T *scale, T *y) {                                              \
        norm<T, false, SHORT>(rows, columns, eps, x, nullptr, residual, scale, nullptr, y, y + rows * columns);        \
    }
#define ALL_NORMS(T, NAME)                                                                                             \
    NORMS(T, false, NAME)                                                                                              \
    NORMS(T, true, short_##NAME)

ALL_NORMS(float, f32)
ALL_NORMS(double, f64)
ALL_NORMS(__half, f16)
ALL_NORMS(__nv_bfloat16, bf16)
