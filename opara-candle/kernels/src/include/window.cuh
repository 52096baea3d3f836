// Shared by kernels that slide windows over image planes: pooling and depthwise convolution.
#pragma once
#include "numbers.cuh"

// The image, channel, row and column of a thread's first element.
template <int N, bool NHWC> struct PixelIndex {
    unsigned image, channel, row, column;

    __device__ PixelIndex(unsigned i, int channels, int rows, int columns) {
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

    // The offset of the element at row r, column c of this image and channel.
    __device__ size_t offset(int channels, int rows, int columns, int r, int c) const {
        return NHWC ? (((size_t)image * rows + r) * columns + c) * channels + channel
                    : (((size_t)image * channels + channel) * rows + r) * columns + c;
    }
};

template <typename T, int N> __device__ inline Vec<T, N> max_nan(Vec<T, N> v, T least) {
#pragma unroll
    for (int n = 0; n < N; n++) v.at[n] = max_nan(v.at[n], least);
    return v;
}
