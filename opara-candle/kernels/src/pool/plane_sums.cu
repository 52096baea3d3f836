// Sums of image planes, times a factor. A block sums the planes of some neighbouring channels of an image: LANES threads beside each
// other take N channels of a pixel each, and all such groups of threads share the pixels. The order of a sum depends on the sizes
// alone.
#include "rows.cuh"

template <typename T, int N, int LANES>
__device__ void plane_sums(size_t numel, unsigned pixels, unsigned channels, double factor, const T *x, T *y) {
    using S = typename Sum<T>::type;
    constexpr unsigned CHANNELS = N * LANES;
    __shared__ S room[MAX_THREADS / 32][CHANNELS];
    const unsigned groups = (channels + CHANNELS - 1) / CHANNELS;
    const size_t image = blockIdx.x / groups;
    if (image * channels >= numel) return;
    const unsigned first = blockIdx.x % groups * CHANNELS, channel = first + threadIdx.x % LANES * N;
    S sums[N] = {};
    if (channel < channels) {
        const T *from = x + image * pixels * channels + channel;
#pragma unroll 8
        for (unsigned pixel = threadIdx.x / LANES; pixel < pixels; pixel += blockDim.x / LANES) {
            const Vec<T, N> v = load<T, N>(from + (size_t)pixel * channels);
#pragma unroll
            for (int n = 0; n < N; n++) sums[n] += widen(v.at[n]);
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (unsigned distance = 16; distance >= LANES; distance /= 2)
            sums[n] += __shfl_xor_sync(~0u, sums[n], distance);
        if (threadIdx.x % 32 < LANES) room[threadIdx.x / 32][threadIdx.x % 32 * N + n] = sums[n];
    }
    __syncthreads();
    if (threadIdx.x >= CHANNELS || first + threadIdx.x >= channels) return;
    S sum = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; warp++) sum += room[warp][threadIdx.x];
    y[image * channels + first + threadIdx.x] = narrow<T>(sum * (S)factor);
}

#define PLANE_SUMS(T, VARIANT, N, LANES, NAME)                                                                         \
    extern "C" __global__ void opara_pooling_planes_##VARIANT##_##NAME(size_t numel, unsigned pixels, unsigned channels, \
        double factor, const T *x, T *y) {                                                                              \
        plane_sums<T, N, LANES>(numel, pixels, channels, factor, x, y);                                                \
    }

#define ALL(T, NAME)                                                                                                   \
    PLANE_SUMS(T, rows, 1, 1, NAME)                                                                                    \
    PLANE_SUMS(T, channels, 1, 4, NAME)

ALL(double, f64)
ALL(float, f32)
ALL(__half, f16)
ALL(__nv_bfloat16, bf16)
PLANE_SUMS(float, wide, 2, 4, f32)
PLANE_SUMS(__half, wide, 4, 4, f16)
PLANE_SUMS(__nv_bfloat16, wide, 4, 4, bf16)
