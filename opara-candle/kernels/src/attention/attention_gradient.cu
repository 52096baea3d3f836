// Gradients of attention on warpgroups (sm_90a; Dao, "FlashAttention-2", 2023, Alg. 2). Weights are computed again from products of queries and
// keys, and never stored. There are two kernels, so that each sum has one owner and a fixed order: a block of the first one has 64 queries
// and goes through the keys, a block of the second one has 64 keys and goes through the queries. Where four heads of queries share keys, four
// blocks do, which are a cluster and add in its order. The first one also leaves what the
// weights of a query follow from: the logarithm of the sum of its exponentials, and the sum of its result times the result's gradient.
//
// Of a bias it is known beforehand which tiles of scores it hides, and to which it adds nothing: a kernel of its own has looked.

#include "rows.cuh"
#include "tiles.cuh"

// Threads of a block, which are one warpgroup, and rows of its tiles.
constexpr unsigned THREADS = 128, SIDE = 64;

// Says of each tile of a bias what it does.
template <typename B>
__device__ inline void look(const B *bias, unsigned pitch, unsigned queries, unsigned keys, unsigned char *tiles) {
    bool is_nothing = true, is_hidden = true;
    for (unsigned i = threadIdx.x; i < SIDE * SIDE; i += THREADS) {
        const unsigned query = blockIdx.y * SIDE + i / SIDE, key = blockIdx.x * SIDE + i % SIDE;
        if (query >= queries || key >= keys) continue;
        const float own = widen(bias[(size_t)query * pitch + key]);
        is_nothing &= own == 0;
        is_hidden &= own == -INFINITY;
    }
    is_nothing = __syncthreads_and(is_nothing);
    is_hidden = __syncthreads_and(is_hidden);
    if (threadIdx.x == 0) tiles[blockIdx.y * gridDim.x + blockIdx.x] = is_hidden ? TILE_IS_HIDDEN : is_nothing ? TILE_IS_NOTHING : TILE_ADDS;
}

// Looks at a bias of `heads` heads, and of as many items as the grid says.
#define TILES(B, NAME)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS) opara_attention_gradient_tiles_##NAME(                       \
        size_t numel, unsigned queries, unsigned keys, unsigned heads, unsigned b_batch, unsigned b_head,              \
        unsigned b_token, const B *b, unsigned char *tiles) {                                                          \
        const size_t head = blockIdx.z % heads, item = blockIdx.z / heads;                                             \
        look(b + item * b_batch + head * b_head, b_token, queries, keys, tiles + blockIdx.z * gridDim.y * gridDim.x);  \
    }
TILES(__half, f16)
TILES(__nv_bfloat16, bf16)
TILES(float, f32)

// For other architectures no further kernels are compiled, rather than empty ones.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#include "cluster.cuh"
#include "lines.cuh"
#include "scores.cuh"

template <int DIM, typename T> using Side = Lines<DIM, SIDE, T>;

// Scores and the gradients of their weights: 64 rows by 64 columns.
using Square = float[SIDE / 8][4];

// c = a * b^T, or c += a * b^T if `adds`, for rows of DIM elements at most.
template <int DIM, typename T> __device__ inline void multiply(Square &c, Side<DIM, T> a, Side<DIM, T> b, bool adds) {
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < (DIM + DEPTH<T> - 1) / DEPTH<T>; d++)
        wgmma(c, a.part(d / 4) + d % 4 * ONE_OPERAND, b.part(d / 4) + d % 4 * ONE_OPERAND, adds || d > 0, T());
    wgmma_commit();
}

// A square as operands.
using Operands = unsigned[SIDE / 16][4];
template <typename T> __device__ inline void to_operands(Operands &to, const Square &from) {
#pragma unroll
    for (int n = 0; n < SIDE / 16; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[n][i] = pack<T>(from[2 * n + i / 2][i % 2 * 2], from[2 * n + i / 2][i % 2 * 2 + 1]);
}

// c += a * b.
template <int DIM, int COLUMNS, typename T>
__device__ inline void add_product(float (&c)[COLUMNS][4], const Operands &a, Side<DIM, T> b) {
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < SIDE / 16; n++)
#pragma unroll
        for (int d = 0; d < COLUMNS; d += 8) {
            constexpr int REST = COLUMNS % 8;
            const unsigned long long some = b.part(d / 8) + n * 2 * EIGHT_ROWS;
            if constexpr (REST > 0) {
                if (d + 8 > COLUMNS) {
                    wgmma<true>(reinterpret_cast<float(&)[REST][4]>(c[d]), a[n], some, true, T());
                    continue;
                }
            }
            if constexpr (COLUMNS >= 8) wgmma<true>(reinterpret_cast<float(&)[8][4]>(c[d]), a[n], some, true, T());
        }
    wgmma_commit();
}

// The bias of one head.
template <typename B> struct HeadBias {
    const B *at;
    // What it does to each tile, queries by keys.
    const unsigned char *tiles;
    unsigned pitch, queries, keys;

    // Scores begin with it, divided by their scale.
    template <bool ARE_ROWS_KEYS> __device__ void init(Square &score, unsigned row, unsigned column, float unit, float most) const {
#pragma unroll
        for (int n = 0; n < SIDE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const unsigned r = row + i / 2 * 8, c = column + n * 8 + i % 2;
                const unsigned query = min(ARE_ROWS_KEYS ? c : r, queries - 1), key = min(ARE_ROWS_KEYS ? r : c, keys - 1);
                score[n][i] = Bias<B>::scaled(at[(size_t)query * pitch + key], unit, most);
            }
    }
};

// What a block knows beside its head.
struct Scale {
    // Of scores, and so that differences of scores are exponents of 2.
    float own, in_bits, unit, most;

    __device__ explicit Scale(float scale)
        : own(scale), in_bits(scale * LOG2E), unit(1 / scale), most(3e38f / fmaxf(scale * LOG2E, 1)) {}
};

// All threads' copies are there, and all are done with what was read before.
__device__ inline void meet() {
    wait_pending<0>();
    fence_shared_writes();
    __syncthreads();
}

// Floats of a row of sums in shared memory, whose threads find different banks.
template <int COLUMNS> constexpr unsigned ROOM = COLUMNS * 8 + 8;

// Keeps a warpgroup's rows for its cluster.
template <int COLUMNS> __device__ inline void keep(const float (&from)[COLUMNS][4], float *to) {
    const unsigned row = threadIdx.x / 32 * ROWS + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int d = 0; d < COLUMNS; d++)
            store<float, 2>(to + (row + 8 * r) * ROOM<COLUMNS> + d * 8 + column, {from[d][2 * r], from[d][2 * r + 1]});
}

// Writes a warpgroup's rows of `pitch` elements; a row has `size`.
template <int COLUMNS, typename T>
__device__ inline void write(const float (&from)[COLUMNS][4], float factor, T *to, unsigned first, unsigned rows, size_t pitch, unsigned size) {
    const unsigned row = first + threadIdx.x / 32 * ROWS + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + 8 * r >= rows) continue;
#pragma unroll
        for (int d = 0; d < COLUMNS; d++)
            if (d * 8 < size)
                store<T, 2>(to + (row + 8 * r) * pitch + d * 8 + column,
                            {narrow<T>(from[d][2 * r] * factor), narrow<T>(from[d][2 * r + 1] * factor)});
    }
}

// The gradients of 64 queries. `sums` and `products` get what the second kernel reads of each query.
template <int DIM, bool HAS_BIAS, typename T, typename B>
__device__ inline void of_queries(Scale scale, Tokens<T> q, Tokens<T> k, Tokens<T> v, Tokens<T> y, Tokens<T> g, HeadBias<B> bias,
                                  float *sums, float *products, T *to, size_t pitch) {
    extern __shared__ __align__(BASE) uint4 dynamic[];
    __shared__ float room[SIDE];
    T *const tiles = reinterpret_cast<T *>(dynamic);
    auto tile = [&](unsigned at) { return Side<DIM, T>{tiles + at * Side<DIM, T>::SIZE}; };
    const Side<DIM, T> queries = tile(0), gradients = tile(1);
    const unsigned lane = threadIdx.x % 32, count = (k.count + SIDE - 1) / SIDE, start = blockIdx.x * SIDE;
    const unsigned first = first_query(), column = lane % 4 * 2, of_block = first - start;

    __shared__ unsigned char kept[TILES_KEPT];
    if constexpr (HAS_BIAS) {
        for (unsigned at = threadIdx.x; at < min(count, TILES_KEPT); at += THREADS) kept[at] = bias.tiles[blockIdx.x * count + at];
        __syncthreads();
    }
    auto does = [&](unsigned at) { return !HAS_BIAS ? TILE_IS_NOTHING : at < TILES_KEPT ? kept[at] : TILE_ADDS; };
    // The keys twice: first for the sums of weights, then for the gradients, with the values.
    auto next = [&](unsigned at) {
        while (at < 2 * count && does(at % count) == TILE_IS_HIDDEN) at++;
        return at;
    };
    unsigned slot = 0;
    auto ask = [&](unsigned at, unsigned slot) {
        if (at < 2 * count) {
            tile(2 + slot).template fill<THREADS>(k, at % count * SIDE);
            if (at >= count) tile(4 + slot).template fill<THREADS>(v, at % count * SIDE);
        }
        commit();
    };
    unsigned at = next(0);
    queries.template fill<THREADS>(q, start);
    gradients.template fill<THREADS>(g, start);
    ask(at, 0);
    {
        // Two threads for each row.
        const unsigned row = min(start + threadIdx.x / 2, q.count - 1);
        const T *const of_y = y.at + (size_t)row * y.pitch, *const of_g = g.at + (size_t)row * g.pitch;
        float product = 0;
        for (unsigned d = threadIdx.x % 2 * WIDE<T>; d < v.size; d += 2 * WIDE<T>) {
            const auto a = load<T, WIDE<T>>(of_y + d), b = load<T, WIDE<T>>(of_g + d);
#pragma unroll
            for (int n = 0; n < WIDE<T>; n++) product = fmaf(widen(a.at[n]), widen(b.at[n]), product);
        }
        product += __shfl_xor_sync(~0u, product, 1);
        if (threadIdx.x % 2 == 0) room[threadIdx.x / 2] = product;
    }
    Square score;
    // Products of the queries with a tile of keys, and the bias.
    auto begin = [&](unsigned at) {
        const bool adds = does(at) == TILE_ADDS;
        if constexpr (HAS_BIAS) {
            if (adds) bias.template init<false>(score, first, at * SIDE + column, scale.unit, scale.most);
        }
        multiply<DIM, T>(score, queries, tile(2 + slot), adds);
    };
    auto end = [&](unsigned at) {
        if ((at + 1) * SIDE <= k.count) return;
#pragma unroll
        for (int n = 0; n < SIDE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                score[n][i] = at * SIDE + n * 8 + column + i % 2 < k.count ? score[n][i] : -INFINITY;
    };
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    // Are there keys left in this part? All copies are there then, and the next ones on their way.
    unsigned after = 0;
    auto takes = [&](unsigned before) {
        if (at >= before) return false;
        meet();
        after = next(at + 1);
        ask(after, slot ^ 1);
        return true;
    };
    auto go_on = [&] { at = after, slot ^= 1; };
#pragma unroll 1
    for (; takes(count); go_on()) {
        begin(at);
        wgmma_wait(score);
        end(at);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float before = largest[r];
#pragma unroll
            for (int n = 0; n < SIDE / 8; n++) largest[r] = fmaxf(largest[r], fmaxf(score[n][2 * r], score[n][2 * r + 1]));
            const float base = largest[r] == -INFINITY ? 0 : largest[r];
            float some = 0;
#pragma unroll
            for (int n = 0; n < SIDE / 8; n++)
#pragma unroll
                for (int i = 2 * r; i < 2 * r + 2; i++) some += exp2_approx((score[n][i] - base) * scale.in_bits);
            sum[r] = fmaf(sum[r], exp2_approx((before - base) * scale.in_bits), some);
        }
    }
    float log_sum[2], product[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float most = warp_reduce<Max>(largest[r], 4), base = most == -INFINITY ? 0 : most;
        const float all = warp_reduce<Add>(sum[r] * exp2_approx((largest[r] - base) * scale.in_bits), 4);
        // A query that sees no key has no weights.
        log_sum[r] = all > 0 ? fmaf(base, scale.in_bits, log2f(all)) : INFINITY;
        product[r] = room[of_block + 8 * r];
        if (lane % 4 == 0 && first + 8 * r < q.count) sums[first + 8 * r] = log_sum[r], products[first + 8 * r] = product[r];
    }

    constexpr int COLUMNS = DIM / 8;
    float out[COLUMNS][4] = {};
#pragma unroll 1
    for (; takes(2 * count); go_on()) {
        Square of_weights;
        begin(at - count);
        multiply<DIM, T>(of_weights, gradients, tile(4 + slot), false);
        wgmma_wait<1>(score);
        end(at - count);
#pragma unroll
        for (int n = 0; n < SIDE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) score[n][i] = exp2_approx(fmaf(score[n][i], scale.in_bits, -log_sum[i / 2]));
        wgmma_wait(of_weights);
#pragma unroll
        for (int n = 0; n < SIDE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) score[n][i] *= of_weights[n][i] - product[i / 2];
        Operands of_scores;
        to_operands<T>(of_scores, score);
        add_product<DIM, COLUMNS, T>(out, of_scores, tile(2 + slot));
        wgmma_wait(out);
    }
    write(out, scale.own, to, start, q.count, pitch, q.size);
}

// Writes the sums of rows that the blocks of a cluster keep, in the order of the blocks. A block writes some of the rows.
template <unsigned SHARES, int COLUMNS, typename T>
__device__ inline void write_sums(const float *sums, float factor, T *to, unsigned first, unsigned rows, size_t pitch, unsigned size) {
    constexpr unsigned OF_BLOCK = SIDE / SHARES, VECTORS = COLUMNS * 2;
    for (unsigned i = threadIdx.x; i < OF_BLOCK * VECTORS; i += THREADS) {
        const unsigned row = blockIdx.y % SHARES * OF_BLOCK + i / VECTORS, column = i % VECTORS * 4;
        // Threads skip such rows before they load: a thread stores each number that it loads, and so waits for it, before it leaves the cluster.
        if (first + row >= rows || column >= size) continue;
        Vec<float, 4> sum{};
#pragma unroll
        for (unsigned block = 0; block < SHARES; block++) {
            const auto own = load_from_block<SHARES>(block, sums + row * ROOM<COLUMNS> + column);
#pragma unroll
            for (int n = 0; n < 4; n++) sum.at[n] += own.at[n];
        }
        Vec<T, 4> y;
#pragma unroll
        for (int n = 0; n < 4; n++) y.at[n] = narrow<T>(sum.at[n] * factor);
        store<T, 4>(to + (first + row) * pitch + column, y);
    }
}

// The gradients of 64 keys and values, of which `sharing` heads of queries have the same. The SHARES blocks of a cluster have some of these
// heads each. Of head h, a query's numbers are `heads` further on, and everything else where the strides say.
template <int DIM, unsigned SHARES, bool HAS_BIAS, typename T, typename B, typename Head>
__device__ inline void of_keys(Scale scale, unsigned sharing, Tokens<T> k, Tokens<T> v, Head head, T *of_k, T *of_v, size_t pitch_k,
                               size_t pitch_v) {
    extern __shared__ __align__(BASE) uint4 dynamic[];
    __shared__ alignas(16) float room[2][2][SIDE];
    T *const tiles = reinterpret_cast<T *>(dynamic);
    auto tile = [&](unsigned at) { return Side<DIM, T>{tiles + at * Side<DIM, T>::SIZE}; };
    const Side<DIM, T> keys = tile(0), values = tile(1);
    const unsigned lane = threadIdx.x % 32, start = blockIdx.x * SIDE, key = first_query(), column = lane % 4 * 2;
    const unsigned queries = head(0).q.count, count = (queries + SIDE - 1) / SIDE, all = sharing / SHARES * count;

    __shared__ unsigned char kept[TILES_KEPT];
    if constexpr (HAS_BIAS) {
        for (unsigned at = threadIdx.x; at < min(all, TILES_KEPT); at += THREADS)
            kept[at] = head(at / count).bias.tiles[at % count * gridDim.x + blockIdx.x];
        __syncthreads();
    }
    auto does = [&](unsigned at) { return !HAS_BIAS ? TILE_IS_NOTHING : at < TILES_KEPT ? kept[at] : TILE_ADDS; };
    auto next = [&](unsigned at) {
        while (at < all && does(at) == TILE_IS_HIDDEN) at++;
        return at;
    };
    auto ask = [&](unsigned at, unsigned slot) {
        if (at < all) {
            const auto of = head(at / count);
            const unsigned from = at % count * SIDE, query = from + threadIdx.x % SIDE;
            tile(2 + slot).template fill<THREADS>(of.q, from);
            tile(4 + slot).template fill<THREADS>(of.g, from);
            const float *const number = threadIdx.x < SIDE ? of.sums : of.products;
            copy_async<4>(&room[slot][threadIdx.x / SIDE][threadIdx.x % SIDE], number + (query < queries ? query : 0), query < queries);
        }
        commit();
    };
    unsigned at = next(0), slot = 0;
    keys.template fill<THREADS>(k, start);
    values.template fill<THREADS>(v, start);
    ask(at, slot);

    constexpr int COLUMNS = DIM / 8;
    float to_k[COLUMNS][4] = {}, to_v[COLUMNS][4] = {};
#pragma unroll 1
    while (at < all) {
        meet();
        const unsigned after = next(at + 1);
        ask(after, slot ^ 1);
        Square score, of_weights;
        const bool adds = does(at) == TILE_ADDS;
        if constexpr (HAS_BIAS) {
            if (adds) head(at / count).bias.template init<true>(score, key, at % count * SIDE + column, scale.unit, scale.most);
        }
        const Side<DIM, T> of_q = tile(2 + slot), of_g = tile(4 + slot);
        multiply<DIM, T>(score, keys, of_q, adds);
        multiply<DIM, T>(of_weights, values, of_g, false);
        wgmma_wait<1>(score);
        const float *const sums = room[slot][0] + column, *const products = room[slot][1] + column;
        const unsigned left = queries - at % count * SIDE;
#pragma unroll
        for (int n = 0; n < SIDE / 8; n++) {
            const auto two = load<float, 2>(sums + n * 8);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float weight = exp2_approx(fmaf(score[n][i], scale.in_bits, -two.at[i % 2]));
                score[n][i] = n * 8 + column + i % 2 < left ? weight : 0;
            }
        }
        Operands weights, of_scores;
        to_operands<T>(weights, score);
        wgmma_wait(of_weights);
        add_product<DIM, COLUMNS, T>(to_v, weights, of_g);
#pragma unroll
        for (int n = 0; n < SIDE / 8; n++) {
            const auto two = load<float, 2>(products + n * 8);
#pragma unroll
            for (int i = 0; i < 4; i++) score[n][i] *= of_weights[n][i] - two.at[i % 2];
        }
        to_operands<T>(of_scores, score);
        add_product<DIM, COLUMNS, T>(to_k, of_scores, of_q);
        wgmma_wait<1>(to_v);
        wgmma_wait(to_k);
        at = after, slot ^= 1;
    }
    if constexpr (SHARES == 1) {
        write(to_k, scale.own, of_k, start, k.count, pitch_k, k.size);
        write(to_v, 1.f, of_v, start, v.count, pitch_v, v.size);
    } else {
        // Where the tiles were.
        float *const sums = reinterpret_cast<float *>(dynamic), *const of_values = sums + SIDE * ROOM<COLUMNS>;
        static_assert(2 * SIDE * ROOM<COLUMNS> * sizeof(float) <= 6 * Side<DIM, T>::SIZE * sizeof(T));
        wait_pending<0>();
        __syncthreads();
        keep(to_k, sums), keep(to_v, of_values);
        sync_cluster<SHARES>();
        write_sums<SHARES, COLUMNS>(sums, scale.own, of_k, start, k.count, pitch_k, k.size);
        write_sums<SHARES, COLUMNS>(of_values, 1.f, of_v, start, v.count, pitch_v, v.size);
        leave_cluster<SHARES>();
    }
}

// One head of queries, for a block of keys.
template <typename T, typename B> struct Queries {
    Tokens<T> q, g;
    const float *sums, *products;
    HeadBias<B> bias;
};

// For rows of DIM elements at most: queries and keys have `of_keys`, values `of_values`. Of a query `of_rows` has the logarithm of its sum, and
// behind those of all queries its product. y, g and the gradients lie as (batch, tokens, heads, elements).
#define OF_ONE(X, HEAD) X + (size_t)blockIdx.z * X##_batch + (size_t)(HEAD)*X##_head
#define GRADIENTS(DIM, HAS_BIAS, T, B, NAME)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, DIM > 64 ? 2 : 3) opara_attention_gradient_queries_##NAME(   \
        size_t numel, size_t rows, unsigned queries, unsigned keys, unsigned heads, unsigned sharing,                  \
        unsigned of_keys, unsigned of_values, float scale, STRIDES(q), STRIDES(k), STRIDES(v), STRIDES(b), STRIDES(y), \
        STRIDES(g), unsigned t_batch, unsigned t_head, const T *q, const T *k, const T *v, const B *b,                 \
        const unsigned char *t, const T *y, const T *g, float *of_rows, T *of_q) {                                     \
        const size_t head = (size_t)blockIdx.z * heads + blockIdx.y, pitch = (size_t)heads * of_keys;                  \
        ::of_queries<DIM, HAS_BIAS, T, B>(                                                                             \
            Scale(scale), {OF_ONE(q, blockIdx.y), queries, q_token, of_keys},                                          \
            {OF_ONE(k, blockIdx.y / sharing), keys, k_token, of_keys},                                                 \
            {OF_ONE(v, blockIdx.y / sharing), keys, v_token, of_values}, {OF_ONE(y, blockIdx.y), queries, y_token, of_values}, \
            {OF_ONE(g, blockIdx.y), queries, g_token, of_values}, {OF_ONE(b, blockIdx.y), OF_ONE(t, blockIdx.y), b_token, queries, keys}, \
            of_rows + head * queries, of_rows + rows + head * queries,                                                 \
            of_q + ((size_t)blockIdx.z * queries * heads + blockIdx.y) * of_keys, pitch);                              \
    }                                                                                                                  \
    GRADIENTS_OF_KEYS(DIM, 1, HAS_BIAS, T, B, NAME)                                                                    \
    GRADIENTS_OF_KEYS(DIM, HEADS_OF_CLUSTER, HAS_BIAS, T, B, clusters_##NAME)

// Blocks of a cluster, each with other heads of queries, where keys have as many heads of queries or a multiple.
#define HEADS_OF_CLUSTER 4
#define GRADIENTS_OF_KEYS(DIM, SHARES, HAS_BIAS, T, B, NAME)                                                           \
    extern "C" __global__ void __cluster_dims__(1, SHARES, 1) __launch_bounds__(THREADS, DIM > 64 || HAS_BIAS ? 2 : 3)        \
        opara_attention_gradient_keys_##NAME(                                                                          \
        size_t numel_k, size_t numel_v, size_t rows, unsigned queries, unsigned keys, unsigned heads, unsigned sharing, \
        unsigned of_keys, unsigned of_values, float scale, STRIDES(q), STRIDES(k), STRIDES(v), STRIDES(b), STRIDES(g), \
        unsigned t_batch, unsigned t_head, const T *q, const T *k, const T *v, const B *b, const unsigned char *t,     \
        const T *g, const float *of_rows, T *of_k, T *of_v) {                                                          \
        const unsigned kv_heads = heads / sharing, kv_head = blockIdx.y / SHARES;                                      \
        const size_t row = (size_t)blockIdx.z * keys * kv_heads + kv_head;                                             \
        auto head = [&](unsigned at) {                                                                                 \
            const unsigned own = blockIdx.y * (sharing / SHARES) + at;                                                 \
            const float *const numbers = of_rows + ((size_t)blockIdx.z * heads + own) * queries;                       \
            return Queries<T, B>{{OF_ONE(q, own), queries, q_token, of_keys},                                          \
                                 {OF_ONE(g, own), queries, g_token, of_values},                                        \
                                 numbers,                                                                              \
                                 numbers + rows,                                                                       \
                                 {OF_ONE(b, own), OF_ONE(t, own), b_token, queries, keys}};                            \
        };                                                                                                             \
        ::of_keys<DIM, SHARES, HAS_BIAS, T, B>(Scale(scale), sharing, {OF_ONE(k, kv_head), keys, k_token, of_keys},    \
                                       {OF_ONE(v, kv_head), keys, v_token, of_values}, head, of_k + row * of_keys,     \
                                       of_v + row * of_values, (size_t)kv_heads *of_keys, (size_t)kv_heads *of_values); \
    }
// With a bias of the same type, or of f32.
#define ALL(DIM, T, NAME)                                                                                              \
    GRADIENTS(DIM, false, T, T, DIM##_##NAME)                                                                          \
    GRADIENTS(DIM, true, T, T, biased_##DIM##_##NAME)                                                                  \
    GRADIENTS(DIM, true, T, float, in_f32_##DIM##_##NAME)

ALL(32, __half, f16)
ALL(64, __half, f16)
ALL(96, __half, f16)
ALL(128, __half, f16)
ALL(32, __nv_bfloat16, bf16)
ALL(64, __nv_bfloat16, bf16)
ALL(96, __nv_bfloat16, bf16)
ALL(128, __nv_bfloat16, bf16)

#endif
