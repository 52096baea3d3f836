// Attention on warpgroups (sm_90a): softmax(q * k^T * scale + bias) * v for each head (Shah et al., "FlashAttention-3", 2024).
// While the tensor cores add the values of one tile of keys, and multiply for other blocks, a warpgroup weighs the scores of the next
// tile.

// For other architectures no kernels are compiled, rather than empty ones.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#include "lines.cuh"
#include "scores.cuh"
#include "tiles.cuh"

// A limit of scores: none, a bias that may hide keys, or the range of keys that each query sees.
enum class Limit { NONE, BIAS, RANGES };

// Keys of a tile. Twice as many halve how often a warpgroup waits and corrects its sums, where there are registers for their scores; a bias
// is known to hide, or to add nothing, for 64 at a time.
template <int DIM, Limit LIMIT> constexpr unsigned KEYS_OF_TILE = DIM <= 64 && LIMIT != Limit::BIAS ? 128 : 64;

// The tiles of keys that a block goes through.
struct Visible {
    unsigned short at[TILES_KEPT];
    // Whether the bias adds something there.
    bool adds[TILES_KEPT];
    unsigned count;

    // Finds the tiles of keys that a bias does not hide from all `rows` tiles of queries, from `first` on. `kinds` has rows of `tiles`.
    __device__ void find(const unsigned char *kinds, unsigned first, unsigned rows, unsigned tiles) {
        if (threadIdx.x < 32) {
            unsigned found = 0;
            for (unsigned from = 0; from < tiles; from += 32) {
                const unsigned tile = from + threadIdx.x;
                bool is_hidden = true, is_nothing = true;
                for (unsigned row = first; row < first + rows && tile < tiles; row++) {
                    const unsigned char kind = kinds[(size_t)row * tiles + tile];
                    is_hidden &= kind == TILE_IS_HIDDEN, is_nothing &= kind == TILE_IS_NOTHING;
                }
                const unsigned seen = __ballot_sync(~0u, !is_hidden);
                if (!is_hidden) {
                    const unsigned place = found + __popc(seen & ((1u << threadIdx.x) - 1));
                    at[place] = tile, adds[place] = !is_nothing;
                }
                found += __popc(seen);
            }
            // Queries that see nothing have no weights, which the first tile shows.
            if (threadIdx.x == 0) {
                if (found == 0) at[0] = 0, adds[0] = true;
                count = max(found, 1u);
            }
        }
        __syncthreads();
    }
};

// Returns a bit mask of this lane's two queries that must be recomputed without tensor cores: a hidden score is infinite or NaN, or a
// sum of values overflows before it is divided by the sum of the weights. A block has GROUPS warpgroups of 64 queries.
// `kinds` has the effect of the bias on tiles, or is null.
template <int DIM, int GROUPS, Limit LIMIT, typename T>
__device__ inline unsigned attention(const unsigned char *kinds, const uint2 *ranges, float scale, Tokens<T> q, Tokens<T> k, Tokens<T> v,
                                     const T *bias, unsigned bias_pitch, T *y, unsigned y_pitch) {
    constexpr unsigned KEYS = KEYS_OF_TILE<DIM, LIMIT>, THREADS = 128 * GROUPS, QUERIES = 64 * GROUPS;
    constexpr int OPERANDS = (DIM + DEPTH<T> - 1) / DEPTH<T>, COLUMNS = DIM / 8;
    using Tile = Lines<DIM, KEYS, T>;
    extern __shared__ __align__(BASE) uint4 dynamic[];
    T *const room = reinterpret_cast<T *>(dynamic);
    auto keys = [&](unsigned tile) { return Tile{room + tile % 2 * Tile::SIZE}; };
    auto values = [&](unsigned tile) { return Tile{room + (2 + tile % 2) * Tile::SIZE}; };
    // The queries, and later the results in their place.
    const Lines<DIM, QUERIES, T> queries{room + 4 * Tile::SIZE};
    const unsigned lane = threadIdx.x % 32, group = threadIdx.x / 128;
    const unsigned first = first_query(), column = lane % 4 * 2;

    queries.template fill<THREADS>(q, blockIdx.x * QUERIES);
    __shared__ Visible visible;
    bool is_known = false;
    Seen seen{};
    if constexpr (LIMIT == Limit::RANGES) seen.template find<QUERIES>(ranges, q.count, k.count);
    if constexpr (LIMIT == Limit::BIAS) {
        const unsigned all = (k.count + KEYS - 1) / KEYS;
        is_known = kinds && all <= TILES_KEPT;
        const unsigned of_queries = (q.count + 63) / 64, begin = blockIdx.x * GROUPS;
        if (is_known) visible.find(kinds, begin, min(of_queries - begin, (unsigned)GROUPS), all);
    }
    // Tiles are those that are seen, one after the other.
    const unsigned begin = LIMIT == Limit::RANGES ? seen.of_block.x : 0, end = LIMIT == Limit::RANGES ? seen.of_block.y : k.count;
    const unsigned tiles = is_known ? visible.count : (end - begin + KEYS - 1) / KEYS;
    auto key_of = [&](unsigned tile) { return begin + (is_known ? visible.at[tile] : tile) * KEYS; };
    keys(0).template fill<THREADS>(k, key_of(0));
    commit();
    values(0).template fill<THREADS>(v, key_of(0));
    if (tiles > 1) keys(1).template fill<THREADS>(k, key_of(1));
    commit();

    Bias<T> added;
    added.keys = k.count;
    added.in_pairs = bias_pitch % 2 == 0 && (size_t)bias % (2 * sizeof(T)) == 0 && k.count % 2 == 0;
#pragma unroll
    for (int r = 0; r < 2; r++) added.row[r] = bias + (size_t)min(first + 8 * r, q.count - 1) * bias_pitch;

    // The difference of two scores times `in_bits` is the exponent of 2. Their products with it would round with the size of a score.
    const float in_bits = scale * LOG2E, unit = 1 / scale, most = 3e38f / fmaxf(in_bits, 1);
    float score[KEYS / 8][4], out[COLUMNS][4], largest[2] = {-INFINITY, -INFINITY}, sum[2] = {}, correction[2];
    unsigned weights[KEYS / 16][4];
    auto multiply_keys = [&](unsigned tile) {
        bool adds = false;
        if constexpr (LIMIT == Limit::BIAS) {
            adds = !is_known || visible.adds[tile];
            if (adds) added.init(score, key_of(tile) + column, unit, most);
        }
        wgmma_fence();
#pragma unroll
        for (int d = 0; d < OPERANDS; d++)
            wgmma(score, queries.part(d / 4) + group * 8 * EIGHT_ROWS + d % 4 * ONE_OPERAND,
                  keys(tile).part(d / 4) + d % 4 * ONE_OPERAND, d > 0 || adds, T());
        wgmma_commit();
    };
    auto multiply_values = [&](unsigned tile) {
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++)
#pragma unroll
            for (int d = 0; d < COLUMNS; d += 8) {
                constexpr int REST = COLUMNS % 8;
                const unsigned long long some = values(tile).part(d / 8) + n * 2 * EIGHT_ROWS;
                const bool adds = tile > 0 || n > 0;
                if constexpr (REST > 0) {
                    if (d + 8 > COLUMNS) {
                        wgmma<true>(reinterpret_cast<float(&)[REST][4]>(out[d]), weights[n], some, adds, T());
                        continue;
                    }
                }
                if constexpr (COLUMNS >= 8) wgmma<true>(reinterpret_cast<float(&)[8][4]>(out[d]), weights[n], some, adds, T());
            }
        wgmma_commit();
    };
    // Scores become weights.
    auto weigh = [&](unsigned tile) {
        if (LIMIT == Limit::RANGES || key_of(tile) + KEYS > k.count) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const unsigned key = key_of(tile) + n * 8 + column + i % 2;
                    const bool is_seen = LIMIT == Limit::RANGES ? seen.of[i / 2].x <= key && key < seen.of[i / 2].y : key < k.count;
                    score[n][i] = is_seen ? score[n][i] : -INFINITY;
                }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float before = largest[r];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) largest[r] = fmaxf(largest[r], fmaxf(score[n][2 * r], score[n][2 * r + 1]));
            largest[r] = warp_reduce<Max>(largest[r], 4);
            // If all scores of a row so far are masked, the base is 0, so that no inf - inf makes NaN.
            const float base = largest[r] == -INFINITY ? 0 : largest[r];
            correction[r] = exp2_approx((before - base) * in_bits);
            float some = 0;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 2 * r; i < 2 * r + 2; i++) some += score[n][i] = exp2_approx((score[n][i] - base) * in_bits);
            sum[r] = fmaf(sum[r], correction[r], some);
        }
    };
    auto round_weights = [&] {
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                weights[n][i] = pack<T>(score[2 * n + i / 2][i % 2 * 2], score[2 * n + i / 2][i % 2 * 2 + 1]);
    };
    // All threads' copies are there, and all warpgroups are done with the tiles before.
    auto meet = [&] {
        fence_shared_writes();
        __syncthreads();
    };

    wait_pending<1>();
    meet();
    multiply_keys(0);
    wgmma_wait(score);
    weigh(0);
    round_weights();
#pragma unroll 1
    for (unsigned tile = 0; tile + 1 < tiles; tile++) {
        wait_pending<0>();
        meet();
        values(tile + 1).template fill<THREADS>(v, key_of(tile + 1));
        if (tile + 2 < tiles) keys(tile + 2).template fill<THREADS>(k, key_of(tile + 2));
        commit();
        multiply_keys(tile + 1);
        multiply_values(tile);
        wgmma_wait<1>(score);
        weigh(tile + 1);
        wgmma_wait(out);
#pragma unroll
        for (int d = 0; d < COLUMNS; d++)
#pragma unroll
            for (int i = 0; i < 4; i++) out[d][i] *= correction[i / 2];
        round_weights();
    }
    wait_pending<0>();
    meet();
    wgmma_fence();
    multiply_values(tiles - 1);
    wgmma_wait(out);

    // Transpose through shared memory, so that global stores are 16-byte vectors. No warpgroup reads the queries any more.
    const unsigned row = threadIdx.x / 32 * ROWS;
    unsigned wrong = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float all = warp_reduce<Add>(sum[r], 4), factor = 1 / all;
        bool is_right = all == all;
#pragma unroll
        for (int d = 0; d < COLUMNS; d++) {
            is_right &= fabsf(out[d][2 * r]) < SPLIT_SUM && fabsf(out[d][2 * r + 1]) < SPLIT_SUM;
            store<T, 2>(queries.chunk(row + lane / 4 + 8 * r, d) + column,
                        {narrow<T>(out[d][2 * r] * factor), narrow<T>(out[d][2 * r + 1] * factor)});
        }
        wrong |= is_right ? 0 : 1u << r;
    }
    __syncwarp();
#pragma unroll
    for (unsigned i = lane; i < ROWS * COLUMNS; i += 32) {
        const unsigned of_block = row + i / COLUMNS, query = blockIdx.x * QUERIES + of_block, at = i % COLUMNS * WIDE<T>;
        if (query < q.count && at < v.size)
            store<T, WIDE<T>>(y + (size_t)query * y_pitch + at, load<T, WIDE<T>>(queries.chunk(of_block, i % COLUMNS)));
    }
    return wrong;
}

// The blocks of a multiprocessor that have room for their tiles.
#define BLOCKS(DIM, LIMIT) (DIM > 128 ? 1 : DIM > 64 ? 2 : Limit::LIMIT == Limit::BIAS ? 4 : 3)

// For rows of DIM elements at most: queries and keys have `of_keys`, values `of_values`.
#define ATTENTION(DIM, GROUPS, LIMIT, T, NAME)                                                                         \
    extern "C" __global__ void __launch_bounds__(128 * GROUPS, BLOCKS(DIM, LIMIT))                                     \
        opara_attention_warpgroups_##NAME(                                                                             \
        size_t numel, unsigned queries, unsigned keys, unsigned heads, unsigned sharing, unsigned of_keys,             \
        unsigned of_values, unsigned y_pitch, float scale, STRIDES(q), STRIDES(k), STRIDES(v), STRIDES(b),             \
        const T *q, const T *k, const T *v, const T *b, T *y, unsigned does, unsigned t_batch, unsigned t_head,        \
        const unsigned char *tiles) {                                                                                  \
        const unsigned char *const kinds = tiles ? tiles + blockIdx.z * t_batch + blockIdx.y * t_head : nullptr;       \
        const unsigned wrong = attention<DIM, GROUPS, Limit::LIMIT, T>(kinds, nullptr, scale, OF_HEAD);                \
        if (__any_sync(~0u, wrong)) recompute_queries<DIM, T, T>(wrong, SEES_ALL, scale, OF_HEAD, does, 0);            \
    }
#define RANGED(DIM, GROUPS, T, NAME)                                                                                   \
    extern "C" __global__ void __launch_bounds__(128 * GROUPS, BLOCKS(DIM, RANGES))                                    \
        opara_attention_warpgroups_ranged_##NAME(RANGED_ARGUMENTS(T)) {                                                \
        OF_RANGES(T);                                                                                                  \
        const unsigned wrong = attention<DIM, GROUPS, Limit::RANGES, T>(nullptr, ranges, scale, OF_HEAD);              \
        if (__any_sync(~0u, wrong)) recompute_queries<DIM, T, T>(wrong, SEES_RANGE, scale, OF_HEAD, 0, 0);             \
    }
#define ATTENTIONS(DIM, GROUPS)                                                                                        \
    ATTENTION(DIM, GROUPS, NONE, __half, DIM##_f16)                                                                    \
    ATTENTION(DIM, GROUPS, NONE, __nv_bfloat16, DIM##_bf16)                                                            \
    ATTENTION(DIM, GROUPS, BIAS, __half, biased_##DIM##_f16)                                                           \
    ATTENTION(DIM, GROUPS, BIAS, __nv_bfloat16, biased_##DIM##_bf16)                                                   \
    RANGED(DIM, GROUPS, __half, DIM##_f16)                                                                             \
    RANGED(DIM, GROUPS, __nv_bfloat16, DIM##_bf16)

// Several blocks hide each other's waits better than several warpgroups of one. Of 160 numbers, there is room for one block.
ATTENTIONS(32, 1)
ATTENTIONS(40, 1)
ATTENTIONS(64, 1)
ATTENTIONS(80, 1)
ATTENTIONS(96, 1)
ATTENTIONS(128, 1)
ATTENTIONS(160, 2)

#endif
