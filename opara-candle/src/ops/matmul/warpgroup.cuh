// Products of matrices by a warpgroup's tensor cores, which read the second one from shared memory while their warps go on
// (sm_90a; PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"). There are no kernels that use them in code for others.
#pragma once
#include "tensor.cuh"

#define WARPGROUP(...) asm volatile(__VA_ARGS__)

// Elements of f32 in a row in shared memory, which is 128 bytes in PARTS of 16.
constexpr unsigned ROW = 32, PARTS = 8;

// Where a part lies: those of eight rows in banks of their own (PTX ISA, "Swizzling Modes"). Matrices begin at multiples of BASE
// bytes.
constexpr unsigned BASE = 1024;
__device__ inline unsigned place(unsigned row, unsigned part) { return row * ROW + (part ^ row % 8) * WIDE<float>; }

// A matrix of such rows, as tensor cores are told of it (PTX ISA, "Matrix Descriptor Format"). Eight columns further its number
// is larger by EIGHT_COLUMNS.
constexpr unsigned long long EIGHT_COLUMNS = 2;
__device__ inline unsigned long long describe(const float *rows) {
    const unsigned long long at = __cvta_generic_to_shared(rows), eight_rows = 8 * ROW * sizeof(float), by_128_bytes = 1;
    return (at & 0x3ffff) / 16 | 1 << 16 | eight_rows / 16 << 32 | by_128_bytes << 62;
}

// c = a * b^T, or c += a * b^T, of 64 x 8 and 64 x 8 in TF32, by the time of `wait`. Lane l of warp w has of c the rows
// 16 * w + l / 4 and that + 8, in each the columns 2 * (l % 4) and the next of every eight, and of a what `load_matrices` gives.
__device__ inline void multiply(float (&c)[8][4], const unsigned (&a)[4], unsigned long long b, bool adds) {
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

// Around products: registers hold what they take, and from here on nobody writes to those.
__device__ inline void begin() { WARPGROUP("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void end() { WARPGROUP("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all that was multiplied is there.
__device__ inline void wait(float (&c)[8][4]) {
    WARPGROUP("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    // The compiler takes what an instruction gives to be there when it has been given.
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(c[n][e])::"memory");
}
// What this thread has written to shared memory tensor cores may read, once all threads have met.
__device__ inline void publish() { WARPGROUP("fence.proxy.async.shared::cta;" ::: "memory"); }
