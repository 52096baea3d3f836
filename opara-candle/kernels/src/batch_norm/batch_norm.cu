// A batch norm in training mode, of rows of pixels with a column for each channel: moments of columns, and the sums that its gradient needs.
// Both are computed for shares of the rows first, and of all shares then.
#include "activation.cuh"
#include "columns.cuh"

// Mean, and sum of the squares of what differs from it, of each column in this block's share of the rows.
template <typename T>
__device__ inline void batch_moments(size_t rows, unsigned columns, unsigned share, const T *x, float *moments) {
    const Share of(rows, share);
    const float count = of.end - (size_t)blockIdx.y * share;
    const bool is_in = this_column() < columns;
    float sum = 0, squares = 0;
    if (is_in)
        for (size_t row = of.first; row < of.end; row += SIDE) sum += widen(x[row * columns + this_column()]);
    const float mean = sum_of_column(sum) / count, own = own_of_column(mean);
    if (is_in)
        for (size_t row = of.first; row < of.end; row += SIDE) {
            const float apart = widen(x[row * columns + this_column()]) - own;
            squares = fmaf(apart, apart, squares);
        }
    moments += (size_t)blockIdx.y * columns;
    write_sum(mean, columns, moments);
    write_sum(sum_of_column(squares), columns, moments + (size_t)gridDim.y * columns);
}

// Moments by vectors, in one pass: sums of differences from the share's first row.
template <int N, typename T>
__device__ inline void wide_batch_moments(size_t rows, unsigned columns, unsigned share, const T *x, float *moments) {
    const Share of(rows, share);
    const size_t start = (size_t)blockIdx.y * share * columns;
    const float count = of.end - (size_t)blockIdx.y * share;
    const unsigned first = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    float sum[N] = {}, squares[N] = {};
    if (first < columns) {
        const Vec<T, N> from = load<T, N>(x + start + first);
#pragma unroll 4
        for (size_t row = of.first; row < of.end; row += blockDim.y) {
            const Vec<T, N> v = load<T, N>(x + row * columns + first);
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float apart = widen(v.at[n]) - widen(from.at[n]);
                sum[n] += apart, squares[n] = fmaf(apart, apart, squares[n]);
            }
        }
    }
    moments += (size_t)blockIdx.y * columns;
    sums_of_columns(sum, squares, [&](unsigned column, float sum, float squares) {
        if (column >= columns) return;
        moments[column] = widen(x[start + column]) + sum / count;
        moments[(size_t)gridDim.y * columns + column] = fmaxf(squares - sum * (sum / count), 0.f);
    });
}

// Mean and variance of each column in all rows.
extern "C" __global__ void __launch_bounds__(SIDE *SIDE) opara_reduction_batch_totals_f32(
    size_t rows, unsigned columns, unsigned share, unsigned shares, const float *moments, float *y) {
    const float *const squares = moments + (size_t)shares * columns;
    const bool is_in = this_column() < columns;
    auto count = [&](unsigned at) { return (float)(min((size_t)(at + 1) * share, rows) - (size_t)at * share); };
    float sum = 0, of_squares = 0;
    if (is_in)
        for (unsigned at = threadIdx.y; at < shares; at += SIDE)
            sum = fmaf(count(at), moments[(size_t)at * columns + this_column()], sum);
    const float mean = sum_of_column(sum) / rows, own = own_of_column(mean);
    if (is_in)
        for (unsigned at = threadIdx.y; at < shares; at += SIDE) {
            const size_t of = (size_t)at * columns + this_column();
            const float apart = moments[of] - own;
            of_squares += fmaf(count(at) * apart, apart, squares[of]);
        }
    write_sum(mean, columns, y);
    write_sum(sum_of_column(of_squares) / rows, columns, y + columns);
}

// A thread has N channels, and goes through rows. What it needs to normalise them, with weight and bias if there are any.
template <int N> struct Channels {
    float mean[N], factor[N], scale[N], shift[N];

    template <typename T>
    __device__ Channels(unsigned first, float eps, const float *of_mean, const float *variance, const T *of_scale, const T *of_shift) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            mean[n] = of_mean[first + n], factor[n] = 1 / sqrtf(variance[first + n] + eps);
            scale[n] = of_scale ? widen(of_scale[first + n]) : 1.f, shift[n] = of_shift ? widen(of_shift[first + n]) : 0.f;
        }
    }
    __device__ float normal(int n, float x) const { return (x - mean[n]) * factor[n]; }
    __device__ float result(int n, float x) const { return fmaf(normal(n, x), scale[n], shift[n]); }
};

// Calls f with the first element of each vector of this thread's rows.
template <int N, typename F> __device__ inline void each_row(size_t rows, unsigned columns, unsigned first, F f) {
    for (size_t row = blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += gridDim.y * blockDim.y) f(row * columns + first);
}

// y = activation((x - mean) / deviation * scale + shift)
template <int N, typename T>
__device__ inline void batch_norm(size_t rows, unsigned columns, float eps, int activation, const T *x, const float *mean,
                                  const float *variance, const T *scale, const T *shift, T *y) {
    const unsigned first = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (first >= columns) return;
    const Channels<N> of(first, eps, mean, variance, scale, shift);
    with_activation(activation, [&](auto kind) {
        each_row<N>(rows, columns, first, [&](size_t at) {
            Vec<T, N> v = load<T, N>(x + at);
#pragma unroll
            for (int n = 0; n < N; n++) v.at[n] = narrow<T>(activate_for<T, kind.value>(of.result(n, widen(v.at[n]))));
            store<T, N>(y + at, v);
        });
    });
}

// The gradient of x: `sums` are those of the gradient before the activation, and of its products with the normalised rows.
template <int N, typename T>
__device__ inline void batch_norm_gradient(size_t rows, unsigned columns, float eps, int activation, const T *x, const T *gradient,
                                           const float *mean, const float *variance, const T *scale, const T *shift, const float *sums,
                                           T *y) {
    const unsigned first = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (first >= columns) return;
    const Channels<N> of(first, eps, mean, variance, scale, shift);
    float across[N], along[N];
#pragma unroll
    for (int n = 0; n < N; n++) across[n] = sums[first + n] / rows, along[n] = sums[columns + first + n] / rows;
    with_activation(activation, [&](auto kind) {
        each_row<N>(rows, columns, first, [&](size_t at) {
            const Vec<T, N> v = load<T, N>(x + at), g = load<T, N>(gradient + at);
            Vec<T, N> out;
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float from = widen(v.at[n]);
                float of_result = widen(g.at[n]);
                if constexpr (kind.value != NONE) of_result *= derivative_for<T, kind.value>(of.result(n, from));
                out.at[n] = narrow<T>((of_result - across[n] - of.normal(n, from) * along[n]) * of.factor[n] * of.scale[n]);
            }
            store<T, N>(y + at, out);
        });
    });
}

// Sums of the gradient before the activation, and of its products with the normalised rows, over this block's share of the rows.
template <typename T>
__device__ inline void batch_gradient(size_t rows, unsigned columns, unsigned share, float eps, int activation, const T *x,
                                      const T *gradient, const float *mean, const float *variance, const T *scale, const T *shift,
                                      float *sums) {
    const Share share_of(rows, share);
    float sum = 0, products = 0;
    if (this_column() < columns) {
        const Channels<1> of(this_column(), eps, mean, variance, scale, shift);
        with_activation(activation, [&](auto kind) {
            for (size_t row = share_of.first; row < share_of.end; row += SIDE) {
                const size_t at = row * columns + this_column();
                const float from = widen(x[at]);
                float g = widen(gradient[at]);
                if constexpr (kind.value != NONE) g *= derivative_for<T, kind.value>(of.result(0, from));
                sum += g;
                products = fmaf(g, of.normal(0, from), products);
            }
        });
    }
    sums += (size_t)blockIdx.y * columns;
    write_sum(sum_of_column(sum), columns, sums);
    __syncthreads();
    write_sum(sum_of_column(products), columns, sums + (size_t)gridDim.y * columns);
}

// The same by vectors.
template <int N, typename T>
__device__ inline void wide_batch_gradient(size_t rows, unsigned columns, unsigned share, float eps, int activation, const T *x,
                                           const T *gradient, const float *mean, const float *variance, const T *scale, const T *shift,
                                           float *sums) {
    const Share share_of(rows, share);
    const unsigned first = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    float sum[N] = {}, products[N] = {};
    if (first < columns) {
        const Channels<N> of(first, eps, mean, variance, scale, shift);
        with_activation(activation, [&](auto kind) {
#pragma unroll 4
            for (size_t row = share_of.first; row < share_of.end; row += blockDim.y) {
                const size_t at = row * columns + first;
                const Vec<T, N> v = load<T, N>(x + at), g = load<T, N>(gradient + at);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const float from = widen(v.at[n]);
                    float own = widen(g.at[n]);
                    if constexpr (kind.value != NONE) own *= derivative_for<T, kind.value>(of.result(n, from));
                    sum[n] += own, products[n] = fmaf(own, of.normal(n, from), products[n]);
                }
            }
        });
    }
    sums += (size_t)blockIdx.y * columns;
    sums_of_columns(sum, products, [&](unsigned column, float sum, float products) {
        if (column >= columns) return;
        sums[column] = sum, sums[(size_t)gridDim.y * columns + column] = products;
    });
}

#define KERNELS(T, NAME)                                                                                               \
    extern "C" __global__ void __launch_bounds__(SIDE *SIDE) opara_reduction_batch_moments_##NAME(                     \
        size_t rows, unsigned columns, unsigned share, const T *x, float *moments) {                                   \
        batch_moments(rows, columns, share, x, moments);                                                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(SIDE *SIDE) opara_reduction_batch_gradient_##NAME(                    \
        size_t rows, unsigned columns, unsigned share, float eps, int activation, const T *x, const T *gradient,       \
        const float *mean, const float *variance, const T *scale, const T *shift, float *sums) {                       \
        batch_gradient(rows, columns, share, eps, activation, x, gradient, mean, variance, scale, shift, sums);        \
    }                                                                                                                  \
    BY(1, T, NAME)

#define WIDE_BY(N, T, NAME)                                                                                            \
    extern "C" __global__ void __launch_bounds__(OF_VECTORS) opara_reduction_batch_moments_wide_##NAME(                \
        size_t rows, unsigned columns, unsigned share, const T *x, float *moments) {                                   \
        wide_batch_moments<N>(rows, columns, share, x, moments);                                                       \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(OF_VECTORS) opara_reduction_batch_gradient_wide_##NAME(               \
        size_t rows, unsigned columns, unsigned share, float eps, int activation, const T *x, const T *gradient,       \
        const float *mean, const float *variance, const T *scale, const T *shift, float *sums) {                       \
        wide_batch_gradient<N>(rows, columns, share, eps, activation, x, gradient, mean, variance, scale, shift, sums); \
    }                                                                                                                  \
    BY(N, T, NAME)

#define BY(N, T, NAME)                                                                                                 \
    extern "C" __global__ void opara_norm_batch_by##N##_##NAME(                                                        \
        size_t rows, unsigned columns, float eps, int activation, const T *x, const float *mean, const float *variance, \
        const T *scale, const T *shift, T *y) {                                                                        \
        batch_norm<N>(rows, columns, eps, activation, x, mean, variance, scale, shift, y);                             \
    }                                                                                                                  \
    extern "C" __global__ void opara_norm_batch_gradient_by##N##_##NAME(                                               \
        size_t rows, unsigned columns, float eps, int activation, const T *x, const T *gradient, const float *mean,    \
        const float *variance, const T *scale, const T *shift, const float *sums, T *y) {                              \
        batch_norm_gradient<N>(rows, columns, eps, activation, x, gradient, mean, variance, scale, shift, sums, y);    \
    }

KERNELS(float, f32)
KERNELS(__half, f16)
KERNELS(__nv_bfloat16, bf16)
WIDE_BY(4, float, f32)
WIDE_BY(8, __half, f16)
WIDE_BY(8, __nv_bfloat16, bf16)
