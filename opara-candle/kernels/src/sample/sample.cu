// Draws a token for each row, and marks tokens as seen. `cpu.rs` does the same operations. Both draw the same tokens,
// since each operation rounds as IEEE 754 says, none is contracted, and weights are summed as integers.
#include "cluster.cuh"
#include "dependent.cuh"
#include "largest.cuh"
#include "philox.cuh"
#include <cstdint>

// Blocks that share a row: a cluster, where there are any.
#if __CUDA_ARCH__ >= 900
#define SHARES 8
#else
#define SHARES 1
#endif

// Words of a row of the parameters (`parameters.rs`).
enum Word { TEMPERATURE, TOP_K, TOP_P, MIN_P, PENALTY, SEED_LOW, SEED_HIGH, BARS, WORDS };

// Bits of a mark (`parameters.rs`).
enum Mark { SEEN = 1, BARRED = 2 };

// Stands for a token that cannot be drawn (`parameters.rs`).
#define NO_TOKEN (~0u)

// e^x for x <= 0, and the natural logarithm of x > 0: expf and logf of S. Moshier's Cephes library.
__device__ inline float exponential(float x) {
    if (!(x >= -87.f)) return 0.f;
    const float n = floorf(__fadd_rn(__fmul_rn(x, 1.44269504f), .5f));
    x = __fadd_rn(x, -__fmul_rn(n, .693359375f));
    x = __fadd_rn(x, __fmul_rn(n, 2.12194440e-4f));
    float y = 1.9875691500e-4f;
    const float coefficients[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                                  5.0000001201e-1f};
#pragma unroll
    for (float c : coefficients) y = __fadd_rn(__fmul_rn(y, x), c);
    y = __fadd_rn(__fadd_rn(__fmul_rn(y, __fmul_rn(x, x)), x), 1.f);
    return __fmul_rn(y, __int_as_float(((int)n + 127) << 23));
}

// ln(1 + f) + e ln 2 for 1 + f between the roots of 1/2 and of 2.
__device__ inline float logarithm_of(float f, float e) {
    const float square = __fmul_rn(f, f);
    float y = 7.0376836292e-2f;
    const float coefficients[] = {-1.1514610310e-1f, 1.1676998740e-1f,  -1.2420140846e-1f, 1.4249322787e-1f,
                                  -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f};
#pragma unroll
    for (float c : coefficients) y = __fadd_rn(__fmul_rn(y, f), c);
    y = __fmul_rn(__fmul_rn(y, f), square);
    y = __fadd_rn(y, __fmul_rn(e, -2.12194440e-4f));
    y = __fadd_rn(y, __fmul_rn(-.5f, square));
    return __fadd_rn(__fadd_rn(f, y), __fmul_rn(e, .693359375f));
}

__device__ inline float logarithm(float x) {
    const int bits = __float_as_int(x);
    int e = (bits >> 23) - 126;
    float m = __int_as_float((bits & 0x7fffff) | 0x3f000000);
    if (m < .707106781186547524f) {
        e--;
        m = __fadd_rn(m, m);
    }
    return logarithm_of(__fadd_rn(m, -1.f), (float)e);
}

// An exponentially distributed number from 32 random bits: -ln(1 - v), accurate for small v, too.
__device__ inline float exponentially(unsigned random) {
    const float v = __fadd_rn(__fmul_rn(__uint2float_rn(random), 0x1p-32f), 0x1p-33f);
    if (v < .25f) return -logarithm_of(-v, 0.f);
    const float rest = __fadd_rn(1.f, -v);
    return rest > 0.f ? -logarithm(rest) : INFINITY;
}

// The weight of a token, times 2^40.
__device__ inline unsigned long long mass(float scaled) {
    return __float2ull_rz(__fmul_rn(exponential(scaled), 0x1p40f));
}

// The distance of a token's logit below the largest, as the bits of a non-negative float, which compare like the float.
__device__ inline unsigned depth(float scaled) { return __float_as_uint(scaled) & 0x7fffffffu; }

// The first digit of a depth, in eighths, so that tokens spread over many digits. The bytes of the depth follow.
__device__ inline unsigned eighths(unsigned depth) {
    const float many = __uint_as_float(depth) * 8.f;
    return many < 255.f ? (unsigned)many : 255u;
}

struct Room {
    // What the tokens of this block weigh by digit, and those of all blocks of the row.
    alignas(16) unsigned long long own[256];
    alignas(16) unsigned long long weights[256];
    unsigned long long wanted;
    unsigned digit;
};

// Adds up the sums that the blocks of the row have gathered.
__device__ inline void add_up(Room &room) {
    sync_cluster<SHARES>();
    if (threadIdx.x < 128) {
        unsigned long long sums[2] = {};
#pragma unroll
        for (unsigned block = 0; block < SHARES; block++) {
            const Vec<float, 4> two = load_from_block<SHARES>(block, reinterpret_cast<float *>(room.own + 2 * threadIdx.x));
#pragma unroll
            for (unsigned n = 0; n < 2; n++) {
                const unsigned long long high = __float_as_uint(two.at[2 * n + 1]);
                sums[n] += high << 32 | __float_as_uint(two.at[2 * n]);
            }
        }
        room.weights[2 * threadIdx.x] = sums[0], room.weights[2 * threadIdx.x + 1] = sums[1];
    }
    // No block changes its sums while others read them.
    sync_cluster<SHARES>();
}

// Finds the digit at which the sum of weights reaches `wanted_of(total)`, and the part of it that remains for that digit.
template <typename W> __device__ inline void pick(Room &room, W wanted_of) {
    if (threadIdx.x < 32) {
        unsigned long long own = 0, before;
        for (unsigned n = 0; n < 8; n++) own += room.weights[threadIdx.x * 8 + n];
        unsigned long long until = own;
#pragma unroll
        for (unsigned distance = 1; distance < 32; distance *= 2) {
            const unsigned long long other = __shfl_up_sync(~0u, until, distance);
            if (threadIdx.x >= distance) until += other;
        }
        before = until - own;
        const unsigned long long wanted = wanted_of(__shfl_sync(~0u, until, 31));
        if (threadIdx.x == 0) room.digit = 255;
        __syncwarp();
        if (before < wanted && wanted <= until) {
            unsigned digit = threadIdx.x * 8;
            while (before + room.weights[digit] < wanted) before += room.weights[digit++];
            room.digit = digit;
            room.wanted = wanted - before;
        }
    }
    __syncthreads();
}

// The least depth up to which the tokens' weights reach `wanted(total weight)`. `visit` calls a function with the depth and
// weight of each of this thread's tokens.
template <typename V, typename W> __device__ inline unsigned limit_of(Room &room, V visit, W wanted) {
    auto gather = [&](auto digit) {
        for (unsigned n = threadIdx.x; n < 256; n += blockDim.x) room.own[n] = 0;
        __syncthreads();
        visit([&](unsigned depth, unsigned long long weight) {
            const unsigned at = digit(depth);
            if (at < 256 && weight > 0) atomicAdd(&room.own[at], weight);
        });
        add_up(room);
    };
    gather([](unsigned depth) { return eighths(depth); });
    pick(room, wanted);
    const unsigned first = room.digit;
    unsigned limit = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        const unsigned above = (unsigned)((unsigned long long)limit >> (shift + 8));
        gather([=](unsigned depth) {
            const bool counts = eighths(depth) == first && (unsigned)((unsigned long long)depth >> (shift + 8)) == above;
            return counts ? depth >> shift & 255u : 256u;
        });
        pick(room, [&](unsigned long long) { return room.wanted; });
        limit |= room.digit << shift;
    }
    __syncthreads();
    return limit;
}

// Of all blocks of the row.
__device__ inline Largest<float> of_row(Largest<float> best, Largest<float> (&room)[32], float (&in_block)[4]) {
    best = of_block(best, room);
    if (threadIdx.x == 0) in_block[0] = best.value, in_block[1] = __uint_as_float(best.at);
    sync_cluster<SHARES>();
    best = Largest<float>::none();
#pragma unroll
    for (unsigned block = 0; block < SHARES; block++) {
        const Vec<float, 4> its = load_from_block<SHARES>(block, in_block);
        best = best.with({its.at[0], __float_as_uint(its.at[1])});
    }
    // What others still read stays.
    sync_cluster<SHARES>();
    return best;
}

template <typename T>
__device__ inline void sample(unsigned rows, unsigned vocab, unsigned own_positions, const T *logits,
                              const unsigned *parameters, const unsigned *positions, const uint8_t *seen, unsigned *y) {
    __shared__ Largest<float> largest[32];
    __shared__ Room room;
    __shared__ alignas(16) float in_block[4];
    const unsigned row = blockIdx.x, thread = blockIdx.z * blockDim.x + threadIdx.x, threads = SHARES * blockDim.x;
    trigger_dependents();
    wait_for_predecessors();
    if (row >= rows) return;
    logits += (size_t)row * vocab;
    if (seen) seen += (size_t)row * vocab;
    parameters += row * WORDS;
    const float temperature = __uint_as_float(parameters[TEMPERATURE]), penalty = __uint_as_float(parameters[PENALTY]);

    const bool bars = parameters[BARS] != 0;

    auto penalised = [&](unsigned at, float v) {
        if (!seen || (penalty == 1.f && !bars)) return v;
        const unsigned mark = seen[at];
        if (bars && (mark & BARRED)) return -INFINITY;
        if (penalty == 1.f || !(mark & SEEN)) return v;
        return v > 0.f ? __fdiv_rn(v, penalty) : __fmul_rn(v, penalty);
    };
    Largest<float> best = Largest<float>::none();
    // A NaN is the largest of a row. Infinity counts as one before penalties, which may make others as large.
    each<T>(logits, vocab, thread, threads,
            [&](unsigned at, float v) { best = best.or_later(v < INFINITY ? penalised(at, v) : NAN, at); });
    best = of_row(best, largest, in_block);
    if (temperature == 0.f || !isfinite(best.value)) {
        if (thread == 0) y[row] = best.value > -INFINITY ? best.at : NO_TOKEN;
        return;
    }

    const float top = best.value;
    auto scaled = [&](unsigned at, float v) { return __fdiv_rn(__fadd_rn(penalised(at, v), -top), temperature); };
    unsigned limit = 0x7f7fffffu;
    const unsigned top_k = parameters[TOP_K];
    if (top_k > 0 && top_k < vocab) {
        const auto count = [&](auto f) {
            each<T>(logits, vocab, thread, threads, [&](unsigned at, float v) {
                const unsigned d = depth(scaled(at, v));
                if (d <= limit) f(d, 1ull);
            });
        };
        limit = limit_of(room, count, [=](unsigned long long all) { return min(all, (unsigned long long)top_k); });
    }
    const float top_p = __uint_as_float(parameters[TOP_P]);
    if (top_p < 1.f) {
        const auto weigh = [&](auto f) {
            each<T>(logits, vocab, thread, threads, [&](unsigned at, float v) {
                const float z = scaled(at, v);
                if (depth(z) <= limit) f(depth(z), mass(z));
            });
        };
        limit = limit_of(room, weigh, [=](unsigned long long all) {
            return max(1ull, __double2ull_rz(__dmul_rn((double)top_p, __ull2double_rn(all))));
        });
    }
    const float min_p = __uint_as_float(parameters[MIN_P]);
    const uint2 seed = {parameters[SEED_LOW], parameters[SEED_HIGH]};
    const unsigned position = positions[own_positions ? row : 0];
    unsigned group = ~0u;
    uint4 random;
    best = Largest<float>::none();
    each<T>(logits, vocab, thread, threads, [&](unsigned at, float v) {
        const float z = scaled(at, v);
        if (depth(z) > limit || (min_p > 0.f && exponential(z) < min_p)) return;
        if (at / 4 != group) {
            group = at / 4;
            random = philox({group, position, 0, 0}, seed);
        }
        const unsigned words[] = {random.x, random.y, random.z, random.w};
        unsigned word = words[0];
#pragma unroll
        for (unsigned n = 1; n < 4; n++) word = at % 4 == n ? words[n] : word;
        best = best.or_later(__fadd_rn(z, -logarithm(exponentially(word))), at);
    });
    best = of_row(best, largest, in_block);
    if (thread == 0) y[row] = best.at;
}

#define SAMPLE(T, NAME)                                                                                                \
    extern "C" __global__ void CLUSTER(SHARES) __launch_bounds__(1024) opara_sample_##NAME(unsigned rows, unsigned vocab, \
        unsigned own_positions, const T *logits, const unsigned *parameters, const unsigned *positions,                \
        const uint8_t *seen, unsigned *y) {                                                                            \
        sample<T>(rows, vocab, own_positions, logits, parameters, positions, seen, y);                                 \
    }

SAMPLE(float, f32)
SAMPLE(__half, f16)
SAMPLE(__nv_bfloat16, bf16)

extern "C" __global__ void opara_layout_mark_u8(unsigned rows, unsigned vocab, const unsigned *tokens, uint8_t *seen) {
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const unsigned token = tokens[row];
    if (token < vocab) seen[(size_t)row * vocab + token] = SEEN;
}
