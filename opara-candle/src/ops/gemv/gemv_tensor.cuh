// Products of a weight's rows with up to 16 rows of x on tensor cores, for types of 16 bits: what gemv.cuh is for f32. Memory's speed
// limits them. A warp takes 16 rows of the weight, or with others of its block a part of each, and then the next ones as long as
// there are any. What it multiplies next is on its way into registers; the first of that is asked for before the kernel waits for
// those before it. x is in shared memory.
//
// Sums are in an order that the sizes of the weight decide: a row's result does not depend on the rows beside it.
#pragma once
#include "activation.cuh"
#include "dependent.cuh"
#include "rows.cuh"
#include "tensor.cuh"

constexpr unsigned WARPS = 8;
// Rows of the weight that a warp takes at a time: those of an mma instruction.
constexpr unsigned ROWS = 16;
// Elements of a row that a warp takes at a time: each lane loads 16 bytes so many times.
constexpr unsigned LOADS = 4, CHUNK = LOADS * 32;
// Elements behind each row in shared memory, so that lanes that read two rows at once read different banks.
constexpr unsigned APART = 32;

// The part of two rows of the weight, eight rows apart, that a lane takes at a time.
struct Part {
    uint4 of[LOADS][2];
};

// 16 bytes that no other block reads, and that no kernel of this graph writes.
__device__ inline uint4 load_once(const void *at) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
}

// x, normalised if there is a scale, with zeros behind its rows' ends and in the rows that it lacks: R rows. The sum of squares of a
// row is in eight parts, whatever R is: part i has every eighth 32 vectors from those of warp i on.
template <typename T, unsigned R>
__device__ inline void stage(unsigned rows, unsigned inner, unsigned padded, float eps, const T *x, const T *scale, T *room,
                             float (&squares)[R][WARPS]) {
    constexpr unsigned N = WIDE<T>;
    const unsigned stride = padded + APART;
    float square[R] = {};
    for (unsigned at = threadIdx.x * N; at < padded; at += WARPS * 32 * N) {
#pragma unroll
        for (unsigned r = 0; r < R; r++) {
            Vec<T, N> v{};
            if (r < rows && at < inner) v = load<T, N>(x + (size_t)r * inner + at);
            store<T, N>(room + r * stride + at, v);
#pragma unroll
            for (unsigned n = 0; n < N; n++) square[r] = fmaf(widen(v.at[n]), widen(v.at[n]), square[r]);
        }
    }
    if (scale) {
#pragma unroll
        for (unsigned r = 0; r < R; r++) {
            const float all = warp_reduce<Add>(square[r]);
            if (threadIdx.x % 32 == 0) squares[r][threadIdx.x / 32] = all;
        }
        __syncthreads();
        float factor[R] = {};
#pragma unroll
        for (unsigned r = 0; r < R; r++) {
            if (r >= rows) break;
#pragma unroll
            for (unsigned part = 0; part < WARPS; part++) factor[r] += squares[r][part];
            factor[r] = rsqrtf(factor[r] / inner + eps);
        }
        // Each thread has what it stored itself.
        for (unsigned at = threadIdx.x * N; at < inner; at += WARPS * 32 * N) {
            const Vec<T, N> of_scale = load<T, N>(scale + at);
#pragma unroll
            for (unsigned r = 0; r < R; r++) {
                if (r >= rows) break;
                Vec<T, N> v = load<T, N>(room + r * stride + at);
#pragma unroll
                for (unsigned n = 0; n < N; n++)
                    v.at[n] = narrow<T>(widen(v.at[n]) * factor[r] * widen(of_scale.at[n]));
                store<T, N>(room + r * stride + at, v);
            }
        }
    }
    __syncthreads();
}

// `columns` results of each row, of one row of the weight each, or of two if GATED: a gate and what it lets through, which is
// `columns` rows further down. `splits` warps share them. The activation is the gate's, or comes before the residual.
template <typename T, unsigned R, bool GATED>
__device__ inline void gemv(unsigned rows, unsigned columns, unsigned inner, unsigned splits, int activation, float eps,
                            const T *x, const T *scale, const T *weight, const T *bias, const T *residual, T *y) {
    constexpr unsigned RESULTS = GATED ? ROWS / 2 : ROWS, TILES = R / 8;
    extern __shared__ uint4 dynamic[];
    // Sums of warps: of some results, while the ones before are added up.
    __shared__ float partial[2][WARPS][ROWS][R], squares[R][WARPS];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = warp % splits, set = warp / splits;
    const unsigned of_block = WARPS / splits * RESULTS, step = gridDim.x * of_block;
    const unsigned chunks = (inner + CHUNK - 1) / CHUNK, padded = chunks * CHUNK, parts = (chunks + splits - 1) / splits;
    T *room = reinterpret_cast<T *>(dynamic);

    // The order of terms is free: lane l has elements 8 * (l % 4) and the next seven of each 32, which are those of two instructions.
    const unsigned group = lane / 4, of_lane = lane % 4 * 8;
    auto ask = [&](unsigned base, unsigned part) {
        Part asked{};
        const unsigned chunk = part * splits + split, first = base + set * RESULTS;
        if (first >= columns || chunk >= chunks) return asked;
        // Beyond the end: the last one again, whose result is not stored.
        const size_t upper = min(first + group, columns - 1);
        const size_t lower = GATED ? columns + upper : min(first + group + 8, columns - 1);
#pragma unroll
        for (unsigned l = 0; l < LOADS; l++) {
            const unsigned at = chunk * CHUNK + l * 32 + of_lane;
            if (at >= inner) break;
            asked.of[l][0] = load_once(weight + upper * inner + at);
            asked.of[l][1] = load_once(weight + lower * inner + at);
        }
        return asked;
    };

    let_the_next_begin();
    unsigned base = blockIdx.x * of_block;
    Part next = ask(base, 0);
    wait_for_those_before();
    stage<T, R>(rows, inner, padded, eps, x, scale, room, squares);

    for (unsigned side = 0; base < columns; base += step, side ^= 1) {
        float sum[TILES][4] = {};
        for (unsigned part = 0; part < parts; part++) {
            const Part now = next;
            next = part + 1 < parts ? ask(base, part + 1) : ask(base + step, 0);
            const unsigned chunk = part * splits + split;
            if (chunk >= chunks) continue;
#pragma unroll
            for (unsigned l = 0; l < LOADS; l++) {
                const uint4 upper = now.of[l][0], lower = now.of[l][1];
#pragma unroll
                for (unsigned tile = 0; tile < TILES; tile++) {
                    const T *from = room + (tile * 8 + group) * (padded + APART) + chunk * CHUNK + l * 32 + of_lane;
                    const uint4 of_x = *reinterpret_cast<const uint4 *>(from);
                    mma(sum[tile], {upper.x, lower.x, upper.y, lower.y}, of_x.x, of_x.y, T());
                    mma(sum[tile], {upper.z, lower.z, upper.w, lower.w}, of_x.z, of_x.w, T());
                }
            }
        }
#pragma unroll
        for (unsigned tile = 0; tile < TILES; tile++)
#pragma unroll
            for (unsigned half = 0; half < 2; half++) {
                float *to = &partial[side][warp][group + half * 8][tile * 8 + lane % 4 * 2];
                to[0] = sum[tile][half * 2], to[1] = sum[tile][half * 2 + 1];
            }
        __syncthreads();

        for (unsigned at = threadIdx.x; at < of_block * rows; at += WARPS * 32) {
            const unsigned row = at / of_block, in_block = at % of_block, column = base + in_block;
            if (column >= columns) continue;
            const unsigned first = in_block / RESULTS * splits, result = in_block % RESULTS;
            auto total = [&](unsigned of_row, unsigned of_bias) {
                float all = bias ? widen(bias[of_bias]) : 0.f;
                for (unsigned s = 0; s < splits; s++) all += partial[side][first + s][of_row][row];
                return all;
            };
            float value;
            if constexpr (GATED) {
                const float gate = total(result, column), through = total(result + 8, columns + column);
                with_activation(activation, [&](auto kind) { value = activate<kind>(gate) * through; });
            } else {
                with_activation(activation, [&](auto kind) { value = activate<kind>(total(result, column)); });
                if (residual) value += widen(residual[(size_t)row * columns + column]);
            }
            y[(size_t)row * columns + column] = narrow<T>(value);
        }
    }
}

// The first argument counts the results.
#define GEMV(T, NAME, R)                                                                                               \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) opara_gemv_##R##_##NAME(unsigned numel,                \
        unsigned columns, unsigned inner, unsigned splits, int activation, float eps, const T *x, const T *scale,      \
        const T *weight, const T *bias, const T *residual, T *y) {                                                     \
        gemv<T, R, false>(numel / columns, columns, inner, splits, activation, eps, x, scale, weight, bias, residual,  \
                          y);                                                                                          \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) opara_gated_gemv_##R##_##NAME(unsigned numel,          \
        unsigned columns, unsigned inner, unsigned splits, int activation, float eps, const T *x, const T *scale,      \
        const T *weight, const T *bias, T *y) {                                                                        \
        gemv<T, R, true>(numel / columns, columns, inner, splits, activation, eps, x, scale, weight, bias, nullptr,    \
                         y);                                                                                           \
    }
#define GEMVS(T, NAME)                                                                                                 \
    GEMV(T, NAME, 8)                                                                                                   \
    GEMV(T, NAME, 16)
