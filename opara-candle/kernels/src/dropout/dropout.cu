// Dropout by a counter: whether an element stays depends on seed, step, site and its place alone, so no mask is kept.
#include "numbers.cuh"
#include "philox.cuh"

// Four elements a thread.
template <typename T>
__device__ inline void dropout(unsigned numel, uint2 seed, unsigned site, unsigned below, float factor, const double *step, const T *x, T *y) {
    const unsigned four = blockIdx.x * blockDim.x + threadIdx.x, first = four * 4;
    if (first >= numel) return;
    const uint4 drawn = philox({four, 0, site, (unsigned)*step}, seed);
    const unsigned numbers[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
    const bool vectors = numel % 4 == 0 && (unsigned long long)x % sizeof(Vec<T, 4>) == 0 && (unsigned long long)y % sizeof(Vec<T, 4>) == 0;
    const unsigned count = min(4u, numel - first);
    Vec<T, 4> v = vectors ? load<T, 4>(x + first) : load_some<T, 4, false>(x + first, count);
#pragma unroll
    for (int n = 0; n < 4; n++) v.at[n] = numbers[n] < below ? narrow<T>(0) : narrow<T>(widen(v.at[n]) * factor);
    if (vectors) store<T, 4>(y + first, v);
    else store_some<T, 4, false>(y + first, v, count);
}

#define DROPOUT(T, NAME)                                                                                               \
    extern "C" __global__ void opara_elementwise_dropout_##NAME(unsigned numel, unsigned low, unsigned high,           \
        unsigned site, unsigned below, float factor, const double *step, const T *x, T *y) {                           \
        dropout(numel, {low, high}, site, below, factor, step, x, y);                                                  \
    }

DROPOUT(float, f32)
DROPOUT(double, f64)
DROPOUT(__half, f16)
DROPOUT(__nv_bfloat16, bf16)
