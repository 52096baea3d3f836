// Gradients of depthwise convolutions of images whose channels lie beside each other, (batch, h, w, channels). Weights are
// (kh, kw, channels).
#include "columns.cuh"

// Of N channels of each pixel of the images: the sum over the windows that have the pixel.
template <typename T, int N>
__device__ inline void input_gradient(size_t numel, int channels, int h, int w, int oh, int ow, int kh, int kw, int stride, int dilation,
                                      int top, int left, const T *gradient, const T *weight, T *y) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (i >= numel) return;
    const int channel = i % channels;
    const size_t pixel = i / channels;
    const int column = pixel % w, row = pixel / w % h;
    gradient += pixel / w / h * oh * ow * channels + channel;
    weight += channel;
    float sum[N] = {};
    for (int a = 0; a < kh; a++) {
        const int below = row + top - a * dilation, r = below / stride;
        if (below < 0 || below % stride || r >= oh) continue;
        for (int b = 0; b < kw; b++) {
            const int right = column + left - b * dilation, c = right / stride;
            if (right < 0 || right % stride || c >= ow) continue;
            const Vec<T, N> g = load<T, N>(gradient + ((size_t)r * ow + c) * channels);
            const Vec<T, N> f = load<T, N>(weight + (size_t)(a * kw + b) * channels);
#pragma unroll
            for (int n = 0; n < N; n++) sum[n] = fmaf(widen(g.at[n]), widen(f.at[n]), sum[n]);
        }
    }
    Vec<T, N> out;
#pragma unroll
    for (int n = 0; n < N; n++) out.at[n] = narrow<T>(sum[n]);
    store<T, N>(y + i, out);
}

// Of each channel's K x K weights: sums over this block's share of the pixels of all results.
template <int K, typename T>
__device__ inline void weight_gradient(int batch, unsigned channels, unsigned share, int h, int w, int oh, int ow, int stride, int dilation,
                                       int top, int left, const T *gradient, const T *x, float *sums) {
    const Share of((size_t)batch * oh * ow, share);
    float own[K * K] = {};
    if (this_column() < channels)
        for (size_t at = of.first; at < of.end; at += SIDE) {
            const int c0 = (int)(at % ow) * stride - left, r0 = (int)(at / ow % oh) * stride - top;
            const T *image = x + at / ow / oh * h * w * channels + this_column();
            const float g = widen(gradient[at * channels + this_column()]);
#pragma unroll
            for (int a = 0; a < K; a++) {
                const int r = r0 + a * dilation;
                if ((unsigned)r >= (unsigned)h) continue;
#pragma unroll
                for (int b = 0; b < K; b++) {
                    const int c = c0 + b * dilation;
                    if ((unsigned)c < (unsigned)w)
                        own[a * K + b] = fmaf(g, widen(image[((size_t)r * w + c) * channels]), own[a * K + b]);
                }
            }
        }
    const unsigned channel = blockIdx.x * SIDE + threadIdx.y;
#pragma unroll
    for (int tap = 0; tap < K * K; tap++) {
        const float all = sum_of_column(own[tap]);
        if (threadIdx.x == 0 && channel < channels) sums[((size_t)blockIdx.y * channels + channel) * (K * K) + tap] = all;
        __syncthreads();
    }
}

#define WEIGHT(K, T, NAME)                                                                                             \
    extern "C" __global__ void __launch_bounds__(SIDE *SIDE) opara_reduction_depthwise_weight_##K##_##NAME(            \
        int batch, unsigned channels, unsigned share, int h, int w, int oh, int ow, int stride, int dilation, int top, \
        int left, const T *gradient, const T *x, float *sums) {                                                        \
        weight_gradient<K>(batch, channels, share, h, w, oh, ow, stride, dilation, top, left, gradient, x, sums);      \
    }

#define INPUT(N, T, NAME)                                                                                              \
    extern "C" __global__ void opara_depthwise_input_gradient_by##N##_##NAME(                                          \
        size_t numel, int channels, int h, int w, int oh, int ow, int kh, int kw, int stride, int dilation, int top,   \
        int left, const T *gradient, const T *weight, T *y) {                                                          \
        input_gradient<T, N>(numel, channels, h, w, oh, ow, kh, kw, stride, dilation, top, left, gradient, weight, y); \
    }

#define KERNELS(T, NAME)                                                                                               \
    INPUT(1, T, NAME)                                                                                                  \
    INPUT(4, T, NAME)                                                                                                  \
    WEIGHT(3, T, NAME)                                                                                                 \
    WEIGHT(5, T, NAME)                                                                                                 \
    WEIGHT(7, T, NAME)

KERNELS(float, f32)
KERNELS(__half, f16)
KERNELS(__nv_bfloat16, bf16)
