// Products of a quantised weight's rows with 2 to 8 rows of x on tensor cores: quantized.cuh has those with one. The layouts of codes and
// scales are in weight.rs.
//
// The rows of x become codes of 8 bits, with a scale for each group of 32 (as llama.cpp's Q8_1), so that a product of groups is a sum
// of integers. A warp takes 16 rows of the weight, or with others of its block a part of each, and then the next ones as long as there
// are any. What it multiplies next is on its way into shared memory; the first of that is asked for before the kernel waits for those
// before it. How much a warp asks for ahead is what shared memory has room for beside x.
//
// Sums are in an order that the sizes of the weight decide: a row's result does not depend on the rows beside it.
#pragma once
#include "activation.cuh"
#include "dependent.cuh"
#include "groups.cuh"
#include "rows.cuh"
#include "tensor.cuh"

constexpr unsigned WARPS = 16;
// Rows of the weight that a warp takes at a time: those of an mma instruction.
constexpr unsigned ROWS = 16;
// Of a row, 16 bytes of codes that a warp takes at a time, and elements.
constexpr unsigned UNITS = 8;
template <unsigned BITS> constexpr unsigned CHUNK = UNITS * 128 / BITS;
// Bytes of scales beside them: 8, 16 or 32.
template <unsigned BITS, unsigned GROUP, typename S> constexpr unsigned SCALES = CHUNK<BITS> / GROUP * sizeof(S);
// Elements of x that a warp turns into codes at a time, and how often it asks for so many at once.
constexpr unsigned PIECE = 256, AT_ONCE = 4;
// Bytes behind each row of codes of x, so that lanes that read eight rows at once read different banks.
constexpr unsigned APART = 16;
// An integer of less than 23 bits added to this one has the bits of a float, that integer added to the same number. It costs half of
// what a conversion does.
constexpr int BIAS_BITS = 0x4b400000;
constexpr float BIAS = 12582912;

// What shared memory has of x: rows of codes; for each group the scale, and the sum of what the codes stand for, of one row after the
// other; and for each piece of a row its sum of squares.
struct Staged {
    unsigned char *codes;
    float2 *scales;
    float *squares;
};

// The rows of x, times the norm's scale if there is one, with zeros behind their ends.
template <typename T, unsigned GROUP>
__device__ inline void stage(unsigned rows, unsigned inner, unsigned padded, const T *x, const T *norm, Staged to) {
    constexpr unsigned N = WIDE<T> < 8 ? WIDE<T> : 8, LOADS = 8 / N;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, pieces = padded / PIECE, even = (rows + 1) / 2 * 2;
    for (unsigned first = warp; first < rows * pieces; first += WARPS * AT_ONCE) {
        Vec<T, N> of_x[AT_ONCE][LOADS], of_norm[AT_ONCE][LOADS];
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; i++) {
            const unsigned piece = (first + i * WARPS) / rows, row = (first + i * WARPS) % rows, at = piece * PIECE + lane * 8;
#pragma unroll
            for (unsigned l = 0; l < LOADS; l++) {
                of_x[i][l] = of_norm[i][l] = Vec<T, N>{};
                if (at >= inner) continue;
                of_x[i][l] = load<T, N>(x + (size_t)row * inner + at + l * N);
                if (norm) of_norm[i][l] = load<T, N>(norm + at + l * N);
            }
        }
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; i++) {
            const unsigned piece = (first + i * WARPS) / rows, row = (first + i * WARPS) % rows, at = piece * PIECE + lane * 8;
            if (piece >= pieces) break;
            float v[8], largest = 0;
#pragma unroll
            for (unsigned n = 0; n < 8; n++) v[n] = widen(of_x[i][n / N].at[n % N]);
            if (norm) {
                float square = 0;
#pragma unroll
                for (unsigned n = 0; n < 8; n++) {
                    square = fmaf(v[n], v[n], square);
                    v[n] *= widen(of_norm[i][n / N].at[n % N]);
                }
                square = warp_reduce<Add>(square);
                if (lane == 0) to.squares[row * pieces + piece] = square;
            }
#pragma unroll
            for (unsigned n = 0; n < 8; n++) largest = max_nan(fabsf(v[n]), largest);
#pragma unroll
            for (unsigned distance = 1; distance <= 2; distance *= 2)
                largest = max_nan(__shfl_xor_sync(~0u, largest, distance), largest);
            // Not a number where the group has none: whatever is multiplied with it is NaN.
            const bool is_finite = largest < INFINITY;
            const float scale = is_finite ? largest * (1.f / 127) : NAN;
            const float inverse = is_finite && largest > 1e-35f ? 127 / largest : 0;
            unsigned words[2];
#pragma unroll
            for (unsigned w = 0; w < 2; w++) {
                unsigned code[4];
#pragma unroll
                for (unsigned n = 0; n < 4; n++) code[n] = __float_as_uint(__fmul_rn(v[w * 4 + n], inverse) + BIAS);
                words[w] = __byte_perm(__byte_perm(code[0], code[1], 0x40), __byte_perm(code[2], code[3], 0x40), 0x5410);
            }
            int sum = __dp4a((int)words[0], 0x01010101, __dp4a((int)words[1], 0x01010101, 0));
            sum += __shfl_xor_sync(~0u, sum, 1);
            if (GROUP == 32) sum += __shfl_xor_sync(~0u, sum, 2);
            *reinterpret_cast<uint2 *>(to.codes + row * (padded + APART) + at) = make_uint2(words[0], words[1]);
            if (lane % (GROUP / 8) == 0) to.scales[at / GROUP * even + row] = make_float2(scale, scale * sum);
        }
    }
}

// `columns` results of each row, of one row of the weight each, or of two if GATED: a gate and what it lets through, which is
// `columns` rows further down. `splits` warps share them.
template <typename T, unsigned BITS, unsigned GROUP, typename S, bool GATED>
__device__ inline void gemv(unsigned rows, unsigned columns, unsigned inner, unsigned splits, int activation, float eps,
                            const T *x, const T *norm, const unsigned char *codes, const S *scales, const T *bias,
                            const T *residual, T *y) {
    constexpr unsigned RESULTS = GATED ? ROWS / 2 : ROWS, GROUPS = CHUNK<BITS> / GROUP, OF_SCALES = SCALES<BITS, GROUP, S>;
    // What of a row's scales is copied at once, and how many times.
    constexpr unsigned COPIED = OF_SCALES < 16 ? OF_SCALES : 16, COPIES = OF_SCALES / COPIED;
    constexpr unsigned OF_WARP = ROWS * (UNITS * 16 + OF_SCALES) / 16;
    extern __shared__ uint4 dynamic[];
    // Sums of warps: of some results, while the ones before are added up.
    __shared__ float partial[2][WARPS][ROWS][8], factors[8];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = warp % splits, set = warp / splits;
    const unsigned of_block = WARPS / splits * RESULTS, step = gridDim.x * of_block;
    const unsigned chunks = (inner + CHUNK<BITS> - 1) / CHUNK<BITS>, parts = (chunks + splits - 1) / splits;
    const unsigned padded = (inner + PIECE - 1) / PIECE * PIECE, pieces = padded / PIECE, pairs = (rows + 1) / 2;

    // Codes, scales and squares of x, then what is asked for.
    const unsigned of_codes = rows * (padded + APART) / 16, of_x_scales = padded / GROUP * pairs, of_squares = (rows * pieces + 3) / 4;
    const Staged staged = {reinterpret_cast<unsigned char *>(dynamic), reinterpret_cast<float2 *>(dynamic + of_codes),
                           reinterpret_cast<float *>(dynamic + of_codes + of_x_scales)};
    const unsigned before = of_codes + of_x_scales + of_squares;
    const unsigned steps = (bytes_of_dynamic_memory() / 16 - before) / (WARPS * OF_WARP);
    uint4 *ring = dynamic + before + warp * OF_WARP;

    // What is asked for next: a part of the rows for some results, and where it goes.
    unsigned asked_base = blockIdx.x * of_block, asked_part = 0, asked_slot = 0;
    auto ask = [&] {
        const unsigned chunk = asked_part * splits + split, first = asked_base + set * RESULTS;
        if (first < columns && chunk < chunks) {
            uint4 *to = ring + asked_slot * WARPS * OF_WARP;
            auto element = [&](unsigned row, unsigned at) {
                // Beyond the end: the last one again, whose result is not stored.
                const unsigned result = min(first + (GATED ? row % 8 : row), columns - 1);
                return (size_t)(GATED && row >= 8 ? columns + result : result) * inner + at;
            };
            const unsigned unit = lane % UNITS, at = chunk * CHUNK<BITS> + unit * (128 / BITS);
#pragma unroll
            for (unsigned of = 0; of < ROWS; of += 32 / UNITS) {
                const unsigned row = of + lane / UNITS;
                // Eight rows that lanes read at once lie in different banks.
                copy_async(to + row * UNITS + (unit ^ row % 8), codes + element(row, at) * BITS / 8, at < inner);
            }
            if (lane < ROWS * COPIES) {
                const unsigned at = chunk * CHUNK<BITS> + lane % COPIES * (COPIED / sizeof(S)) * GROUP;
                char *of_lane = reinterpret_cast<char *>(to + ROWS * UNITS) + lane * COPIED;
                copy_async<COPIED>(of_lane, scales + element(lane / COPIES, at) / GROUP, at < inner);
            }
        }
        commit();
        if (++asked_part == parts) asked_part = 0, asked_base += step;
        if (++asked_slot == steps) asked_slot = 0;
    };

    // A thread's first result has its bias and residual by the time that its sum is there.
    const unsigned first_row = threadIdx.x / of_block, in_first = threadIdx.x % of_block;
    float of_bias[GATED ? 2 : 1] = {}, of_residual = 0;
    auto ask_bias = [&](unsigned column) {
        if (!bias || column >= columns || first_row >= rows) return;
        of_bias[0] = widen(bias[column]);
        if constexpr (GATED) of_bias[1] = widen(bias[columns + column]);
    };
    auto ask_residual = [&](unsigned column) {
        if (residual && column < columns && first_row < rows) of_residual = widen(residual[(size_t)first_row * columns + column]);
    };

    trigger_dependents();
    for (unsigned at = 0; at < steps; at++) ask();
    wait_for_predecessors();
    unsigned base = blockIdx.x * of_block;
    ask_bias(base + in_first);
    stage<T, GROUP>(rows, inner, padded, x, norm, staged);
    __syncthreads();
    for (unsigned row = warp; row < rows; row += WARPS) {
        float all = 0;
        for (unsigned piece = lane; norm && piece < pieces; piece += 32) all += staged.squares[row * pieces + piece];
        all = warp_reduce<Add>(all);
        if (lane == 0) factors[row] = norm ? rsqrtf(all / inner + eps) : 1;
    }

    // Rows of x that are not there are the last one again. Lane l has sums of the weight's rows l / 4 and the eighth one after that,
    // with rows 2 * (l % 4) of x and the next.
    const unsigned char *of_x = staged.codes + min(lane % 8, rows - 1) * (padded + APART) + lane / 8 * 16;
    const float4 *of_pair = reinterpret_cast<const float4 *>(staged.scales) + min(lane % 4, pairs - 1);
    for (unsigned side = 0, taken = 0; base < columns; base += step, side ^= 1) {
        float sum[4] = {};
        ask_residual(base + in_first);
        for (unsigned part = 0; part < parts; part++) {
            wait_for_first(steps);
            __syncwarp();
            const unsigned chunk = part * splits + split;
            if (chunk < chunks && base + set * RESULTS < columns) {
                const uint4 *from = ring + taken * WARPS * OF_WARP;
                const S *of_scales = reinterpret_cast<const S *>(from + ROWS * UNITS) + lane / 4 * GROUPS;
                // The lanes' addresses of 8 x 16 bytes: rows 0 to 7, rows 8 to 15, and both again in the next unit.
                const uint4 *of_rows = from + lane % 16 * UNITS;
                Vec<S, 4> upper, lower;
                auto add = [&](unsigned group, const int(&products)[4]) {
                    if (group % 4 == 0) upper = load<S, 4>(of_scales + group), lower = load<S, 4>(of_scales + 8 * GROUPS + group);
                    const float2 of_w[2] = {scale_and_minimum(upper.at[group % 4]), scale_and_minimum(lower.at[group % 4])};
                    const float4 of_x = of_pair[(chunk * GROUPS + group) * pairs];
#pragma unroll
                    for (unsigned i = 0; i < 4; i++) {
                        const float product = __int_as_float(products[i]) - BIAS;
                        sum[i] = fmaf(of_w[i / 2].x * (i % 2 ? of_x.z : of_x.x), product, sum[i]);
                        if constexpr (HAS_MINIMUM<S>) sum[i] = fmaf(of_w[i / 2].y, i % 2 ? of_x.w : of_x.y, sum[i]);
                    }
                };
#pragma unroll
                for (unsigned l = 0; l < CHUNK<BITS> / 64; l++) {
                    unsigned b[4], a[4];
                    int products[4];
                    ldmatrix<false>(b, of_x + chunk * CHUNK<BITS> + l * 64);
#pragma unroll
                    for (unsigned half = 0; half < 2; half++) {
                        if (BITS == 8 || half == 0) {
                            const unsigned unit = BITS == 8 ? l * 4 + half * 2 : l * 2;
                            ldmatrix<false>(a, of_rows + (unit + lane / 16 ^ lane % 8));
                        }
                        if constexpr (BITS == 4) {
                            // 16 bytes of a row are a group, whose codes i and i + 16 share a byte.
                            constexpr unsigned LOW = 0x0f0f0f0f;
                            const unsigned up = a[half * 2], down = a[half * 2 + 1];
                            mma_s8(products, BIAS_BITS, {up & LOW, down & LOW, up >> 4 & LOW, down >> 4 & LOW}, b[half * 2],
                                   b[half * 2 + 1]);
                            add(l * 2 + half, products);
                        } else if constexpr (GROUP == 32) {
                            mma_s8(products, BIAS_BITS, a, b[half * 2], b[half * 2 + 1]);
                            add(l * 2 + half, products);
                        } else {
#pragma unroll
                            for (unsigned of = 0; of < 2; of++) {
                                mma_s8(products, BIAS_BITS, {a[of * 2], a[of * 2 + 1]}, b[half * 2 + of]);
                                add(l * 4 + half * 2 + of, products);
                            }
                        }
                    }
                }
            }
            __syncwarp();
            ask();
            if (++taken == steps) taken = 0;
        }
#pragma unroll
        for (unsigned i = 0; i < 4; i++) partial[side][warp][lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = sum[i];
        __syncthreads();

        for (unsigned at = threadIdx.x; at < of_block * rows; at += WARPS * 32) {
            const unsigned row = at / of_block, in_block = at % of_block, column = base + in_block;
            if (column >= columns) continue;
            const unsigned first = in_block / RESULTS * splits, result = in_block % RESULTS;
            const bool is_first = at == threadIdx.x;
            auto total = [&](unsigned of_row, unsigned half, unsigned at_bias) {
                float all = 0;
                for (unsigned s = 0; s < splits; s++) all += partial[side][first + s][of_row][row];
                return fmaf(all, factors[row], is_first ? of_bias[half] : bias ? widen(bias[at_bias]) : 0.f);
            };
            float value;
            if constexpr (GATED) {
                const float gate = total(result, 0, column), through = total(result + 8, 1, columns + column);
                with_activation(activation, [&](auto kind) { value = activate<kind>(gate) * through; });
            } else {
                value = total(result, 0, column);
                if (residual) value += is_first ? of_residual : widen(residual[(size_t)row * columns + column]);
            }
            y[(size_t)row * columns + column] = narrow<T>(value);
        }
        ask_bias(base + step + in_first);
    }
}

// The first argument counts the results.
#define GEMV(T, NAME, BITS, GROUP, KIND, S)                                                                            \
    extern "C" __global__ void __launch_bounds__(WARPS * 32)                                                           \
        opara_matmul_quantized_gemv_##BITS##_##GROUP##_##KIND##_tensor_##NAME(unsigned numel, unsigned columns,        \
            unsigned inner, unsigned splits, float eps, const T *x, const T *norm, const unsigned char *codes,         \
            const S *scales, const T *bias, const T *residual, T *y) {                                                 \
        gemv<T, BITS, GROUP, S, false>(numel / columns, columns, inner, splits, NONE, eps, x, norm, codes, scales,     \
                                       bias, residual, y);                                                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(WARPS * 32)                                                           \
        opara_matmul_quantized_gated_gemv_##BITS##_##GROUP##_##KIND##_tensor_##NAME(unsigned numel, unsigned columns,  \
            unsigned inner, unsigned splits, int activation, float eps, const T *x, const T *norm,                     \
            const unsigned char *codes, const S *scales, const T *bias, T *y) {                                        \
        gemv<T, BITS, GROUP, S, true>(numel / columns, columns, inner, splits, activation, eps, x, norm, codes,        \
                                      scales, bias, nullptr, y);                                                       \
    }
#define GEMVS(T, NAME)                                                                                                 \
    GEMV(T, NAME, 4, 32, affine, Affine)                                                                               \
    GEMV(T, NAME, 8, 32, affine, Affine)                                                                               \
    GEMV(T, NAME, 8, 32, symmetric, Symmetric)                                                                         \
    GEMV(T, NAME, 8, 16, affine, Affine)                                                                               \
    GEMV(T, NAME, 8, 16, symmetric, Symmetric)
