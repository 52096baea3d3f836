// Warpgroup matrix multiply-accumulate (wgmma): asynchronous, with the second operand in shared memory (sm_90a; PTX
// ISA, "Asynchronous Warpgroup Level Matrix Instructions"). For other architectures, kernels that use this header are
// not compiled.
#pragma once
#include "tensor.cuh"

#define WARPGROUP(...) asm volatile(__VA_ARGS__)

// Elements of a row of a tile in shared memory, which has 128 bytes in eight chunks of 16.
template <typename T> constexpr unsigned LINE = 128 / sizeof(T);
constexpr unsigned CHUNKS = 8;

// The offset of a chunk in a tile with the 128-byte swizzle: equal chunks of eight rows lie in different banks (PTX
// ISA, "Swizzling Modes"). Tiles begin at multiples of BASE bytes.
constexpr unsigned BASE = 1024;
template <typename T> __device__ inline unsigned swizzled(unsigned row, unsigned chunk) {
    return row * LINE<T> + (chunk ^ row % 8) * WIDE<T>;
}

// The matrix descriptor of a tile (PTX ISA, "Matrix Descriptor Format"). Adding ONE_OPERAND moves it by the columns of one operand, 32
// bytes; adding EIGHT_ROWS by eight rows.
constexpr unsigned long long ONE_OPERAND = 32 / 16, EIGHT_ROWS = BASE / 16;
template <typename T> __device__ inline unsigned long long matrix_descriptor(const T *rows) {
    const unsigned long long at = __cvta_generic_to_shared(rows), by_128_bytes = 1;
    return (at & 0x3ffff) / 16 | 1 << 16 | EIGHT_ROWS << 32 | by_128_bytes << 62;
}

#define SUMS_4(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define SUMS_8(n) SUMS_4(n), SUMS_4(n + 1)
#define SUMS_16(n) SUMS_8(n), SUMS_8(n + 2)
#define SUMS_32(n) SUMS_16(n), SUMS_16(n + 4)
#define SUMS_64(n) SUMS_32(n), SUMS_32(n + 8)
#define SUMS_128(n) SUMS_64(n), SUMS_64(n + 16)
#define NAMES_4 "%0, %1, %2, %3"
#define NAMES_8 NAMES_4 ", %4, %5, %6, %7"
#define NAMES_16 NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_20 NAMES_16 ", %16, %17, %18, %19"
#define NAMES_32 NAMES_20 ", %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_128 NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
                  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
                  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
                  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// c = a * b^T, or c += a * b^T if `adds`, with a and b 64 x 8 in TF32. Asynchronous: c is valid after `wgmma_wait`.
// Lane l of warp w holds rows 16 * w + l / 4 and 16 * w + l / 4 + 8 of c, columns 2 * (l % 4) and the next of every
// eight; a is laid out as `ldmatrix` loads it.
__device__ inline void wgmma(float (&c)[8][4], const unsigned (&a)[4], unsigned long long b, bool adds) {
    WARPGROUP("{.reg .pred adds;\nsetp.ne.b32 adds, %37, 0;\n"
              "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {" NAMES_32 "}, {%32, %33, %34, %35}, %36, adds, 1, 1;}"
              : SUMS_32(0)
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds));
}

// The same with operands of 16 bits, a 64 x 16 and b 8 N x 16. With TRANSPOSED the rows of the tile are those of b^T, of which 8 N columns
// count: c += a * b.
#define WGMMA(N, SIZE, TYPE, NAMES, A, B, ADDS, TRANSPOSES, ...)                                                       \
    template <bool TRANSPOSED>                                                                                         \
    __device__ inline void wgmma(float (&c)[N][4], const unsigned (&a)[4], unsigned long long b, bool adds, TYPE) {    \
        WARPGROUP("{.reg .pred adds;\nsetp.ne.b32 adds, " ADDS ", 0;\n"                                                \
                  "wgmma.mma_async.sync.aligned.m64n" SIZE "k16.f32." NAME_##TYPE "." NAME_##TYPE " {" NAMES "}, "     \
                  "{" A "}, " B ", adds, 1, 1, " TRANSPOSES ";}"                                                       \
                  : __VA_ARGS__                                                                                        \
                  : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds), "n"((int)TRANSPOSED));         \
    }
// The same with a in shared memory, too. The bits of a column of the result do not depend on N (H200, a test).
#define WGMMA_SHARED(N, SIZE, TYPE, NAMES, A, B, ADDS, ...)                                                            \
    __device__ inline void wgmma(float (&c)[N][4], unsigned long long a, unsigned long long b, bool adds, TYPE) {      \
        WARPGROUP("{.reg .pred adds;\nsetp.ne.b32 adds, " ADDS ", 0;\n"                                                \
                  "wgmma.mma_async.sync.aligned.m64n" SIZE "k16.f32." NAME_##TYPE "." NAME_##TYPE " {" NAMES "}, "     \
                  A ", " B ", adds, 1, 1, 0, 0;}"                                                                      \
                  : __VA_ARGS__                                                                                        \
                  : "l"(a), "l"(b), "r"((int)adds));                                                                   \
    }
#define NAME___half "f16"
#define NAME___nv_bfloat16 "bf16"
#define WGMMAS(TYPE)                                                                                                   \
    WGMMA(2, "16", TYPE, NAMES_8, "%8, %9, %10, %11", "%12", "%13", "%14", SUMS_8(0))                                  \
    WGMMA(4, "32", TYPE, NAMES_16, "%16, %17, %18, %19", "%20", "%21", "%22", SUMS_16(0))                              \
    WGMMA(5, "40", TYPE, NAMES_20, "%20, %21, %22, %23", "%24", "%25", "%26", SUMS_16(0), SUMS_4(4))                   \
    WGMMA(8, "64", TYPE, NAMES_32, "%32, %33, %34, %35", "%36", "%37", "%38", SUMS_32(0))                              \
    WGMMA_SHARED(1, "8", TYPE, NAMES_4, "%4", "%5", "%6", SUMS_4(0))                                                   \
    WGMMA_SHARED(2, "16", TYPE, NAMES_8, "%8", "%9", "%10", SUMS_8(0))                                                 \
    WGMMA_SHARED(4, "32", TYPE, NAMES_16, "%16", "%17", "%18", SUMS_16(0))                                             \
    WGMMA_SHARED(8, "64", TYPE, NAMES_32, "%32", "%33", "%34", SUMS_32(0))                                             \
    WGMMA_SHARED(16, "128", TYPE, NAMES_64, "%64", "%65", "%66", SUMS_64(0))                                           \
    WGMMA_SHARED(32, "256", TYPE, NAMES_128, "%128", "%129", "%130", SUMS_128(0))
WGMMAS(__half)
WGMMAS(__nv_bfloat16)

// Before the first multiply: register writes are ordered before it, and until they are waited for nothing may write these
// registers.
__device__ inline void wgmma_fence() { WARPGROUP("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { WARPGROUP("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until of the committed groups the latest PENDING at most are not done.
template <int PENDING = 0> __device__ inline void wgmma_wait() {
    WARPGROUP("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// The same; `c` is what the others computed.
template <int PENDING = 0, int N> __device__ inline void wgmma_wait(float (&c)[N][4]) {
    wgmma_wait<PENDING>();
    // An empty asm that "writes" c: otherwise the compiler could read c before the wait.
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(c[n][e])::"memory");
}
// Makes this thread's shared memory writes visible to the tensor cores, after the next barrier.
__device__ inline void fence_shared_writes() { WARPGROUP("fence.proxy.async.shared::cta;" ::: "memory"); }
