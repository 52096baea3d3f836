// Products of small matrices of f32 on CUDA cores, and both gradients of one in a single launch. They take less time than it takes to fill
// a GPU, so what counts is launches, and how soon a block has all that it needs: it copies its rows at once, and its warps share the inner
// dimension. Of each result a warp adds up every eighth step of four, in order; then the warps' sums are added in their order.

#include "activation.cuh"
#include "dependent.cuh"
#include "rows.cuh"
#include "tensor.cuh"

constexpr unsigned WARPS = 8, THREADS = 32 * WARPS;

// Elements of a vector along the inner dimension.
constexpr unsigned STEP = WIDE<float>;

// Elements between rows of a tile of so many steps: the padding puts a column of eight rows into different banks.
__device__ inline unsigned pitch_of(unsigned depth) { return (depth + 31) / 32 * 32 + STEP; }

__device__ inline float activated(int activation, float x) {
    float y = x;
    with_activation(activation, [&](auto of) { y = activate<of.value>(x); });
    return y;
}

// An operand: rows whose elements lie along the inner dimension, or, if it is TURNED, columns that do.
template <bool TURNED> struct Operand {
    const float *at;
    unsigned rows, inner, pitch;

    // Calls f for each of the thread's elements of a tile of COUNT rows and `depth` columns: with its place in the tile, where it comes
    // from, whether it is there, and how many lie together.
    template <unsigned COUNT, typename F>
    __device__ void each(unsigned first, unsigned begin, unsigned depth, unsigned tile_pitch, F f) const {
        if constexpr (TURNED) {
            for (unsigned i = threadIdx.x; i < COUNT * depth; i += THREADS) {
                const unsigned row = i % COUNT, column = i / COUNT;
                const bool is_there = first + row < rows && begin + column < inner;
                const size_t from = is_there ? (size_t)(begin + column) * pitch + first + row : 0;
                f(row * tile_pitch + column, from, is_there, std::integral_constant<unsigned, 1>());
            }
        } else if (pitch % STEP == 0 && are_aligned(at)) {
            const unsigned steps = depth / STEP;
            for (unsigned i = threadIdx.x; i < COUNT * steps; i += THREADS) {
                const unsigned row = i / steps, column = i % steps * STEP;
                const bool is_there = first + row < rows && begin + column < inner;
                const size_t from = is_there ? (size_t)(first + row) * pitch + begin + column : 0;
                f(row * tile_pitch + column, from, is_there, std::integral_constant<unsigned, STEP>());
            }
        } else {
            for (unsigned i = threadIdx.x; i < COUNT * depth; i += THREADS) {
                const unsigned row = i / depth, column = i % depth;
                const bool is_there = first + row < rows && begin + column < inner;
                const size_t from = is_there ? (size_t)(first + row) * pitch + begin + column : 0;
                f(row * tile_pitch + column, from, is_there, std::integral_constant<unsigned, 1>());
            }
        }
    }

    // Starts copies to a tile, with zeros for what is not there.
    template <unsigned COUNT>
    __device__ void fill(unsigned first, unsigned begin, unsigned depth, unsigned tile_pitch, float *tile) const {
        each<COUNT>(first, begin, depth, tile_pitch, [&](unsigned to, size_t from, bool is_there, auto count) {
            copy_async<4 * count.value>(tile + to, at + from, is_there);
        });
    }

    // Puts the activation of what this thread has copied in its place.
    template <unsigned COUNT>
    __device__ void activate_own(int activation, unsigned first, unsigned begin, unsigned depth, unsigned tile_pitch, float *tile) const {
        each<COUNT>(first, begin, depth, tile_pitch, [&](unsigned to, size_t, bool is_there, auto count) {
            for (unsigned n = 0; is_there && n < count.value; n++) tile[to + n] = activated(activation, tile[to + n]);
        });
    }
};

// A tile of M rows of `a` by N rows of `b`; each lane has BY_M times BY_N of its results.
template <unsigned M, unsigned N, unsigned BY_M, unsigned BY_N> struct Product {
    static constexpr unsigned LANES_M = M / BY_M, LANES_N = N / BY_N;
    static_assert(LANES_M * LANES_N == 32, "a warp has all results");

    // Waits for predecessors if `b` is read EARLY. Calls f with each row, column and result of the tile that is `at`, and before that `seen` with the tile of `a`.
    template <bool TURNED_A, bool TURNED_B, bool EARLY_B, typename Seen, typename F>
    __device__ static void run(unsigned at_m, unsigned at_n, unsigned depth, const Operand<TURNED_A> &a, int activation_a,
                               const Operand<TURNED_B> &b, int activation_b, Seen seen, F f) {
        extern __shared__ __align__(16) float room[];
        const unsigned pitch = pitch_of(depth), inner = a.inner;
        float *const tile_a = room, *const tile_b = room + M * pitch;
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, m = lane / LANES_N, n = lane % LANES_N;
        float sum[BY_M][BY_N] = {};
        for (unsigned begin = 0; begin < inner; begin += depth) {
            const unsigned some = min(depth, (inner - begin + STEP - 1) / STEP * STEP);
            b.template fill<N>(at_n, begin, some, pitch, tile_b);
            // It waits once; a further call goes on at once.
            if (EARLY_B) wait_for_predecessors();
            a.template fill<M>(at_m, begin, some, pitch, tile_a);
            commit();
            wait_pending<0>();
            if (activation_a) a.template activate_own<M>(activation_a, at_m, begin, some, pitch, tile_a);
            if (activation_b) b.template activate_own<N>(activation_b, at_n, begin, some, pitch, tile_b);
            __syncthreads();
            for (unsigned step = warp * STEP; step < some; step += WARPS * STEP) {
                Vec<float, STEP> of_a[BY_M], of_b[BY_N];
#pragma unroll
                for (unsigned i = 0; i < BY_M; i++) of_a[i] = load<float, STEP>(tile_a + (m + i * LANES_M) * pitch + step);
#pragma unroll
                for (unsigned j = 0; j < BY_N; j++) of_b[j] = load<float, STEP>(tile_b + (n + j * LANES_N) * pitch + step);
#pragma unroll
                for (unsigned e = 0; e < STEP; e++)
#pragma unroll
                    for (unsigned i = 0; i < BY_M; i++)
#pragma unroll
                        for (unsigned j = 0; j < BY_N; j++) sum[i][j] = fmaf(of_a[i].at[e], of_b[j].at[e], sum[i][j]);
            }
            seen(tile_a, pitch, some);
            __syncthreads();
        }
        // Nothing was read, if there is no inner dimension.
        if (EARLY_B) wait_for_predecessors();
#pragma unroll
        for (unsigned i = 0; i < BY_M; i++)
#pragma unroll
            for (unsigned j = 0; j < BY_N; j++) room[(warp * M + m + i * LANES_M) * N + n + j * LANES_N] = sum[i][j];
        __syncthreads();
        for (unsigned i = threadIdx.x; i < M * N; i += THREADS) {
            float all = room[i];
#pragma unroll
            for (unsigned of = 1; of < WARPS; of++) all += room[of * M * N + i];
            const unsigned row = at_m + i / N, column = at_n + i % N;
            if (row < a.rows && column < b.rows) f(row, column, all);
        }
    }
};

// Tiles of few results, and of many.
using Few = Product<8, 16, 2, 2>;
using Many = Product<16, 32, 4, 4>;

__device__ inline void nothing(const float *, unsigned, unsigned) {}

// y = after(before(x) * weight^T + bias)
extern "C" __global__ void __launch_bounds__(THREADS) opara_matmul_small_product_f32(
    unsigned rows, unsigned inner, unsigned columns, unsigned depth, int before, int after, const float *x, const float *weight,
    const float *bias, float *y) {
    trigger_dependents();
    const Operand<false> a{x, rows, inner, inner}, b{weight, columns, inner, inner};
    Few::run<false, false, true>(blockIdx.y * 8, blockIdx.x * 16, depth, a, before, b, NONE, nothing,
                                 [&](unsigned row, unsigned column, float sum) {
        if (bias) sum += bias[column];
        y[(size_t)row * columns + column] = activated(after, sum);
    });
}

// The gradients of weight and bias, in the tile of this number, behind each other.
__device__ inline void gradient_of_weight(unsigned tile, unsigned rows, unsigned inner, unsigned columns, unsigned depth, int before,
                                          const float *gradient, const float *x, float *y) {
    const unsigned tiles = (inner + 31) / 32, at_m = tile / tiles * 16, at_n = tile % tiles * 32;
    const Operand<true> a{gradient, columns, rows, columns}, b{x, inner, rows, inner};
    // Of the rows that this warp sums.
    float sums[2] = {};
    auto sum_rows = [&](const float *tile_a, unsigned pitch, unsigned depth) {
        if (at_n > 0) return;
        for (unsigned n = 0; n < 2; n++)
            for (unsigned k = threadIdx.x % 32; k < depth; k += 32) sums[n] += tile_a[(threadIdx.x / 32 + n * WARPS) * pitch + k];
    };
    Many::run<true, true, false>(at_m, at_n, depth, a, NONE, b, before, sum_rows, [&](unsigned row, unsigned column, float sum) {
        y[(size_t)row * inner + column] = sum;
    });
    if (at_n > 0) return;
    for (unsigned n = 0; n < 2; n++) {
        const float sum = warp_reduce<Add>(sums[n]);
        const unsigned row = at_m + threadIdx.x / 32 + n * WARPS;
        if (threadIdx.x % 32 == 0 && row < columns) y[(size_t)columns * inner + row] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) opara_matmul_small_weight_gradient_f32(
    unsigned rows, unsigned inner, unsigned columns, unsigned depth, int before, const float *gradient, const float *x, float *y) {
    trigger_dependents();
    wait_for_predecessors();
    gradient_of_weight(blockIdx.x, rows, inner, columns, depth, before, gradient, x, y);
}

// The same, and behind them that of x, in the blocks behind those.
extern "C" __global__ void __launch_bounds__(THREADS) opara_matmul_small_gradients_f32(
    unsigned rows, unsigned inner, unsigned columns, unsigned depth, unsigned depth_of_x, int before, const float *gradient,
    const float *x, const float *weight, float *y) {
    trigger_dependents();
    wait_for_predecessors();
    const unsigned tiles = (columns + 15) / 16 * ((inner + 31) / 32);
    if (blockIdx.x < tiles) return gradient_of_weight(blockIdx.x, rows, inner, columns, depth, before, gradient, x, y);
    const unsigned tile = blockIdx.x - tiles, across = (inner + 15) / 16;
    const Operand<false> a{gradient, rows, columns, columns};
    const Operand<true> b{weight, inner, columns, inner};
    y += (size_t)columns * inner + columns;
    Few::run<false, true, false>(tile / across * 8, tile % across * 16, depth_of_x, a, NONE, b, NONE, nothing,
                                [&](unsigned row, unsigned column, float sum) {
        const size_t at = (size_t)row * inner + column;
        float slope = 1;
        if (before) with_activation(before, [&](auto of) { slope = derivative<of.value>(x[at]); });
        y[at] = sum * slope;
    });
}
