// A layer of experts: rows of x, each with some experts of its own, times the weights of these. A pair is a row and one of its experts.
//
// Pairs of an expert are taken together, R at a time, so that its weight is read once for all of them. A sum's order depends on the
// weight's size alone: a row's result does not depend on the rows beside it.
#include "activation.cuh"
#include "dependent.cuh"
#include "rows.cuh"

constexpr unsigned MAX_EXPERTS = 1024, WARPS = 8;
// Rows of a weight that a warp takes at a time, and vectors of each that a lane has in flight.
constexpr unsigned LOADS = 4, STEPS = 4;

// Elements of a row of x that are in shared memory at a time.
template <typename T> constexpr unsigned SEGMENT = STEPS * 32 * WIDE<T>;

// A part of an expert's pairs: from place `first` of the order on.
struct Tile {
    unsigned expert, first, count;
};

// The pairs ordered by expert, and behind them tiles of at most `tile` pairs; unused tiles have none. Pairs without an expert come last.
// The order within an expert is any: no result depends on it.
extern "C" __global__ void __launch_bounds__(MAX_EXPERTS) opara_gather_expert_rows_u32(unsigned pairs, unsigned experts,
    unsigned tile, unsigned tiles, const unsigned *ids, unsigned *y) {
    // Pairs and tiles up to an expert; then where its next pair goes.
    __shared__ unsigned of_pairs[MAX_EXPERTS], of_tiles[MAX_EXPERTS], next[MAX_EXPERTS + 1];
    trigger_dependents();
    wait_for_predecessors();
    const unsigned e = threadIdx.x;
    of_pairs[e] = 0;
    __syncthreads();
    for (unsigned p = e; p < pairs; p += blockDim.x)
        if (ids[p] < experts) atomicAdd(&of_pairs[ids[p]], 1);
    __syncthreads();
    const unsigned count = of_pairs[e], own_tiles = (count + tile - 1) / tile;
    of_tiles[e] = own_tiles;
    for (unsigned distance = 1; distance < MAX_EXPERTS; distance *= 2) {
        __syncthreads();
        const unsigned more = e >= distance ? of_pairs[e - distance] : 0, more_tiles = e >= distance ? of_tiles[e - distance] : 0;
        __syncthreads();
        of_pairs[e] += more, of_tiles[e] += more_tiles;
    }
    const unsigned first = of_pairs[e] - count, first_tile = of_tiles[e] - own_tiles;
    next[e] = first;
    if (e == MAX_EXPERTS - 1) next[MAX_EXPERTS] = of_pairs[e];
    Tile *const table = reinterpret_cast<Tile *>(y + pairs);
    for (unsigned i = 0; i < own_tiles; i++) table[first_tile + i] = {e, first + i * tile, min(tile, count - i * tile)};
    __syncthreads();
    for (unsigned i = of_tiles[MAX_EXPERTS - 1] + e; i < tiles; i += blockDim.x) table[i] = {0, 0, 0};
    for (unsigned p = e; p < pairs; p += blockDim.x) y[atomicAdd(&next[ids[p] < experts ? ids[p] : MAX_EXPERTS], 1)] = p;
}

// `columns` results of each pair of a tile, of one row of its expert's weight each, or of two if GATED: a gate and what it lets through,
// `columns` rows further down. `sharing` neighbouring pairs have the same row of x.
template <typename T, unsigned R, bool GATED, typename Y>
__device__ inline void product(unsigned pairs, unsigned columns, unsigned inner, unsigned sharing, int activation,
                               const unsigned *groups, const T *x, const T *weight, Y *y) {
    constexpr unsigned N = WIDE<T>, RESULTS = GATED ? LOADS / 2 : LOADS, CHUNK = 32 * N;
    __shared__ __align__(16) float room[R * SEGMENT<T>];
    trigger_dependents();
    wait_for_predecessors();
    const Tile tile = reinterpret_cast<const Tile *>(groups + pairs)[blockIdx.y];
    if (tile.count == 0) return;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, base = (blockIdx.x * WARPS + warp) * RESULTS;
    const T *rows[LOADS];
#pragma unroll
    for (unsigned l = 0; l < LOADS; l++) {
        // Beyond the end: the last one again, whose result is not stored.
        const unsigned result = min(base + (GATED ? l / 2 : l), columns - 1), row = GATED && l % 2 ? columns + result : result;
        rows[l] = weight + ((size_t)tile.expert * (GATED ? 2 : 1) * columns + row) * inner;
    }
    float sum[R][LOADS] = {};
    for (unsigned segment = 0; segment < inner; segment += SEGMENT<T>) {
        Vec<T, N> held[STEPS][LOADS] = {};
#pragma unroll
        for (unsigned s = 0; s < STEPS; s++)
#pragma unroll
            for (unsigned l = 0; l < LOADS; l++) {
                const unsigned at = segment + s * CHUNK + lane * N;
                if (at < inner) held[s][l] = load<T, N>(rows[l] + at);
            }
        __syncthreads();
        for (unsigned i = threadIdx.x; i < R * SEGMENT<T> / N; i += WARPS * 32) {
            const unsigned r = i / (SEGMENT<T> / N), at = i % (SEGMENT<T> / N) * N;
            Vec<T, N> v{};
            if (r < tile.count && segment + at < inner)
                v = load<T, N>(x + (size_t)(groups[tile.first + r] / sharing) * inner + segment + at);
            // What the lanes of a warp read at once follows one another.
            float *const to = room + r * SEGMENT<T> + at / CHUNK * CHUNK + at % CHUNK / N * 4;
#pragma unroll
            for (unsigned four = 0; four < N / 4; four++)
#pragma unroll
                for (unsigned n = 0; n < 4; n++) to[four * 128 + n] = widen(v.at[four * 4 + n]);
        }
        __syncthreads();
#pragma unroll
        for (unsigned s = 0; s < STEPS; s++)
#pragma unroll
            for (unsigned r = 0; r < R; r++)
#pragma unroll
                for (unsigned four = 0; four < N / 4; four++) {
                    const Vec<float, 4> wide = load<float, 4>(room + r * SEGMENT<T> + s * CHUNK + four * 128 + lane * 4);
#pragma unroll
                    for (unsigned l = 0; l < LOADS; l++)
#pragma unroll
                        for (unsigned n = 0; n < 4; n++)
                            sum[r][l] = fmaf(widen(held[s][l].at[four * 4 + n]), wide.at[n], sum[r][l]);
                }
    }
#pragma unroll
    for (unsigned r = 0; r < R; r++) {
        const float all = reduce_four(sum[r]);
        const float through = __shfl_down_sync(~0u, all, 8);
        const unsigned result = base + lane / (32 / RESULTS);
        if (r >= tile.count || lane % (32 / RESULTS) || result >= columns) continue;
        Y *const to = y + (size_t)groups[tile.first + r] * columns + result;
        if constexpr (GATED)
            with_activation(activation, [&](auto kind) { *to = narrow<T>(activate<kind>(all) * through); });
        else
            *to = all;
    }
}

// Each row's results of its experts, times their weights, in the order of the experts of the row; NaN with an expert that there is not.
template <typename T>
__device__ inline void sums(unsigned numel, unsigned columns, unsigned chosen, unsigned experts, const unsigned *ids,
                            const float *weights, const float *parts, T *y) {
    trigger_dependents();
    wait_for_predecessors();
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= numel) return;
    const unsigned row = i / columns, column = i % columns;
    float sum = 0;
    for (unsigned k = 0; k < chosen; k++) {
        const size_t pair = (size_t)row * chosen + k;
        sum = ids[pair] < experts ? fmaf(weights[pair], parts[pair * columns + column], sum) : NAN;
        if (ids[pair] >= experts) break;
    }
    y[i] = narrow<T>(sum);
}

#define EXPERTS(T, NAME, R)                                                                                            \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) opara_matmul_experts_gated_by##R##_##NAME(               \
        unsigned pairs, unsigned columns, unsigned inner, unsigned sharing, int activation, const unsigned *groups,    \
        const T *x, const T *weight, T *y) {                                                                           \
        product<T, R, true>(pairs, columns, inner, sharing, activation, groups, x, weight, y);                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) opara_matmul_experts_down_by##R##_##NAME(                \
        unsigned pairs, unsigned columns, unsigned inner, const unsigned *groups, const T *x, const T *weight,         \
        float *y) {                                                                                                    \
        product<T, R, false>(pairs, columns, inner, 1, NONE, groups, x, weight, y);                                    \
    }

#define MOE(T, NAME)                                                                                                   \
    EXPERTS(T, NAME, 1)                                                                                                \
    EXPERTS(T, NAME, 8)                                                                                                \
    extern "C" __global__ void __launch_bounds__(1024) opara_elementwise_expert_sums_##NAME(unsigned numel,            \
        unsigned columns, unsigned chosen, unsigned experts, const unsigned *ids, const float *weights,                \
        const float *parts, T *y) {                                                                                    \
        sums<T>(numel, columns, chosen, experts, ids, weights, parts, y);                                              \
    }

MOE(float, f32)
MOE(__half, f16)
MOE(__nv_bfloat16, bf16)
