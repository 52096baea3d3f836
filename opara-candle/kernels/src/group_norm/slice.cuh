// A slice of one image whose pixels have all their channels side by side (NHWC): the same whole groups of every pixel, wide
// enough that memory is read in whole sectors. The threads of a block are rows, each of which takes every so many pixels; a
// thread has N channels, which may be of several groups, for all its pixels. `units` are the pixels.
#pragma once
#include "moments.cuh"

template <typename T, int N> struct Slice {
    // A thread loads so many pixels before it uses the first: with more of the widest vectors, registers would be spilled.
    static constexpr unsigned AT_ONCE = N == 8 ? 2 : 4;

    unsigned groups, per, units, channels, width, vectors, rows, row, column;
    size_t origin;

    // The slices share the channels evenly. Threads behind the last whole row have nothing to do.
    __device__ Slice(unsigned groups, unsigned per, unsigned plane)
        : groups(groups), per(per), units(plane), channels(groups * per), width(channels / gridDim.y), vectors(width / N),
          rows(THREADS / vectors), row(threadIdx.x / vectors), column(threadIdx.x % vectors * N),
          origin((size_t)blockIdx.z * plane * channels + blockIdx.y * width + column) {}

    // Means and sums of squares of channels. In the end those of a group are at its first channel. The host gives slices at
    // least two rows, so that the channels of a row fit, too.
    __device__ static float2 *room() {
        __shared__ float2 room[N * THREADS / 2];
        return room;
    }

    template <typename F> __device__ void for_each(const T *x, unsigned first, unsigned end, F f) const {
        if (row >= rows) return;
        for (unsigned pixel = first + row; pixel < end; pixel += AT_ONCE * rows) {
            Vec<T, N> v[AT_ONCE];
#pragma unroll
            for (unsigned k = 0; k < AT_ONCE; k++)
                if (pixel + k * rows < end) v[k] = load<T, N>(x + origin + (size_t)(pixel + k * rows) * channels);
#pragma unroll
            for (unsigned k = 0; k < AT_ONCE; k++)
                if (pixel + k * rows < end) f(v[k], origin + (size_t)(pixel + k * rows) * channels);
        }
    }

    // Calls f(group) in all lanes of a warp, whose first one then notes the result.
    template <typename F> __device__ void for_each_group(F f) const {
        for (unsigned group = threadIdx.x / 32; group < width / per; group += WARPS) {
            const Moments<1> of = f(group);
            if (threadIdx.x % 32 == 0) room()[group * per] = {of.mean[0], of.squares[0]};
        }
        __syncthreads();
    }

    // Finds the moments of the pixels from `first` to `end`.
    __device__ void find(const T *x, unsigned first, unsigned end) {
        __shared__ float counts[THREADS / 2];
        Moments<N> mine = {};
        for_each(x, first, end, [&](const Vec<T, N> &v, size_t) { mine.add(v); });
        // The second half of the rows hands over to the first, until one is left.
        for (unsigned left = rows, half; left > 1; left = half) {
            half = (left + 1) / 2;
            if (row >= half && row < left) {
                const unsigned slot = threadIdx.x - half * vectors;
                counts[slot] = mine.count;
#pragma unroll
                for (int n = 0; n < N; n++) room()[n * THREADS / 2 + slot] = {mine.mean[n], mine.squares[n]};
            }
            __syncthreads();
            if (row < left - half) {
                Moments<N> other;
                other.count = counts[threadIdx.x];
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const float2 of = room()[n * THREADS / 2 + threadIdx.x];
                    other.mean[n] = of.x, other.squares[n] = of.y;
                }
                mine.merge(other);
            }
            __syncthreads();
        }
#pragma unroll
        for (int n = 0; n < N; n++)
            if (row == 0) room()[column + n] = {mine.mean[n], mine.squares[n]};
        __syncthreads();
        for_each_group([&](unsigned group) {
            Moments<1> of = {};
            for (unsigned n = threadIdx.x % 32; n < per; n += 32) {
                const float2 moments = room()[group * per + n];
                of.merge({(float)(end - first), {moments.x}, {moments.y}});
            }
            return merge_lanes(of);
        });
    }

    // The place of this slice's group among the groups of all images.
    __device__ size_t index(unsigned group) const { return (size_t)blockIdx.z * groups + blockIdx.y * (width / per) + group; }

    // Takes the moments that the blocks along x kept.
    __device__ void take(const float2 *parts, unsigned share) {
        for_each_group([&](unsigned group) { return merge_parts(parts + index(group) * gridDim.x, share, units, per); });
    }

    __device__ void keep(float2 *parts) const {
        for (unsigned group = threadIdx.x; group < width / per; group += THREADS)
            parts[index(group) * gridDim.x + blockIdx.x] = room()[group * per];
    }

    __device__ void write(float eps, bool silu, unsigned first, unsigned end, const T *x, const T *scale, const T *shift,
                          T *y) const {
        Line lines[N];
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float2 of = room()[column + n - (column + n) % per];
            const unsigned channel = blockIdx.y * width + column + n;
            lines[n] = Line(of.x, of.y / ((float)per * units), eps, widen(scale[channel]), widen(shift[channel]));
        }
        for_each(x, first, end, [&](const Vec<T, N> &v, size_t at) {
            Vec<T, N> out;
#pragma unroll
            for (int n = 0; n < N; n++) out.at[n] = narrow<T>(lines[n].at(widen(v.at[n]), silu));
            store<T, N>(y + at, out);
        });
    }
};
