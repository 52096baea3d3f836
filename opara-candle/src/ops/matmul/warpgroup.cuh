// Warpgroup matrix multiply-accumulate (wgmma): asynchronous, with the second operand in shared memory (sm_90a; PTX
// ISA, "Asynchronous Warpgroup Level Matrix Instructions"). For other architectures, kernels that use this header are
// not compiled.
#pragma once
#include "tensor.cuh"

#define WARPGROUP(...) asm volatile(__VA_ARGS__)

// Columns of a tile in shared memory: a row has 32 f32, 128 bytes, in eight chunks of 16 bytes.
constexpr unsigned ROW = 32, CHUNKS = 8;

// The offset of a chunk in a tile with the 128-byte swizzle: equal chunks of eight rows lie in different banks (PTX
// ISA, "Swizzling Modes"). Tiles begin at multiples of BASE bytes.
constexpr unsigned BASE = 1024;
__device__ inline unsigned swizzled(unsigned row, unsigned chunk) { return row * ROW + (chunk ^ row % 8) * WIDE<float>; }

// The matrix descriptor of a tile (PTX ISA, "Matrix Descriptor Format"). Adding EIGHT_COLUMNS moves it by eight
// columns.
constexpr unsigned long long EIGHT_COLUMNS = 2;
__device__ inline unsigned long long matrix_descriptor(const float *rows) {
    const unsigned long long at = __cvta_generic_to_shared(rows), eight_rows = 8 * ROW * sizeof(float), by_128_bytes = 1;
    return (at & 0x3ffff) / 16 | 1 << 16 | eight_rows / 16 << 32 | by_128_bytes << 62;
}

// c = a * b^T, or c += a * b^T if `adds`, with a and b 64 x 8 in TF32. Asynchronous: c is valid after `wgmma_wait`.
// Lane l of warp w holds rows 16 * w + l / 4 and 16 * w + l / 4 + 8 of c, columns 2 * (l % 4) and the next of every
// eight; a is laid out as `ldmatrix` loads it.
__device__ inline void wgmma(float (&c)[8][4], const unsigned (&a)[4], unsigned long long b, bool adds) {
    WARPGROUP("{.reg .pred adds;\nsetp.ne.b32 adds, %37, 0;\n"
              "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
              "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
              "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
              "{%32, %33, %34, %35}, %36, adds, 1, 1;}"
              : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),
                "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
                "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]),
                "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
                "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),
                "+f"(c[7][2]), "+f"(c[7][3])
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds));
}

// Before the first multiply: register writes are ordered before it, and until `wgmma_wait` nothing may write these
// registers.
__device__ inline void wgmma_fence() { WARPGROUP("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { WARPGROUP("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all committed multiplies.
__device__ inline void wgmma_wait(float (&c)[8][4]) {
    WARPGROUP("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    // An empty asm that "writes" c: otherwise the compiler could read c before the wait.
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(c[n][e])::"memory");
}
// Makes this thread's shared memory writes visible to the tensor cores, after the next barrier.
__device__ inline void fence_shared_writes() { WARPGROUP("fence.proxy.async.shared::cta;" ::: "memory"); }
