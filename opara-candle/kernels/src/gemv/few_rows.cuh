// What the kernels of gemv.cuh and gemv_tensor.cuh share: the block, and the arguments of a launch.
#pragma once
#include "activation.cuh"
#include "dependent.cuh"
#include "rows.cuh"
#include "tensor.cuh"

constexpr unsigned WARPS = 8;

// Has a line of memory that is read soon come into the L2 cache.
template <typename T> __device__ inline void fetch(const T *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// Kernels of R rows, made of the header's `gemv<T, R, GATED>`. The first argument counts the results.
#define GEMV(T, NAME, R)                                                                                               \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) opara_matmul_gemv_##R##_##NAME(unsigned numel,         \
        unsigned columns, unsigned inner, unsigned splits, int activation, float eps, const T *x, const T *scale,      \
        const T *weight, const T *bias, const T *residual, T *y) {                                                     \
        gemv<T, R, false>(numel / columns, columns, inner, splits, activation, eps, x, scale, weight, bias, residual,  \
                          y);                                                                                          \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) opara_matmul_gated_gemv_##R##_##NAME(unsigned numel,   \
        unsigned columns, unsigned inner, unsigned splits, int activation, float eps, const T *x, const T *scale,      \
        const T *weight, const T *bias, T *y) {                                                                        \
        gemv<T, R, true>(numel / columns, columns, inner, splits, activation, eps, x, scale, weight, bias, nullptr,    \
                         y);                                                                                           \
    }
