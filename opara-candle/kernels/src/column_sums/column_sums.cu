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

// Threads along the rows of a block whose threads have vectors of columns.
constexpr unsigned DEEP = 8;

// The same by vectors: a block has 32 of them of each row, and DEEP rows at a time. Rows are whole vectors.
template <typename T>
__device__ inline void wide_column_sums(size_t rows, unsigned columns, unsigned share, const T *x, float *sums) {
    constexpr int N = WIDE<T>;
    __shared__ Vec<float, N> room[DEEP][SIDE];
    const Share of(rows, share);
    const unsigned column = this_column() * N;
    Vec<float, N> sum{};
    if (column < columns) {
#pragma unroll 4
        for (size_t row = of.first; row < of.end; row += DEEP) {
            const auto own = load<T, N>(x + row * columns + column);
#pragma unroll
            for (int n = 0; n < N; n++) sum.at[n] += widen(own.at[n]);
        }
    }
    room[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= columns) return;
#pragma unroll
    for (unsigned y = 1; y < DEEP; y++)
#pragma unroll
        for (int n = 0; n < N; n++) sum.at[n] += room[y][threadIdx.x].at[n];
    store<float, N>(sums + (size_t)blockIdx.y * columns + column, sum);
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
            const T v = narrow<T>(widen(gradient[at]) * derivative<ACTIVATION>(widen(x[at])));
            y[at] = v;
            sum += widen(v);
        }
    write_sum(sum_of_column(sum), columns, sums + (size_t)blockIdx.y * columns);
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
    }

KERNELS(float, f32)
KERNELS(__half, f16)
KERNELS(__nv_bfloat16, bf16)
