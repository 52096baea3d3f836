// Sums of columns in two stages, each in a fixed order: shares of the rows, and then all shares. The first stage may compute the rows,
// too: gradients before an activation.
#include "activation.cuh"
#include "rows.cuh"

// A block has 32 columns, and 32 rows at a time.
constexpr unsigned SIDE = 32;

// The rows of this block's share, from this thread's first one on.
struct Share {
    size_t first, end;

    __device__ Share(size_t rows, unsigned share)
        : first((size_t)blockIdx.y * share + threadIdx.y), end(min((size_t)(blockIdx.y + 1) * share, rows)) {}
};

__device__ inline unsigned this_column() { return blockIdx.x * SIDE + threadIdx.x; }

// Sums what the threads of each column have. Gives the sum of column `threadIdx.y` of the block to its threads.
__device__ inline float sum_of_column(float own) {
    __shared__ float room[SIDE][SIDE + 1];
    room[threadIdx.y][threadIdx.x] = own;
    __syncthreads();
    return warp_reduce<Add>(room[threadIdx.x][threadIdx.y]);
}

template <typename T> __device__ inline void write_sum(float sum, unsigned columns, T *y) {
    const unsigned column = blockIdx.x * SIDE + threadIdx.y;
    if (threadIdx.x == 0 && column < columns) y[column] = narrow<T>(sum);
}

template <typename T>
__device__ inline void column_sums(size_t rows, unsigned columns, unsigned share, const T *x, float *sums) {
    const Share of(rows, share);
    float sum = 0;
    if (this_column() < columns)
        for (size_t row = of.first; row < of.end; row += SIDE) sum += widen(x[row * columns + this_column()]);
    write_sum(sum_of_column(sum), columns, sums + (size_t)blockIdx.y * columns);
}

template <typename T> __device__ inline void column_totals(unsigned rows, unsigned columns, const float *sums, T *y) {
    sums += (size_t)blockIdx.z * rows * columns;
    y += (size_t)blockIdx.z * columns;
    float sum = 0;
    if (this_column() < columns)
        for (unsigned row = threadIdx.y; row < rows; row += SIDE) sum += sums[(size_t)row * columns + this_column()];
    write_sum(sum_of_column(sum), columns, y);
}

// The derivative of an activation. At 0 a ReLU has candle's, 1.
template <int ACTIVATION> __device__ inline float derivative(float x) {
    if constexpr (ACTIVATION == RELU) return x >= 0 ? 1.f : 0.f;
    if constexpr (ACTIVATION == GELU) {
        // Beyond that the square would overflow.
        if (fabsf(x) > 1e4f) return x > 0 ? 1.f : 0.f;
        const float square = x * x, t = tanhf(0.7978845608028654f * fmaf(0.044715f * square, x, x));
        const float inner = 0.7978845608028654f * fmaf(0.134145f, square, 1.f);
        return fmaf(0.5f * x * fmaf(-t, t, 1.f), inner, fmaf(0.5f, t, 0.5f));
    }
    if constexpr (ACTIVATION == GELU_ERF)
        return fmaf(x * 0.3989422804014327f, expf(-0.5f * x * x), fmaf(0.5f, erff(0.7071067811865476f * x), 0.5f));
    if constexpr (ACTIVATION == SILU) {
        const float gate = 1 / (1 + expf(-x));
        return gate * fmaf(x, 1 - gate, 1.f);
    }
    return 1;
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
