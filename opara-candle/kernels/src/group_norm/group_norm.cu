// Group norm of images: each group of channels is normalised by its own mean and variance, then each channel is scaled and
// shifted, and SiLU may follow. Nothing is rounded to T before the result. The grid is (parts, groups or slices, images); a
// part has `share` vectors or pixels, the last one fewer.
#include "group.cuh"
#include "slice.cuh"

template <typename T, int N, bool NHWC> using Place = std::conditional_t<NHWC, Slice<T, N>, Group<T, N>>;

#define PART                                                                                                           \
    Place<T, N, NHWC> place(groups, per, plane);                                                                       \
    const unsigned first = min(blockIdx.x * share, place.units), end = min(first + share, place.units)

// All pixels in one block.
template <typename T, int N, bool NHWC>
__device__ inline void group_norm(unsigned groups, unsigned per, unsigned plane, unsigned share, float eps, int silu,
                                  const T *x, const T *scale, const T *shift, T *y) {
    PART;
    place.find(x, first, end);
    place.write(eps, silu, first, end, x, scale, shift, y);
}

// Of each part of each group the mean and the sum of squares.
template <typename T, int N, bool NHWC>
__device__ inline void group_moments(unsigned groups, unsigned per, unsigned plane, unsigned share, const T *x, float2 *moments) {
    PART;
    place.find(x, first, end);
    place.keep(moments);
}

// A part, by the moments of all parts.
template <typename T, int N, bool NHWC>
__device__ inline void group_apply(unsigned groups, unsigned per, unsigned plane, unsigned share, float eps, int silu,
                                   const T *x, const T *scale, const T *shift, const float2 *moments, T *y) {
    PART;
    place.take(moments, share);
    place.write(eps, silu, first, end, x, scale, shift, y);
}

// Two blocks a multiprocessor have enough loads under way, and registers for the channels of a thread.
#define KERNELS(T, N, NHWC, NAME)                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) opara_norm_group_##NAME(unsigned groups, unsigned per,    \
        unsigned plane, unsigned share, float eps, int silu, const T *x, const T *scale, const T *shift, T *y) {       \
        group_norm<T, N, NHWC>(groups, per, plane, share, eps, silu, x, scale, shift, y);                              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) opara_norm_group_moments_##NAME(unsigned groups, unsigned per, \
        unsigned plane, unsigned share, const T *x, float2 *moments) {                                                 \
        group_moments<T, N, NHWC>(groups, per, plane, share, x, moments);                                              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) opara_norm_group_apply_##NAME(unsigned groups, unsigned per, \
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
