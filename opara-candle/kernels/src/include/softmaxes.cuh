// Softmaxes that warps of a block have of some of a sequence's places, and how they become one. Scores and sums are transposed products of
// tensor.cuh: of values by weight, a lane has two elements of two heads for each step of 16 elements.
#pragma once
#include "cluster.cuh"
#include "places.cuh"
#include "tensor.cuh"

// Columns of an instruction: query heads that share keys, at most.
constexpr unsigned COLUMNS = 8;

// Two numbers as one register, which become the rounded ones.
__device__ inline unsigned packed(float &a, float &b, __half) {
    const __half2 both = __floats2half2_rn(a, b);
    a = __low2float(both), b = __high2float(both);
    return *reinterpret_cast<const unsigned *>(&both);
}
__device__ inline unsigned packed(float &a, float &b, __nv_bfloat16) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    a = __low2float(both), b = __high2float(both);
    return *reinterpret_cast<const unsigned *>(&both);
}

// A softmax so far, of two heads: largest scores in bits, and sums of weights.
struct alignas(16) Softmax {
    float most[2] = {LOWEST, LOWEST}, sum[2] = {};

    static __device__ Softmax of(const Vec<float, 4> &v) { return {{v.at[0], v.at[1]}, {v.at[2], v.at[3]}}; }
};

// When a softmax takes in another one: what each one's sums are multiplied by.
struct Factors {
    float mine[2], its[2];

    __device__ Factors(Softmax &softmax, const Softmax &other) {
#pragma unroll
        for (unsigned n = 0; n < 2; n++) {
            const float both = fmaxf(softmax.most[n], other.most[n]);
            mine[n] = exp2_approx(softmax.most[n] - both), its[n] = exp2_approx(other.most[n] - both);
            softmax.sum[n] = fmaf(softmax.sum[n], mine[n], __fmul_rn(other.sum[n], its[n])), softmax.most[n] = both;
        }
    }

    __device__ void join(Vec<float, 4> &value, const Vec<float, 4> &other) const {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) value.at[i] = fmaf(value.at[i], mine[i % 2], __fmul_rn(other.at[i], its[i % 2]));
    }
};

// Sums of eight warps in a fixed order: of pairs, of pairs of these, and of both.
__device__ inline float paired(const float (&v)[WARPS]) {
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

// Vector `n` of `warps` warps into y, which has `group` heads of `dim` elements. Warps' vectors and softmaxes are at a distance.
template <typename T>
__device__ inline void join_warps(unsigned n, unsigned warps, const Vec<float, 4> *values, unsigned distance,
                                  const Softmax (*softmaxes)[COLUMNS / 2], unsigned group, unsigned dim, T *y) {
    const unsigned head = n % 4 * 2, d = n / 32 * 16 + n % 32 / 4;
    if (head >= group) return;
    float factors[2][WARPS], factor[2], parts[4][WARPS];
#pragma unroll
    for (unsigned h = 0; h < 2; h++) {
        float most = LOWEST, sums[WARPS];
#pragma unroll
        for (unsigned w = 0; w < WARPS; w++) {
            const Softmax its = Softmax::of(load<float, 4>(softmaxes[w][n % 4].most));
            factors[h][w] = w < warps ? its.most[h] : LOWEST, sums[w] = w < warps ? its.sum[h] : 0;
            most = fmaxf(most, factors[h][w]);
        }
#pragma unroll
        for (unsigned w = 0; w < WARPS; w++)
            factors[h][w] = exp2_approx(factors[h][w] - most), sums[w] = __fmul_rn(sums[w], factors[h][w]);
        factor[h] = __frcp_rn(paired(sums));
    }
#pragma unroll
    for (unsigned w = 0; w < WARPS; w++) {
        const Vec<float, 4> its = w < warps ? load<float, 4>(values[w * distance].at) : Vec<float, 4>{};
#pragma unroll
        for (unsigned i = 0; i < 4; i++) parts[i][w] = __fmul_rn(its.at[i], factors[i % 2][w]);
    }
#pragma unroll
    for (unsigned i = 0; i < 4; i++)
        if (head + i % 2 < group && d + i / 2 * 8 < dim)
            y[(head + i % 2) * dim + d + i / 2 * 8] = narrow<T>(__fmul_rn(paired(parts[i]), factor[i % 2]));
}

// The same of all blocks of a cluster, whose warps have groups of places in the order of blocks: groups of a warp first. Each warp has
// VECTORS vectors, at a distance; `has` says whether a block's warp has any. A block makes a part of them, by way of `room`.
template <unsigned BLOCKS, unsigned VECTORS, typename T, typename Has>
__device__ inline void join_blocks(unsigned warps, const Vec<float, 4> *values, unsigned distance, const Softmax (*softmaxes)[COLUMNS / 2],
                                   unsigned group, unsigned dim, Vec<float, 4> *room, T *y, Has has) {
    constexpr unsigned OF_BLOCK = VECTORS / BLOCKS;
    const unsigned i = threadIdx.x % OF_BLOCK, warp = threadIdx.x / OF_BLOCK, n = blockIdx.z * OF_BLOCK + i;
    auto *joined = reinterpret_cast<Softmax(*)[COLUMNS / 2]>(room + WARPS * OF_BLOCK);
    if (warp < WARPS && n % 4 * 2 < group) {
        Softmax softmax[BLOCKS];
        Vec<float, 4> value[BLOCKS] = {};
#pragma unroll
        for (unsigned b = 0; b < BLOCKS; b++)
            if (has(b, warp)) {
                softmax[b] = Softmax::of(load_from_block<BLOCKS>(b, softmaxes[warp][n % 4].most));
                value[b] = load_from_block<BLOCKS>(b, values[warp * distance + n].at);
            }
#pragma unroll
        for (unsigned b = 1; b < BLOCKS; b++)
            if (has(b, warp)) Factors(softmax[0], softmax[b]).join(value[0], value[b]);
        room[warp * OF_BLOCK + i] = value[0];
        if (i < COLUMNS / 2) joined[warp][i] = softmax[0];
    }
    __syncthreads();
    if (threadIdx.x < OF_BLOCK) join_warps(n, warps, room + i, OF_BLOCK, joined, group, dim, y);
}
