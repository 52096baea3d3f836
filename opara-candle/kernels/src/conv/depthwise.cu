// Depthwise convolution. A thread computes one element of the result; in the NHWC layout it computes N neighbouring
// channels, in some variants of P neighbouring pixels.
#include "activation.cuh"
#include "window.cuh"

// Accumulates P windows of K x K, STRIDE pixels apart, the first one at (r0, c0). Each input row is loaded once for all
// P windows, and the loads are independent of each other. Inputs below `least` become `least` (a fused ReLU); outside
// the image they are zero. P > 1 requires a dilation of 1.
template <int K, int STRIDE, int P, typename T, int N, typename S>
__device__ inline void square(const T *x, const T *weight, size_t pitch, int h, int w, int r0, int c0, int dilation,
                              T least, S (&result)[P][N]) {
    constexpr int LOADS = (P - 1) * STRIDE + K;
#pragma unroll 1
    for (int a = 0; a < K; a++) {
        const int r = r0 + a * dilation;
        if ((unsigned)r >= (unsigned)h) continue;
        Vec<T, N> v[LOADS] = {}, f[K];
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            const int c = c0 + j * dilation;
            if ((unsigned)c < (unsigned)w) v[j] = load<T, N>(x + ((size_t)r * w + c) * pitch);
        }
#pragma unroll
        for (int b = 0; b < K; b++) f[b] = load<T, N>(weight + (a * K + b) * pitch);
#pragma unroll
        for (int j = 0; j < LOADS; j++) v[j] = max_nan(v[j], least);
#pragma unroll
        for (int b = 0; b < K; b++)
#pragma unroll
            for (int p = 0; p < P; p++)
#pragma unroll
                for (int n = 0; n < N; n++) result[p][n] += (S)widen(v[p * STRIDE + b].at[n]) * (S)widen(f[b].at[n]);
    }
}

// Accumulates one window of kh x kw.
template <typename T, int N, typename S>
__device__ inline void rectangle(const T *x, const T *weight, size_t pitch, int h, int w, int r0, int c0, int dilation,
                                 int kh, int kw, T least, S (&result)[1][N]) {
    for (int a = 0; a < kh; a++)
        for (int b = 0; b < kw; b++) {
            const int r = r0 + a * dilation, c = c0 + b * dilation;
            if ((unsigned)r >= (unsigned)h || (unsigned)c >= (unsigned)w) continue;
            Vec<T, N> v = load<T, N>(x + ((size_t)r * w + c) * pitch), f = load<T, N>(weight + (a * kw + b) * pitch);
            v = max_nan(v, least);
#pragma unroll
            for (int n = 0; n < N; n++) result[0][n] += (S)widen(v.at[n]) * (S)widen(f.at[n]);
        }
}

// A thread computes N channels of P neighbouring pixels of a row. With K > 0 the windows are K x K with the given
// STRIDE, with K == 0 of any size. The weights are (kh, kw, channels) if NHWC, otherwise (channels, kh, kw). A ReLU
// before, and a ReLU or SiLU after, are optional.
template <typename T, int N, int P, int K, int STRIDE, bool NHWC>
__device__ void depthwise(size_t numel, int channels, int h, int w, int oh, int ow, int kh, int kw, int stride,
                          int dilation, int top, int left, int relu_before, int activation, const T *x,
                          const T *weight, const T *bias, T *y) {
    using S = typename Sum<T>::type;
    const int strips = (ow + P - 1) / P;
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= numel / ow * strips / N) return;
    PixelIndex<N, NHWC> at(i, channels, oh, strips);
    const int column = at.column * P, r0 = (int)at.row * stride - top, c0 = column * stride - left;
    const size_t pitch = NHWC ? channels : 1;
    const T least = narrow<T>(relu_before ? (S)0 : -(S)INFINITY);
    S result[P][N];
    Vec<T, N> start = load<T, N>(bias + at.channel);
#pragma unroll
    for (int p = 0; p < P; p++)
#pragma unroll
        for (int n = 0; n < N; n++) result[p][n] = widen(start.at[n]);
    x += at.offset(channels, h, w, 0, 0);
    weight += NHWC ? at.channel : (size_t)at.channel * kh * kw;
    if constexpr (K)
        square<K, STRIDE>(x, weight, pitch, h, w, r0, c0, dilation, least, result);
    else if (kh == 3 && kw == 3)
        square<3, 1>(x, weight, pitch, h, w, r0, c0, dilation, least, result);
    else if (kh == 5 && kw == 5)
        square<5, 1>(x, weight, pitch, h, w, r0, c0, dilation, least, result);
    else if (kh == 7 && kw == 7)
        square<7, 1>(x, weight, pitch, h, w, r0, c0, dilation, least, result);
    else
        rectangle(x, weight, pitch, h, w, r0, c0, dilation, kh, kw, least, result);
#pragma unroll
    for (int p = 0; p < P; p++) {
        if (column + p >= ow) break;
        Vec<T, N> out;
#pragma unroll
        for (int n = 0; n < N; n++) {
            S &sum = result[p][n];
            if (activation == RELU) sum = activate<RELU>(sum);
            if (activation == SILU) sum = activate<SILU>(sum);
            out.at[n] = narrow<T>(sum);
        }
        store<T, N>(y + at.offset(channels, oh, ow, at.row, column + p), out);
    }
}

#define DEPTHWISE(T, LAYOUT, N, P, K, STRIDE, NHWC, NAME)                                                              \
    extern "C" __global__ void opara_depthwise_##LAYOUT##_##NAME(size_t numel, int channels, int h, int w, int oh,     \
        int ow, int kh, int kw, int stride, int dilation, int top, int left, int relu_before, int activation,          \
        const T *x, const T *weight, const T *bias, T *y) {                                                            \
        depthwise<T, N, P, K, STRIDE, NHWC>(numel, channels, h, w, oh, ow, kh, kw, stride, dilation, top, left,        \
                                            relu_before, activation, x, weight, bias, y);                              \
    }

#define ANY(T, LAYOUT, N, NHWC, NAME)                                                                                  \
    DEPTHWISE(T, LAYOUT, N, 1, 0, 1, NHWC, NAME)

#define STRIPS(T, N, P, STRIDE, NAME)                                                                                  \
    DEPTHWISE(T, nhwc##N##x##P##_3s##STRIDE, N, P, 3, STRIDE, true, NAME)                                              \
    DEPTHWISE(T, nhwc##N##x##P##_5s##STRIDE, N, P, 5, STRIDE, true, NAME)                                              \
    DEPTHWISE(T, nhwc##N##x##P##_7s##STRIDE, N, P, 7, STRIDE, true, NAME)

#define ALL(T, NAME)                                                                                                   \
    ANY(T, nchw, 1, false, NAME)                                                                                       \
    ANY(T, nhwc, 1, true, NAME)                                                                                        \
    ANY(T, nhwc2, 2, true, NAME)

#define MORE(T, NAME)                                                                                                  \
    ALL(T, NAME)                                                                                                       \
    ANY(T, nhwc4, 4, true, NAME)                                                                                       \
    STRIPS(T, 2, 3, 1, NAME)                                                                                           \
    STRIPS(T, 2, 3, 2, NAME)

#define HALF_KERNELS(T, NAME)                                                                                          \
    MORE(T, NAME)                                                                                                      \
    ANY(T, nhwc8, 8, true, NAME)                                                                                       \
    STRIPS(T, 4, 3, 1, NAME)                                                                                           \
    STRIPS(T, 4, 7, 1, NAME)                                                                                           \
    STRIPS(T, 4, 2, 2, NAME)                                                                                           \
    STRIPS(T, 4, 4, 2, NAME)

ALL(double, f64)
MORE(float, f32)
STRIPS(float, 2, 7, 1, f32)
STRIPS(float, 2, 7, 2, f32)
HALF_KERNELS(__half, f16)
HALF_KERNELS(__nv_bfloat16, bf16)
