// A group of one image whose channels are planes of pixels, one behind the other (NCHW), so that the group is contiguous.
// Vectors of N elements, all of one channel, are counted from 0 to `units`.
#pragma once
#include "moments.cuh"

template <typename T, int N> struct Group {
    unsigned groups, per, plane, units;
    Moments<1> of;

    __device__ Group(unsigned groups, unsigned per, unsigned plane)
        : groups(groups), per(per), plane(plane), units(per * plane / N), of{} {}

    // The group's place among the groups of all images.
    __device__ size_t index() const { return (size_t)blockIdx.z * groups + blockIdx.y; }

    // Finds the moments of the vectors from `first` to `end`.
    __device__ void find(const T *x, unsigned first, unsigned end) {
        __shared__ Moments<1> room[WARPS];
        Moments<N> mine = {};
        x += index() * per * plane;
        for (unsigned vector = first + threadIdx.x; vector < end; vector += THREADS)
            mine.add(load<T, N>(x + (size_t)vector * N));
#pragma unroll
        for (int n = 0; n < N; n++) of.merge({mine.count, {mine.mean[n]}, {mine.squares[n]}});
        of = merge_lanes(of);
        const unsigned lane = threadIdx.x % 32;
        if (lane == 0) room[threadIdx.x / 32] = of;
        __syncthreads();
        of = merge_lanes(lane < WARPS ? room[lane] : Moments<1>{});
    }

    // Takes the moments that the blocks along x kept.
    __device__ void take(const float2 *parts, unsigned share) { of = merge_parts(parts + index() * gridDim.x, share, units, N); }

    __device__ void keep(float2 *parts) const {
        if (threadIdx.x == 0) parts[index() * gridDim.x + blockIdx.x] = {of.mean[0], of.squares[0]};
    }

    __device__ void write(float eps, bool silu, unsigned first, unsigned end, const T *x, const T *scale, const T *shift,
                          T *y) const {
        const float variance = of.squares[0] / ((float)per * plane);
        const size_t origin = index() * per * plane;
        for (unsigned vector = first + threadIdx.x; vector < end; vector += THREADS) {
            const size_t at = origin + (size_t)vector * N;
            const unsigned channel = blockIdx.y * per + vector * N / plane;
            const Line line(of.mean[0], variance, eps, widen(scale[channel]), widen(shift[channel]));
            const Vec<T, N> v = load<T, N>(x + at);
            Vec<T, N> out;
#pragma unroll
            for (int n = 0; n < N; n++) out.at[n] = narrow<T>(line.at(widen(v.at[n]), silu));
            store<T, N>(y + at, out);
        }
    }
};
