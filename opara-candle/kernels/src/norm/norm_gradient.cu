// Gradients of layer norm and RMS norm: of x, and sums over this block's rows of those of scale and shift.
#include "rows.cuh"

// A thread has HELD vectors of each row.
template <typename T, bool CENTRED, bool VECTORS, int HELD>
__device__ inline void norm_gradient(size_t rows, unsigned columns, float eps, const T *x, const T *scale, const T *gradient,
                                     float *sums, T *y) {
    constexpr int N = WIDE<T>;
    // Before a room is used again, all threads have met at the barrier of another one.
    __shared__ float room[4][MAX_THREADS / 32];
    float of_scale[HELD][N] = {}, of_shift[HELD][N] = {};
    const unsigned first = threadIdx.x * N, step = blockDim.x * N;
    // Calls f with the number of each vector and with its place.
    auto each = [&](auto f) {
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (first + k * step < columns) f(k, first + k * step);
    };
    auto has = [&](unsigned at, int n) { return VECTORS || at + n < columns; };
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        float v[HELD][N], g[HELD][N];
        float mean = 0, squares = 0, of_gradient = 0, of_product = 0;
        each([&](int k, unsigned at) {
            const Vec<T, N> own = load_some<T, N, VECTORS>(x + row * columns + at, columns - at);
            const Vec<T, N> behind = load_some<T, N, VECTORS>(gradient + row * columns + at, columns - at);
#pragma unroll
            for (int n = 0; n < N; n++) {
                v[k][n] = widen(own.at[n]);
                g[k][n] = widen(behind.at[n]);
                mean += v[k][n];
            }
        });
        if (CENTRED) mean = row_reduce<Add>(mean, room[0]) / columns;
        else mean = 0;
        each([&](int k, unsigned at) {
#pragma unroll
            for (int n = 0; n < N; n++) {
                v[k][n] = has(at, n) ? v[k][n] - mean : 0.f;
                squares = fmaf(v[k][n], v[k][n], squares);
            }
        });
        const float factor = 1 / sqrtf(row_reduce<Add>(squares, room[1]) / columns + eps);
        each([&](int k, unsigned at) {
            const Vec<T, N> by = load_some<T, N, VECTORS>(scale + at, columns - at);
#pragma unroll
            for (int n = 0; n < N; n++) {
                v[k][n] *= factor;
                of_scale[k][n] = fmaf(g[k][n], v[k][n], of_scale[k][n]);
                of_shift[k][n] += g[k][n];
                g[k][n] *= widen(by.at[n]);
                of_gradient += g[k][n];
                of_product = fmaf(g[k][n], v[k][n], of_product);
            }
        });
        of_gradient = CENTRED ? row_reduce<Add>(of_gradient, room[2]) / columns : 0.f;
        of_product = row_reduce<Add>(of_product, room[3]) / columns;
        each([&](int k, unsigned at) {
            Vec<T, N> out;
#pragma unroll
            for (int n = 0; n < N; n++) out.at[n] = narrow<T>(factor * (g[k][n] - of_gradient - v[k][n] * of_product));
            store_some<T, N, VECTORS>(y + row * columns + at, out, columns - at);
        });
    }
    float *const own = sums + (size_t)blockIdx.x * columns, *const of_shifts = own + (size_t)gridDim.x * columns;
    each([&](int k, unsigned at) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (!has(at, n)) continue;
            own[at + n] = of_scale[k][n];
            if (CENTRED) of_shifts[at + n] = of_shift[k][n];
        }
    });
}

template <typename T, bool CENTRED, int HELD>
__device__ inline void norm_gradient(size_t rows, unsigned columns, float eps, const T *x, const T *scale, const T *gradient,
                                     float *sums, T *y) {
    if (columns % WIDE<T> == 0 && are_aligned(x, scale, gradient, (const T *)y))
        norm_gradient<T, CENTRED, true, HELD>(rows, columns, eps, x, scale, gradient, sums, y);
    else
        norm_gradient<T, CENTRED, false, HELD>(rows, columns, eps, x, scale, gradient, sums, y);
}

#define NORM(T, NAME, KIND, CENTRED, HELD)                                                                             \
    extern "C" __global__ void __launch_bounds__(256) opara_norm_gradient_##KIND##_##HELD##_##NAME(                    \
        size_t rows, unsigned columns, float eps, const T *x, const T *scale, const T *gradient, float *sums, T *y) {  \
        norm_gradient<T, CENTRED, HELD>(rows, columns, eps, x, scale, gradient, sums, y);                              \
    }
#define NORMS(T, NAME)                                                                                                 \
    NORM(T, NAME, layer, true, 1)                                                                                      \
    NORM(T, NAME, layer, true, 4)                                                                                      \
    NORM(T, NAME, rms, false, 1)                                                                                       \
    NORM(T, NAME, rms, false, 4)

NORMS(float, f32)
NORMS(__half, f16)
NORMS(__nv_bfloat16, bf16)
