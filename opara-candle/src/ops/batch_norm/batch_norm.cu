// A batch norm in training mode, of rows of pixels with a column for each channel: moments of columns, and the sums that its gradient needs.
// Both are computed for shares of the rows first, and of all shares then.
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

// Sums of the gradient, and of its products with the normalised rows, over this block's share of the rows.
template <typename T>
__device__ inline void batch_gradient(size_t rows, unsigned columns, unsigned share, float eps, const T *x, const T *gradient,
                                      const float *mean, const float *variance, float *sums) {
    const Share of(rows, share);
    float sum = 0, products = 0;
    if (this_column() < columns) {
        const float middle = mean[this_column()], factor = 1 / sqrtf(variance[this_column()] + eps);
        for (size_t row = of.first; row < of.end; row += SIDE) {
            const size_t at = row * columns + this_column();
            const float g = widen(gradient[at]);
            sum += g;
            products = fmaf(g, (widen(x[at]) - middle) * factor, products);
        }
    }
    sums += (size_t)blockIdx.y * columns;
    write_sum(sum_of_column(sum), columns, sums);
    __syncthreads();
    write_sum(sum_of_column(products), columns, sums + (size_t)gridDim.y * columns);
}

#define KERNELS(T, NAME)                                                                                               \
    extern "C" __global__ void __launch_bounds__(SIDE *SIDE) opara_reduction_batch_moments_##NAME(                     \
        size_t rows, unsigned columns, unsigned share, const T *x, float *moments) {                                   \
        batch_moments(rows, columns, share, x, moments);                                                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(SIDE *SIDE) opara_reduction_batch_gradient_##NAME(                    \
        size_t rows, unsigned columns, unsigned share, float eps, const T *x, const T *gradient, const float *mean,    \
        const float *variance, float *sums) {                                                                          \
        batch_gradient(rows, columns, share, eps, x, gradient, mean, variance, sums);                                  \
    }

KERNELS(float, f32)
KERNELS(__half, f16)
KERNELS(__nv_bfloat16, bf16)
