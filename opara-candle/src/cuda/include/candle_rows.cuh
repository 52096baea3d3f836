// What candle's kernels make of a row (candle-kernels' reduce.cu), to the last bit: they add up in the order in which each of
// their threads does, which is not that of the threads here. R is the ThreadTile.
#pragma once
#include "candle.cuh"
#include "rows.cuh"
#include "part.cuh"

// Columns of a row that candle's threads take one after the other, if there are more than these.
constexpr unsigned CANDLE_BLOCK = 1024;

// A thread for each column, up to a power of two.
__device__ constexpr unsigned candle_fold_threads(unsigned columns) {
    unsigned threads = CANDLE_BLOCK;
    while (threads / 2 >= columns) threads /= 2;
    return threads;
}

extern __shared__ float candle_room[];

// Of each column of the thread's row a number, and of what is missing to a power of two.
template <typename R> __device__ inline float *candle_row_of() {
    return candle_room + threadIdx.y * candle_fold_threads(R::columns);
}

// Waits for the threads of a row: those of the block, or, of several, those of a warp.
template <typename R> __device__ inline void sync_row() {
    if constexpr (R::rows > 1)
        __syncwarp();
    else
        __syncthreads();
}

// Lets all threads of the row see it.
template <typename R, typename T> __device__ inline void publish(const R &row, const Vec<T, R::elements> &xs) {
    float *const candle_row = candle_row_of<R>();
#pragma unroll
    for (int n = 0; n < R::elements; n++)
        if (row.column(n) < R::columns) candle_row[row.column(n)] = widen(xs.at[n]);
    sync_row<R>();
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

// `fast_max`, `fast_min`, and `fast_sum` of __half: always the halves.
template <typename F, typename R, typename T>
__device__ inline auto candle_fold(const R &row, const Vec<T, R::elements> &xs) {
    constexpr unsigned columns = R::columns, threads = candle_fold_threads(columns);
    float *const candle_row = candle_row_of<R>();
    publish(row, xs);
    for (unsigned thread = threadIdx.x; thread < threads; thread += blockDim.x) {
        T x = F::template none<T>();
        for (unsigned column = thread; column < columns; column += threads) x = F::of(x, narrow<T>(candle_row[column]));
        candle_row[thread] = widen(x);
    }
    unsigned half = threads / 2;
    for (; half >= 32; half /= 2) {
        sync_row<R>();
        for (unsigned thread = threadIdx.x; thread < half; thread += blockDim.x)
            candle_row[thread] =
                widen(F::of(narrow<T>(candle_row[thread]), narrow<T>(candle_row[thread + half])));
    }
    sync_row<R>();
    // What is left is for a warp, here for each. Lanes beyond the half compute what nobody takes.
    const unsigned lane = threadIdx.x % 32;
    float all = lane < threads ? candle_row[lane] : 0;
    for (; half > 0; half /= 2) all = widen(F::of(narrow<T>(all), narrow<T>(__shfl_down_sync(~0u, all, half))));
    all = __shfl_sync(~0u, all, 0);
    // Until nobody reads what the next step writes.
    sync_row<R>();
    return R::all(narrow<T>(all));
}

// The largest element of the row, in whichever order.
template <typename T, int N> __device__ inline T row_max(const Vec<T, N> &xs) {
    __shared__ T room[MOST / 32];
    T most = xs.at[0];
#pragma unroll
    for (int n = 1; n < N; n++) most = larger(most, xs.at[n]);
    return of_row<CandleMax>(most, room);
}

// `fast_sum` of float and __nv_bfloat16: a thread takes so many neighbours at once, counted from the first row's beginning on, and
// what rows begin and end with beside those; then warps.
template <unsigned NEIGHBOURS, typename R, typename T>
__device__ inline auto candle_sum(const R &row, const Vec<T, R::elements> &xs) {
    __shared__ float of_rows[R::rows][CANDLE_BLOCK / 32];
    constexpr unsigned columns = R::columns, threads = candle_fold_threads(columns);
    float *const candle_row = candle_row_of<R>(), *const of_warps = of_rows[threadIdx.y];
    const unsigned lane = threadIdx.x % 32, start = row.begin, end = row.end;
    const unsigned first = (start + NEIGHBOURS - 1) / NEIGHBOURS, past = end / NEIGHBOURS;
    publish(row, xs);
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
    sync_row<R>();
    return R::all(narrow<T>(of_warp<Add>(lane < threads / 32 ? of_warps[lane] : 0.f)));
}

// The sums of a row that all see, and of its squares, by a warp, or by as many as CANDLE_BLOCK has.
template <typename R, unsigned THREADS> __device__ inline float2 candle_sums() {
    __shared__ float2 of_rows[R::rows][CANDLE_BLOCK / 32];
    const float *const candle_row = candle_row_of<R>();
    float2 *const of_warps = of_rows[threadIdx.y];
    const unsigned lane = threadIdx.x % 32;
    for (unsigned first = threadIdx.x - lane; first < THREADS; first += blockDim.x) {
        float2 sum = {};
#pragma unroll 8
        for (unsigned column = first + lane; column < R::columns; column += THREADS) {
            const float x = candle_row[column];
            sum.x += x;
            sum.y = fmaf(x, x, sum.y);
        }
        sum = {of_warp<Add>(sum.x), of_warp<Add>(sum.y)};
        if (lane == 0) of_warps[first / 32] = sum;
    }
    sync_row<R>();
    if (THREADS == 32) return of_warps[0];
    return {of_warp<Add>(of_warps[lane].x), of_warp<Add>(of_warps[lane].y)};
}

template <typename R> constexpr unsigned CANDLE_NORM_THREADS = R::columns < CANDLE_BLOCK ? 32 : CANDLE_BLOCK;

// `layernorm`.
template <typename R, typename T>
__device__ inline auto candle_layer_norm(const R &row, const Vec<T, R::elements> &xs,
                                         const Vec<T, R::elements> &weight, const Vec<T, R::elements> &bias,
                                         float epsilon) {
    publish(row, xs);
    const float2 sum = candle_sums<R, CANDLE_NORM_THREADS<R>>();
    const float columns = R::columns, mean = sum.x / columns, variance = fmaf(-mean, mean, sum.y / columns);
    const float scale = rsqrtf(variance + epsilon);
    Vec<T, R::elements> to;
#pragma unroll
    for (int n = 0; n < R::elements; n++)
        to.at[n] = narrow<T>(fmaf((widen(xs.at[n]) - mean) * scale, widen(weight.at[n]), widen(bias.at[n])));
    return to;
}

// `rmsnorm`.
template <typename R, typename T>
__device__ inline auto candle_rms_norm(const R &row, const Vec<T, R::elements> &xs,
                                       const Vec<T, R::elements> &weight, float epsilon) {
    publish(row, xs);
    const float columns = R::columns;
    const float scale = rsqrtf(candle_sums<R, CANDLE_NORM_THREADS<R>>().y / columns + epsilon);
    Vec<T, R::elements> to;
#pragma unroll
    for (int n = 0; n < R::elements; n++)
        to.at[n] = narrow<T>(product(scale * widen(xs.at[n]), widen(weight.at[n])));
    return to;
}

// `softmax`: a warp.
template <typename R, typename T> __device__ inline auto candle_softmax(const R &row, const Vec<T, R::elements> &xs) {
    const T most = row_max(xs);
    Vec<T, R::elements> to;
#pragma unroll
    for (int n = 0; n < R::elements; n++) to.at[n] = exponential((T)(xs.at[n] - most));
    publish(row, to);
    const T factor = narrow<T>(1.f / candle_sums<R, 32>().x);
#pragma unroll
    for (int n = 0; n < R::elements; n++) to.at[n] = product(to.at[n], factor);
    return to;
}
