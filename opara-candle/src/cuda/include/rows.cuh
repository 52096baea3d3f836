// Rows of elements: the threads along x of a block make one, each of them WIDE neighbours in turn. They are a power of two
// within a warp, which then may have several rows and a block several warps, or the whole warps of a block. Which thread
// takes what does not depend on addresses, so that the bits of a result do not depend on them either.
#pragma once
#include "numbers.cuh"

// Threads of a block at most.
constexpr int MOST = 1024;

struct Add {
    template <typename S> __device__ static S of(S a, S b) { return a + b; }
    template <typename S> __device__ static S none() { return 0; }
};
struct Larger {
    template <typename S> __device__ static S of(S a, S b) { return a > b ? a : b; }
    template <typename S> __device__ static S none() { return -INFINITY; }
};

// Over so many threads of a warp that are neighbours, or all.
template <typename F, typename S> __device__ inline S of_warp(S x, unsigned threads = 32) {
#pragma unroll
    for (unsigned distance = 16; distance > 0; distance /= 2)
        if (distance < threads) x = F::of(x, __shfl_xor_sync(~0u, x, distance));
    return x;
}

// Over the threads of a row. A row of more than a warp is alone in its block; `room` then serves once.
template <typename F, typename S> __device__ inline S of_row(S x, S (&room)[MOST / 32]) {
    if (blockDim.x < 32) return of_warp<F>(x, blockDim.x);
    x = of_warp<F>(x);
    if (blockDim.x == 32) return x;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) room[warp] = x;
    __syncthreads();
    return of_warp<F>(lane < blockDim.x / 32 ? room[lane] : F::template none<S>());
}

// The row of this thread.
__device__ inline size_t this_row() { return (size_t)blockIdx.x * blockDim.y + threadIdx.y; }

// Where a row ends: at once if it is not there. Its threads stay: those of other rows of their warp talk to all.
__device__ inline unsigned end_of(size_t row, size_t rows, unsigned columns) { return row < rows ? columns : 0; }
