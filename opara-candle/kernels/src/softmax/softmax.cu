// Softmax of rows of x + bias. The bias broadcasts to x, and may be null.
#include "rows.cuh"

// exp(x) for x <= 0. For 16-bit types __expf is exact enough: its error is below half a unit of the last place of T.
template <typename T, typename S> __device__ inline S exponential(S x) {
    if constexpr (sizeof(T) == 2) return __expf(x);
    return exp(x);
}

// The start of each row of the bias. A row index has three dimensions, the last of which runs fastest.
struct Bias {
    unsigned dims[2], strides[3];

    __device__ size_t at(unsigned row) const {
        unsigned outer = row / dims[1];
        return (size_t)(outer / dims[0]) * strides[0] + (size_t)(outer % dims[0]) * strides[1] +
               (size_t)(row % dims[1]) * strides[2];
    }
};

// A thread keeps its first HELD vectors in registers; further vectors of a longer row are read again in each pass.
template <int HELD, bool VECTORS, typename T>
__device__ inline void softmax(unsigned columns, const T *x, const T *bias, T *y) {
    using S = typename Sum<T>::type;
    constexpr int N = WIDE<T>;
    __shared__ S room[2][MAX_THREADS / 32];
    const unsigned first = threadIdx.x * N, step = blockDim.x * N;

    // Reads N elements of the sum; past the end they are -inf, which has weight 0.
    auto read = [&](unsigned at, S(&v)[N]) {
        Vec<T, N> own = load_some<T, N, VECTORS>(x + at, columns - at), second{};
        if (bias) second = load_some<T, N, VECTORS>(bias + at, columns - at);
#pragma unroll
        for (int n = 0; n < N; n++) {
            v[n] = widen(own.at[n]);
            if (bias) v[n] += (S)widen(second.at[n]);
            if (!VECTORS && at + n >= columns) v[n] = -INFINITY;
        }
    };

    S held[HELD][N], largest = -INFINITY;
#pragma unroll
    for (int k = 0; k < HELD; k++)
        if (first + k * step < columns) read(first + k * step, held[k]);
#pragma unroll
    for (int k = 0; k < HELD; k++)
        for (int n = 0; n < N; n++)
            if (first + k * step < columns) largest = Max::of(largest, held[k][n]);
    for (unsigned at = first + HELD * step; at < columns; at += step) {
        S v[N];
        read(at, v);
        for (int n = 0; n < N; n++) largest = Max::of(largest, v[n]);
    }
    largest = row_reduce<Max>(largest, room[0]);

    S sum = 0;
#pragma unroll
    for (int k = 0; k < HELD; k++)
        for (int n = 0; n < N; n++)
            if (first + k * step < columns) sum += held[k][n] = exponential<T>(held[k][n] - largest);
    for (unsigned at = first + HELD * step; at < columns; at += step) {
        S v[N];
        read(at, v);
        for (int n = 0; n < N; n++) sum += exponential<T>(v[n] - largest);
    }
    const S all = row_reduce<Add>(sum, room[1]), factor = (S)1 / all;

    auto write = [&](unsigned at, const S(&v)[N]) {
        Vec<T, N> out;
#pragma unroll
        for (int n = 0; n < N; n++) out.at[n] = narrow<T>(sizeof(T) > 2 ? v[n] / all : v[n] * factor);
        store_some<T, N, VECTORS>(y + at, out, columns - at);
    };
#pragma unroll
    for (int k = 0; k < HELD; k++)
        if (first + k * step < columns) write(first + k * step, held[k]);
    for (unsigned at = first + HELD * step; at < columns; at += step) {
        S v[N];
        read(at, v);
        for (int n = 0; n < N; n++) v[n] = exponential<T>(v[n] - largest);
        write(at, v);
    }
}

template <int HELD, typename T>
__device__ inline void softmax(size_t rows, unsigned columns, Bias of, const T *x, const T *bias, T *y) {
    const size_t row = this_row();
    const unsigned end = row_end(row, rows, columns);
    x += row * columns;
    y += row * columns;
    if (bias && end) bias += of.at(row);
    // The choice is the same for all lanes of a warp, so that all of them reach the same shuffles and barriers.
    if (!__all_sync(~0u, columns % WIDE<T> == 0 && are_aligned(x, bias, (const T *)y)))
        softmax<HELD, false>(end, x, bias, y);
    else
        softmax<HELD, true>(end, x, bias, y);
}

// `short`: the threads of a row take one vector each. It needs fewer registers, so more blocks run at a time.
#define SOFTMAX(NAME, HELD, T)                                                                                         \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS) opara_softmax_##NAME(size_t rows, unsigned columns,      \
        unsigned middle, unsigned inner, unsigned outer_stride, unsigned middle_stride, unsigned inner_stride,         \
        const T *x, const T *bias, T *y) {                                                                             \
        softmax<HELD>(rows, columns, {{middle, inner}, {outer_stride, middle_stride, inner_stride}}, x, bias, y);      \
    }
#define SOFTMAXES(T, NAME)                                                                                             \
    SOFTMAX(short_##NAME, 1, T)                                                                                        \
    SOFTMAX(long_##NAME, 2, T)

SOFTMAXES(float, f32)
SOFTMAXES(double, f64)
SOFTMAXES(__half, f16)
SOFTMAXES(__nv_bfloat16, bf16)
