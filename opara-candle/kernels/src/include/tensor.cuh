// Matrix multiply-accumulate on tensor cores, per warp, and the loads of its operands into registers (sm_80 and later;
// PTX ISA, "Matrix Fragments for mma.m16n8k16" and "mma.m16n8k8"). For older architectures, kernels that use this
// header are not compiled.
#pragma once
#include "numbers.cuh"

// Two neighbouring elements in one 32-bit operand register.
template <typename T> __device__ inline unsigned pack(float a, float b) {
    Vec<T, 2> both = {narrow<T>(a), narrow<T>(b)};
    return *reinterpret_cast<unsigned *>(&both);
}

#define MMA(TYPE)                                                                                                      \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE                                                \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

// The k dimension of one mma instruction, in elements: 32 bytes of a row of a.
template <typename T> constexpr int DEPTH = 2 * WIDE<T>;

// c += a * b with a 16 x DEPTH and b DEPTH x 8. Lane l holds rows l / 4 and l / 4 + 8 of c, columns 2 * (l % 4) and the
// next.
__device__ inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __half) {
    MMA("f16");
}
__device__ inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __nv_bfloat16) {
    MMA("bf16");
}

__device__ inline void mma_tf32(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d = a * b + c for codes of 8 bits and sums of 32, a 16 x 32 and b 32 x 8, or 16 x 16 and 16 x 8; all of c is the same number. Lane l
// has codes 4 * (l % 4) to 4 * (l % 4) + 3 of row l / 4 of a, of row l / 4 + 8, then the same 16 codes further on; of b those of column
// l / 4; and of d what `mma` has of c.
__device__ inline void mma_s8(int (&d)[4], int c, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c));
}
__device__ inline void mma_s8(int (&d)[4], int c, const unsigned (&a)[2], unsigned b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b), "r"(c));
}

// Sums of split products below this bound are correct. Splitting a number beyond 4e34 or an infinity gives NaN, and so do
// partial sums that overflow with different signs. A kernel that finds NaN or a sum this large recomputes it without tensor
// cores.
constexpr float SPLIT_SUM = 1e38f;

// An f32 number as the sum of two TF32 numbers: `high` holds its 11 leading bits, `low` the 11 bits after them. For
// NaN, infinities and numbers beyond 4e34, `low` is NaN. For numbers below 2^-112, tensor cores drop the bits below
// 2^-136. `tests/split_products.rs` computes the same on the CPU.
struct Tf32Split {
    unsigned high, low;

    __device__ Tf32Split(unsigned bits) {
        const float x = __uint_as_float(bits), first = rounded(x);
        high = __float_as_uint(first), low = __float_as_uint(rounded(x - first));
    }

  private:
    // Rounds to 11 bits (Dekker, "A floating-point technique for extending the available precision", 1971). Rounding by
    // integer addition would give the same, except that the usual NaN pattern would become zero.
    __device__ static float rounded(float x) { return fmaf(-8192, x, __fmul_rn(8193, x)); }
};

// c += a * b in f32 for N operands, that is 8 * N terms a sum. Every product is three TF32 products, which together keep 22
// bits. Tensor cores round their sums towards zero: few terms are summed there, the small products first, and the partial
// sum is added in f32 outside (Ootomo and Yokota, "Recovering single precision accuracy from tensor cores", 2022). Valid
// for sums below SPLIT_SUM.
template <int N>
__device__ inline void mma_in_f32(float (&c)[4], const unsigned (&a)[N][4], const unsigned (&b)[N][2]) {
    float part[4] = {};
    unsigned high_a[N][4], high_b[N][2];
#pragma unroll
    for (int n = 0; n < N; n++) {
        const Tf32Split of_a[4] = {a[n][0], a[n][1], a[n][2], a[n][3]}, of_b[2] = {b[n][0], b[n][1]};
        const unsigned low_a[4] = {of_a[0].low, of_a[1].low, of_a[2].low, of_a[3].low};
#pragma unroll
        for (int i = 0; i < 4; i++) high_a[n][i] = of_a[i].high;
#pragma unroll
        for (int i = 0; i < 2; i++) high_b[n][i] = of_b[i].high;
        mma_tf32(part, low_a, high_b[n][0], high_b[n][1]);
        mma_tf32(part, high_a[n], of_b[0].low, of_b[1].low);
    }
#pragma unroll
    for (int n = 0; n < N; n++) mma_tf32(part, high_a[n], high_b[n][0], high_b[n][1]);
#pragma unroll
    for (int i = 0; i < 4; i++) c[i] += part[i];
}

// Loads four matrices of 8 rows of 16 bytes from shared memory. Lane l passes the address of row l % 8 of matrix l / 8,
// and receives of each matrix 4 bytes of row l / 4; with TRANSPOSED, two neighbouring 16-bit elements of column l / 4.
template <bool TRANSPOSED> __device__ inline void ldmatrix(unsigned (&to)[4], unsigned at) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(at));
}

template <bool TRANSPOSED> __device__ inline void ldmatrix(unsigned (&to)[4], const void *from) {
    ldmatrix<TRANSPOSED>(to, (unsigned)__cvta_generic_to_shared(from));
}

// A matrix of 8 rows of 8 elements of 16 bits, transposed: lane l has two neighbours of row l / 4.
__device__ inline unsigned transposed(unsigned x) {
    unsigned y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// Copies 16 bytes, or fewer, from global to shared memory asynchronously, or writes zeros if the source is out of range. The data
// is there once the group it is committed with has been waited for.
template <unsigned BYTES = 16> __device__ inline void copy_async(unsigned at, const void *from, bool in_range) {
    static_assert(BYTES == 16 || BYTES == 8 || BYTES == 4, "what the instruction copies");
    const unsigned bytes = in_range ? BYTES : 0;
    // The first level of the cache is passed by where the instruction can do that.
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(BYTES), "r"(bytes) : "memory");
}
template <unsigned BYTES = 16> __device__ inline void copy_async(void *to, const void *from, bool in_range) {
    copy_async<BYTES>((unsigned)__cvta_generic_to_shared(to), from, in_range);
}
__device__ inline void commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most the N most recently committed groups are pending.
template <int N> __device__ inline void wait_pending() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Waits until of `steps` groups, the latest ones, all but the first are pending at most.
__device__ inline void wait_for_first(unsigned steps) {
    switch (steps) {
    case 1: return wait_pending<0>();
    case 2: return wait_pending<1>();
    case 3: return wait_pending<2>();
    case 4: return wait_pending<3>();
    case 5: return wait_pending<4>();
    case 6: return wait_pending<5>();
    case 7: return wait_pending<6>();
    default: return wait_pending<7>();
    }
}

// Of the block: what the launch asks for.
__device__ inline unsigned bytes_of_dynamic_memory() {
    unsigned bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

// 2^x. Results below the smallest normal number become 0.
__device__ inline float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
