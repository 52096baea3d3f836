// What kernels that move windows over the planes of channels share.
#pragma once
#include "numbers.cuh"

// Where a thread's first element is: its image, channel, row and column.
template <int N, bool NHWC> struct Place {
    unsigned image, channel, row, column;

    __device__ Place(unsigned i, int channels, int rows, int columns) {
        if (NHWC) {
            i *= N;
            channel = i % channels, i /= channels;
            column = i % columns, i /= columns;
            row = i % rows, image = i / rows;
        } else {
            column = i % columns, i /= columns;
            row = i % rows, i /= rows;
            channel = i % channels, image = i / channels;
        }
    }

    // Of an element of this image and channel.
    __device__ size_t offset(int channels, int rows, int columns, int r, int c) const {
        return NHWC ? (((size_t)image * rows + r) * columns + c) * channels + channel
                    : (((size_t)image * channels + channel) * rows + r) * columns + c;
    }
};

// The larger one; NaN stays.
__device__ inline float at_least(float x, float least) {
#if __CUDA_ARCH__ >= 800
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(least));
    return y;
#else
    return x < least || least != least ? least : x;
#endif
}
__device__ inline double at_least(double x, double least) { return x < least || least != least ? least : x; }
__device__ inline __half at_least(__half x, __half least) { return __hmax_nan(x, least); }
__device__ inline __nv_bfloat16 at_least(__nv_bfloat16 x, __nv_bfloat16 least) { return __hmax_nan(x, least); }

template <typename T, int N> __device__ inline Vec<T, N> at_least(Vec<T, N> v, T least) {
#pragma unroll
    for (int n = 0; n < N; n++) v.at[n] = at_least(v.at[n], least);
    return v;
}
