// Attention on tensor cores: softmax(q * k^T * scale + bias) * v for each head (Dao, "FlashAttention-2", 2023, Alg. 1).
// A block keeps its queries in registers, streams tiles of keys and values through shared memory, and rescales its
// running softmax with each tile.

// For older architectures no kernels are compiled, rather than empty ones.
#if __CUDA_ARCH__ >= 800

#include "rows.cuh"
#include "tile.cuh"

constexpr unsigned WARPS = 4, THREADS = 32 * WARPS;
// Queries per warp, and per block.
constexpr unsigned ROWS = 16, QUERIES = ROWS * WARPS;

// Keys per tile: two stages of keys and values must fit into shared memory.
template <int DIM, typename T> constexpr unsigned KEYS = DIM * sizeof(T) > 128 ? 32 : 64;

// Operands of f32 that tensor cores sum up. With two, 16 terms, the error of a row is about half of that of f32 products
// and a softmax; with four it is larger for few keys.
constexpr int OPERANDS_OF_SUM = 2;

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
};

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
// In f32 a lane holds the weights of keys 2 * (l % 4) and the next, but the instruction expects keys l % 4 and l % 4 +
// 4. The order of the keys does not matter as long as the values are loaded in the same order.
template <bool IN_F32, int N, int D, int DIM>
__device__ inline void add_values(float (&out)[D][4], const float (&weights)[N][4], const Tile<DIM, float> &values) {
    static_assert(N % OPERANDS_OF_SUM == 0);
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n += OPERANDS_OF_SUM) {
        unsigned own[OPERANDS_OF_SUM][4];
#pragma unroll
        for (int s = 0; s < OPERANDS_OF_SUM; s++)
#pragma unroll
            for (int i = 0; i < 4; i++) own[s][i] = __float_as_uint(weights[n + s][i % 2 * 2 + i / 2]);
        const float *const value = values.row(n * 8 + lane % 4 * 2) + lane / 4;
#pragma unroll
        for (int d = 0; d < D; d++) {
            unsigned some[OPERANDS_OF_SUM][2];
#pragma unroll
            for (int s = 0; s < OPERANDS_OF_SUM; s++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    some[s][i] = __float_as_uint(value[(s * 8 + i) * Tile<DIM, float>::PITCH + d * 8]);
            mma_in_f32(out[d], own, some);
        }
    }
}

// Computes one lane's columns of one query in f32, without tensor cores. If the bias `masks`, a score is minus infinity
// where the bias is, whatever the product is: tensor cores have added both, and the sum with an infinity or NaN is NaN.
template <int DIM, typename T, typename B>
__device__ inline void without_tensor_cores(T *y, float scale, const T *q, Tokens<T> k, Tokens<T> v, const B *bias,
                                            unsigned masks) {
    auto score = [&](unsigned key) {
        if (masks && widen(bias[key]) == -INFINITY) return -INFINITY;
        const T *const of_key = k.at + (size_t)key * k.pitch;
        float sum = 0;
#pragma unroll 1
        for (unsigned d = 0; d < DIM; d++) sum = fmaf(widen(q[d]) * scale, widen(of_key[d]), sum);
        return bias ? sum + widen(bias[key]) : sum;
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
    for (int d = 0; d < DIM / 8; d++) out[d][0] = out[d][1] = weights == weights ? 0 : weights;
#pragma unroll 1
    for (unsigned key = 0; key < k.count && weights == weights; key++) {
        const float weight = expf(score(key) - largest) / weights;
        const T *const value = v.at + (size_t)key * v.pitch;
#pragma unroll
        for (int d = 0; d < DIM / 8; d++)
#pragma unroll
            for (int e = 0; e < 2; e++) out[d][e] = fmaf(weight, widen(value[d * 8 + e]), out[d][e]);
    }
#pragma unroll
    for (int d = 0; d < DIM / 8; d++)
#pragma unroll
        for (int e = 0; e < 2; e++) y[d * 8 + e] = narrow<T>(out[d][e]);
}

// Returns a bit mask of this lane's two queries that must be recomputed without tensor cores: their operands cannot be
// split, a hidden score is infinite or NaN, or a sum of values overflows before it is divided by the sum of the weights.
template <int DIM, bool IN_F32, typename T, typename B>
__device__ inline unsigned attention(float scale, Tokens<T> q, Tokens<T> k, Tokens<T> v, const B *bias, unsigned bias_pitch,
                                 T *y, unsigned y_pitch) {
    constexpr unsigned AT_ONCE = KEYS<DIM, T>, PITCH = Tile<DIM, T>::PITCH;
    __shared__ alignas(16) T room[2][2][AT_ONCE * PITCH];
    static_assert(QUERIES <= 2 * AT_ONCE);
    const Tile<DIM, T> queries{room[1][0]};
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // This lane's two queries are `first` and `first + 8`; its columns are `column` and the next of every 8.
    const unsigned first = blockIdx.x * QUERIES + warp * ROWS + lane / 4, column = lane % 4 * 2;

    Tile<DIM, T>{room[0][0]}.template clear_rest<4 * AT_ONCE, THREADS>();
    queries.template fill<QUERIES, THREADS>(q, blockIdx.x * QUERIES);
    commit();
    Tile<DIM, T>{room[0][0]}.template fill<AT_ONCE, THREADS>(k, 0);
    Tile<DIM, T>{room[0][1]}.template fill<AT_ONCE, THREADS>(v, 0);
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
    // would round with the size of a score, not of the difference.
    const float in_bits = scale * 1.44269504f, unit = 1 / scale, most = 3e38f / fmaxf(in_bits, 1);
    constexpr int COLUMNS = WIDTH<DIM, T> / 8;
    float out[COLUMNS][4] = {}, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    for (unsigned start = 0, stage = 0; start < k.count; start += AT_ONCE, stage ^= 1) {
        if (start + AT_ONCE < k.count) {
            Tile<DIM, T>{room[stage ^ 1][0]}.template fill<AT_ONCE, THREADS>(k, start + AT_ONCE);
            Tile<DIM, T>{room[stage ^ 1][1]}.template fill<AT_ONCE, THREADS>(v, start + AT_ONCE);
        }
        commit();

        float score[AT_ONCE / 8][4] = {};
        if (bias) added.init(score, start + column, unit, most);
        wait_pending<1>();
        __syncthreads();
        const Tile<DIM, T> keys{room[stage][0]}, values{room[stage][1]};
        add_scores(score, own, keys);

        if (start + AT_ONCE > k.count) {
#pragma unroll
            for (int n = 0; n < AT_ONCE / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    score[n][i] = start + n * 8 + column + i % 2 < k.count ? score[n][i] : -INFINITY;
        }
        const float before[2] = {largest[0], largest[1]};
#pragma unroll
        for (int n = 0; n < AT_ONCE / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) largest[i / 2] = Max::of(largest[i / 2], score[n][i]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            largest[r] = warp_reduce<Max>(largest[r], 4);
            // If all scores of a row so far are masked, use 0 as the base, so that no inf - inf makes NaN.
            const float base = largest[r] == -INFINITY ? 0 : largest[r], correction = exp2_approx((before[r] - base) * in_bits);
            // Of this tile alone: a sum of all weights one after the other would round as often as there are keys.
            float weights = 0;
#pragma unroll
            for (int n = 0; n < AT_ONCE / 8; n++)
                for (int i = 2 * r; i < 2 * r + 2; i++)
                    weights += score[n][i] = exp2_approx((score[n][i] - base) * in_bits);
            sum[r] = fmaf(sum[r], correction, weights);
#pragma unroll
            for (int d = 0; d < COLUMNS; d++)
                for (int i = 2 * r; i < 2 * r + 2; i++) out[d][i] *= correction;
        }

        add_values<IN_F32>(out, score, values);
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
        if (query < q.count) store<T, WIDE<T>>(y + (size_t)query * y_pitch + at, load<T, WIDE<T>>(results.row(i / LOADS) + at));
    }
    return wrong;
}

// Recomputes the lane's columns of the queries in `wrong`. It runs last and reads the kernel's arguments again, so that
// it costs the main loop no registers.
template <int DIM, typename T, typename B>
__device__ inline void recompute_queries(unsigned wrong, float scale, Tokens<T> q, Tokens<T> k, Tokens<T> v,
                                         const B *bias, unsigned bias_pitch, T *y, unsigned y_pitch, unsigned masks) {
    const unsigned lane = threadIdx.x % 32, column = lane % 4 * 2;
    // Other lanes of the warp have stored these columns before.
    __syncwarp();
#pragma unroll 1
    for (unsigned r = 0; r < 2; r++) {
        const unsigned query = blockIdx.x * QUERIES + threadIdx.x / 32 * ROWS + lane / 4 + 8 * r;
        if (!(wrong >> r & 1) || query >= q.count) continue;
        without_tensor_cores<DIM>(y + (size_t)query * y_pitch + column, scale, q.at + (size_t)query * q.pitch, k,
                                  {v.at + column, v.count, v.pitch}, bias ? bias + (size_t)query * bias_pitch : nullptr,
                                  masks);
    }
}

// The arguments for this block's head. y is (batch, queries, heads, DIM). The bias is added to the scores unless it is
// null. So many heads of queries as `sharing` says have the same keys and values.
#define STRIDES(X) unsigned X##_batch, unsigned X##_head, unsigned X##_token
#define HEAD(X, HEADS) X + (size_t)blockIdx.z * X##_batch + (size_t)(blockIdx.y / HEADS) * X##_head
#define OF_HEAD(DIM)                                                                                                   \
    {HEAD(q, 1), queries, q_token}, {HEAD(k, sharing), keys, k_token}, {HEAD(v, sharing), keys, v_token},              \
        b ? HEAD(b, 1) : nullptr, b_token, y + ((size_t)blockIdx.z * queries * heads + blockIdx.y) * DIM, heads * DIM

// Blocks of a multiprocessor, for which the compiler saves registers.
#define BLOCKS(DIM, T) (DIM > 128 ? 2 : sizeof(T) == 4 || DIM * sizeof(T) > 128 ? 3 : 4)

#define ATTENTION(DIM, T, B, IN_F32, NAME)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS(DIM, T)) opara_attention_##NAME(                      \
        size_t numel, unsigned queries, unsigned keys, unsigned heads, unsigned sharing, float scale, STRIDES(q),      \
        STRIDES(k), STRIDES(v), STRIDES(b), const T *q, const T *k, const T *v, const B *b, T *y, unsigned masks) {    \
        const unsigned wrong = attention<DIM, IN_F32, T, B>(scale, OF_HEAD(DIM));                                      \
        if (__any_sync(~0u, wrong)) recompute_queries<DIM, T, B>(wrong, scale, OF_HEAD(DIM), masks);                   \
    }
// The last two are as if everything was converted to f32, and the result back: with a bias in f32.
#define ATTENTION_IN_16(DIM)                                                                                           \
    ATTENTION(DIM, __half, __half, false, DIM##_f16)                                                                   \
    ATTENTION(DIM, __nv_bfloat16, __nv_bfloat16, false, DIM##_bf16)                                                    \
    ATTENTION(DIM, __half, float, true, in_f32_##DIM##_f16)                                                            \
    ATTENTION(DIM, __nv_bfloat16, float, true, in_f32_##DIM##_bf16)

// Of more than 80 numbers of f32, tiles do not fit into shared memory.
ATTENTION(32, float, float, false, 32_f32)
ATTENTION(40, float, float, false, 40_f32)
ATTENTION(64, float, float, false, 64_f32)
ATTENTION(80, float, float, false, 80_f32)
ATTENTION_IN_16(32)
ATTENTION_IN_16(40)
ATTENTION_IN_16(64)
ATTENTION_IN_16(80)
ATTENTION_IN_16(96)
ATTENTION_IN_16(128)
ATTENTION_IN_16(160)

#endif
