// Blocks that sum over the rows of 32 columns, in a fixed order.
#pragma once
#include "rows.cuh"

// A block has 32 columns, and 32 rows at a time.
constexpr unsigned SIDE = 32;

// The rows of this block's share, from this thread's first one on.
struct Share {
    size_t first, end;

    __device__ Share(size_t rows, unsigned share)
        : first((size_t)blockIdx.y * share + threadIdx.y), end(min((size_t)(blockIdx.y + 1) * share, rows)) {}
};

__device__ inline unsigned this_column() { return blockIdx.x * SIDE + threadIdx.x; }

// Sums what the threads of each column have. Gives the sum of column `threadIdx.y` of the block to its threads.
__device__ inline float sum_of_column(float own) {
    __shared__ float room[SIDE][SIDE + 1];
    room[threadIdx.y][threadIdx.x] = own;
    __syncthreads();
    return warp_reduce<Add>(room[threadIdx.x][threadIdx.y]);
}

template <typename T> __device__ inline void write_sum(float sum, unsigned columns, T *y) {
    const unsigned column = blockIdx.x * SIDE + threadIdx.y;
    if (threadIdx.x == 0 && column < columns) y[column] = narrow<T>(sum);
}

// Threads along the rows of a block whose threads have vectors of columns: SIDE of them along a row.
constexpr unsigned DEEP = 8;

// The sum of a vector of columns, of each DEEP-th row.
template <int N, typename T>
__device__ inline Vec<float, N> sum_of_rows(const T *x, size_t first, size_t end, unsigned columns, unsigned column) {
    Vec<float, N> sum{};
#pragma unroll 4
    for (size_t row = first; row < end; row += DEEP) {
        const auto own = load<T, N>(x + row * columns + column);
#pragma unroll
        for (int n = 0; n < N; n++) sum.at[n] += widen(own.at[n]);
    }
    return sum;
}

// Sums what the threads of each vector of columns have, in a fixed order, for the first one of them.
template <int N> __device__ inline Vec<float, N> sum_of_vectors(Vec<float, N> own) {
    __shared__ Vec<float, N> room[DEEP][SIDE];
    room[threadIdx.y][threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.y > 0) return own;
#pragma unroll
    for (unsigned y = 1; y < DEEP; y++)
#pragma unroll
        for (int n = 0; n < N; n++) own.at[n] += room[y][threadIdx.x].at[n];
    return own;
}

// As `sum_of_column`, for the threads of each column, for the next sum over these rows.
__device__ inline float own_of_column(float sum) {
    __shared__ float room[SIDE];
    if (threadIdx.x == 0) room[threadIdx.y] = sum;
    __syncthreads();
    return room[threadIdx.x];
}

// Threads of a block whose threads have vectors of columns.
constexpr unsigned OF_VECTORS = 256;

// Sums what the threads of each column have, two numbers of each of N columns, in a fixed order. Calls f with each column of the block,
// by one thread, and with both sums.
template <int N, typename F> __device__ inline void sums_of_columns(const float (&a)[N], const float (&b)[N], F f) {
    __shared__ float room[2][OF_VECTORS * N];
    const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x, across = blockDim.x * N;
#pragma unroll
    for (int n = 0; n < N; n++) room[0][thread * N + n] = a[n], room[1][thread * N + n] = b[n];
    __syncthreads();
    for (unsigned column = thread; column < across; column += blockDim.x * blockDim.y) {
        float both[2] = {};
        for (unsigned y = 0; y < blockDim.y; y++)
#pragma unroll
            for (int of = 0; of < 2; of++) both[of] += room[of][y * across + column];
        f(blockIdx.x * across + column, both[0], both[1]);
    }
}
