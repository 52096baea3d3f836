// Rows of heads as warpgroups read them from shared memory (sm_90a).
#pragma once
#include "tile.cuh"
#include "warpgroup.cuh"

// COUNT tokens of one head in shared memory: for each 64 elements of a token, or what is left of them, a tile of lines.
template <int DIM, unsigned COUNT, typename T> struct Lines {
    static constexpr unsigned SIZE = (DIM + 63) / 64 * COUNT * LINE<T>;
    T *at;

    __device__ T *chunk(unsigned row, unsigned chunk) const {
        return at + chunk / CHUNKS * COUNT * LINE<T> + swizzled<T>(row, chunk % CHUNKS);
    }
    // What tensor cores read of the lines with elements from 64 * `part` on.
    __device__ unsigned long long part(unsigned part) const { return matrix_descriptor(at + part * COUNT * LINE<T>); }

    // Starts the asynchronous copy of the tokens from `first` on, by the THREADS of the block. Tokens past the last one become zeros, and
    // so do elements past a token's size.
    template <unsigned THREADS> __device__ void fill(const Tokens<T> &from, unsigned first) const {
        constexpr unsigned EACH = WIDTH<DIM, T> / WIDE<T>, ALL = COUNT * EACH;
#pragma unroll
        for (unsigned n = 0; n < (ALL + THREADS - 1) / THREADS; n++) {
            const unsigned i = threadIdx.x + n * THREADS, token = first + i / EACH;
            if (ALL % THREADS != 0 && i >= ALL) break;
            const unsigned column = i % EACH * WIDE<T>;
            const bool there = token < from.count && column < from.size;
            copy_async(chunk(i / EACH, i % EACH), from.at + (there ? (size_t)token * from.pitch + column : 0), there);
        }
    }
};
