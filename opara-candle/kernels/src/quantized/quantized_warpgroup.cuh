// Products of a quantised weight's rows with rows of x on warpgroups (sm_90a). Codes become elements of the type of x in registers, which are
// an instruction's first operand. So a weight is not expanded in memory, and x is not rounded to codes. quantized.cuh has products with
// few rows, quantized_floats.cuh those of floats with one. The layouts of codes and scales are in weight.rs.
//
// A block has N rows of x, and the next ones of the grid the others.
#pragma once
#include "groups.cuh"
#include "warpgroup_product.cuh"

// A step has two lines: with one, a block would wait as long as it multiplies.
template <typename T, unsigned BITS, unsigned GROUP, typename S, bool GATED> struct Quantized {
    static constexpr unsigned LINES = 2;
    // Of a row's line: elements, 16 bytes of codes, groups, and their bytes. And of its step.
    static constexpr unsigned OF_ROW = LINE<T>, OF_LINE = OF_ROW * BITS / 128, GROUPS = OF_ROW < GROUP ? 1 : OF_ROW / GROUP;
    static constexpr unsigned OF_SCALES = GROUPS * sizeof(S), UNITS = LINES * OF_LINE;
    static constexpr unsigned OF_CODES = ROWS * UNITS * 16, OF_THREAD = ROWS * UNITS / THREADS;
    static constexpr unsigned BYTES = (OF_CODES + ROWS * LINES * OF_SCALES + BASE - 1) / BASE * BASE;
    static_assert(ROWS * LINES == THREADS, "each thread copies the scales of a line");
    const unsigned char *codes[OF_THREAD];
    const S *scales;

    __device__ Quantized(const unsigned char *of_codes, const S *of_scales, unsigned columns, unsigned inner) {
        const RowsOfBlock<GATED> rows{columns};
#pragma unroll
        for (unsigned n = 0; n < OF_THREAD; n++) {
            const unsigned i = threadIdx.x + n * THREADS;
            codes[n] = of_codes + rows.row(i / UNITS) * inner / 8 * BITS + i % UNITS * 16;
        }
        scales = of_scales + rows.row(threadIdx.x / LINES) * inner / GROUP;
    }
    // Where a row's unit is: eight rows that lanes read at once reach different banks.
    __device__ static unsigned place(unsigned row, unsigned unit) {
        constexpr unsigned FEW = UNITS < 8 ? UNITS : 8;
        return (row * UNITS + (unit ^ row * FEW / 8 % FEW)) * 16;
    }

    __device__ void ask(unsigned line, unsigned past, T *tile) const {
        char *const to = reinterpret_cast<char *>(tile);
#pragma unroll
        for (unsigned n = 0; n < OF_THREAD; n++) {
            const unsigned i = threadIdx.x + n * THREADS;
            const bool is_there = line + i % UNITS / OF_LINE < past;
            copy_async(to + place(i / UNITS, i % UNITS), codes[n] + (is_there ? line * (OF_ROW * BITS / 8) : 0), is_there);
        }
        const unsigned its = line + threadIdx.x % LINES;
        copy_async<OF_SCALES>(to + OF_CODES + threadIdx.x * OF_SCALES, scales + (its < past ? its * OF_ROW / GROUP : 0), its < past);
    }

    // Two elements, of codes at bytes FIRST and the next of four.
    template <unsigned FIRST> __device__ static unsigned elements(unsigned four, float2 of) {
        if constexpr (ARE_FLOATS<S>) {
            const float2 both = two_of_eight_bits(four >> 8 * FIRST);
            return pack<T>(both.x * of.x, both.y * of.x);
        } else {
            return pack<T>(element(four, FIRST, of), element(four, FIRST + 1, of));
        }
    }
    // A code becomes part of a float's mantissa, and the number that the float has besides is subtracted.
    __device__ static float element(unsigned four, unsigned byte, float2 of) {
        if constexpr (BITS == 4) {
            // The float is 128 and the code. `of.y` is the minimum less 128 scales.
            return fmaf(of.x, __uint_as_float(__byte_perm(four, 0x43, 0x4055 | byte << 8)), of.y);
        } else {
            // The float is 2^23, 128 and the code, which is signed.
            const float code = __uint_as_float(__byte_perm(four, 0x4b, 0x4550 | byte)) - 8388736;
            return HAS_MINIMUM<S> ? fmaf(of.x, code, of.y) : of.x * code;
        }
    }

    // The first operand of each instruction of a line.
    __device__ static void operands(const char *from, unsigned line, unsigned (&a)[4][4]) {
        const unsigned lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
        unsigned four[4][2];
        float2 of_group[GROUPS][2];
        // A lane reads two rows of the weight, at the columns of an operand that the instruction takes from this lane.
#pragma unroll
        for (unsigned r = 0; r < 2; r++) {
            const unsigned row = first + 8 * r;
#pragma unroll
            for (unsigned unit = 0; unit < OF_LINE; unit++) {
                const char *const at = from + place(row, line * OF_LINE + unit) + lane % 4 * 2;
                const unsigned both = *reinterpret_cast<const unsigned short *>(at) |
                                      (unsigned)*reinterpret_cast<const unsigned short *>(at + 8) << 16;
                if constexpr (BITS == 4) {
                    // Codes i and i + 16 share a byte.
                    four[2 * unit][r] = both & 0x0f0f0f0f, four[2 * unit + 1][r] = both >> 4 & 0x0f0f0f0f;
                } else {
                    four[unit][r] = ARE_FLOATS<S> ? both : both ^ 0x80808080;
                }
            }
            const auto groups = load<S, GROUPS>(reinterpret_cast<const S *>(from + OF_CODES + (row * LINES + line) * OF_SCALES));
#pragma unroll
            for (unsigned n = 0; n < GROUPS; n++) {
                of_group[n][r] = scale_and_minimum(groups.at[n]);
                if constexpr (BITS == 4) of_group[n][r].y = fmaf(-128, of_group[n][r].x, of_group[n][r].y);
            }
        }
#pragma unroll
        for (unsigned d = 0; d < 4; d++)
#pragma unroll
            for (unsigned r = 0; r < 2; r++) {
                const float2 of = of_group[d * GROUPS / 4][r];
                a[d][r] = elements<0>(four[d][r], of), a[d][2 + r] = elements<2>(four[d][r], of);
            }
    }

    template <int N, typename F>
    __device__ static void multiply(float (&sum)[N][4], const T *tile, unsigned long long of_x, bool adds, F meanwhile) {
        // Of a tile of x, as descriptors count: it has 8 N rows.
        constexpr unsigned long long TILE = N * EIGHT_ROWS;
        meanwhile();
        unsigned a[LINES][4][4];
#pragma unroll
        for (unsigned line = 0; line < LINES; line++) operands(reinterpret_cast<const char *>(tile), line, a[line]);
        wgmma_fence();
#pragma unroll
        for (unsigned line = 0; line < LINES; line++)
#pragma unroll
            for (unsigned d = 0; d < 4; d++)
                wgmma<false>(sum, a[line][d], of_x + line * TILE + d * ONE_OPERAND, adds || line > 0 || d > 0, T());
        wgmma_commit();
        // Registers that instructions read keep their numbers until these are done; other blocks of the multiprocessor go on meanwhile.
        wgmma_wait(sum);
    }
};

// The product of the N rows of x that this block has.
template <typename T, unsigned N, unsigned SPLITS, bool GATED, unsigned BITS, unsigned GROUP, typename S>
__device__ inline void product(unsigned rows, unsigned columns, unsigned inner, int activation, const T *x, const unsigned char *codes,
                               const S *scales, const T *bias, const T *residual, T *y) {
    const unsigned before = blockIdx.y * N;
    const size_t first = (size_t)before * columns;
    product_of_rows<T, N, SPLITS, GATED>(min(rows - before, N), columns, inner, activation, x + (size_t)before * inner,
                                         Quantized<T, BITS, GROUP, S, GATED>(codes, scales, columns, inner), bias,
                                         residual ? residual + first : nullptr, y + first);
}

// Blocks of a multiprocessor for which registers suffice.
#define BESIDE(N) (N <= 16 ? 4 : 3)

// Kernels of N rows at a time.
#define PRODUCT(T, NAME, BITS, GROUP, KIND, S, N, SPLITS)                                                              \
    extern "C" __global__ void CLUSTER(SPLITS) __launch_bounds__(THREADS, BESIDE(N))                                   \
        opara_matmul_quantized_rows_##BITS##_##GROUP##_##KIND##_##N##_by##SPLITS##_##NAME(unsigned rows,               \
            unsigned columns, unsigned inner, int activation, const T *x, const unsigned char *codes, const S *scales, \
            const T *bias, const T *residual, T *y) {                                                                  \
        product<T, N, SPLITS, false, BITS, GROUP>(rows, columns, inner, activation, x, codes, scales, bias, residual,  \
                                                  y);                                                                  \
    }                                                                                                                  \
    extern "C" __global__ void CLUSTER(SPLITS) __launch_bounds__(THREADS, BESIDE(N))                                   \
        opara_matmul_quantized_gated_rows_##BITS##_##GROUP##_##KIND##_##N##_by##SPLITS##_##NAME(unsigned rows,         \
            unsigned columns, unsigned inner, int activation, const T *x, const unsigned char *codes, const S *scales, \
            const T *bias, T *y) {                                                                                     \
        product<T, N, SPLITS, true, BITS, GROUP>(rows, columns, inner, activation, x, codes, scales, bias,             \
                                                 (const T *)nullptr, y);                                               \
    }
#define PRODUCTS(T, NAME, BITS, GROUP, KIND, S, N)                                                                     \
    PRODUCT(T, NAME, BITS, GROUP, KIND, S, N, 1)                                                                       \
    PRODUCT(T, NAME, BITS, GROUP, KIND, S, N, 2)                                                                       \
    PRODUCT(T, NAME, BITS, GROUP, KIND, S, N, 4)                                                                       \
    PRODUCT(T, NAME, BITS, GROUP, KIND, S, N, 8)
#define ALL_PRODUCTS(T, NAME, BITS, GROUP, KIND, S)                                                                    \
    PRODUCTS(T, NAME, BITS, GROUP, KIND, S, 16)                                                                        \
    PRODUCTS(T, NAME, BITS, GROUP, KIND, S, 64)
