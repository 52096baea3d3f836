// Codes and scales of GGUF's blocks, as `blocks.rs` has them on the host. A weight is read so once: nothing here is fast.
//
// The layouts of the blocks: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
#include <cuda_fp16.h>

using Bytes = const unsigned char *;

__device__ inline float half_at(Bytes of) {
    return __half2float(__ushort_as_half(of[0] | of[1] << 8));
}

// Code `i` of 32 of 4 bits, and of 5 bits, whose highest ones are in 4 bytes before.
__device__ inline int four(Bytes of, int i) {
    return of[i % 16] >> i / 16 * 4 & 15;
}
__device__ inline int five(Bytes of, int i) {
    return four(of + 4, i) | (of[i / 8] >> i % 8 & 1) << 4;
}
// Of 256 of 2 bits.
__device__ inline int two(Bytes of, int i) {
    return of[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}
// Of 256 of 4 bits: two groups of 32 share bytes.
__device__ inline int half_bytes(Bytes of, int i) {
    return of[i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15;
}

// Scale and minimum of 6 bits of group `g` of eight.
__device__ inline float2 six(Bytes of, int g) {
    if (g < 4) return make_float2(of[g] & 63, of[g + 4] & 63);
    return make_float2((of[g + 4] & 15) | of[g - 4] >> 6 << 4, of[g + 4] >> 4 | of[g] >> 6 << 4);
}

// A type: elements and bytes of a block, bits of a code, elements of a group, whether it has a minimum; the code of an element, and
// scale and minimum of a group.
struct Q4_0 {
    static constexpr int ELEMENTS = 32, BYTES = 18, BITS = 4, GROUP = 32, NUMBERS = 2;
    static __device__ int code(Bytes of, int i) { return four(of + 2, i); }
    static __device__ float2 scale(Bytes of, int) { return make_float2(half_at(of), -8 * half_at(of)); }
};
struct Q4_1 {
    static constexpr int ELEMENTS = 32, BYTES = 20, BITS = 4, GROUP = 32, NUMBERS = 2;
    static __device__ int code(Bytes of, int i) { return four(of + 4, i); }
    static __device__ float2 scale(Bytes of, int) { return make_float2(half_at(of), half_at(of + 2)); }
};
struct Q5_0 {
    static constexpr int ELEMENTS = 32, BYTES = 22, BITS = 8, GROUP = 32, NUMBERS = 1;
    static __device__ int code(Bytes of, int i) { return five(of + 2, i) - 16; }
    static __device__ float2 scale(Bytes of, int) { return make_float2(half_at(of), 0); }
};
struct Q5_1 {
    static constexpr int ELEMENTS = 32, BYTES = 24, BITS = 8, GROUP = 32, NUMBERS = 2;
    static __device__ int code(Bytes of, int i) { return five(of + 4, i); }
    static __device__ float2 scale(Bytes of, int) { return make_float2(half_at(of), half_at(of + 2)); }
};
struct Q8_0 {
    static constexpr int ELEMENTS = 32, BYTES = 34, BITS = 8, GROUP = 32, NUMBERS = 1;
    static __device__ int code(Bytes of, int i) { return of[2 + i]; }
    static __device__ float2 scale(Bytes of, int) { return make_float2(half_at(of), 0); }
};
struct Q2_K {
    static constexpr int ELEMENTS = 256, BYTES = 84, BITS = 8, GROUP = 16, NUMBERS = 2;
    static __device__ int code(Bytes of, int i) { return two(of + 16, i); }
    static __device__ float2 scale(Bytes of, int g) {
        return make_float2(half_at(of + 80) * (of[g] & 15), -half_at(of + 82) * (of[g] >> 4));
    }
};
struct Q3_K {
    static constexpr int ELEMENTS = 256, BYTES = 110, BITS = 8, GROUP = 16, NUMBERS = 1;
    static __device__ int code(Bytes of, int i) { return (two(of + 32, i) | (of[i % 32] >> i / 32 & 1) << 2) - 4; }
    static __device__ float2 scale(Bytes of, int g) {
        Bytes scales = of + 96;
        const int six = (scales[g % 8] >> g / 8 * 4 & 15) | (scales[8 + g % 4] >> g / 4 * 2 & 3) << 4;
        return make_float2(half_at(of + 108) * (six - 32), 0);
    }
};
struct Q4_K {
    static constexpr int ELEMENTS = 256, BYTES = 144, BITS = 4, GROUP = 32, NUMBERS = 2;
    static __device__ int code(Bytes of, int i) { return half_bytes(of + 16, i); }
    static __device__ float2 scale(Bytes of, int g) {
        const float2 numbers = six(of + 4, g);
        return make_float2(half_at(of) * numbers.x, -half_at(of + 2) * numbers.y);
    }
};
struct Q5_K {
    static constexpr int ELEMENTS = 256, BYTES = 176, BITS = 8, GROUP = 32, NUMBERS = 2;
    static __device__ int code(Bytes of, int i) {
        return half_bytes(of + 48, i) | (of[16 + i % 32] >> i / 32 & 1) << 4;
    }
    static __device__ float2 scale(Bytes of, int g) { return Q4_K::scale(of, g); }
};
struct Q6_K {
    static constexpr int ELEMENTS = 256, BYTES = 210, BITS = 8, GROUP = 16, NUMBERS = 1;
    static __device__ int code(Bytes of, int i) {
        const int half = i / 128, quarter = i % 128 / 32, at = i % 32;
        const int low = of[half * 64 + quarter % 2 * 32 + at] >> quarter / 2 * 4 & 15;
        return (low | (of[128 + half * 32 + at] >> quarter * 2 & 3) << 4) - 32;
    }
    static __device__ float2 scale(Bytes of, int g) {
        return make_float2(half_at(of + 208) * (signed char)of[192 + g], 0);
    }
};

template <typename Q> __device__ int code(Bytes of, size_t element) {
    return Q::code(of + element / Q::ELEMENTS * Q::BYTES, element % Q::ELEMENTS);
}

// A thread has a byte of codes.
template <typename Q> __device__ void codes(unsigned numel, Bytes of, unsigned char *to) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= numel) return;
    const size_t first = i / 16 * 32 + i % 16;
    to[i] = Q::BITS == 8 ? code<Q>(of, i) : code<Q>(of, first) | code<Q>(of, first + 16) << 4;
}

// A thread has a number of a group.
template <typename Q> __device__ void scales(unsigned numel, Bytes of, __half *to) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= numel) return;
    const size_t element = i / Q::NUMBERS * Q::GROUP;
    const float2 both = Q::scale(of + element / Q::ELEMENTS * Q::BYTES, element % Q::ELEMENTS / Q::GROUP);
    to[i] = __float2half_rn(i % Q::NUMBERS ? both.y : both.x);
}

#define OF_BLOCKS(Q, NAME)                                                                                             \
    extern "C" __global__ void opara_layout_block_codes_##NAME##_u8(unsigned numel, Bytes of, unsigned char *to) {     \
        codes<Q>(numel, of, to);                                                                                       \
    }                                                                                                                  \
    extern "C" __global__ void opara_layout_block_scales_##NAME##_f16(unsigned numel, Bytes of, __half *to) {          \
        scales<Q>(numel, of, to);                                                                                      \
    }

OF_BLOCKS(Q4_0, q4_0)
OF_BLOCKS(Q4_1, q4_1)
OF_BLOCKS(Q5_0, q5_0)
OF_BLOCKS(Q5_1, q5_1)
OF_BLOCKS(Q8_0, q8_0)
OF_BLOCKS(Q2_K, q2_k)
OF_BLOCKS(Q3_K, q3_k)
OF_BLOCKS(Q4_K, q4_k)
OF_BLOCKS(Q5_K, q5_k)
OF_BLOCKS(Q6_K, q6_k)
