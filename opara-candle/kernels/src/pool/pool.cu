// Max and mean pooling. A thread computes one element of the result; in the NHWC layout it computes N neighbouring
// channels, in some variants of P neighbouring pixels.
#include "window.cuh"

enum PoolKind { MAX = 0, MEAN = 1 };

// Elements from one image, plane and row to the next. The plane is unused in the NHWC layout.
struct Pitch {
    unsigned image, plane, row;
};

// Adds one element to the running maximum or sum.
template <typename T, int N, typename S>
__device__ inline void include(int kind, const Vec<T, N> &v, S (&result)[N]) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        S value = widen(v.at[n]);
        if (kind == MEAN)
            result[n] += value;
        else if (!(value <= result[n])) // A NaN replaces the maximum, and stays.
            result[n] = result[n] != result[n] ? result[n] : value;
    }
}

// Rows r0 to r1 and columns c0 to c1, the ends excluded.
struct Window {
    int r0, c0, r1, c1;

    __device__ bool holds(int r, int c) const { return r >= r0 && r < r1 && c >= c0 && c < c1; }
};

// Accumulates the elements inside the image of a K x K window at (r, c). All loads are issued before the first is used.
template <int K, typename T, int N, typename S>
__device__ inline void pool_square(int kind, size_t row, size_t column, int r, int c, Window within, const T *x,
                                   S (&result)[N]) {
    Vec<T, N> v[K * K];
#pragma unroll
    for (int k = 0; k < K * K; k++)
        if (within.holds(r + k / K, c + k % K)) v[k] = load<T, N>(x + (r + k / K) * row + (c + k % K) * column);
#pragma unroll
    for (int k = 0; k < K * K; k++)
        if (within.holds(r + k / K, c + k % K)) include(kind, v[k], result);
}

template <typename T, int N, bool NHWC>
__device__ void pool(size_t numel, int kind, int channels, int h, int w, int oh, int ow, int kernel, int stride, int top,
                     int left, int bottom, int right, int count_padding, Pitch pitch, const T *x, T *y) {
    using S = typename Sum<T>::type;
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= numel / N) return;
    PixelIndex<N, NHWC> at(i, channels, oh, ow);
    const int r = (int)at.row * stride - top, c = (int)at.column * stride - left;
    const int r1 = min(r + kernel, h + bottom), c1 = min(c + kernel, w + right);
    const Window within = {max(r, 0), max(c, 0), min(r1, h), min(c1, w)};
    const int counted = count_padding ? (r1 - r) * (c1 - c) : (within.r1 - within.r0) * (within.c1 - within.c0);
    const size_t row = pitch.row, column = NHWC ? channels : 1;
    x += (size_t)at.image * pitch.image + (NHWC ? at.channel : (size_t)at.channel * pitch.plane);
    S result[N];
    for (int n = 0; n < N; n++) result[n] = kind == MAX ? -(S)INFINITY : (S)0;
    if (kernel == 2)
        pool_square<2>(kind, row, column, r, c, within, x, result);
    else if (kernel == 3)
        pool_square<3>(kind, row, column, r, c, within, x, result);
    else
        for (int a = within.r0; a < within.r1; a++)
            for (int b = within.c0; b < within.c1; b++)
                include(kind, load<T, N>(x + a * row + b * column), result);
    Vec<T, N> out;
    for (int n = 0; n < N; n++) out.at[n] = narrow<T>(kind == MEAN ? result[n] / (S)counted : result[n]);
    store<T, N>(y + (size_t)i * N, out);
}

// Calls each(p, v) for every element v of P neighbouring K x K windows, the first one at (r0, c0), row by row. Each
// input row is loaded once for all windows, and its loads are independent of each other. Columns outside the image
// count as `outside`; rows outside are skipped.
template <int K, int P, int N, typename T, typename F>
__device__ inline void for_each(const T *x, size_t row, size_t column, int h, int w, int r0, int c0, T outside, F each) {
#pragma unroll
    for (int a = 0; a < K; a++) {
        const int r = r0 + a;
        if ((unsigned)r >= (unsigned)h) continue;
        Vec<T, N> v[P + K - 1];
#pragma unroll
        for (int j = 0; j < P + K - 1; j++) {
#pragma unroll
            for (int n = 0; n < N; n++) v[j].at[n] = outside;
            if ((unsigned)(c0 + j) < (unsigned)w) v[j] = load<T, N>(x + r * row + (c0 + j) * column);
        }
#pragma unroll
        for (int b = 0; b < K; b++)
#pragma unroll
            for (int p = 0; p < P; p++) each(p, v[p + b]);
    }
}

// A thread computes N channels of P neighbouring pixels of a row, for K x K windows with stride 1. The results equal
// those of `pool`, except that the maximum of a window with zeros of both signs may have the other sign.
template <typename T, int N, int P, int K>
__device__ void pool_strip(size_t numel, int kind, int channels, int h, int w, int oh, int ow, int top, int left,
                           int bottom, int right, int count_padding, Pitch pitch, const T *x, T *y) {
    using S = typename Sum<T>::type;
    const int strips = (ow + P - 1) / P;
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= numel / ow * strips / N) return;
    PixelIndex<N, true> at(i, channels, oh, strips);
    const int first = at.column * P, r0 = (int)at.row - top, c0 = first - left;
    x += (size_t)at.image * pitch.image + at.channel;
    Vec<T, N> out[P];
    if (kind == MAX) {
        const T least = narrow<T>(-(S)INFINITY);
#pragma unroll
        for (int p = 0; p < P; p++)
#pragma unroll
            for (int n = 0; n < N; n++) out[p].at[n] = least;
        for_each<K, P, N>(x, pitch.row, channels, h, w, r0, c0, least, [&](int p, const Vec<T, N> &v) {
#pragma unroll
            for (int n = 0; n < N; n++) out[p].at[n] = max_nan(out[p].at[n], v.at[n]);
        });
    } else {
        S sum[P][N] = {};
        for_each<K, P, N>(x, pitch.row, channels, h, w, r0, c0, narrow<T>(0), [&](int p, const Vec<T, N> &v) {
#pragma unroll
            for (int n = 0; n < N; n++) sum[p][n] += (S)widen(v.at[n]);
        });
        const int rows = count_padding ? min(r0 + K, h + bottom) - r0 : min(r0 + K, h) - max(r0, 0);
#pragma unroll
        for (int p = 0; p < P; p++) {
            const int c = c0 + p, end = c + K;
            const int columns = count_padding ? min(end, w + right) - c : min(end, w) - max(c, 0);
#pragma unroll
            for (int n = 0; n < N; n++) out[p].at[n] = narrow<T>(sum[p][n] / (S)(rows * columns));
        }
    }
    y += at.offset(channels, oh, ow, at.row, first);
#pragma unroll
    for (int p = 0; p < P; p++)
        if (first + p < ow) store<T, N>(y + (size_t)p * channels, out[p]);
}

#define POOL(T, LAYOUT, N, NHWC, NAME)                                                                                 \
    extern "C" __global__ void opara_pooling_windows_##LAYOUT##_##NAME(size_t numel, int kind, int channels, int h, int w, int oh, \
        int ow, int kernel, int stride, int top, int left, int bottom, int right, int count_padding, unsigned image,   \
        unsigned plane, unsigned row, const T *x, T *y) {                                                              \
        pool<T, N, NHWC>(numel, kind, channels, h, w, oh, ow, kernel, stride, top, left, bottom, right, count_padding, \
                         {image, plane, row}, x, y);                                                                   \
    }

#define POOL_STRIP(T, N, P, K, NAME)                                                                                   \
    extern "C" __global__ void opara_pooling_windows_nhwc##N##x##P##_##K##s1_##NAME(size_t numel, int kind, int channels, int h, \
        int w, int oh, int ow, int kernel, int stride, int top, int left, int bottom, int right, int count_padding,    \
        unsigned image, unsigned plane, unsigned row, const T *x, T *y) {                                              \
        pool_strip<T, N, P, K>(numel, kind, channels, h, w, oh, ow, top, left, bottom, right, count_padding,           \
                               {image, plane, row}, x, y);                                                             \
    }

#define ALL(T, NAME)                                                                                                   \
    POOL(T, nchw, 1, false, NAME)                                                                                      \
    POOL(T, nhwc, 1, true, NAME)                                                                                       \
    POOL(T, nhwc2, 2, true, NAME)

#define HALF_KERNELS(T, NAME)                                                                                          \
    ALL(T, NAME)                                                                                                       \
    POOL(T, nhwc4, 4, true, NAME)                                                                                      \
    POOL(T, nhwc8, 8, true, NAME)                                                                                      \
    POOL_STRIP(T, 8, 3, 3, NAME)

ALL(double, f64)
ALL(float, f32)
POOL(float, nhwc4, 4, true, f32)
POOL_STRIP(float, 4, 3, 3, f32)
HALF_KERNELS(__half, f16)
HALF_KERNELS(__nv_bfloat16, bf16)
