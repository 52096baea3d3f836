// What candle's kernels make of a row (candle-kernels' reduce.cu), to the last bit: they add up in the order in which each of
// their threads does, which is not that of the threads here. A block has a row, of which a thread has every blockDim.x-th
// element, from its own number on.
#pragma once
#include "candle.cuh"
#include "rows.cuh"

// Columns of a row that candle's threads take one after the other, if there are more than these.
constexpr unsigned CANDLE_BLOCK = 1024;

// Those of a thread.
template <typename T, int N> struct Values { T at[N]; };

extern __shared__ float candle_row[];

// Lets all threads see the row.
template <typename T, int N> __device__ inline void publish(const Values<T, N> &xs, unsigned columns) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        const unsigned column = threadIdx.x + n * blockDim.x;
        if (column < columns) candle_row[column] = widen(xs.at[n]);
    }
    __syncthreads();
}

// All threads have the row's number.
template <typename T, int N> __device__ inline Values<T, N> number(float x) {
    Values<T, N> to;
#pragma unroll
    for (int n = 0; n < N; n++) to.at[n] = narrow<T>(x);
    return to;
}

struct CandleSum {
    template <typename T> __device__ static T of(T a, T b) { return a + b; }
    template <typename T> __device__ static T none() { return narrow<T>(0); }
};
struct CandleMax {
    template <typename T> __device__ static T of(T a, T b) { return larger(a, b); }
    template <typename T> __device__ static T none() { return narrow<T>(-INFINITY); }
};
struct CandleMin {
    template <typename T> __device__ static T of(T a, T b) { return smaller(a, b); }
    template <typename T> __device__ static T none() { return narrow<T>(INFINITY); }
};

// A thread for each column, up to a power of two.
__device__ inline unsigned candle_fold_threads(unsigned columns) {
    unsigned threads = CANDLE_BLOCK;
    while (threads / 2 >= columns) threads /= 2;
    return threads;
}

// `fast_max`, `fast_min`, and `fast_sum` of __half: always the halves.
template <typename F, typename T, int N>
__device__ inline Values<T, N> candle_fold(const Values<T, N> &xs, unsigned columns) {
    const unsigned threads = candle_fold_threads(columns);
    publish(xs, columns);
    for (unsigned thread = threadIdx.x; thread < threads; thread += blockDim.x) {
        T x = F::template none<T>();
        for (unsigned column = thread; column < columns; column += threads) x = F::of(x, narrow<T>(candle_row[column]));
        candle_row[thread] = widen(x);
    }
    unsigned half = threads / 2;
    for (; half >= 32; half /= 2) {
        __syncthreads();
        for (unsigned thread = threadIdx.x; thread < half; thread += blockDim.x)
            candle_row[thread] =
                widen(F::of(narrow<T>(candle_row[thread]), narrow<T>(candle_row[thread + half])));
    }
    __syncthreads();
    // What is left is for a warp, here for each. Lanes beyond the half compute what nobody takes.
    const unsigned lane = threadIdx.x % 32;
    float all = lane < threads ? candle_row[lane] : 0;
    for (; half > 0; half /= 2) all = widen(F::of(narrow<T>(all), narrow<T>(__shfl_down_sync(~0u, all, half))));
    all = __shfl_sync(~0u, all, 0);
    // Until nobody reads what the next step writes.
    __syncthreads();
    return number<T, N>(all);
}

// The largest element of the row, in whichever order.
template <typename T, int N> __device__ inline T row_max(const Values<T, N> &xs) {
    __shared__ T room[MOST / 32];
    T most = xs.at[0];
#pragma unroll
    for (int n = 1; n < N; n++) most = larger(most, xs.at[n]);
    return of_row<CandleMax>(most, room);
}

// `fast_sum` of float and __nv_bfloat16: a thread takes so many neighbours at once, counted from the first row's beginning on, and
// what rows begin and end with beside those; then warps.
template <unsigned NEIGHBOURS, typename T, int N>
__device__ inline Values<T, N> candle_sum(const Values<T, N> &xs, unsigned columns) {
    __shared__ float of_warps[CANDLE_BLOCK / 32];
    const unsigned threads = candle_fold_threads(columns), lane = threadIdx.x % 32;
    const unsigned start = blockIdx.x * columns, end = start + columns;
    const unsigned first = (start + NEIGHBOURS - 1) / NEIGHBOURS, past = end / NEIGHBOURS;
    publish(xs, columns);
    for (unsigned warp = threadIdx.x - lane; warp < threads; warp += blockDim.x) {
        const unsigned thread = warp + lane;
        float sum = 0;
        if (start + thread < first * NEIGHBOURS) sum += candle_row[thread];
        for (unsigned some = first + thread; some < past; some += threads) {
            const float *from = candle_row + some * NEIGHBOURS - start;
            // Those of float before they are added to what there is.
            float part = sizeof(T) == sizeof(float) ? from[0] : sum + from[0];
#pragma unroll
            for (unsigned n = 1; n < NEIGHBOURS; n++) part += from[n];
            sum = sizeof(T) == sizeof(float) ? sum + part : part;
        }
        if (past * NEIGHBOURS + thread < end) sum += candle_row[past * NEIGHBOURS - start + thread];
        sum = of_warp<Add>(sum);
        if (lane == 0) of_warps[warp / 32] = sum;
    }
    __syncthreads();
    return number<T, N>(of_warp<Add>(lane < threads / 32 ? of_warps[lane] : 0.f));
}

// The sums of a row that all see, and of its squares, by a warp, or by as many as CANDLE_BLOCK has.
__device__ inline float2 candle_sums(unsigned columns, unsigned threads) {
    __shared__ float2 of_warps[CANDLE_BLOCK / 32];
    const unsigned lane = threadIdx.x % 32;
    for (unsigned first = threadIdx.x - lane; first < threads; first += blockDim.x) {
        float2 sum = {};
#pragma unroll 8
        for (unsigned column = first + lane; column < columns; column += threads) {
            const float x = candle_row[column];
            sum.x += x;
            sum.y = fmaf(x, x, sum.y);
        }
        sum = {of_warp<Add>(sum.x), of_warp<Add>(sum.y)};
        if (lane == 0) of_warps[first / 32] = sum;
    }
    __syncthreads();
    if (threads == 32) return of_warps[0];
    return {of_warp<Add>(of_warps[lane].x), of_warp<Add>(of_warps[lane].y)};
}

__device__ inline unsigned candle_norm_threads(unsigned columns) { return columns < CANDLE_BLOCK ? 32 : CANDLE_BLOCK; }

// `layernorm`.
template <typename T, int N>
__device__ inline Values<T, N> candle_layer_norm(const Values<T, N> &xs, const Values<T, N> &weight,
                                                 const Values<T, N> &bias, unsigned columns, float epsilon) {
    publish(xs, columns);
    const float2 sum = candle_sums(columns, candle_norm_threads(columns));
    const float mean = sum.x / columns, variance = fmaf(-mean, mean, sum.y / columns), scale = rsqrtf(variance + epsilon);
    Values<T, N> to;
#pragma unroll
    for (int n = 0; n < N; n++)
        to.at[n] = narrow<T>(fmaf((widen(xs.at[n]) - mean) * scale, widen(weight.at[n]), widen(bias.at[n])));
    return to;
}

// `rmsnorm`.
template <typename T, int N>
__device__ inline Values<T, N> candle_rms_norm(const Values<T, N> &xs, const Values<T, N> &weight, unsigned columns,
                                               float epsilon) {
    publish(xs, columns);
    const float scale = rsqrtf(candle_sums(columns, candle_norm_threads(columns)).y / columns + epsilon);
    Values<T, N> to;
#pragma unroll
    for (int n = 0; n < N; n++) to.at[n] = narrow<T>(product(scale * widen(xs.at[n]), widen(weight.at[n])));
    return to;
}

// `softmax`: a warp.
template <typename T, int N> __device__ inline Values<T, N> candle_softmax(const Values<T, N> &xs, unsigned columns) {
    const T most = row_max(xs);
    Values<T, N> to;
#pragma unroll
    for (int n = 0; n < N; n++) to.at[n] = exponential((T)(xs.at[n] - most));
    publish(to, columns);
    const T factor = narrow<T>(1.f / candle_sums(columns, 32).x);
#pragma unroll
    for (int n = 0; n < N; n++) to.at[n] = product(to.at[n], factor);
    return to;
}
