// Row reductions, norms and softmax with the bits of candle's kernels (candle-kernels' reduce.cu). They add in the
// order of candle's threads, which is not the order of the threads here. R is the ThreadTile.
#pragma once
#include "candle.cuh"
#include "rows.cuh"
#include "part.cuh"

// Maximum threads that candle's block has for a row.
constexpr unsigned CANDLE_BLOCK = 1024;

// candle's number of threads for a row: one per column, rounded up to a power of two, at most CANDLE_BLOCK.
__device__ constexpr unsigned candle_fold_threads(unsigned columns) {
    unsigned threads = CANDLE_BLOCK;
    while (threads / 2 >= columns) threads /= 2;
    return threads;
}

extern __shared__ float candle_room[];

// The shared memory of this thread's row: one f32 per column, padded to candle's number of threads.
template <typename R> __device__ inline float *candle_row_of() {
    return candle_room + threadIdx.y * candle_fold_threads(R::columns);
}

// Synchronises the threads of a row: the whole block, or one warp if the block has several rows.
template <typename R> __device__ inline void sync_row() {
    if constexpr (R::rows > 1)
        __syncwarp();
    else
        __syncthreads();
}

// Writes the thread's elements to shared memory, where all threads of the row can read them.
template <typename R, typename T> __device__ inline void publish(const R &row, const Vec<T, R::elements> &xs) {
    float *const candle_row = candle_row_of<R>();
#pragma unroll
    for (int n = 0; n < R::elements; n++)
        if (row.column(n) < R::columns) candle_row[row.column(n)] = widen(xs.at[n]);
    sync_row<R>();
}

struct CandleSum {
    template <typename T> __device__ static T of(T a, T b) { return a + b; }
    template <typename T> __device__ static T identity() { return narrow<T>(0); }
};
struct CandleMax {
    template <typename T> __device__ static T of(T a, T b) { return larger(a, b); }
    template <typename T> __device__ static T identity() { return narrow<T>(-INFINITY); }
};
struct CandleMin {
    template <typename T> __device__ static T of(T a, T b) { return smaller(a, b); }
    template <typename T> __device__ static T identity() { return narrow<T>(INFINITY); }
};

// `fast_max`, `fast_min`, and `fast_sum` of __half: a tree that halves the number of partial results at each step.
template <typename F, typename R, typename T>
__device__ inline auto candle_fold(const R &row, const Vec<T, R::elements> &xs) {
    constexpr unsigned columns = R::columns, threads = candle_fold_threads(columns);
    float *const candle_row = candle_row_of<R>();
    publish(row, xs);
    for (unsigned thread = threadIdx.x; thread < threads; thread += blockDim.x) {
        T x = F::template identity<T>();
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
    // The last steps run inside a warp; here every warp of the row repeats them. Lanes beyond `half` compute unused
    // values.
    const unsigned lane = threadIdx.x % 32;
    float all = lane < threads ? candle_row[lane] : 0;
    for (; half > 0; half /= 2) all = widen(F::of(narrow<T>(all), narrow<T>(__shfl_down_sync(~0u, all, half))));
    all = __shfl_sync(~0u, all, 0);
    // The next op may overwrite shared memory only after all threads have read it.
    sync_row<R>();
    return R::all(narrow<T>(all));
}

// The largest element of the row. Its value does not depend on the order.
template <typename T, int N> __device__ inline T row_max(const Vec<T, N> &xs) {
    __shared__ T room[MAX_THREADS / 32];
    T most = xs.at[0];
#pragma unroll
    for (int n = 1; n < N; n++) most = larger(most, xs.at[n]);
    return row_reduce<CandleMax>(most, room);
}

// `fast_sum` of float and __nv_bfloat16. candle's threads load vectors of NEIGHBOURS elements that are aligned from the
// start of the tensor, and the unaligned head and tail of a row one by one; then warps are reduced.
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
            // For float, candle adds up the vector first; for 16-bit types it continues the running sum.
            float part = sizeof(T) == sizeof(float) ? from[0] : sum + from[0];
#pragma unroll
            for (unsigned n = 1; n < NEIGHBOURS; n++) part += from[n];
            sum = sizeof(T) == sizeof(float) ? sum + part : part;
        }
        if (past * NEIGHBOURS + thread < end) sum += candle_row[past * NEIGHBOURS - start + thread];
        sum = warp_reduce<Add>(sum);
        if (lane == 0) of_warps[warp / 32] = sum;
    }
    sync_row<R>();
    return R::all(narrow<T>(warp_reduce<Add>(lane < threads / 32 ? of_warps[lane] : 0.f)));
}

// The sum of the row in shared memory, and the sum of its squares, as candle's block of THREADS computes them: one
// warp, or CANDLE_BLOCK threads.
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
        sum = {warp_reduce<Add>(sum.x), warp_reduce<Add>(sum.y)};
        if (lane == 0) of_warps[first / 32] = sum;
    }
    sync_row<R>();
    if (THREADS == 32) return of_warps[0];
    return {warp_reduce<Add>(of_warps[lane].x), warp_reduce<Add>(of_warps[lane].y)};
}

template <typename R> constexpr unsigned CANDLE_NORM_THREADS = R::columns < CANDLE_BLOCK ? 32 : CANDLE_BLOCK;

// `layernorm`: variance = mean of squares - square of the mean.
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
        to.at[n] = narrow<T>(mul_rn(scale * widen(xs.at[n]), widen(weight.at[n])));
    return to;
}

// `softmax`: candle uses one warp per row.
template <typename R, typename T> __device__ inline auto candle_softmax(const R &row, const Vec<T, R::elements> &xs) {
    const T most = row_max(xs);
    Vec<T, R::elements> to;
#pragma unroll
    for (int n = 0; n < R::elements; n++) to.at[n] = exponential((T)(xs.at[n] - most));
    publish(row, to);
    const T factor = narrow<T>(1.f / candle_sums<R, 32>().x);
#pragma unroll
    for (int n = 0; n < R::elements; n++) to.at[n] = mul_rn(to.at[n], factor);
    return to;
}
