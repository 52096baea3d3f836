// Products of a weight's rows with up to eight rows of x, which a decoder makes for each token: memory's speed is all that limits
// them. A warp takes a few rows of the weight, or with others of its block a part of each, and keeps 16 bytes a lane of several
// places in flight. What is asked for before x is normalised has come when that is done. Sums are in an order that the sizes of
// the weight decide: a row's result does not depend on the rows beside it.
#pragma once
#include "activation.cuh"
#include "dependent.cuh"
#include "rows.cuh"

constexpr unsigned WARPS = 8;

// Elements of a row that a warp takes at a time.
template <typename T> constexpr unsigned CHUNK = 32 * WIDE<T>;

// Of a weight, which nobody reads again soon.
template <typename T> __device__ inline Vec<T, WIDE<T>> load_once(const T *from) {
    const uint4 bits = __ldcs(reinterpret_cast<const uint4 *>(from));
    return *reinterpret_cast<const Vec<T, WIDE<T>> *>(&bits);
}

// Where four neighbours of a row of x are in shared memory: those that the lanes of a warp read at once follow one another.
template <typename T> __device__ inline unsigned place(unsigned element) {
    constexpr unsigned N = WIDE<T>;
    const unsigned chunk = element / CHUNK<T>, lane = element % CHUNK<T> / N, part = element % N / 4;
    return chunk * CHUNK<T> + part * 128 + lane * 4;
}

// x in f32, normalised and rounded if there is a scale, with zeros behind its end: R rows of `padded` elements.
template <typename T, unsigned R>
__device__ inline void stage(unsigned rows, unsigned inner, unsigned padded, float eps, const T *x, const T *scale,
                             float *room) {
    constexpr unsigned N = WIDE<T>, PARTS = WARPS / R;
    // The sum of squares is one of eight parts, whatever R is: part i has every eighth chunk from chunk i on. So a row's norm does
    // not depend on how many rows share the block.
    __shared__ float sums[WARPS][R];
    const unsigned warp = threadIdx.x / 32, row = warp % R, part = warp / R;
    const unsigned first = (part * 32 + threadIdx.x % 32) * N, step = PARTS * 32 * N;
    float *to = room + row * padded, squares[R] = {};
    for (unsigned begin = first; begin < padded; begin += R * step) {
#pragma unroll
        for (unsigned round = 0; round < R; round++) {
            const unsigned at = begin + round * step;
            if (at >= padded) break;
            Vec<T, N> v{};
            if (row < rows && at < inner) v = load<T, N>(x + (size_t)row * inner + at);
#pragma unroll
            for (unsigned four = 0; four < N / 4; four++) {
                Vec<float, 4> wide;
#pragma unroll
                for (unsigned n = 0; n < 4; n++) {
                    wide.at[n] = widen(v.at[four * 4 + n]);
                    squares[round] = fmaf(wide.at[n], wide.at[n], squares[round]);
                }
                store<float, 4>(to + place<T>(at + four * 4), wide);
            }
        }
    }
    if (scale) {
#pragma unroll
        for (unsigned round = 0; round < R; round++) {
            const float all = warp_reduce<Add>(squares[round]);
            if (threadIdx.x % 32 == 0) sums[round * PARTS + part][row] = all;
        }
        __syncthreads();
        float all = 0;
#pragma unroll
        for (unsigned i = 0; i < WARPS; i++) all += sums[i][row];
        const float factor = rsqrtf(all / inner + eps);
        // Each thread has what it stored.
        for (unsigned at = first; at < inner; at += step) {
            const Vec<T, N> of_scale = load<T, N>(scale + at);
#pragma unroll
            for (unsigned part = 0; part < N / 4; part++) {
                Vec<float, 4> wide = load<float, 4>(to + place<T>(at + part * 4));
#pragma unroll
                for (unsigned n = 0; n < 4; n++)
                    wide.at[n] = widen(narrow<T>(wide.at[n] * factor * widen(of_scale.at[part * 4 + n])));
                store<float, 4>(to + place<T>(at + part * 4), wide);
            }
        }
    }
    __syncthreads();
}

// `columns` results of each row, of LOADS rows of the weight a warp: of two for each result if GATED, a gate and what it lets
// through, which is `columns` rows further down. `splits` warps share them. A warp asks for DEPTH of its chunks at a time.
template <typename T, unsigned R, unsigned LOADS, unsigned DEPTH, bool GATED>
__device__ inline void gemv(unsigned rows, unsigned columns, unsigned inner, unsigned splits, int activation, float eps,
                            const T *x, const T *scale, const T *weight, const T *bias, const T *residual, T *y) {
    constexpr unsigned N = WIDE<T>, RESULTS = GATED ? LOADS / 2 : LOADS;
    extern __shared__ float4 dynamic[];
    float *room = reinterpret_cast<float *>(dynamic);
    __shared__ float partial[WARPS][LOADS * R];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = warp % splits, sets = WARPS / splits;
    const unsigned first = (blockIdx.x * sets + warp / splits) * RESULTS;
    const unsigned chunks = (inner + CHUNK<T> - 1) / CHUNK<T>, padded = chunks * CHUNK<T>;
    const T *from[LOADS];
#pragma unroll
    for (unsigned l = 0; l < LOADS; l++) {
        // Beyond the end: the last one again, whose result is not stored.
        const unsigned result = min(first + (GATED ? l / 2 : l), columns - 1);
        from[l] = weight + (size_t)(GATED && l % 2 ? columns + result : result) * inner + lane * N;
    }
    Vec<T, N> held[DEPTH][LOADS];
    auto ask = [&](unsigned chunk) {
#pragma unroll
        for (unsigned d = 0; d < DEPTH; d++) {
            const unsigned at = (chunk + d * splits) * CHUNK<T>;
#pragma unroll
            for (unsigned l = 0; l < LOADS; l++)
                held[d][l] = at + lane * N < inner ? load_once<T>(from[l] + at) : Vec<T, N>{};
        }
    };
    let_the_next_begin();
    ask(split);
    wait_for_those_before();
    stage<T, R>(rows, inner, padded, eps, x, scale, room);

    float sum[LOADS][R] = {};
    for (unsigned chunk = split; chunk < chunks; chunk += DEPTH * splits) {
        if (chunk != split) ask(chunk);
#pragma unroll
        for (unsigned d = 0; d < DEPTH; d++) {
            if (chunk + d * splits >= chunks) break;
            const float *of_lane = room + (chunk + d * splits) * CHUNK<T> + lane * 4;
#pragma unroll
            for (unsigned r = 0; r < R; r++) {
#pragma unroll
                for (unsigned part = 0; part < N / 4; part++) {
                    const Vec<float, 4> wide = load<float, 4>(of_lane + r * padded + part * 128);
#pragma unroll
                    for (unsigned l = 0; l < LOADS; l++)
#pragma unroll
                        for (unsigned n = 0; n < 4; n++)
                            sum[l][r] = fmaf(widen(held[d][l].at[part * 4 + n]), wide.at[n], sum[l][r]);
                }
            }
        }
    }
#pragma unroll
    for (unsigned l = 0; l < LOADS; l++)
#pragma unroll
        for (unsigned r = 0; r < R; r++) {
            const float all = warp_reduce<Add>(sum[l][r]);
            if (lane == 0) partial[warp][l * R + r] = all;
        }
    __syncthreads();

    for (unsigned i = threadIdx.x; i < sets * RESULTS * R; i += WARPS * 32) {
        const unsigned r = i / (sets * RESULTS), set = i % (sets * RESULTS) / RESULTS, result = i % RESULTS;
        const unsigned column = (blockIdx.x * sets + set) * RESULTS + result;
        if (r >= rows || column >= columns) continue;
        auto total = [&](unsigned l, unsigned row_of_weight) {
            float all = 0;
            for (unsigned split = 0; split < splits; split++) all += partial[set * splits + split][l * R + r];
            return bias ? all + widen(bias[row_of_weight]) : all;
        };
        const size_t at = (size_t)r * columns + column;
        float value;
        if constexpr (GATED) {
            const float gate = total(2 * result, column), through = total(2 * result + 1, columns + column);
            with_activation(activation, [&](auto kind) { value = activate<kind>(gate) * through; });
        } else {
            value = total(result, column);
            if (residual) value += widen(residual[at]);
        }
        y[at] = narrow<T>(value);
    }
}

// The first argument counts the results.
#define GEMV(T, NAME, R, LOADS, DEPTH)                                                                                 \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) opara_gemv_##R##_##NAME(unsigned numel, unsigned columns, \
        unsigned inner, unsigned splits, float eps, const T *x, const T *scale, const T *weight, const T *bias,        \
        const T *residual, T *y) {                                                                                     \
        gemv<T, R, LOADS, DEPTH, false>(numel / columns, columns, inner, splits, NONE, eps, x, scale, weight, bias,    \
                                        residual, y);                                                                  \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) opara_gated_gemv_##R##_##NAME(unsigned numel,             \
        unsigned columns, unsigned inner, unsigned splits, int activation, float eps, const T *x, const T *scale,      \
        const T *weight, const T *bias, T *y) {                                                                        \
        gemv<T, R, LOADS, DEPTH, true>(numel / columns, columns, inner, splits, activation, eps, x, scale, weight,     \
                                       bias, nullptr, y);                                                              \
    }
#define GEMVS(T, NAME)                                                                                                 \
    GEMV(T, NAME, 1, 2, 4)                                                                                             \
    GEMV(T, NAME, 2, 2, 4)                                                                                             \
    GEMV(T, NAME, 4, 4, 2)                                                                                             \
    GEMV(T, NAME, 8, 4, 2)
