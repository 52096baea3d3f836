// Group norm of images: each group of channels is normalised by its own mean and variance, then each channel is scaled and
// shifted, and SiLU may follow. Moments are updated element by element (Welford, "Note on a method for calculating corrected
// sums of squares and products", 1962), so that nothing cancels where the mean is large; those of threads are merged in
// pairs (Chan, Golub and LeVeque, 1983). Nothing is rounded to T before the result.
#include "activation.cuh"
#include "rows.cuh"

constexpr unsigned THREADS = 512, WARPS = THREADS / 32;

// How many numbers there are, their mean, and the sum of their squared distances from it.
struct Moments {
    float count, mean, squares;

    __device__ void merge(const Moments &other) {
        // Of no numbers, zeros: their products with an infinity would be NaN.
        if (other.count == 0) return;
        if (count == 0) {
            *this = other;
            return;
        }
        const float total = count + other.count, share = other.count / total, distance = other.mean - mean;
        mean = fmaf(distance, share, mean);
        squares += other.squares + distance * distance * count * share;
        count = total;
    }

    // Merges those of all lanes of a warp; each lane gets the same.
    __device__ void merge_lanes() {
#pragma unroll
        for (unsigned distance = 16; distance > 0; distance /= 2) {
            const Moments other = {__shfl_xor_sync(~0u, count, distance), __shfl_xor_sync(~0u, mean, distance),
                                   __shfl_xor_sync(~0u, squares, distance)};
            // Both lanes of a pair merge in the same order. Numbers are chosen, not structures: those would be in local memory.
            const bool is_second = threadIdx.x & distance;
            Moments first = {is_second ? other.count : count, is_second ? other.mean : mean,
                             is_second ? other.squares : squares};
            first.merge({is_second ? count : other.count, is_second ? mean : other.mean, is_second ? squares : other.squares});
            *this = first;
        }
    }
};

// A group of one image: `per` channels of `plane` pixels. Vectors of N elements are counted from 0 to `vectors`.
template <typename T, int N, bool NHWC> struct Group {
    unsigned channels, per, plane, vectors, channel;
    size_t image;

    __device__ Group(unsigned groups, unsigned per, unsigned plane)
        : channels(groups * per), per(per), plane(plane), vectors(per * plane / N), channel(blockIdx.y % groups * per),
          image((size_t)(blockIdx.y / groups) * groups * per * plane) {}

    // Where a vector begins.
    __device__ size_t offset(unsigned vector) const {
        if constexpr (!NHWC) return image + (size_t)channel * plane + (size_t)vector * N;
        const unsigned to_pixel = per / N;
        return image + (size_t)(vector / to_pixel) * channels + channel + vector % to_pixel * N;
    }

    // The channel of a vector's first element.
    __device__ unsigned first_channel(unsigned vector) const {
        return channel + (NHWC ? vector % (per / N) * N : vector * N / plane);
    }

    // The moments of the vectors from `first` to `end`, which all threads of the block get.
    __device__ Moments moments(const T *x, unsigned first, unsigned end) const {
        __shared__ Moments room[WARPS];
        float mean[N] = {}, squares[N] = {};
        unsigned count = 0;
        for (unsigned vector = first + threadIdx.x; vector < end; vector += THREADS) {
            const Vec<T, N> v = load<T, N>(x + offset(vector));
            const float share = 1.f / ++count;
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float number = widen(v.at[n]), distance = number - mean[n];
                mean[n] = fmaf(distance, share, mean[n]);
                squares[n] = fmaf(distance, number - mean[n], squares[n]);
            }
        }
        Moments all = {0, 0, 0};
#pragma unroll
        for (int n = 0; n < N; n++) all.merge({(float)count, mean[n], squares[n]});
        all.merge_lanes();
        const unsigned lane = threadIdx.x % 32;
        if (lane == 0) room[threadIdx.x / 32] = all;
        __syncthreads();
        all = lane < WARPS ? room[lane] : Moments{0, 0, 0};
        all.merge_lanes();
        return all;
    }

    __device__ void write(const Moments &of, float eps, bool silu, unsigned first, unsigned end, const T *x, const T *scale,
                          const T *shift, T *y) const {
        const float factor = 1.f / sqrtf(of.squares / of.count + eps);
        for (unsigned vector = first + threadIdx.x; vector < end; vector += THREADS) {
            const size_t at = offset(vector);
            const unsigned of_channel = first_channel(vector);
            const Vec<T, N> v = load<T, N>(x + at);
            Vec<T, N> out;
            const auto scales = load<T, NHWC ? N : 1>(scale + of_channel), shifts = load<T, NHWC ? N : 1>(shift + of_channel);
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float number = (widen(v.at[n]) - of.mean) * factor;
                const float result = fmaf(number, widen(scales.at[NHWC ? n : 0]), widen(shifts.at[NHWC ? n : 0]));
                out.at[n] = narrow<T>(silu ? activate<SILU>(result) : result);
            }
            store<T, N>(y + at, out);
        }
    }
};

// The grid is (parts, groups of all images). A part has `share` vectors, the last one fewer.
#define PART                                                                                                           \
    const Group<T, N, NHWC> group(groups, per, plane);                                                                 \
    const unsigned first = min(blockIdx.x * share, group.vectors), end = min(first + share, group.vectors)

// A whole group in each block.
template <typename T, int N, bool NHWC>
__device__ inline void group_norm(unsigned groups, unsigned per, unsigned plane, unsigned share, float eps, int silu,
                                  const T *x, const T *scale, const T *shift, T *y) {
    PART;
    group.write(group.moments(x, first, end), eps, silu, first, end, x, scale, shift, y);
}

// Of each part the mean and the sum of squares.
template <typename T, int N, bool NHWC>
__device__ inline void group_moments(unsigned groups, unsigned per, unsigned plane, unsigned share, const T *x, float2 *moments) {
    PART;
    const Moments of = group.moments(x, first, end);
    if (threadIdx.x == 0) moments[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = {of.mean, of.squares};
}

// A part of a group, whose moments are those of at most 32 parts.
template <typename T, int N, bool NHWC>
__device__ inline void group_apply(unsigned groups, unsigned per, unsigned plane, unsigned share, float eps, int silu,
                                   const T *x, const T *scale, const T *shift, const float2 *moments, T *y) {
    PART;
    Moments of = {0, 0, 0};
    const unsigned lane = threadIdx.x % 32;
    if (lane < gridDim.x) {
        const float2 part = moments[(size_t)blockIdx.y * gridDim.x + lane];
        const unsigned from = min(lane * share, group.vectors);
        of = {(float)(min(from + share, group.vectors) - from) * N, part.x, part.y};
    }
    of.merge_lanes();
    group.write(of, eps, silu, first, end, x, scale, shift, y);
}

#define KERNELS(T, N, NHWC, NAME)                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS) opara_group_norm_##NAME(unsigned groups, unsigned per,       \
        unsigned plane, unsigned share, float eps, int silu, const T *x, const T *scale, const T *shift, T *y) {       \
        group_norm<T, N, NHWC>(groups, per, plane, share, eps, silu, x, scale, shift, y);                              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) opara_group_moments_##NAME(unsigned groups, unsigned per,    \
        unsigned plane, unsigned share, const T *x, float2 *moments) {                                                 \
        group_moments<T, N, NHWC>(groups, per, plane, share, x, moments);                                              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) opara_group_apply_##NAME(unsigned groups, unsigned per,      \
        unsigned plane, unsigned share, float eps, int silu, const T *x, const T *scale, const T *shift,               \
        const float2 *moments, T *y) {                                                                                 \
        group_apply<T, N, NHWC>(groups, per, plane, share, eps, silu, x, scale, shift, moments, y);                    \
    }
#define LAYOUTS(T, N, NAME)                                                                                            \
    KERNELS(T, N, false, nchw##N##_##NAME)                                                                             \
    KERNELS(T, N, true, nhwc##N##_##NAME)
#define WIDTHS(T, NAME)                                                                                                \
    LAYOUTS(T, 1, NAME)                                                                                                \
    LAYOUTS(T, 2, NAME)                                                                                                \
    LAYOUTS(T, 4, NAME)

WIDTHS(float, f32)
WIDTHS(__half, f16)
WIDTHS(__nv_bfloat16, bf16)
LAYOUTS(__half, 8, f16)
LAYOUTS(__nv_bfloat16, 8, bf16)
