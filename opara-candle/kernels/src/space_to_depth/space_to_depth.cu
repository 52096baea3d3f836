// Space to depth: the pixels of each square of an image become the channels of one pixel, in the NHWC layout.
#include "numbers.cuh"

// Sizes in elements, and strides from one image, plane, row and column to the next.
struct Picture {
    int channels, h, w;
    size_t image, plane, row, column;
};

// The first square of `side` x `side` pixels begins `top` rows above and `left` columns left of the image. Outside the
// image are zeros, and zeros pad the channels to `depth`, a multiple of N. A thread computes N channels.
template <typename T, int N>
__device__ void space_to_depth(size_t numel, int side, int top, int left, int rows, int columns, int depth, Picture of,
                               const T *x, T *y) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= numel / N) return;
    const unsigned parts = depth / N, pixel = i / parts, first = i % parts * N;
    const unsigned c = pixel % columns, r = pixel / columns % rows;
    x += pixel / columns / rows * of.image;
    int channel = first % of.channels, dc = first / of.channels % side, dr = first / of.channels / side;
    Vec<T, N> v;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int a = (int)r * side + dr - top, b = (int)c * side + dc - left;
        const bool inside = dr < side && (unsigned)a < (unsigned)of.h && (unsigned)b < (unsigned)of.w;
        v.at[n] = inside ? x[channel * of.plane + a * of.row + b * of.column] : narrow<T>(0);
        if (++channel < of.channels) continue;
        channel = 0;
        if (++dc == side) dc = 0, dr++;
    }
    store<T, N>(y + (size_t)i * N, v);
}

#define SPACE_TO_DEPTH(T, NAME)                                                                                        \
    extern "C" __global__ void opara_layout_space_to_depth_nhwc_##NAME(size_t numel, int side, int top, int left, int rows, \
        int columns, int depth, int channels, int h, int w, size_t image, size_t plane, size_t row, size_t column,     \
        const T *x, T *y) {                                                                                            \
        space_to_depth<T, WIDE<T>>(numel, side, top, left, rows, columns, depth,                                       \
                                   {channels, h, w, image, plane, row, column}, x, y);                                 \
    }

SPACE_TO_DEPTH(float, f32)
SPACE_TO_DEPTH(__half, f16)
SPACE_TO_DEPTH(__nv_bfloat16, bf16)
