// Products of a quantised weight's rows with one row of x, or with up to eight where quantized_tensor.cuh has no kernel, and its
// elements. The layouts of codes and scales are in weight.rs.
//
// The rows of x become codes of 8 bits, with a scale for each group of 32 (as llama.cpp's Q8_1), so that a product of groups is a sum
// of integers. A warp takes four rows of the weight, or with others of its block a part of each. What it multiplies next is on its way
// into registers; the first of that is asked for before the kernel waits for its predecessors.
//
// Sums are in an order that the sizes of the weight decide: a row's result does not depend on the rows beside it.
#pragma once
#include "activation.cuh"
#include "dependent.cuh"
#include "groups.cuh"
#include "rows.cuh"
#include <cassert>

constexpr unsigned WARPS = 8;
// Rows of the weight that a warp takes at a time.
constexpr unsigned LOADS = 4;
// Elements of x that a thread turns into codes at a time.
constexpr unsigned TAKEN = 8;
// Parts that a warp asks for ahead of what it multiplies: as many as there are registers for.
template <unsigned R> constexpr unsigned AHEAD = R == 1 ? 2 : 1;

// Codes of a row that a lane takes at a time, 16 bytes.
template <unsigned BITS> constexpr unsigned CODES = 128 / BITS;

// Where 16 neighbours of x are in shared memory: those that the lanes of a warp read at once follow one another.
template <unsigned BITS> __device__ inline unsigned place(unsigned sixteen, unsigned padded) {
    if constexpr (BITS == 8) return sixteen;
    return sixteen / 2 + sixteen % 2 * (padded / 32);
}

// What shared memory has of x: codes, and of each 16 neighbours the scale and the sum of what the codes stand for.
struct Staged {
    int4 *codes;
    float2 *scales;
};

// A row of x, times the norm's scale if there is one, with zeros behind its end. The sum of squares of x is left in parts, one for each
// warp.
template <typename T, unsigned BITS>
__device__ inline void stage(unsigned inner, unsigned padded, const T *x, const T *norm, Staged to, float *squares) {
    constexpr int N = WIDE<T> < TAKEN ? WIDE<T> : TAKEN;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float square = 0;
    // `padded` is a multiple of what a warp takes, so that its lanes stay together.
    for (unsigned at = threadIdx.x * TAKEN; at < padded; at += WARPS * 32 * TAKEN) {
        float v[TAKEN] = {};
        if (at < inner) {
#pragma unroll
            for (unsigned part = 0; part < TAKEN; part += N) {
                const Vec<T, N> of_x = load<T, N>(x + at + part);
                Vec<T, N> of_norm{};
                if (norm) of_norm = load<T, N>(norm + at + part);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const float value = widen(of_x.at[n]);
                    square = fmaf(value, value, square);
                    v[part + n] = norm ? value * widen(of_norm.at[n]) : value;
                }
            }
        }
        float largest = 0;
#pragma unroll
        for (unsigned n = 0; n < TAKEN; n++) largest = max_nan(fabsf(v[n]), largest);
#pragma unroll
        for (unsigned distance = 1; distance <= 2; distance *= 2)
            largest = max_nan(__shfl_xor_sync(~0u, largest, distance), largest);
        // Not a number where the group has none: its codes are zeros, and whatever is multiplied with it is NaN.
        const bool is_finite = largest < INFINITY;
        const float scale = is_finite ? largest / 127 : NAN, inverse = is_finite && largest > 1e-35f ? 127 / largest : 0;
        unsigned words[2] = {};
        int sum = 0;
#pragma unroll
        for (unsigned n = 0; n < TAKEN; n++) {
            const int code = is_finite ? __float2int_rn(v[n] * inverse) : 0;
            sum += code;
            words[n / 4] |= (unsigned)(code & 255) << n % 4 * 8;
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        const unsigned sixteen = at / 16, at_place = place<BITS>(sixteen, padded);
        reinterpret_cast<uint2 *>(to.codes + at_place)[lane % 2] = make_uint2(words[0], words[1]);
        if (lane % 2 == 0) to.scales[at_place] = make_float2(scale, scale * sum);
    }
    square = warp_reduce<Add>(square);
    if (lane == 0) squares[warp] = square;
}

// The part of four rows of a weight that a lane takes at a time.
template <typename S> struct Part {
    int4 codes[LOADS];
    S scales[LOADS];
};

// `columns` results of each row, of one row of the weight each, or of two if GATED: a gate and what it lets through, which is
// `columns` rows further down. `splits` warps share them.
template <typename T, unsigned BITS, unsigned GROUP, typename S, unsigned R, bool GATED>
__device__ inline void gemv(unsigned rows, unsigned columns, unsigned inner, unsigned splits, int activation, float eps,
                            const T *x, const T *norm, const unsigned char *codes, const S *scales, const T *bias,
                            const T *residual, T *y) {
    constexpr unsigned RESULTS = GATED ? LOADS / 2 : LOADS, CHUNK = 32 * CODES<BITS>;
    extern __shared__ int4 dynamic[];
    __shared__ float partial[2][WARPS][LOADS][R], squares[R][WARPS];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = warp % splits, set = warp / splits;
    const unsigned of_block = WARPS / splits * RESULTS, step = gridDim.x * of_block;
    const unsigned chunks = (inner + CHUNK - 1) / CHUNK, padded = chunks * CHUNK, parts = (chunks + splits - 1) / splits;
    auto staged = [&](unsigned r) {
        float2 *of_scales = reinterpret_cast<float2 *>(dynamic + R * (padded / 16));
        return Staged{dynamic + r * (padded / 16), of_scales + r * (padded / 16)};
    };

    // What is asked for next: a part of the rows for some results.
    unsigned asked_base = blockIdx.x * of_block, asked_part = 0;
    auto ask = [&] {
        const unsigned base = asked_base, part = asked_part;
        if (++asked_part == parts) asked_part = 0, asked_base += step;
        Part<S> asked{};
        const unsigned at = (part * splits + split) * CHUNK + lane * CODES<BITS>;
        if (base + set * RESULTS >= columns || at >= inner) return asked;
#pragma unroll
        for (unsigned l = 0; l < LOADS; l++) {
            // Beyond the end: the last one again, whose result is not stored.
            const unsigned result = min(base + set * RESULTS + (GATED ? l / 2 : l), columns - 1);
            const size_t row = GATED && l % 2 ? columns + result : result, element = row * inner + at;
            asked.codes[l] = __ldg(reinterpret_cast<const int4 *>(codes + element * BITS / 8));
            asked.scales[l] = __ldg(scales + element / GROUP);
        }
        return asked;
    };

    trigger_dependents();
    Part<S> next[AHEAD<R>];
#pragma unroll
    for (unsigned i = 0; i < AHEAD<R>; i++) next[i] = ask();
    wait_for_predecessors();
    for (unsigned r = 0; r < R; r++) {
        if (r < rows) {
            stage<T, BITS>(inner, padded, x + (size_t)r * inner, norm, staged(r), squares[r]);
        } else {
            for (unsigned at = threadIdx.x; at < padded / 16; at += WARPS * 32) {
                staged(r).codes[at] = int4{};
                staged(r).scales[at] = float2{};
            }
        }
    }
    __syncthreads();

    for (unsigned base = blockIdx.x * of_block, side = 0; base < columns; base += step, side ^= 1) {
        float sum[R][LOADS] = {};
        for (unsigned part = 0; part < parts; part++) {
            const Part<S> now = next[0];
#pragma unroll
            for (unsigned i = 1; i < AHEAD<R>; i++) next[i - 1] = next[i];
            next[AHEAD<R> - 1] = ask();
            const unsigned chunk = part * splits + split;
            if (chunk >= chunks) continue;
            const unsigned sixteen = (chunk * CHUNK + lane * CODES<BITS>) / 16;
#pragma unroll
            for (unsigned r = 0; r < R; r++) {
                const Staged of_row = staged(r);
                const unsigned at = place<BITS>(sixteen, padded);
                const int4 xs = of_row.codes[at];
                const float2 of_x = of_row.scales[at];
                if constexpr (BITS == 8) {
#pragma unroll
                    for (unsigned l = 0; l < LOADS; l++) {
                        const int4 w = now.codes[l];
                        int all = __dp4a(w.x, xs.x, 0);
                        all = __dp4a(w.y, xs.y, all), all = __dp4a(w.z, xs.z, all), all = __dp4a(w.w, xs.w, all);
                        const float2 of_w = scale_and_minimum(now.scales[l]);
                        sum[r][l] = fmaf(of_w.x * of_x.x, all, sum[r][l]);
                        if constexpr (HAS_MINIMUM<S>) sum[r][l] = fmaf(of_w.y, of_x.y, sum[r][l]);
                    }
                } else {
                    const unsigned upper = place<BITS>(sixteen + 1, padded);
                    const int4 more = of_row.codes[upper];
                    const float sum_of_x = of_x.y + of_row.scales[upper].y;
#pragma unroll
                    for (unsigned l = 0; l < LOADS; l++) {
                        constexpr int LOW = 0x0f0f0f0f;
                        const int4 w = now.codes[l];
                        int all = __dp4a(w.x & LOW, xs.x, 0);
                        all = __dp4a(w.y & LOW, xs.y, all), all = __dp4a(w.z & LOW, xs.z, all);
                        all = __dp4a(w.w & LOW, xs.w, all);
                        all = __dp4a(w.x >> 4 & LOW, more.x, all), all = __dp4a(w.y >> 4 & LOW, more.y, all);
                        all = __dp4a(w.z >> 4 & LOW, more.z, all), all = __dp4a(w.w >> 4 & LOW, more.w, all);
                        const float2 of_w = scale_and_minimum(now.scales[l]);
                        sum[r][l] = fmaf(of_w.x * of_x.x, all, sum[r][l]);
                        if constexpr (HAS_MINIMUM<S>) sum[r][l] = fmaf(of_w.y, sum_of_x, sum[r][l]);
                    }
                }
            }
        }
#pragma unroll
        for (unsigned r = 0; r < R; r++) {
            const float all = reduce_four(sum[r]);
            if (lane % 8 == 0) partial[side][warp][lane / 8][r] = all;
        }
        __syncthreads();

        const unsigned in_block = threadIdx.x % of_block, row = threadIdx.x / of_block, column = base + in_block;
        if (row >= rows || column >= columns) continue;
        float factor = 1;
        if (norm) {
            float all = 0;
#pragma unroll
            for (unsigned i = 0; i < WARPS; i++) all += squares[row][i];
            factor = rsqrtf(all / inner + eps);
        }
        const unsigned of_set = in_block / RESULTS * splits, result = in_block % RESULTS;
        auto total = [&](unsigned l, unsigned of_bias) {
            float all = 0;
            for (unsigned s = 0; s < splits; s++) all += partial[side][of_set + s][l][row];
            return fmaf(all, factor, bias ? widen(bias[of_bias]) : 0.f);
        };
        float value;
        if constexpr (GATED) {
            const float gate = total(2 * result, column), through = total(2 * result + 1, columns + column);
            with_activation(activation, [&](auto kind) { value = activate<kind>(gate) * through; });
        } else {
            value = total(result, column);
            if (residual) value += widen(residual[(size_t)row * columns + column]);
        }
        y[(size_t)row * columns + column] = narrow<T>(value);
    }
}

// 16 bytes of codes as elements: of the weight's rows at `ids`, or of all.
template <typename T, unsigned BITS, unsigned GROUP, typename S>
__device__ inline void dequantize(unsigned numel, unsigned columns, unsigned rows, const unsigned *ids,
                                  const unsigned char *codes, const S *scales, T *y) {
    constexpr unsigned N = CODES<BITS>;
    const size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (first >= numel) return;
    size_t row = first / columns;
    if (ids) row = ids[row];
    // As in `embedding.cu`.
    if (ids && row == ~0u) {
#pragma unroll
        for (unsigned n = 0; n < N; n += WIDE<T>) store<T, WIDE<T>>(y + first + n, {});
        return;
    }
    assert(row < rows);
    const size_t element = row * columns + first % columns;
    const Vec<unsigned char, 16> held = load<unsigned char, 16>(codes + element * BITS / 8);
    const float2 scale = scale_and_minimum(scales[element / GROUP]);
    T of[N];
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
        if constexpr (ARE_FLOATS<S>) {
            of[n] = narrow<T>(of_eight_bits(held.at[n]) * scale.x);
        } else {
            const int code = BITS == 8 ? (int)(signed char)held.at[n % 16] : held.at[n % 16] >> n / 16 * 4 & 15;
            of[n] = narrow<T>(fmaf(code, scale.x, scale.y));
        }
    }
#pragma unroll
    for (unsigned n = 0; n < N; n += WIDE<T>) {
        Vec<T, WIDE<T>> part;
#pragma unroll
        for (unsigned i = 0; i < WIDE<T>; i++) part.at[i] = of[n + i];
        store<T, WIDE<T>>(y + first + n, part);
    }
}

// The first argument counts the results.
#define GEMV(T, NAME, BITS, GROUP, KIND, S, R)                                                                         \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2)                                                        \
        opara_matmul_quantized_gemv_##BITS##_##GROUP##_##KIND##_##R##_##NAME(unsigned numel, unsigned columns, unsigned inner, \
            unsigned splits, float eps, const T *x, const T *norm, const unsigned char *codes, const S *scales,        \
            const T *bias, const T *residual, T *y) {                                                                  \
        gemv<T, BITS, GROUP, S, R, false>(numel / columns, columns, inner, splits, NONE, eps, x, norm, codes, scales,  \
                                          bias, residual, y);                                                          \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2)                                                        \
        opara_matmul_quantized_gated_gemv_##BITS##_##GROUP##_##KIND##_##R##_##NAME(unsigned numel, unsigned columns,   \
            unsigned inner, unsigned splits, int activation, float eps, const T *x, const T *norm,                     \
            const unsigned char *codes, const S *scales, const T *bias, T *y) {                                        \
        gemv<T, BITS, GROUP, S, R, true>(numel / columns, columns, inner, splits, activation, eps, x, norm, codes,     \
                                         scales, bias, nullptr, y);                                                    \
    }
#define DEQUANTIZE(T, NAME, BITS, GROUP, KIND, S)                                                                      \
    extern "C" __global__ void opara_dequantize_##BITS##_##GROUP##_##KIND##_##NAME(unsigned numel, unsigned columns,   \
        unsigned rows, const unsigned *ids, const unsigned char *codes, const S *scales, T *y) {                       \
        dequantize<T, BITS, GROUP, S>(numel, columns, rows, ids, codes, scales, y);                                    \
    }
#define OF_FORMAT(T, NAME, BITS, GROUP, KIND, S)                                                                       \
    GEMV(T, NAME, BITS, GROUP, KIND, S, 1)                                                                             \
    GEMV(T, NAME, BITS, GROUP, KIND, S, 2)                                                                             \
    GEMV(T, NAME, BITS, GROUP, KIND, S, 4)                                                                             \
    GEMV(T, NAME, BITS, GROUP, KIND, S, 8)                                                                             \
    DEQUANTIZE(T, NAME, BITS, GROUP, KIND, S)
#define QUANTIZED(T, NAME)                                                                                             \
    OF_FORMAT(T, NAME, 4, 32, affine, Affine)                                                                          \
    OF_FORMAT(T, NAME, 8, 32, affine, Affine)                                                                          \
    OF_FORMAT(T, NAME, 8, 32, symmetric, Symmetric)                                                                    \
    OF_FORMAT(T, NAME, 8, 16, affine, Affine)                                                                          \
    OF_FORMAT(T, NAME, 8, 16, symmetric, Symmetric)                                                                    \
    DEQUANTIZE(T, NAME, 8, 128, floats, Floats)
