// Sums of columns in two stages, each in a fixed order: shares of the rows, and then all shares. The first stage may compute the rows,
// too: gradients before an activation.
#include "activation.cuh"
#include "columns.cuh"

template <typename T>
__device__ inline void column_sums(size_t rows, unsigned columns, unsigned share, const T *x, float *sums) {
    const Share of(rows, share);
    float sum = 0;
    if (this_column() < columns)
        for (size_t row = of.first; row < of.end; row += SIDE) sum += widen(x[row * columns + this_column()]);
    write_sum(sum_of_column(sum), columns, sums + (size_t)blockIdx.y * columns);
}

// The same by vectors. Rows are whole vectors.
template <typename T>
__device__ inline void wide_column_sums(size_t rows, unsigned columns, unsigned share, const T *x, float *sums) {
    constexpr int N = WIDE<T>;
    const Share of(rows, share);
    const unsigned column = this_column() * N;
    Vec<float, N> sum{};
    if (column < columns) sum = sum_of_rows<N>(x, of.first, of.end, columns, column);
    sum = sum_of_vectors(sum);
    if (threadIdx.y == 0 && column < columns) store<float, N>(sums + (size_t)blockIdx.y * columns + column, sum);
}

template <typename T> __device__ inline void column_totals(unsigned rows, unsigned columns, const float *sums, T *y) {
    sums += (size_t)blockIdx.z * rows * columns;
    y += (size_t)blockIdx.z * columns;
    float sum = 0;
    if (this_column() < columns)
        for (unsigned row = threadIdx.y; row < rows; row += SIDE) sum += sums[(size_t)row * columns + this_column()];
    write_sum(sum_of_column(sum), columns, y);
}

// y = gradient * activation'(x), and the sums of its columns.
template <int ACTIVATION, typename T>
__device__ inline void activation_gradient(size_t rows, unsigned columns, unsigned share, const T *x, const T *gradient,
                                           float *sums, T *y) {
    const Share of(rows, share);
    float sum = 0;
    if (this_column() < columns)
        for (size_t row = of.first; row < of.end; row += SIDE) {
            const size_t at = row * columns + this_column();
            const T v = narrow<T>(widen(gradient[at]) * derivative_for<T, ACTIVATION>(widen(x[at])));
            y[at] = v;
            sum += widen(v);
        }
    write_sum(sum_of_column(sum), columns, sums + (size_t)blockIdx.y * columns);
}

// The same by vectors. Rows are whole vectors.
template <int ACTIVATION, typename T>
__device__ inline void wide_activation_gradient(size_t rows, unsigned columns, unsigned share, const T *x, const T *gradient,
                                                float *sums, T *y) {
    // Rows whose loads are on their way together.
    constexpr unsigned N = WIDE<T>, AHEAD = 4;
    const Share of(rows, share);
    const unsigned column = this_column() * N;
    Vec<float, N> sum{};
    if (column < columns)
        for (size_t row = of.first; row < of.end; row += AHEAD * DEEP) {
            Vec<T, N> at[AHEAD], g[AHEAD];
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++)
                if (row + a * DEEP < of.end) {
                    const size_t from = (row + a * DEEP) * columns + column;
                    at[a] = load<T, N>(x + from), g[a] = load<T, N>(gradient + from);
                }
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++)
                if (row + a * DEEP < of.end) {
                    Vec<T, N> v;
#pragma unroll
                    for (unsigned n = 0; n < N; n++) {
                        v.at[n] = narrow<T>(widen(g[a].at[n]) * derivative_for<T, ACTIVATION>(widen(at[a].at[n])));
                        sum.at[n] += widen(v.at[n]);
                    }
                    store<T, N>(y + (row + a * DEEP) * columns + column, v);
                }
        }
    sum = sum_of_vectors(sum);
    if (threadIdx.y == 0 && column < columns) store<float, N>(sums + (size_t)blockIdx.y * columns + column, sum);
}

#define KERNELS(T, NAME)                                                                                               \
    extern "C" __global__ void __launch_bounds__(SIDE *SIDE) opara_reduction_column_sums_##NAME(                       \
        size_t rows, unsigned columns, unsigned share, const T *x, float *sums) {                                      \
        column_sums(rows, columns, share, x, sums);                                                                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(SIDE *DEEP) opara_reduction_column_sums_wide_##NAME(                  \
        size_t rows, unsigned columns, unsigned share, const T *x, float *sums) {                                      \
        wide_column_sums(rows, columns, share, x, sums);                                                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(SIDE *SIDE) opara_reduction_column_totals_##NAME(                     \
        unsigned rows, unsigned columns, const float *sums, T *y) {                                                    \
        column_totals(rows, columns, sums, y);                                                                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(SIDE *SIDE) opara_elementwise_activation_gradient_##NAME(             \
        size_t rows, unsigned columns, unsigned share, int activation, const T *x, const T *gradient, float *sums,     \
        T *y) {                                                                                                        \
        with_activation(activation, [&](auto of) {                                                                     \
            activation_gradient<of.value>(rows, columns, share, x, gradient, sums, y);                                 \
        });                                                                                                            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(SIDE *DEEP) opara_elementwise_activation_gradient_wide_##NAME(        \
        size_t rows, unsigned columns, unsigned share, int activation, const T *x, const T *gradient, float *sums,     \
        T *y) {                                                                                                        \
        with_activation(activation, [&](auto of) {                                                                     \
            wide_activation_gradient<of.value>(rows, columns, share, x, gradient, sums, y);                            \
        });                                                                                                            \
    }

KERNELS(float, f32)
KERNELS(__half, f16)
KERNELS(__nv_bfloat16, bf16)
