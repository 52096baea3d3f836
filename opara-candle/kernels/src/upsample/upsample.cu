// Images with more rows and columns, each pixel a copy of the nearest one before it. A thread copies N neighbouring channels.
#include "window.cuh"

// The row or column that is copied, found as candle finds it: in f64, which may round down what would be a whole number.
__device__ inline unsigned source(unsigned to, double scale, int size) { return min((unsigned)(to * scale), (unsigned)size - 1); }

template <typename T, int N>
__device__ inline void upsample(size_t numel, int channels, int h, int w, int rows, int columns, double down, double right,
                                const T *x, T *y) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= numel / N) return;
    const PixelIndex<N, true> at(i, channels, rows, columns);
    const unsigned r = source(at.row, down, h), c = source(at.column, right, w);
    store<T, N>(y + (size_t)i * N, load<T, N>(x + at.offset(channels, h, w, r, c)));
}

#define UPSAMPLE(T, NHWC, N, NAME)                                                                                     \
    extern "C" __global__ void opara_upsample_##NHWC##_##NAME(size_t numel, int channels, int h, int w, int rows,      \
        int columns, double down, double right, const T *x, T *y) {                                                    \
        upsample<T, N>(numel, channels, h, w, rows, columns, down, right, x, y);                                       \
    }
#define WIDTHS(T, NAME)                                                                                                \
    UPSAMPLE(T, nhwc, 1, NAME)                                                                                         \
    UPSAMPLE(T, nhwc2, 2, NAME)                                                                                        \
    UPSAMPLE(T, nhwc4, 4, NAME)

WIDTHS(float, f32)
WIDTHS(__half, f16)
WIDTHS(__nv_bfloat16, bf16)
UPSAMPLE(__half, nhwc8, 8, f16)
UPSAMPLE(__nv_bfloat16, nhwc8, 8, bf16)
