// Gradients of pools without padding. A thread computes one element: it reads the windows that hold it. Elements that are the maximum of
// a window share its gradient.
#include "numbers.cuh"

enum PoolKind { MAX = 0, MEAN = 1 };

// Places of elements: images of planes, or of pixels with their channels beside each other.
struct Images {
    int channels, h, w, is_last;

    __device__ size_t at(size_t image, int channel, int row, int column) const {
        return is_last ? ((image * h + row) * w + column) * channels + channel
                       : ((image * channels + channel) * h + row) * w + column;
    }
};

template <typename T>
__device__ inline void pool_gradient(size_t numel, int kind, Images from, Images to, int rows, int columns, int down, int along,
                                     const T *x, const T *y, const T *gradient, T *dx) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= numel) return;
    size_t rest = i;
    auto next = [&](int len) {
        const int at = rest % len;
        rest /= len;
        return at;
    };
    int channel = from.is_last ? next(from.channels) : 0;
    const int column = next(from.w), row = next(from.h);
    if (!from.is_last) channel = next(from.channels);
    const float own = widen(x[i]);
    float sum = 0;
    for (int r = max(0, (row - rows + down) / down); r <= min(to.h - 1, row / down); r++)
        for (int c = max(0, (column - columns + along) / along); c <= min(to.w - 1, column / along); c++) {
            const size_t window = to.at(rest, channel, r, c);
            const float g = widen(gradient[window]), most = widen(y[window]);
            if (kind == MEAN) {
                sum += g / (rows * columns);
                continue;
            }
            if (own != most) continue;
            int alike = 0;
            for (int a = 0; a < rows; a++)
                for (int b = 0; b < columns; b++)
                    alike += widen(x[from.at(rest, channel, r * down + a, c * along + b)]) == most;
            sum += g / alike;
        }
    dx[i] = narrow<T>(sum);
}

#define KERNEL(T, NAME)                                                                                                \
    extern "C" __global__ void opara_pooling_gradient_##NAME(                                                          \
        size_t numel, int kind, int channels, int h, int w, int oh, int ow, int rows, int columns, int down, int along, \
        int is_last, const T *x, const T *y, const T *gradient, T *dx) {                                               \
        pool_gradient<T>(numel, kind, {channels, h, w, is_last}, {channels, oh, ow, is_last}, rows, columns, down,     \
                         along, x, y, gradient, dx);                                                                   \
    }

KERNEL(float, f32)
KERNEL(__half, f16)
KERNEL(__nv_bfloat16, bf16)
