// Scores of attention: what a bias and a cap make of them, and the results of single queries without tensor cores (sm_80 and later).
#pragma once
#include "rows.cuh"
#include "tile.cuh"

constexpr float LOG2E = 1.44269504f;

// Queries of a warp. A lane has two of them: this one, and 8 further on.
constexpr unsigned ROWS = 16;
__device__ inline unsigned first_query() { return (blockIdx.x * blockDim.x + threadIdx.x) / 32 * ROWS + threadIdx.x % 32 / 4; }

// The range of keys that each of a lane's queries sees, and the keys from the first to the last that a block's queries see.
struct Seen {
    uint2 of[2], of_block;

    // Of each of QUERIES queries of a block, `ranges` has the first key that it sees, and the one behind the last.
    template <unsigned QUERIES> __device__ void find(const uint2 *ranges, unsigned queries, unsigned keys) {
        auto range = [&](unsigned query) {
            const uint2 range = ranges[min(query, queries - 1)];
            return uint2{range.x, min(range.y, keys)};
        };
#pragma unroll
        for (int r = 0; r < 2; r++) of[r] = range(first_query() + 8 * r);
        __shared__ uint2 all;
        if (threadIdx.x < 32) {
            uint2 some{keys, 0};
            for (unsigned at = threadIdx.x; at < QUERIES; at += 32) {
                const uint2 own = range(blockIdx.x * QUERIES + at);
                if (own.x < own.y) some = {min(some.x, own.x), max(some.y, own.y)};
            }
            some = {__reduce_min_sync(~0u, some.x), __reduce_max_sync(~0u, some.y)};
            // Queries that see nothing have no weights, which one key shows.
            if (threadIdx.x == 0) all = some.x < some.y ? some : uint2{0, 1};
        }
        __syncthreads();
        of_block = all;
    }
};

// What a bias does to scores: it is added; so, but scores are minus infinity, whatever they were, where it is; it stands in their place where
// it is not 0; or one half of its rows is added, and the other one stands where it is not 0.
constexpr unsigned HIDES = 1, REPLACES = 2, BOTH = 3;

// The bias of the two score rows that a lane holds.
template <typename B> struct Bias {
    const B *row[2];
    unsigned keys;
    // Can two neighbouring elements be loaded as one vector?
    bool in_pairs;

    // A mask may hold finite numbers so large that scaling would overflow: clamp them to `most`, so that only
    // infinities become infinite.
    __device__ static float scaled(B x, float unit, float most) {
        const float own = widen(x), y = own * unit;
        return fabsf(y) > most && fabsf(own) < INFINITY ? copysignf(most, y) : y;
    }

    // Initialises the accumulators with the bias, divided by `scale` because the scores are scaled afterwards. Keys
    // past the last one get the bias of other keys; their scores are masked later.
    template <int N> __device__ void init(float (&score)[N][4], unsigned first, float unit, float most) const {
        if (in_pairs) {
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const auto two = load<B, 2>(row[r] + min(first + n * 8, keys - 2));
                    score[n][2 * r] = scaled(two.at[0], unit, most);
                    score[n][2 * r + 1] = scaled(two.at[1], unit, most);
                }
        } else {
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    score[n][i] = scaled(row[i / 2][min(first + n * 8 + i % 2, keys - 1)], unit, most);
        }
    }

    // What is taken from all scores of a row whose largest bias so far is this one. Beside a bias of -10000 a score would lose ten
    // of its bits. Beside one that hides keys for good, such as the least number, it loses all, and has to.
    __device__ static float base(float highest) { return fabsf(highest) <= 65536 ? highest : 0; }

    // The bias of some scores of a row, from `first` on.
    template <int N> __device__ void read(float (&own)[N][2], const B *from, unsigned first) const {
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (in_pairs) {
                const auto two = load<B, 2>(from + min(first + n * 8, keys - 2));
                own[n][0] = widen(two.at[0]), own[n][1] = widen(two.at[1]);
            } else {
#pragma unroll
                for (int i = 0; i < 2; i++) own[n][i] = widen(from[min(first + n * 8 + i, keys - 1)]);
            }
        }
    }

    // Products that are added to a large bias would round with its size, once for each partial sum. So in f32 this scales the scores
    // of the keys from `first` on behind the products, and adds the bias less its base, which `highest` tells. The base is taken from
    // `largest`, the largest score before, too. What stands in place of scores is taken for a bias.
    template <int N>
    __device__ void add_to(float (&score)[N][4], unsigned first, float scale, unsigned does, float (&highest)[2],
                           float (&largest)[2]) const {
        static_assert(N <= 16);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float own[N][2];
            // One bit for each score that something stands in place of.
            unsigned stands = 0;
            const float before = base(highest[r]);
            read(own, row[r], first);
            if (does == REPLACES) {
#pragma unroll
                for (int i = 0; i < 2 * N; i++) stands |= own[i / 2][i % 2] != 0 ? 1u << i : 0;
            } else if (does == BOTH) {
                float others[N][2];
                read(others, row[r] + keys, first);
#pragma unroll
                for (int i = 0; i < 2 * N; i++)
                    if (others[i / 2][i % 2] != 0) own[i / 2][i % 2] = others[i / 2][i % 2], stands |= 1u << i;
            }
#pragma unroll
            for (int n = 0; n < N; n++) highest[r] = fmaxf(highest[r], fmaxf(own[n][0], own[n][1]));
            highest[r] = warp_reduce<Max>(highest[r], 4);
            const float now = base(highest[r]);
            largest[r] += before - now;
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float added = fmaf(score[n][2 * r + i], scale, own[n][i] - now);
                    score[n][2 * r + i] = stands >> (2 * n + i) & 1 ? own[n][i] - now : added;
                }
        }
    }
};

// Scores have a size at most; 0 if they have none. In f32 a small score keeps all of its bits.
template <bool IS_F32> __device__ inline float capped(float score, float cap) {
    if constexpr (IS_F32) return cap * tanhf(score);
    // tanh(x) = 1 - 2 / (exp(2 x) + 1)
    return fmaf(__fdividef(-2 * cap, exp2_approx(score * (2 * LOG2E)) + 1), 1, cap);
}

// Computes one lane's columns of one query in f32, without tensor cores. Where a bias hides a score, tensor cores have added both, and
// the sum with an infinity or NaN is NaN.
template <int DIM, typename T, typename B>
__device__ inline void without_tensor_cores(T *y, float scale, const T *q, Tokens<T> k, Tokens<T> v, const B *bias,
                                            unsigned does, float cap) {
    auto score = [&](unsigned key) {
        const float own = bias ? widen(bias[key]) : 0, other = does == BOTH ? widen(bias[k.count + key]) : 0;
        if (other != 0) return other;
        if (does == HIDES && own == -INFINITY || does == REPLACES && own != 0) return own;
        const T *const of_key = k.at + (size_t)key * k.pitch;
        float sum = 0;
#pragma unroll 1
        for (unsigned d = 0; d < k.size; d++) sum = fmaf(widen(q[d]) * scale, widen(of_key[d]), sum);
        return (cap ? cap * tanhf(sum) : sum) + own;
    };
    // A NaN makes every later result NaN, so the loops stop at the first one.
    float largest = -INFINITY;
#pragma unroll 1
    for (unsigned key = 0; key < k.count && largest == largest; key++) {
        const float of_key = score(key);
        largest = of_key <= largest ? largest : of_key;
    }
    // In f32 the sum would round as often as there are keys.
    double exact = 0;
#pragma unroll 1
    for (unsigned key = 0; key < k.count && exact == exact; key++) exact += expf(score(key) - largest);
    const float weights = exact;
    float out[DIM / 8][2];
#pragma unroll
    for (int d = 0; d < DIM / 8; d++) out[d][0] = out[d][1] = weights > 0 ? 0 : NAN;
#pragma unroll 1
    for (unsigned key = 0; key < k.count && weights == weights; key++) {
        const float weight = expf(score(key) - largest) / weights;
        const T *const value = v.at + (size_t)key * v.pitch;
#pragma unroll
        for (int d = 0; d < DIM / 8; d++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (d * 8 < v.size) out[d][e] = fmaf(weight, widen(value[d * 8 + e]), out[d][e]);
    }
#pragma unroll
    for (int d = 0; d < DIM / 8; d++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (d * 8 < v.size) y[d * 8 + e] = narrow<T>(out[d][e]);
}

// Recomputes the lane's columns of the queries in `wrong`. `seen` gives the first key that a query sees, and the one behind the last. It runs
// last and reads the kernel's arguments again, so that it costs the main loop no registers.
template <int DIM, typename T, typename B, typename F>
__device__ inline void recompute_queries(unsigned wrong, F seen, float scale, Tokens<T> q, Tokens<T> k, Tokens<T> v,
                                         const B *bias, unsigned bias_pitch, T *y, unsigned y_pitch, unsigned does, float cap) {
    const unsigned column = threadIdx.x % 4 * 2;
    // Other lanes of the warp have stored these columns before.
    __syncwarp();
#pragma unroll 1
    for (unsigned r = 0; r < 2; r++) {
        const unsigned query = first_query() + 8 * r;
        if (!(wrong >> r & 1) || query >= q.count) continue;
        const uint2 range = seen(query);
        const unsigned end = min(range.y, k.count), first = min(range.x, end), count = end - first;
        without_tensor_cores<DIM>(y + (size_t)query * y_pitch + column, scale, q.at + (size_t)query * q.pitch,
                                  {k.at + k.of(first), count, k.pitch, k.size},
                                  {v.at + v.of(first) + column, count, v.pitch, v.size - min(column, v.size)},
                                  bias ? bias + (size_t)query * bias_pitch : nullptr, does, cap);
    }
}

// The arguments for this block's head. y is (batch, queries, heads, of_values), or if `y_pitch` is `of_values` (batch, heads, queries,
// of_values). The bias is added to the scores unless it is null. `sharing` heads of queries have the same keys and values.
#define STRIDES(X) unsigned X##_batch, unsigned X##_head, unsigned X##_token
#define HEAD(X, HEADS) X + (size_t)blockIdx.z * X##_batch + (size_t)(blockIdx.y / HEADS) * X##_head
#define OF_HEAD                                                                                                        \
    {HEAD(q, 1), queries, q_token, of_keys}, {HEAD(k, sharing), keys, k_token, of_keys},                               \
        {HEAD(v, sharing), keys, v_token, of_values}, b ? HEAD(b, 1) : nullptr, b_token,                               \
        y + (y_pitch == of_values ? ((size_t)blockIdx.z * heads + blockIdx.y) * queries                                \
                                  : (size_t)blockIdx.z * queries * heads + blockIdx.y) * of_values, y_pitch

// The range of keys that a query sees: all keys, or its own range.
#define SEES_ALL [&](unsigned) { return uint2{0, keys}; }
#define SEES_RANGE [&](unsigned query) { return ranges[query]; }

// The arguments of kernels whose queries see ranges of keys: of each query of every item its first key, and the one behind its last.
// They have no bias.
#define RANGED_ARGUMENTS(T)                                                                                            \
    size_t numel, unsigned queries, unsigned keys, unsigned heads, unsigned sharing, unsigned of_keys,                 \
        unsigned of_values, unsigned y_pitch, float scale, STRIDES(q), STRIDES(k), STRIDES(v), const T *q, const T *k, \
        const T *v, const uint2 *ranges, T *y
#define OF_RANGES(T)                                                                                                   \
    constexpr unsigned b_batch = 0, b_head = 0, b_token = 0;                                                           \
    const T *const b = nullptr;                                                                                        \
    ranges += (size_t)blockIdx.z * queries
