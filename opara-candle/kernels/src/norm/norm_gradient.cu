// Gradients of layer norm and RMS norm: of x, plus that of what goes around the norm (or null); and of scale and shift.
#include "columns.cuh"

// The gradient of x where a warp has a row of at most HELD vectors a lane, and each row's mean and the reciprocal of its deviation, by which
// another kernel sums over the columns.
template <typename T, bool CENTRED, int HELD>
__device__ inline void rows_gradient(size_t rows, unsigned columns, float eps, const T *x, const T *scale, const T *gradient,
                                     const T *beside, float *moments, T *y) {
    constexpr int N = WIDE<T>;
    const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const float part = 1.f / columns;
    // Calls f with the number of each vector and with its place.
    auto each = [&](auto f) {
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if ((k * 32 + lane) * N < columns) f(k, (k * 32 + lane) * N);
    };
    for (size_t row = blockIdx.x * warps + threadIdx.x / 32; row < rows; row += gridDim.x * warps) {
        Vec<T, N> own[HELD], behind[HELD], other[HELD];
        each([&](int k, unsigned at) {
            own[k] = load<T, N>(x + row * columns + at), behind[k] = load<T, N>(gradient + row * columns + at);
            if (beside) other[k] = load<T, N>(beside + row * columns + at);
        });
        float mean = 0, squares = 0, of_gradient = 0, of_product = 0;
        if (CENTRED) {
            each([&](int k, unsigned) {
#pragma unroll
                for (int n = 0; n < N; n++) mean += widen(own[k].at[n]);
            });
            mean = warp_reduce<Add>(mean) * part;
        }
        // Calls f with the place of each element, what it is away from the mean, and its gradient times the scale.
        auto elements = [&](auto f) {
            each([&](int k, unsigned at) {
                const Vec<T, N> by = load<T, N>(scale + at);
#pragma unroll
                for (int n = 0; n < N; n++) f(k, n, widen(own[k].at[n]) - mean, widen(behind[k].at[n]) * widen(by.at[n]));
            });
        };
        elements([&](int, int, float v, float g) {
            squares = fmaf(v, v, squares), of_product = fmaf(g, v, of_product);
            if (CENTRED) of_gradient += g;
        });
        const float factor = 1 / sqrtf(warp_reduce<Add>(squares) * part + eps);
        of_product = warp_reduce<Add>(of_product) * part * factor * factor;
        if (CENTRED) of_gradient = warp_reduce<Add>(of_gradient) * part;
        elements([&](int k, int n, float v, float g) {
            const float around = beside ? widen(other[k].at[n]) : 0.f;
            own[k].at[n] = narrow<T>(fmaf(factor, g - of_gradient - v * of_product, around));
        });
        each([&](int k, unsigned at) { store<T, N>(y + row * columns + at, own[k]); });
        if (lane == 0) store<float, 2>(moments + 2 * row, {mean, factor});
    }
}

// Sums over this block's share of the rows of the gradients of scale and shift.
template <typename T, bool CENTRED>
__device__ inline void columns_gradient(size_t rows, unsigned columns, unsigned share, const T *x, const T *gradient, const float *moments,
                                        float *sums) {
    constexpr int N = WIDE<T>;
    const Share of(rows, share);
    const unsigned first = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    float of_scale[N] = {}, of_shift[N] = {};
    if (first < columns)
#pragma unroll 4
        for (size_t row = of.first; row < of.end; row += blockDim.y) {
            const Vec<T, N> v = load<T, N>(x + row * columns + first), g = load<T, N>(gradient + row * columns + first);
            const Vec<float, 2> by = load<float, 2>(moments + 2 * row);
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float own = widen(g.at[n]);
                of_scale[n] = fmaf(own, (widen(v.at[n]) - by.at[0]) * by.at[1], of_scale[n]);
                of_shift[n] += own;
            }
        }
    sums += (size_t)blockIdx.y * columns;
    sums_of_columns(of_scale, of_shift, [&](unsigned column, float of_scale, float of_shift) {
        if (column >= columns) return;
        sums[column] = of_scale;
        if (CENTRED) sums[(size_t)gridDim.y * columns + column] = of_shift;
    });
}

// All gradients where the block has a row, of which a thread has HELD vectors: sums are over the block's rows.
template <typename T, bool CENTRED, bool VECTORS, int HELD>
__device__ inline void norm_gradient(size_t rows, unsigned columns, float eps, const T *x, const T *scale, const T *gradient,
                                     const T *beside, float *sums, T *y) {
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
            Vec<T, N> out, other{};
            if (beside) other = load_some<T, N, VECTORS>(beside + row * columns + at, columns - at);
#pragma unroll
            for (int n = 0; n < N; n++)
                out.at[n] = narrow<T>(fmaf(factor, g[k][n] - of_gradient - v[k][n] * of_product, widen(other.at[n])));
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
                                     const T *beside, float *sums, T *y) {
    if (columns % WIDE<T> == 0 && are_aligned(x, scale, gradient, beside, (const T *)y))
        norm_gradient<T, CENTRED, true, HELD>(rows, columns, eps, x, scale, gradient, beside, sums, y);
    else
        norm_gradient<T, CENTRED, false, HELD>(rows, columns, eps, x, scale, gradient, beside, sums, y);
}

#define OF_BLOCKS(T, NAME, KIND, CENTRED, HELD)                                                                        \
    extern "C" __global__ void __launch_bounds__(256) opara_norm_gradient_##KIND##_##HELD##_##NAME(                    \
        size_t rows, unsigned columns, float eps, const T *x, const T *scale, const T *gradient, const T *beside,      \
        float *sums, T *y) {                                                                                           \
        norm_gradient<T, CENTRED, HELD>(rows, columns, eps, x, scale, gradient, beside, sums, y);                      \
    }
#define OF_WARPS(T, NAME, KIND, CENTRED, HELD)                                                                         \
    extern "C" __global__ void __launch_bounds__(256) opara_norm_rows_gradient_##KIND##_##HELD##_##NAME(               \
        size_t rows, unsigned columns, float eps, const T *x, const T *scale, const T *gradient, const T *beside,      \
        float *moments, T *y) {                                                                                        \
        rows_gradient<T, CENTRED, HELD>(rows, columns, eps, x, scale, gradient, beside, moments, y);                   \
    }
#define NORMS(T, NAME, KIND, CENTRED)                                                                                  \
    OF_BLOCKS(T, NAME, KIND, CENTRED, 1)                                                                               \
    OF_BLOCKS(T, NAME, KIND, CENTRED, 4)                                                                               \
    OF_WARPS(T, NAME, KIND, CENTRED, 1)                                                                                \
    OF_WARPS(T, NAME, KIND, CENTRED, 2)                                                                                \
    OF_WARPS(T, NAME, KIND, CENTRED, 3)                                                                                \
    OF_WARPS(T, NAME, KIND, CENTRED, 4)                                                                                \
    extern "C" __global__ void __launch_bounds__(OF_VECTORS) opara_reduction_norm_gradient_##KIND##_##NAME(            \
        size_t rows, unsigned columns, unsigned share, const T *x, const T *gradient, const float *moments,            \
        float *sums) {                                                                                                 \
        columns_gradient<T, CENTRED>(rows, columns, share, x, gradient, moments, sums);                                \
    }
#define KINDS(T, NAME)                                                                                                 \
    NORMS(T, NAME, layer, true)                                                                                        \
    NORMS(T, NAME, rms, false)

KINDS(float, f32)
KINDS(__half, f16)
KINDS(__nv_bfloat16, bf16)
