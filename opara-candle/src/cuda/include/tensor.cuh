// Products of small matrices by a warp's tensor cores, and how their operands get into its registers (sm_80 and later; PTX
// ISA, "Matrix Fragments for mma.m16n8k16" and "mma.m16n8k8"). There are no kernels that use them in code for older ones.
#pragma once
#include "numbers.cuh"

// Two neighbours as the tensor cores take them.
template <typename T> __device__ inline unsigned pack(float a, float b) {
    Vec<T, 2> both = {narrow<T>(a), narrow<T>(b)};
    return *reinterpret_cast<unsigned *>(&both);
}

#define MULTIPLY_ADD(TYPE)                                                                                             \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE                                                \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

// Columns of a, which are rows of b, that one product takes: 32 bytes of them.
template <typename T> constexpr int DEPTH = 2 * WIDE<T>;

// c += a * b, 16 x DEPTH by DEPTH x 8. Lane l has of c the rows l / 4 and that + 8, in each the columns 2 * (l % 4) and the next.
__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __half) {
    MULTIPLY_ADD("f16");
}
__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __nv_bfloat16) {
    MULTIPLY_ADD("bf16");
}

__device__ inline void multiply_add_tf32(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Sums of products of split numbers are right below this. Numbers beyond 4e34 and infinities have no halves: they make NaN, and
// so do sums whose parts overflow with different signs. Whoever gets NaN, or something this large, adds up without tensor cores.
constexpr float SPLIT_SUM = 1e38f;

// A number in f32 as the sum of two that tensor cores take: of each they see the 11 leading bits. NaN, infinities and numbers
// beyond 4e34 make NaN of the rest. Of numbers below 2^-112 tensor cores do not see what is below 2^-136.
// `tests/split_products.rs` computes the same on the CPU.
struct Halves {
    unsigned leading, rest;

    __device__ Halves(unsigned bits) {
        const float x = __uint_as_float(bits), first = rounded(x);
        leading = __float_as_uint(first), rest = __float_as_uint(rounded(x - first));
    }

    // What is left of a number beyond what tensor cores see of it as it is. NaN for NaN and infinities; beyond 4e37 it may be NaN.
    __device__ static unsigned beyond(unsigned bits) {
        return __float_as_uint(rounded(__uint_as_float(bits) - __uint_as_float(bits & 0xffffe000)));
    }

  private:
    // To 11 bits (Dekker, "A floating-point technique for extending the available precision", 1971). Adding to the bits would be
    // the same, but for NaN, of which the usual one becomes zero.
    __device__ static float rounded(float x) { return fmaf(-8192, x, __fmul_rn(8193, x)); }
};

// In f32 by three products that together keep 22 bits (Ootomo and Yokota, "Recovering single precision accuracy from tensor
// cores", 2022), where the sum is below SPLIT_SUM.
__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, float) {
    const Halves of_a[4] = {a[0], a[1], a[2], a[3]}, of_b[2] = {b0, b1};
    const unsigned leading[4] = {of_a[0].leading, of_a[1].leading, of_a[2].leading, of_a[3].leading};
    const unsigned rest[4] = {of_a[0].rest, of_a[1].rest, of_a[2].rest, of_a[3].rest};
    multiply_add_tf32(c, rest, of_b[0].leading, of_b[1].leading);
    multiply_add_tf32(c, leading, of_b[0].rest, of_b[1].rest);
    multiply_add_tf32(c, leading, of_b[0].leading, of_b[1].leading);
}

// Four matrices of 8 rows of 16 bytes from shared memory: lane l says where row l % 8 of matrix l / 8 begins, and gets of each
// matrix four bytes of row l / 4, or, TRANSPOSED, two neighbours of 16 bits of column l / 4.
template <bool TRANSPOSED> __device__ inline void load_matrices(unsigned (&to)[4], const void *from) {
    unsigned at = __cvta_generic_to_shared(from);
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(at));
}

// 16 bytes from global to shared memory, or zeros, by the time that somebody waits for what they are committed with.
__device__ inline void copy_later(void *to, const void *from, bool there) {
    unsigned at = __cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ inline void commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// For all that was committed but the last N times.
template <int N> __device__ inline void wait_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// 2^x; 0 where that is smaller than any normal number.
__device__ inline float two_to(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
