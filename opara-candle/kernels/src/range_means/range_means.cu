// Means of ranges of rows, in a fixed order.
#include "columns.cuh"

// Of each range the first row, and the one behind the last. Rows are whole vectors.
template <typename T>
__device__ inline void range_means(unsigned rows, unsigned columns, const T *x, const uint2 *ranges, float *y) {
    constexpr int N = WIDE<T>;
    const unsigned column = this_column() * N, end = min(ranges[blockIdx.y].y, rows);
    const unsigned first = min(ranges[blockIdx.y].x, end);
    Vec<float, N> sum{};
    if (column < columns) sum = sum_of_rows<N>(x, first + threadIdx.y, end, columns, column);
    sum = sum_of_vectors(sum);
    if (threadIdx.y > 0 || column >= columns) return;
#pragma unroll
    for (int n = 0; n < N; n++) sum.at[n] /= max(end - first, 1u);
#pragma unroll
    for (int n = 0; n < N; n += 4)
        store<float, 4>(y + (size_t)blockIdx.y * columns + column + n, {sum.at[n], sum.at[n + 1], sum.at[n + 2], sum.at[n + 3]});
}

#define RANGE_MEANS(T, NAME)                                                                                           \
    extern "C" __global__ void __launch_bounds__(SIDE *DEEP) opara_reduction_range_means_##NAME(                     \
        unsigned rows, unsigned columns, const T *x, const uint2 *ranges, float *y) {                                  \
        range_means(rows, columns, x, ranges, y);                                                                      \
    }

RANGE_MEANS(__half, f16)
RANGE_MEANS(__nv_bfloat16, bf16)
RANGE_MEANS(float, f32)
