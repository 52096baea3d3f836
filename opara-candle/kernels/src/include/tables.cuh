// Launches over many tensors, each of which has some of the blocks.
#pragma once
#include "numbers.cuh"

// Tensors of a launch, as in `tables.rs`.
constexpr unsigned TENSORS = 64;

// Threads of a block, and the vectors that a thread changes.
constexpr unsigned THREADS = 256, VECTORS = 2;
template <typename T> constexpr unsigned SHARE = THREADS * VECTORS * WIDE<T>;

// A value for each tensor.
template <typename V> struct Table { V at[TENSORS]; };
using Counts = Table<size_t>;
using Factors = Table<double>;

// The tensor that this block works on, and the number of the block among those of that tensor.
struct Work {
    unsigned tensor, block;

    __device__ explicit Work(const Counts &ends) {
        unsigned first = 0, last = TENSORS - 1;
        while (first < last) {
            const unsigned middle = (first + last) / 2;
            if (blockIdx.x < ends.at[middle]) last = middle;
            else first = middle + 1;
        }
        tensor = first;
        block = blockIdx.x - (first ? (unsigned)ends.at[first - 1] : 0);
    }
};
