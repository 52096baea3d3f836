// Row-wise kernels. The threads along x of a block share one row; each takes vectors of WIDE elements in turn.
// blockDim.x is a power of two below 32 (a warp then holds several rows, and a block several warps) or a multiple of
// 32. The assignment of elements to threads does not depend on addresses, so neither do the bits of a result.
#pragma once
#include "numbers.cuh"

// Maximum threads of a block.
constexpr int MAX_THREADS = 1024;

struct Add {
    template <typename S> __device__ static S of(S a, S b) { return a + b; }
    template <typename S> __device__ static S identity() { return 0; }
};
struct Max {
    template <typename S> __device__ static S of(S a, S b) { return a > b ? a : b; }
    template <typename S> __device__ static S identity() { return -INFINITY; }
};

// Reduces over groups of `threads` neighbouring lanes of a warp; the default is the whole warp.
template <typename F, typename S> __device__ inline S warp_reduce(S x, unsigned threads = 32) {
#pragma unroll
    for (unsigned distance = 16; distance > 0; distance /= 2)
        if (distance < threads) x = F::of(x, __shfl_xor_sync(~0u, x, distance));
    return x;
}

// Sums of four numbers over the lanes of a warp, of number i in the lanes from 8 i on.
__device__ inline float reduce_four(const float (&v)[4]) {
    const unsigned lane = threadIdx.x % 32;
    const bool upper = lane & 16, second = lane & 8;
    float two[2];
#pragma unroll
    for (unsigned n = 0; n < 2; n++)
        two[n] = (upper ? v[2 + n] : v[n]) + __shfl_xor_sync(~0u, upper ? v[n] : v[2 + n], 16);
    const float one = (second ? two[1] : two[0]) + __shfl_xor_sync(~0u, second ? two[0] : two[1], 8);
    return warp_reduce<Add>(one, 8);
}

// Reduces over the threads of a row. A row of several warps has the block for itself. `room` is shared memory that may
// be used for one reduction only.
template <typename F, typename S> __device__ inline S row_reduce(S x, S (&room)[MAX_THREADS / 32]) {
    if (blockDim.x < 32) return warp_reduce<F>(x, blockDim.x);
    x = warp_reduce<F>(x);
    if (blockDim.x == 32) return x;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) room[warp] = x;
    __syncthreads();
    return warp_reduce<F>(lane < blockDim.x / 32 ? room[lane] : F::template identity<S>());
}

// The index of this thread's row.
__device__ inline size_t this_row() { return (size_t)blockIdx.x * blockDim.y + threadIdx.y; }

// The end of a row: 0 for a row past the last one. Its threads must keep running, since warp shuffles need all lanes.
__device__ inline unsigned row_end(size_t row, size_t rows, unsigned columns) { return row < rows ? columns : 0; }
