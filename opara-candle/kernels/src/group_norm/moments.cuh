// Means and sums of squared distances from them. They are updated element by element (Welford, "Note on a method for
// calculating corrected sums of squares and products", 1962), so that nothing cancels where the mean is large, and merged in
// pairs (Chan, Golub and LeVeque, 1983) in an order that never changes.
#pragma once
#include "activation.cuh"

constexpr unsigned THREADS = 512, WARPS = THREADS / 32;

// Of N columns: how many numbers there are in each, their mean, and the sum of their squared distances from it.
template <int N> struct Moments {
    float count, mean[N], squares[N];

    template <typename T> __device__ void add(const Vec<T, N> &v) {
        const float share = 1.f / ++count;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float number = widen(v.at[n]), distance = number - mean[n];
            mean[n] = fmaf(distance, share, mean[n]);
            squares[n] = fmaf(distance, number - mean[n], squares[n]);
        }
    }

    __device__ void merge(const Moments &other) {
        // Of no numbers, zeros: their products with an infinity would be NaN.
        if (other.count == 0) return;
        if (count == 0) {
            *this = other;
            return;
        }
        const float total = count + other.count, share = other.count / total, weight = count * share;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float distance = other.mean[n] - mean[n];
            mean[n] = fmaf(distance, share, mean[n]);
            squares[n] += other.squares[n] + distance * distance * weight;
        }
        count = total;
    }
};

// Merges those of all lanes of a warp; each lane gets the same.
__device__ inline Moments<1> merge_lanes(Moments<1> of) {
#pragma unroll
    for (unsigned distance = 16; distance > 0; distance /= 2) {
        const float count = __shfl_xor_sync(~0u, of.count, distance), mean = __shfl_xor_sync(~0u, of.mean[0], distance),
                    squares = __shfl_xor_sync(~0u, of.squares[0], distance);
        // Both lanes of a pair merge in the same order. Numbers are chosen, not structures: those would be in local memory.
        const bool is_second = threadIdx.x & distance;
        Moments<1> first = {is_second ? count : of.count, {is_second ? mean : of.mean[0]}, {is_second ? squares : of.squares[0]}};
        first.merge({is_second ? of.count : count, {is_second ? of.mean[0] : mean}, {is_second ? of.squares[0] : squares}});
        of = first;
    }
    return of;
}

// Merges those of a group's parts, one for each block along x. Each part is of `share` of `all`, the last one of fewer, and
// each of them of `numbers` numbers. Every lane of the warp gets the same.
__device__ inline Moments<1> merge_parts(const float2 *parts, unsigned share, unsigned all, unsigned numbers) {
    Moments<1> of = {};
    for (unsigned part = threadIdx.x % 32; part < gridDim.x; part += 32) {
        const unsigned first = min(part * share, all);
        const float2 moments = parts[part];
        of.merge({(float)min(share, all - first) * numbers, {moments.x}, {moments.y}});
    }
    return merge_lanes(of);
}

// The normalisation of a channel, and what follows it.
struct Line {
    float mean, factor, shift;

    __device__ Line() {}
    __device__ Line(float mean, float variance, float eps, float scale, float shift)
        : mean(mean), factor(scale / sqrtf(variance + eps)), shift(shift) {}

    __device__ float at(float x, bool silu) const {
        const float y = fmaf(x - mean, factor, shift);
        return silu ? activate<SILU>(y) : y;
    }
};
