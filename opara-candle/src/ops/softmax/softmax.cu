// Softmax of rows, of the sum of x and a bias that broadcasts to it where that is not null.
#include "rows.cuh"

// Of a difference to the largest number of a row. The faster one is off by less than 16 bits tell apart.
template <typename T, typename S> __device__ inline S exponential(S x) {
    if constexpr (sizeof(T) == 2) return __expf(x);
    return exp(x);
}

// Where the bias of a row begins: rows are counted by three dimensions, the last of which runs fastest.
struct Bias {
    unsigned dims[2], strides[3];

    __device__ size_t at(unsigned row) const {
        unsigned outer = row / dims[1];
        return (size_t)(outer / dims[0]) * strides[0] + (size_t)(outer % dims[0]) * strides[1] +
               (size_t)(row % dims[1]) * strides[2];
    }
};

// HELD is how often a thread takes neighbours that it then keeps in registers. What lies beyond in a longer row is read anew.
template <int HELD, bool TOGETHER, typename T>
__device__ inline void softmax(unsigned columns, const T *x, const T *bias, T *y) {
    using S = typename Sum<T>::type;
    constexpr int N = WIDE<T>;
    __shared__ S room[2][MOST / 32];
    const unsigned first = threadIdx.x * N, step = blockDim.x * N;

    // What has no weight beyond the end.
    auto read = [&](unsigned at, S(&v)[N]) {
        Vec<T, N> own = load_some<T, N, TOGETHER>(x + at, columns - at), second{};
        if (bias) second = load_some<T, N, TOGETHER>(bias + at, columns - at);
#pragma unroll
        for (int n = 0; n < N; n++) {
            v[n] = widen(own.at[n]);
            if (bias) v[n] += (S)widen(second.at[n]);
            if (!TOGETHER && at + n >= columns) v[n] = -INFINITY;
        }
    };

    S held[HELD][N], largest = -INFINITY;
#pragma unroll
    for (int k = 0; k < HELD; k++)
        if (first + k * step < columns) read(first + k * step, held[k]);
#pragma unroll
    for (int k = 0; k < HELD; k++)
        for (int n = 0; n < N; n++)
            if (first + k * step < columns) largest = Larger::of(largest, held[k][n]);
    for (unsigned at = first + HELD * step; at < columns; at += step) {
        S v[N];
        read(at, v);
        for (int n = 0; n < N; n++) largest = Larger::of(largest, v[n]);
    }
    largest = of_row<Larger>(largest, room[0]);

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
    const S factor = (S)1 / of_row<Add>(sum, room[1]);

    auto write = [&](unsigned at, const S(&v)[N]) {
        Vec<T, N> out;
#pragma unroll
        for (int n = 0; n < N; n++) out.at[n] = narrow<T>(v[n] * factor);
        store_some<T, N, TOGETHER>(y + at, out, columns - at);
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
    const unsigned end = end_of(row, rows, columns);
    x += row * columns;
    y += row * columns;
    if (bias && end) bias += of.at(row);
    // The same for all rows of a warp: no thread waits for one that goes the other way.
    if (!__all_sync(~0u, columns % WIDE<T> == 0 && are_aligned(x, bias, (const T *)y)))
        softmax<HELD, false>(end, x, bias, y);
    else
        softmax<HELD, true>(end, x, bias, y);
}

// `short`, of rows that their threads take once, leaves more registers: more of it runs at a time.
#define SOFTMAX(NAME, HELD, T)                                                                                         \
    extern "C" __global__ void __launch_bounds__(MOST) opara_softmax_##NAME(size_t rows, unsigned columns,             \
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
