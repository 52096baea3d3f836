// Attention on tensor cores: softmax(q * k^T * scale + bias) * v for each head (Dao, "FlashAttention-2", 2023, Alg. 1).
// A block keeps its queries in registers, streams tiles of keys and values through shared memory, and rescales its
// running softmax with each tile.

// For older architectures no kernels are compiled, rather than empty ones.
#if __CUDA_ARCH__ >= 800

#include "scores.cuh"

constexpr unsigned WARPS = 4, THREADS = 32 * WARPS;
// Queries per block.
constexpr unsigned QUERIES = ROWS * WARPS;

// Keys per tile: two stages of keys and values must fit into shared memory.
template <int DIM, typename T> constexpr unsigned KEYS = DIM * sizeof(T) > 128 ? 32 : 64;

// The weights of a row have a smaller sum than this, the largest being 1, if one key has the row nearly for itself.
constexpr float ALONE = 1.125f;

// Scaled products beyond this are computed more precisely in f32: softmax makes their errors as much larger as they are.
constexpr float LARGE_SCORE = 8;

// Operands of f32 that tensor cores sum up. With two, 16 terms, the error of a row is about half of that of f32 products
// and a softmax; with four it is larger for few keys.
constexpr int OPERANDS_OF_SUM = 2;

// A copy for functions that are rarely called and not inlined, so that the others keep their registers.
template <int N, typename X> struct Numbers {
    X at[N][4];

    __device__ explicit Numbers(const X (&from)[N][4]) {
#pragma unroll
        for (int i = 0; i < 4 * N; i++) at[i / 4][i % 4] = from[i / 4][i % 4];
    }
    __device__ void give(X (&to)[N][4]) const {
#pragma unroll
        for (int i = 0; i < 4 * N; i++) to[i / 4][i % 4] = at[i / 4][i % 4];
    }
};

// Two numbers as one register of an operand of bf16, and what splitting them leaves.
__device__ inline unsigned both(unsigned x, unsigned y) { return pack<__nv_bfloat16>(__uint_as_float(x), __uint_as_float(y)); }
__device__ inline float rest(unsigned x) {
    const Tf32Split of(x);
    return __uint_as_float(x) - __uint_as_float(of.high) - __uint_as_float(of.low);
}
__device__ inline unsigned rests(unsigned x, unsigned y) { return pack<__nv_bfloat16>(rest(x), rest(y)); }

// score += q * k^T of SOME operands of f32, from `first` on.
template <int SOME, int N, int D, int DIM>
__device__ inline void add_partial_scores(float (&score)[N][4], const unsigned (&q)[D][4], const Tile<DIM, float> &keys,
                                          int first) {
    const unsigned lane = threadIdx.x % 32;
    unsigned own[SOME][4];
#pragma unroll
    for (int s = 0; s < SOME; s++)
#pragma unroll
        for (int i = 0; i < 4; i++) own[s][i] = q[first + s][i];
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        const float *const key = keys.row(n * 8 + lane / 16 * 8 + lane % 8) + lane / 8 % 2 * WIDE<float>;
        unsigned some[2][SOME][2];
#pragma unroll
        for (int s = 0; s < SOME; s++) {
            unsigned both[4];
            ldmatrix<false>(both, key + (first + s) * DEPTH<float>);
#pragma unroll
            for (int i = 0; i < 4; i++) some[i / 2][s][i % 2] = both[i];
        }
        mma_in_f32(score[n], own, some[0]);
        mma_in_f32(score[n + 1], own, some[1]);
    }
}
template <int N, int D, int DIM>
__device__ inline void add_scores(float (&score)[N][4], const unsigned (&q)[D][4], const Tile<DIM, float> &keys) {
#pragma unroll
    for (int d = 0; d + OPERANDS_OF_SUM <= D; d += OPERANDS_OF_SUM) add_partial_scores<OPERANDS_OF_SUM>(score, q, keys, d);
    if constexpr (D % OPERANDS_OF_SUM > 0)
        add_partial_scores<D % OPERANDS_OF_SUM>(score, q, keys, D / OPERANDS_OF_SUM * OPERANDS_OF_SUM);
}

// c += a * what splitting leaves of b, for 16 terms as `mma_in_f32` takes them, which are one operand of bf16: the rest is
// one bit.
__device__ inline void add_rests(float (&c)[4], const unsigned (&a)[2][4], const unsigned (&b)[2][2]) {
    // Any order of terms will do that both operands have.
    const unsigned all[4] = {both(a[0][0], a[0][2]), both(a[0][1], a[0][3]), both(a[1][0], a[1][2]), both(a[1][1], a[1][3])};
    mma(c, all, rests(b[0][0], b[0][1]), rests(b[1][0], b[1][1]), __nv_bfloat16());
}

// score = q * k^T in f32, more precisely than `add_scores`: no bit of an operand is left out, small products have a sum of their own,
// and of the sums of large ones, 8 terms each, no rounding is lost. An error grows with the size of a score, and a weight's
// with the error.
template <int N, int D, int DIM>
__device__ __noinline__ void precise_scores(Numbers<N, float> &to, const Numbers<D, unsigned> &of_q, Tile<DIM, float> keys) {
    auto &score = to.at;
    auto &q = of_q.at;
    const unsigned lane = threadIdx.x % 32;
    constexpr unsigned NONE[4] = {};
#pragma unroll
    for (int n = 0; n < N; n++) {
        float sum[4] = {}, lost[4] = {}, small[4] = {};
#pragma unroll
        for (int first = 0; first < D; first += 2) {
            unsigned own[2][4], some[2][2];
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const float *const key = keys.row(n * 8 + lane / 4) + (first + s) * DEPTH<float> + lane % 4;
#pragma unroll
                for (int i = 0; i < 4; i++) own[s][i] = first + s < D ? q[first + s][i] : NONE[i];
#pragma unroll
                for (int i = 0; i < 2; i++) some[s][i] = first + s < D ? __float_as_uint(key[i * 4]) : 0;
            }
            add_rests(small, own, some);
            const unsigned of_q[4] = {rests(own[0][0], own[0][2]), rests(own[0][1], own[0][3]), rests(own[1][0], own[1][2]),
                                      rests(own[1][1], own[1][3])};
            mma(small, of_q, both(some[0][0], some[0][1]), both(some[1][0], some[1][1]), __nv_bfloat16());
#pragma unroll
            for (int s = 0; s < 2 && first + s < D; s++) {
                const Tf32Split a[4] = {own[s][0], own[s][1], own[s][2], own[s][3]}, b[2] = {some[s][0], some[s][1]};
                const unsigned high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
                const unsigned low[4] = {a[0].low, a[1].low, a[2].low, a[3].low};
                mma_tf32(small, low, b[0].low, b[1].low);
                mma_tf32(small, low, b[0].high, b[1].high);
                mma_tf32(small, high, b[0].low, b[1].low);
                float part[4] = {};
                mma_tf32(part, high, b[0].high, b[1].high);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    // What rounding takes from the sum of two numbers (Knuth, "The Art of Computer Programming", volume 2).
                    const float both = sum[i] + part[i], added = both - sum[i];
                    lost[i] += (sum[i] - (both - added)) + (part[i] - added);
                    sum[i] = both;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) score[n][i] = sum[i] + (small[i] + lost[i]);
    }
}

// Two neighbouring weights as an operand, and what rounding took from them as another one.
template <typename T> struct SplitPair {
    unsigned rounded, rest;

    __device__ SplitPair(float a, float b) : rounded(pack<T>(a, b)) {
        const auto both = *reinterpret_cast<const Vec<T, 2> *>(&rounded);
        rest = pack<T>(a - widen(both.at[0]), b - widen(both.at[1]));
    }
};

// out += weights * v for N tiles of 8 keys. The accumulator layout of the scores is the operand layout of the weights,
// so the weights stay in registers. With IN_F32 they are two operands, which together keep twice the bits.
template <bool IN_F32, int N, int D, int DIM, typename T>
__device__ inline void add_values(float (&out)[D][4], const float (&weights)[N][4], const Tile<DIM, T> &values) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        const SplitPair<T> split[4] = {{weights[n][0], weights[n][1]}, {weights[n][2], weights[n][3]},
                                       {weights[n + 1][0], weights[n + 1][1]}, {weights[n + 1][2], weights[n + 1][3]}};
        const unsigned own[4] = {split[0].rounded, split[1].rounded, split[2].rounded, split[3].rounded};
        const unsigned rest[4] = {split[0].rest, split[1].rest, split[2].rest, split[3].rest};
#pragma unroll
        for (int d = 0; d < D; d += 2) {
            unsigned some[4];
            ldmatrix<true>(some, values.row(n * 8 + lane % 16) + d * 8 + lane / 16 * 8);
            if constexpr (IN_F32) {
                mma(out[d], rest, some[0], some[1], T());
                mma(out[d + 1], rest, some[2], some[3], T());
            }
            mma(out[d], own, some[0], some[1], T());
            mma(out[d + 1], own, some[2], some[3], T());
        }
    }
}
// Which products are added in f32: all, those of weights that are not small, those of small ones, or those that splitting leaves.
enum class Products { ALL, LARGE, SMALL, RESTS };

// In f32 a lane holds the weights of keys 2 * (l % 4) and the next, but the instruction expects keys l % 4 and l % 4 +
// 4. The order of the keys does not matter as long as the values are loaded in the same order.
template <Products PRODUCTS, int N, int D, int DIM>
__device__ inline void add_products(float (&out)[D][4], const float (&weights)[N][4], const Tile<DIM, float> &values) {
    static_assert(N % OPERANDS_OF_SUM == 0);
    const unsigned lane = threadIdx.x % 32;
    auto taken = [](float weight) {
        const bool is_small = weight < 0x1p-12f;
        return (PRODUCTS == Products::LARGE && is_small) || (PRODUCTS == Products::SMALL && !is_small) ? 0 : weight;
    };
#pragma unroll
    for (int n = 0; n < N; n += OPERANDS_OF_SUM) {
        unsigned own[OPERANDS_OF_SUM][4];
#pragma unroll
        for (int s = 0; s < OPERANDS_OF_SUM; s++)
#pragma unroll
            for (int i = 0; i < 4; i++) own[s][i] = __float_as_uint(taken(weights[n + s][i % 2 * 2 + i / 2]));
        const float *const value = values.row(n * 8 + lane % 4 * 2) + lane / 4;
#pragma unroll
        for (int d = 0; d < D; d++) {
            unsigned some[OPERANDS_OF_SUM][2];
#pragma unroll
            for (int s = 0; s < OPERANDS_OF_SUM; s++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    some[s][i] = __float_as_uint(value[(s * 8 + i) * Tile<DIM, float>::PITCH + d * 8]);
            if constexpr (PRODUCTS == Products::RESTS) {
                float part[4] = {};
                add_rests(part, own, some);
#pragma unroll
                for (int i = 0; i < 4; i++) out[d][i] += part[i];
            } else {
                mma_in_f32(out[d], own, some);
            }
        }
    }
}
template <bool IN_F32, int N, int D, int DIM>
__device__ inline void add_values(float (&out)[D][4], const float (&weights)[N][4], const Tile<DIM, float> &values) {
    add_products<Products::ALL>(out, weights, values);
}

// The same if one key may have a row nearly for itself. The result is that key's value then: all 24 bits of it, of which splitting
// keeps 22 or 23, and nothing that small products take away where tensor cores round towards zero.
template <int N, int D, int DIM>
__device__ __noinline__ void add_lone_values(Numbers<D, float> &out, const Numbers<N, float> &weights, Tile<DIM, float> values) {
    add_products<Products::LARGE>(out.at, weights.at, values);
    // Values that are read again are not kept in registers for that.
    __syncwarp();
    add_products<Products::SMALL>(out.at, weights.at, values);
    __syncwarp();
    add_products<Products::RESTS>(out.at, weights.at, values);
}

// The weight of a key, 2 to the product of `difference`, its score less the largest one, and `bits`. In f32 the rounding of that product
// would be most of the error of a small weight: 14 roundings of e^-24. So the weight is multiplied by 2 to the rest: what the product left out,
// and what `bits` had left out before, `rest_of_bits`. A weight of 0 has no rest, since that of an infinite difference is NaN.
template <bool IS_F32> __device__ inline float weight_of(float difference, float bits, float rest_of_bits) {
    constexpr float LN2 = 0.693147182f, VANISHES = -126;
    const float exponent = difference * bits, weight = exp2_approx(exponent);
    if constexpr (!IS_F32) return weight;
    const float rest = fmaf(difference, rest_of_bits, fmaf(difference, bits, -exponent));
    return exponent > VANISHES ? fmaf(weight, LN2 * rest, weight) : weight;
}

// Returns a bit mask of this lane's two queries that must be recomputed without tensor cores: their operands cannot be
// split, a hidden score is infinite or NaN, or a sum of values overflows before it is divided by the sum of the weights.
template <int DIM, bool IN_F32, bool IS_RANGED, typename T, typename B>
__device__ inline unsigned attention(const uint2 *ranges, float scale, unsigned does, float cap, Tokens<T> q, Tokens<T> k, Tokens<T> v, const B *bias,
                                     unsigned bias_pitch, T *y, unsigned y_pitch) {
    constexpr unsigned AT_ONCE = KEYS<DIM, T>, PITCH = Tile<DIM, T>::PITCH;
    __shared__ alignas(16) T room[2][2][AT_ONCE * PITCH];
    static_assert(QUERIES <= 2 * AT_ONCE);
    const Tile<DIM, T> queries{room[1][0]};
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // This lane's two queries are `first` and `first + 8`; its columns are `column` and the next of every 8.
    const unsigned first = first_query(), column = lane % 4 * 2;

    queries.template fill<QUERIES, THREADS>(q, blockIdx.x * QUERIES);
    commit();
    Seen seen{};
    if constexpr (IS_RANGED) seen.template find<QUERIES>(ranges, q.count, k.count);
    const unsigned begin = IS_RANGED ? seen.of_block.x : 0, end = IS_RANGED ? seen.of_block.y : k.count;
    Tile<DIM, T>{room[0][0]}.template fill<AT_ONCE, THREADS>(k, begin);
    Tile<DIM, T>{room[0][1]}.template fill<AT_ONCE, THREADS>(v, begin);
    commit();

    Bias<B> added;
    added.keys = k.count;
    added.in_pairs = bias_pitch % 2 == 0 && (size_t)bias % (2 * sizeof(B)) == 0 && k.count % 2 == 0;
#pragma unroll
    for (int r = 0; r < 2; r++) added.row[r] = bias + (size_t)min(first + 8 * r, q.count - 1) * bias_pitch;

    wait_pending<1>();
    __syncthreads();
    constexpr int OPERANDS = WIDTH<DIM, T> / DEPTH<T>;
    unsigned own[OPERANDS][4];
#pragma unroll
    for (int d = 0; d < OPERANDS; d++)
        ldmatrix<false>(own[d], queries.row(warp * ROWS + lane % 16) + d * DEPTH<T> + lane / 16 * WIDE<T>);
    __syncthreads();

    // The GPU's exponential is base 2: `in_bits` scales the difference of two scores to the exponent of 2. Scaled scores
    // would round with the size of a score, not of the difference. Where it counts in f32, a bias is added to scaled scores, though.
    constexpr bool IS_F32 = sizeof(T) == 4;
    const float of_scores = scale * LOG2E, unit = 1 / scale, most = 3e38f / fmaxf(of_scores, 1);
    const bool bias_behind = bias && (IS_F32 || IN_F32 || cap || does >= REPLACES);
    const double exact_bits = IS_F32 ? 1.4426950408889634 * (bias_behind || cap ? 1 : scale) : 0;
    const float in_bits = bias_behind || cap ? LOG2E : of_scores, rest_of_bits = exact_bits - in_bits;
    constexpr int COLUMNS = WIDTH<DIM, T> / 8;
    float out[COLUMNS][4] = {}, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {}, highest[2] = {-INFINITY, -INFINITY};
    for (unsigned start = begin, stage = 0; start < end; start += AT_ONCE, stage ^= 1) {
        if (start + AT_ONCE < end) {
            Tile<DIM, T>{room[stage ^ 1][0]}.template fill<AT_ONCE, THREADS>(k, start + AT_ONCE);
            Tile<DIM, T>{room[stage ^ 1][1]}.template fill<AT_ONCE, THREADS>(v, start + AT_ONCE);
        }
        commit();

        float score[AT_ONCE / 8][4] = {};
        if (!(IS_F32 || IN_F32) && bias && !bias_behind) added.init(score, start + column, unit, most);
        wait_pending<1>();
        __syncthreads();
        const Tile<DIM, T> keys{room[stage][0]}, values{room[stage][1]};
        add_scores(score, own, keys);
        if constexpr (IS_F32) {
            float size = 0;
#pragma unroll
            for (int n = 0; n < AT_ONCE / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) size = fmaxf(size, fabsf(score[n][i]));
            if (__any_sync(~0u, size * scale > LARGE_SCORE)) {
                Numbers<AT_ONCE / 8, float> precise(score);
                precise_scores(precise, Numbers<OPERANDS, unsigned>(own), keys);
                precise.give(score);
            }
        }
        if (cap)
#pragma unroll
            for (int n = 0; n < AT_ONCE / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) score[n][i] = capped<IS_F32>(score[n][i] * scale, cap);
        if (bias_behind) added.add_to(score, start + column, cap ? 1 : scale, does, highest, largest);

        if (IS_RANGED || start + AT_ONCE > k.count) {
#pragma unroll
            for (int n = 0; n < AT_ONCE / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const unsigned key = start + n * 8 + column + i % 2;
                    const bool is_seen = IS_RANGED ? seen.of[i / 2].x <= key && key < seen.of[i / 2].y : key < k.count;
                    score[n][i] = is_seen ? score[n][i] : -INFINITY;
                }
        }
        const float before[2] = {largest[0], largest[1]};
        bool may_be_alone[2];
#pragma unroll
        for (int n = 0; n < AT_ONCE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) largest[i / 2] = Max::of(largest[i / 2], score[n][i]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            largest[r] = warp_reduce<Max>(largest[r], 4);
            // If all scores of a row so far are masked, use 0 as the base, so that no inf - inf makes NaN.
            const float base = largest[r] == -INFINITY ? 0 : largest[r], correction = weight_of<IS_F32>(before[r] - base, in_bits, rest_of_bits);
            // Of this tile alone: a sum of all weights one after the other would round as often as there are keys.
            float weights = 0;
#pragma unroll
            for (int n = 0; n < AT_ONCE / 8; n++)
                for (int i = 2 * r; i < 2 * r + 2; i++)
                    weights += score[n][i] = weight_of<IS_F32>(score[n][i] - base, in_bits, rest_of_bits);
            sum[r] = fmaf(sum[r], correction, weights);
            may_be_alone[r] = weights >= 1 && sum[r] < ALONE;
#pragma unroll
            for (int d = 0; d < COLUMNS; d++)
                for (int i = 2 * r; i < 2 * r + 2; i++) out[d][i] *= correction;
        }

        bool is_alone = false;
        if constexpr (IS_F32) {
            // The sum of a row is asked for where the part of one lane leaves it open.
            if (__any_sync(~0u, may_be_alone[0] || may_be_alone[1])) {
#pragma unroll
                for (int r = 0; r < 2; r++) is_alone |= may_be_alone[r] & (warp_reduce<Add>(sum[r], 4) < ALONE);
                is_alone = __any_sync(~0u, is_alone);
            }
            if (is_alone) {
                Numbers<COLUMNS, float> sums(out);
                add_lone_values(sums, Numbers<AT_ONCE / 8, float>(score), values);
                sums.give(out);
            }
        }
        if (!is_alone) add_values<IN_F32>(out, score, values);
        __syncthreads();
    }

    // Transpose through shared memory, so that global stores are 16-byte vectors.
    const Tile<DIM, T> results{room[0][0] + warp * ROWS * PITCH};
    unsigned wrong = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float weights = warp_reduce<Add>(sum[r], 4), factor = 1 / weights;
        bool is_right = weights == weights;
#pragma unroll
        for (int d = 0; d < DIM / 8; d++) {
            is_right &= fabsf(out[d][2 * r]) < SPLIT_SUM && fabsf(out[d][2 * r + 1]) < SPLIT_SUM;
            store<T, 2>(results.row(lane / 4 + 8 * r) + d * 8 + column,
                        {narrow<T>(out[d][2 * r] * factor), narrow<T>(out[d][2 * r + 1] * factor)});
        }
        wrong |= is_right ? 0 : 1u << r;
    }
    __syncwarp();
    constexpr unsigned LOADS = Tile<DIM, T>::LOADS;
#pragma unroll
    for (unsigned i = lane; i < ROWS * LOADS; i += 32) {
        const unsigned query = blockIdx.x * QUERIES + warp * ROWS + i / LOADS, at = i % LOADS * WIDE<T>;
        if (query < q.count && at < v.size) store<T, WIDE<T>>(y + (size_t)query * y_pitch + at, load<T, WIDE<T>>(results.row(i / LOADS) + at));
    }
    return wrong;
}

// Blocks of a multiprocessor, for which the compiler saves registers.
#define BLOCKS(DIM, T) (DIM > 128 ? 2 : sizeof(T) == 4 || DIM * sizeof(T) > 128 ? 3 : 4)

// For rows of DIM elements at most: queries and keys have `of_keys`, values `of_values`.
#define ATTENTION(DIM, T, B, IN_F32, NAME)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS(DIM, T)) opara_attention_##NAME(                      \
        size_t numel, unsigned queries, unsigned keys, unsigned heads, unsigned sharing, unsigned of_keys,             \
        unsigned of_values, unsigned y_pitch, float scale, STRIDES(q), STRIDES(k), STRIDES(v), STRIDES(b),             \
        const T *q, const T *k, const T *v, const B *b, T *y, unsigned does, float cap) {                              \
        const unsigned wrong = attention<DIM, IN_F32, false, T, B>(nullptr, scale, does, cap, OF_HEAD);                \
        if (__any_sync(~0u, wrong)) recompute_queries<DIM, T, B>(wrong, SEES_ALL, scale, OF_HEAD, does, cap);          \
    }
#define RANGED(DIM, T, NAME)                                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS(DIM, T))                                              \
        opara_attention_ranged_##NAME(RANGED_ARGUMENTS(T)) {                                                           \
        OF_RANGES(T);                                                                                                  \
        const unsigned wrong = attention<DIM, false, true, T, T>(ranges, scale, 0, 0, OF_HEAD);                        \
        if (__any_sync(~0u, wrong)) recompute_queries<DIM, T, T>(wrong, SEES_RANGE, scale, OF_HEAD, 0, 0);             \
    }
// Kernels named `in_f32` compute as if operands were converted to f32, and the result back. Their bias is in f32.
#define ATTENTION_IN_16(DIM)                                                                                           \
    ATTENTION(DIM, __half, __half, false, DIM##_f16)                                                                   \
    ATTENTION(DIM, __nv_bfloat16, __nv_bfloat16, false, DIM##_bf16)                                                    \
    ATTENTION(DIM, __half, float, true, in_f32_##DIM##_f16)                                                            \
    ATTENTION(DIM, __nv_bfloat16, float, true, in_f32_##DIM##_bf16)                                                    \
    RANGED(DIM, __half, DIM##_f16)                                                                                     \
    RANGED(DIM, __nv_bfloat16, DIM##_bf16)

// Of more than 80 numbers of f32, tiles do not fit into shared memory.
ATTENTION(32, float, float, false, 32_f32)
RANGED(32, float, 32_f32)
ATTENTION(40, float, float, false, 40_f32)
RANGED(40, float, 40_f32)
ATTENTION(64, float, float, false, 64_f32)
RANGED(64, float, 64_f32)
ATTENTION(80, float, float, false, 80_f32)
RANGED(80, float, 80_f32)
ATTENTION_IN_16(32)
ATTENTION_IN_16(40)
ATTENTION_IN_16(64)
ATTENTION_IN_16(80)
ATTENTION_IN_16(96)
ATTENTION_IN_16(128)
ATTENTION_IN_16(160)

#endif
