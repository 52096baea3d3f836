// Attention of new tokens over a cache that has their keys and values already, on tensor cores (Dao, "FlashAttention-2", 2023, Alg. 1):
// a token sees the places up to its own, or as many of these as the window says. Where the tokens stand is on the device, so a block
// reads as many places as its own tokens see, and asks which of a tile are hidden only at the edges of that.
//
// A block's rows are queries of one head of keys: of each token the query heads that share it, then those of the next token. Each tile
// of keys is read once for all of them. Blocks of a cluster have the same rows and a part of the tiles each, and put their sums together
// in a fixed order; how many of them do is decided by what the sequence sees, not by the sequences beside it.
#pragma once
#include "cluster.cuh"
#include "dependent.cuh"
#include "pages.cuh"
#include "rows.cuh"
#include "tile.cuh"

constexpr float LOG2E = 1.4426950408889634f;
constexpr unsigned WARPS = 4, THREADS = 32 * WARPS;
// Rows of a warp, and of a block: queries of one head each.
constexpr unsigned OF_WARP = 16, ROWS = OF_WARP * WARPS;
// Blocks of a cluster.
constexpr unsigned SHARES = 4;

// Sizes of a launch. Places of the cache are of `capacity`; those from `end` on are not there for tokens.
struct Sizes {
    unsigned tokens, heads, sharing, capacity, end, window;
    float scale;
};

// Keys, or values, of the places before `count`, whose heads have `size` elements.
template <typename T> struct Places {
    const T *at;
    unsigned count, size;
    const Cache<const T> &in;

    __device__ size_t of(unsigned place) const { return in.at(place); }
};

// The two rows of a block that a lane has.
struct State {
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
};

// Scores become weights, and what was summed before is rescaled. If all scores of a row so far are hidden, the base is 0, so that no
// inf - inf makes NaN. `in_bits` scales differences: scaled scores would round with the size of a score.
template <int N, int D>
__device__ inline void add_tile(float (&score)[N][4], float (&out)[D][4], State &state, float in_bits) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float &largest = state.largest[r];
        const float before = largest;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) largest = Max::of(largest, score[n][i]);
        largest = warp_reduce<Max>(largest, 4);
        const float base = largest == -INFINITY ? 0 : largest, correction = exp2_approx((before - base) * in_bits);
        float weights = 0;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++)
                weights += score[n][i] = exp2_approx((score[n][i] - base) * in_bits);
        state.sum[r] = fmaf(state.sum[r], correction, weights);
#pragma unroll
        for (int d = 0; d < D; d++)
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) out[d][i] *= correction;
    }
}

// out += weights * v. The accumulator layout of the scores is the operand layout of the weights, which stay in registers.
template <int N, int D, int DIM, typename T>
__device__ inline void add_values(float (&out)[D][4], const float (&weights)[N][4], const Tile<DIM, T> &values) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        unsigned own[4];
#pragma unroll
        for (int i = 0; i < 4; i++) own[i] = pack<T>(weights[n + i / 2][i % 2 * 2], weights[n + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int d = 0; d < D; d += 2) {
            unsigned some[4];
            ldmatrix<true>(some, values.row(n * 8 + lane % 16) + d * 8 + lane / 16 * 8);
            mma(out[d], own, some[0], some[1], T());
            mma(out[d + 1], own, some[2], some[3], T());
        }
    }
}

// Columns that a cluster's blocks put together at once: ROOM floats have them for all rows, with 8 more for each, so that lanes reach
// different banks.
template <unsigned DIM, unsigned ROOM> struct AtOnce {
    static constexpr unsigned MOST = (ROOM / ROWS - 8) / 8 * 8, PARTS = (DIM + MOST - 1) / MOST;
    static constexpr unsigned COLUMNS = (DIM + 8 * PARTS - 1) / (8 * PARTS) * 8;
};

// Sums of the first `active` blocks of the cluster, through their shared memory `room` of ROOM floats, into the rows that `y_of` gives.
template <typename T, unsigned DIM, unsigned BLOCKS, unsigned ROOM, int D, typename Row>
__device__ inline void join(const float (&out)[D][4], const State &state, float in_bits, unsigned active, unsigned rows,
                            float *room, Row y_of) {
    constexpr unsigned SOME = AtOnce<DIM, ROOM>::COLUMNS, PITCH = SOME + 8;
    __shared__ alignas(16) float stats[ROWS][4];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = lane % 4 * 2;
    // Nobody reads tiles any more.
    __syncthreads();
#pragma unroll
    for (unsigned from = 0; from < DIM; from += SOME) {
        if (from > 0) sync_cluster<BLOCKS>();
        if (blockIdx.z < active) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const unsigned row = warp * OF_WARP + lane / 4 + 8 * r;
                if (from == 0 && lane % 4 == 0) stats[row][0] = state.largest[r], stats[row][1] = state.sum[r];
#pragma unroll
                for (unsigned d = from / 8; d < (from + SOME) / 8 && d < DIM / 8; d++)
                    store<float, 2>(room + row * PITCH + d * 8 - from + column, {out[d][2 * r], out[d][2 * r + 1]});
            }
        }
        sync_cluster<BLOCKS>();
        constexpr unsigned QUADS = SOME / 4;
        for (unsigned i = blockIdx.z * THREADS + threadIdx.x; i < rows * QUADS; i += BLOCKS * THREADS) {
            const unsigned row = i / QUADS, d = i % QUADS * 4;
            if (from + d >= DIM) continue;
            Vec<float, 4> numbers[BLOCKS], parts[BLOCKS], total{};
            float largest = -INFINITY, sum = 0;
#pragma unroll
            for (unsigned b = 0; b < BLOCKS; b++) {
                if (b >= active) continue;
                numbers[b] = load_from_block<BLOCKS>(b, stats[row]);
                parts[b] = load_from_block<BLOCKS>(b, room + row * PITCH + d);
                largest = Max::of(largest, numbers[b].at[0]);
            }
            const float base = largest == -INFINITY ? 0 : largest;
#pragma unroll
            for (unsigned b = 0; b < BLOCKS; b++) {
                if (b >= active) continue;
                const float its = exp2_approx((numbers[b].at[0] - base) * in_bits);
                sum = fmaf(numbers[b].at[1], its, sum);
#pragma unroll
                for (unsigned n = 0; n < 4; n++) total.at[n] = fmaf(parts[b].at[n], its, total.at[n]);
            }
            Vec<T, 4> result;
#pragma unroll
            for (unsigned n = 0; n < 4; n++) result.at[n] = narrow<T>(total.at[n] / sum);
            store<T, 4>(y_of(row) + from + d, result);
        }
    }
    // What others still read stays.
    leave_cluster<BLOCKS>();
}

// With tiles of KEYS places.
template <typename T, unsigned DIM, unsigned KEYS, unsigned BLOCKS>
__device__ inline void causal_attention(Sizes of, const T *q, const T *cache, const unsigned *start,
                                        const unsigned *pages, T *y) {
    constexpr unsigned SLOT = KEYS * Tile<DIM, T>::PITCH;
    constexpr int D = WIDTH<DIM, T> / DEPTH<T>, COLUMNS = WIDTH<DIM, T> / 8;
    // Keys and values take turns in three slots: two are on their way while one is used.
    __shared__ alignas(16) T room[3 * SLOT];
    const unsigned kv_heads = of.heads / of.sharing, rows = of.tokens * of.sharing, item = blockIdx.y;
    // The last tokens see most: they come first.
    const unsigned kv = blockIdx.x % kv_heads, first_row = (gridDim.x - 1 - blockIdx.x) / kv_heads * ROWS;
    const unsigned split = BLOCKS == 1 ? 0 : blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    trigger_dependents();

    // Where rows stand: no kernel before this one writes that.
    const unsigned first_place = min(start[item], of.end);
    auto place_of = [&](unsigned row) { return min(first_place + min(row, rows - 1) / of.sharing, of.end - 1); };
    auto oldest_of = [&](unsigned place) { return of.window && place >= of.window ? place + 1 - of.window : 0; };
    const unsigned begin = oldest_of(place_of(first_row)), end = place_of(first_row + ROWS - 1) + 1;
    const unsigned tiles = (end - begin + KEYS - 1) / KEYS, share = (tiles + BLOCKS - 1) / BLOCKS;
    const unsigned active = (tiles + share - 1) / share, own_first = begin + split * share * KEYS;
    const unsigned own_tiles = split < active ? min(share, tiles - split * share) : 0;
    const Cache<const T> in(cache, pages, item, kv, kv_heads, of.capacity, DIM);
    // The warp's first and last row, and the lane's, whose places beyond the end of the window are hidden.
    const unsigned row_of_warp = first_row + warp * OF_WARP, span = of.window ? of.window : 1u << 31;
    const unsigned first_of_warp = place_of(row_of_warp), last_of_warp = place_of(row_of_warp + OF_WARP - 1);
    const unsigned seen_from = oldest_of(first_of_warp), all_seen_from = oldest_of(last_of_warp);
    auto row_of = [&](auto *base, unsigned row) {
        const unsigned token = row / of.sharing, head = kv * of.sharing + row % of.sharing;
        return base + (((size_t)item * of.tokens + token) * of.heads + head) * DIM;
    };

    wait_for_predecessors();
    if (BLOCKS > 1 && active == 1 && split > 0) return;
    unsigned asked = 0, asked_at = 0;
    auto ask = [&] {
        if (asked < 2 * own_tiles) {
            const Places<T> from = {in.keys + (asked % 2 ? in.to_values : 0), end, DIM, in};
            Tile<DIM, T>{room + asked_at}.template fill<KEYS, THREADS>(from, own_first + asked / 2 * KEYS);
        }
        commit();
        asked++, asked_at = asked_at == 2 * SLOT ? 0 : asked_at + SLOT;
    };
    ask();
    ask();
    const unsigned column = lane % 4 * 2;
    unsigned own[D][4], at[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const unsigned row = min(row_of_warp + lane / 4 + 8 * r, rows - 1);
        at[r] = place_of(row);
        const T *from = row_of(q, row) + column;
#pragma unroll
        for (int d = 0; d < 2 * D; d++) {
            unsigned two = 0;
            if (d * 8 < DIM) two = *reinterpret_cast<const unsigned *>(from + d * 8);
            own[d / 2][d % 2 * 2 + r] = two;
        }
    }

    unsigned taken_at = 0;
    auto take = [&] {
        wait_pending<1>();
        __syncthreads();
        // Into what all warps are done with.
        ask();
        const Tile<DIM, T> tile{room + taken_at};
        taken_at = taken_at == 2 * SLOT ? 0 : taken_at + SLOT;
        return tile;
    };
    const float in_bits = of.scale * LOG2E;
    float out[COLUMNS][4] = {};
    State state;
    for (unsigned tile = 0; tile < own_tiles; tile++) {
        const unsigned place = own_first + tile * KEYS;
        const bool is_seen = row_of_warp < rows && place <= last_of_warp && place + KEYS > seen_from;
        float score[KEYS / 8][4] = {};
        const Tile<DIM, T> of_keys = take();
        if (is_seen) {
            add_scores(score, own, of_keys);
            if (place + KEYS > first_of_warp + 1 || place < all_seen_from) {
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        score[n][i] = at[i / 2] - (place + n * 8 + column + i % 2) < span ? score[n][i] : -INFINITY;
            }
            add_tile(score, out, state, in_bits);
        }
        const Tile<DIM, T> of_values = take();
        if (is_seen) add_values(out, score, of_values);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) state.sum[r] = warp_reduce<Add>(state.sum[r], 4);
    if constexpr (BLOCKS > 1) {
        if (active > 1) {
            auto y_of = [&](unsigned row) { return row_of(y, first_row + row); };
            constexpr unsigned ROOM = sizeof(room) / sizeof(float);
            join<T, DIM, BLOCKS, ROOM>(out, state, in_bits, active, min(ROWS, rows - first_row), reinterpret_cast<float *>(room), y_of);
            return;
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const unsigned row = row_of_warp + lane / 4 + 8 * r;
        const float factor = 1 / state.sum[r];
        if (row >= rows) continue;
        T *to = row_of(y, row) + column;
#pragma unroll
        for (unsigned d = 0; d < DIM / 8; d++)
            store<T, 2>(to + d * 8, {narrow<T>(out[d][2 * r] * factor), narrow<T>(out[d][2 * r + 1] * factor)});
    }
}

// A kernel with tiles of KEYS places, of which a multiprocessor has OF_PROCESSOR blocks.
#define KERNEL(T, NAME, DIM, KEYS, OF_PROCESSOR, BLOCKS)                                                               \
    extern "C" __global__ void CLUSTER(BLOCKS) __launch_bounds__(THREADS, OF_PROCESSOR)                                \
        opara_attention_causal_##NAME(unsigned numel, unsigned tokens, unsigned heads, unsigned sharing,               \
                                      unsigned capacity, unsigned end, unsigned window, float scale, const T *q,       \
                                      const T *cache, const unsigned *start, const unsigned *pages, T *y) {            \
        const Sizes of = {tokens, heads, sharing, capacity, end, window, scale};                                       \
        causal_attention<T, DIM, KEYS, BLOCKS>(of, q, cache, start, pages, y);                                         \
    }
// The second one, with clusters, where there are any.
#if __CUDA_ARCH__ >= 900
#define KERNELS(T, NAME, DIM, KEYS, OF_PROCESSOR)                                                                      \
    KERNEL(T, DIM##_##NAME, DIM, KEYS, OF_PROCESSOR, 1)                                                                \
    KERNEL(T, DIM##_split_##NAME, DIM, KEYS, OF_PROCESSOR, SHARES)
#else
#define KERNELS(T, NAME, DIM, KEYS, OF_PROCESSOR) KERNEL(T, DIM##_##NAME, DIM, KEYS, OF_PROCESSOR, 1)
#endif
#define ATTENTIONS(T, NAME)                                                                                            \
    KERNELS(T, NAME, 32, 64, 4)                                                                                        \
    KERNELS(T, NAME, 40, 64, 4)                                                                                        \
    KERNELS(T, NAME, 64, 64, 4)                                                                                        \
    KERNELS(T, NAME, 80, 64, 3)                                                                                        \
    KERNELS(T, NAME, 96, 64, 3)                                                                                        \
    KERNELS(T, NAME, 128, 48, 3)                                                                                       \
    KERNELS(T, NAME, 160, 32, 2)
