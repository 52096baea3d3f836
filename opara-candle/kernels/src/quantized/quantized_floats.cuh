// Products of a weight of 8-bit floats with one row of x in 16 bits. quantized_warpgroup.cuh has more rows.
#pragma once
#include "../gemv/gemv.cuh"
#include "groups.cuh"

struct EightBits {
    static constexpr unsigned N = 16, BYTES_OF_SCALE = sizeof(float), GROUP = 128;
    const unsigned char *codes;
    const Floats *scales;
    struct Held {
        Vec<unsigned short, N / 2> pairs;
        float scale;
        __device__ void four(unsigned first, float (&to)[4]) const {
#pragma unroll
            for (unsigned n = 0; n < 4; n += 2) {
                const float2 both = two_of_eight_bits(pairs.at[(first + n) / 2]);
                to[n] = both.x, to[n + 1] = both.y;
            }
        }
        __device__ static float begun(float) { return 0; }
        __device__ float with(float sum, float of_these) const { return fmaf(scale, of_these, sum); }
    };
    __device__ void ask(void *to, void *to_scale, size_t element, bool is_there) const {
        copy_async(to, codes + element, is_there);
        copy_async<BYTES_OF_SCALE>(to_scale, scales + element / GROUP, is_there);
    }
    __device__ static Held held(const void *at, const void *scale) {
        return {*reinterpret_cast<const Vec<unsigned short, N / 2> *>(at), *reinterpret_cast<const float *>(scale)};
    }
};

#define FLOATS(T, NAME)                                                                                                \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) opara_matmul_floats_gemv_1_##NAME(unsigned columns,    \
        unsigned inner, unsigned splits, int activation, float eps, const T *x, const T *norm,                         \
        const unsigned char *codes, const Floats *scales, const T *bias, const T *residual, T *y) {                    \
        products<T, 1, false>(1, columns, inner, splits, activation, eps, x, norm, EightBits{codes, scales}, bias,     \
                              residual, y);                                                                            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) opara_matmul_floats_gated_gemv_1_##NAME(               \
        unsigned columns, unsigned inner, unsigned splits, int activation, float eps, const T *x, const T *norm,       \
        const unsigned char *codes, const Floats *scales, const T *bias, T *y) {                                       \
        products<T, 1, true>(1, columns, inner, splits, activation, eps, x, norm, EightBits{codes, scales}, bias,      \
                             (const T *)nullptr, y);                                                                   \
    }
