// The position of the largest number of a row, one block a row: the first of equals, and the first NaN if there is one.
#pragma once
#include "numbers.cuh"

template <typename S> struct Largest {
    S value;
    unsigned at;

    __device__ static Largest none() { return {(S)-INFINITY, ~0u}; }

    // Does a value at another position replace this one? Every value replaces `none`.
    __device__ bool gives_way_to(S other, unsigned other_at) const {
        const bool is_nan = value != value, other_is_nan = other != other;
        if (at == ~0u) return true;
        if (is_nan || other_is_nan) return other_is_nan && (!is_nan || other_at < at);
        return other > value || (other == value && other_at < at);
    }

    __device__ Largest or_later(S other, unsigned other_at) const {
        return gives_way_to(other, other_at) ? Largest{other, other_at} : *this;
    }

    __device__ Largest with(Largest other) const {
        return other.at != ~0u && gives_way_to(other.value, other.at) ? other : *this;
    }
};

// Reduces over all threads of a block of whole warps.
template <typename S> __device__ inline Largest<S> of_block(Largest<S> best, Largest<S> (&room)[32]) {
    const auto of_warp = [](Largest<S> best) {
#pragma unroll
        for (unsigned distance = 16; distance > 0; distance /= 2) {
            const Largest<S> other = {__shfl_xor_sync(~0u, best.value, distance), __shfl_xor_sync(~0u, best.at, distance)};
            best = best.with(other);
        }
        return best;
    };
    best = of_warp(best);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
    if (lane == 0) room[warp] = best;
    __syncthreads();
    return of_warp(lane < blockDim.x / 32 ? room[lane] : Largest<S>::none());
}

// Calls `f` with the position and value of each element that thread `thread` of `threads` has of a row, with vector loads if the
// row is aligned.
template <typename T, typename F>
__device__ inline void each(const T *x, unsigned columns, unsigned thread, unsigned threads, F f) {
    constexpr unsigned N = WIDE<T>;
    if (columns % N == 0 && are_aligned(x)) {
        for (unsigned at = thread * N; at < columns; at += threads * N) {
            const Vec<T, N> v = load<T, N>(x + at);
#pragma unroll
            for (unsigned n = 0; n < N; n++) f(at + n, widen(v.at[n]));
        }
        return;
    }
    for (unsigned at = thread; at < columns; at += threads) f(at, widen(x[at]));
}
