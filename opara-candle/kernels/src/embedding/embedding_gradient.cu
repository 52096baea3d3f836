// The gradient of an embedding's table: rows of the result's gradient, summed for each id in the order of its places.
#include "numbers.cuh"
#include <cstdint>
#include <limits>

constexpr unsigned THREADS = 128, WARPS = THREADS / 32;
// As in candle, the largest value of the id type stands for a row of zeros.
template <typename I> constexpr I ZERO_ROW = std::numeric_limits<I>::max();

// Columns of a thread, and places whose rows it loads before it adds them.
constexpr unsigned OWN = 4, AHEAD = 4;

// The block of an id's first place adds the rows of all its places. The table holds zeros before.
template <typename T, typename I>
__device__ inline void embedding_gradient(unsigned count, unsigned columns, size_t rows, const I *ids, const T *gradient, T *y) {
    using S = typename Sum<T>::type;
    __shared__ unsigned masks[WARPS], places[THREADS];
    const I id = ids[blockIdx.x];
    if (id == ZERO_ROW<I> || (size_t)id >= rows) return;
    for (unsigned at = 0; at < blockIdx.x; at += THREADS) {
        const unsigned place = at + threadIdx.x;
        if (__syncthreads_or(place < blockIdx.x && ids[place] == id)) return;
    }
    const unsigned first = blockIdx.y * THREADS * OWN + threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    S sums[OWN] = {};
    for (unsigned at = blockIdx.x; at < count; at += THREADS) {
        const bool is_place = at + threadIdx.x < count && ids[at + threadIdx.x] == id;
        const unsigned mask = __ballot_sync(~0u, is_place);
        __syncthreads();
        if (lane == 0) masks[warp] = mask;
        __syncthreads();
        unsigned before = __popc(mask & ((1u << lane) - 1)), found = 0;
#pragma unroll
        for (unsigned w = 0; w < WARPS; w++) {
            if (w < warp) before += __popc(masks[w]);
            found += __popc(masks[w]);
        }
        if (is_place) places[before] = at + threadIdx.x;
        __syncthreads();
        for (unsigned k = 0; k < found; k += AHEAD) {
            T loaded[AHEAD][OWN];
#pragma unroll
            for (unsigned n = 0; n < AHEAD; n++)
#pragma unroll
                for (unsigned c = 0; c < OWN; c++) {
                    const unsigned column = first + c * THREADS;
                    const bool is_in = k + n < found && column < columns;
                    loaded[n][c] = is_in ? gradient[(size_t)places[k + n] * columns + column] : narrow<T>(0);
                }
#pragma unroll
            for (unsigned n = 0; n < AHEAD; n++)
#pragma unroll
                for (unsigned c = 0; c < OWN; c++)
                    if (k + n < found) sums[c] += widen(loaded[n][c]);
        }
    }
#pragma unroll
    for (unsigned c = 0; c < OWN; c++) {
        const unsigned column = first + c * THREADS;
        if (column < columns) y[(size_t)id * columns + column] = narrow<T>(sums[c]);
    }
}

#define GRADIENT(I, ID, T, NAME)                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS) opara_gather_embedding_gradient_##ID##_##NAME(               \
        unsigned count, unsigned columns, size_t rows, const I *ids, const T *gradient, T *y) {                        \
        embedding_gradient<T, I>(count, columns, rows, ids, gradient, y);                                              \
    }
#define GRADIENTS(T, NAME)                                                                                             \
    GRADIENT(uint8_t, u8, T, NAME)                                                                                     \
    GRADIENT(uint32_t, u32, T, NAME)                                                                                   \
    GRADIENT(int64_t, i64, T, NAME)

GRADIENTS(float, f32)
GRADIENTS(double, f64)
GRADIENTS(__half, f16)
GRADIENTS(__nv_bfloat16, bf16)
