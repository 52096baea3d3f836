// Tiles of keys or values in shared memory, for attention on tensor cores (sm_80 and later). For older architectures, kernels that use
// this header are not compiled.
#pragma once
#include "tensor.cuh"

// Elements of a row in shared memory: whole operands of an instruction, for rows of DIM elements at most.
template <int DIM, typename T> constexpr int WIDTH = (DIM + DEPTH<T> - 1) / DEPTH<T> * DEPTH<T>;

// The rows of one head, of `size` elements: `pitch` elements apart, contiguous in themselves.
template <typename T> struct Tokens {
    const T *at;
    unsigned count, pitch, size;

    __device__ size_t of(unsigned token) const { return (size_t)token * pitch; }
};

// A tile in shared memory. The padding of 16 bytes after each row puts the elements of a column into different banks.
template <int DIM, typename T> struct Tile {
    static constexpr unsigned PITCH = WIDTH<DIM, T> + WIDE<T>, LOADS = WIDTH<DIM, T> / WIDE<T>;
    T *at;

    __device__ T *row(unsigned row) const { return at + row * PITCH; }

    // Starts the asynchronous copy of COUNT tokens from `first` on, by the THREADS of the block. Tokens past the last one become zeros, and
    // so do elements past a row's size.
    template <unsigned COUNT, unsigned THREADS, typename From> __device__ void fill(const From &from, unsigned first) const {
        constexpr unsigned ALL = COUNT * LOADS, TURNS = (ALL + THREADS - 1) / THREADS;
        size_t at_token[TURNS];
        auto index = [&](unsigned n) { return threadIdx.x + n * THREADS; };
        auto is_there = [&](unsigned i) {
            return (ALL % THREADS == 0 || i < ALL) && first + i / LOADS < from.count && i % LOADS * WIDE<T> < from.size;
        };
        // Before all copies, so that loads of a table are not waited for one by one.
#pragma unroll
        for (unsigned n = 0; n < TURNS; n++) at_token[n] = is_there(index(n)) ? from.of(first + index(n) / LOADS) : 0;
#pragma unroll
        for (unsigned n = 0; n < TURNS; n++) {
            const unsigned i = index(n), column = i % LOADS * WIDE<T>;
            if (ALL % THREADS != 0 && i >= ALL) break;
            copy_async(row(i / LOADS) + column, from.at + at_token[n] + (is_there(i) ? column : 0), is_there(i));
        }
    }
};

// score += q * k^T for N tiles of 8 keys. `q` is the warp's queries in D operands.
template <int N, int D, int DIM, typename T>
__device__ inline void add_scores(float (&score)[N][4], const unsigned (&q)[D][4], const Tile<DIM, T> &keys) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int d = 0; d < D; d++)
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            unsigned some[4];
            ldmatrix<false>(some, keys.row(n * 8 + lane / 16 * 8 + lane % 8) + d * DEPTH<T> + lane / 8 % 2 * WIDE<T>);
            mma(score[n], q[d], some[0], some[1], T());
            mma(score[n + 1], q[d], some[2], some[3], T());
        }
}
