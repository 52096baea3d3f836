// Products of a weight of 16 bits with 2 to 64 rows of x: gemv.cuh has those with one row. More rows of x have the kernels of gemv_many.cuh,
// which give the same bits.
#pragma once
#include "warpgroup_product.cuh"

// Kernels of N rows at most.
#define GEMV(T, NAME, N, SPLITS)                                                                                       \
    extern "C" __global__ void CLUSTER(SPLITS) __launch_bounds__(THREADS, 4)                                           \
        opara_matmul_rows_##N##_by##SPLITS##_##NAME(unsigned rows, unsigned columns, unsigned inner, int activation,   \
            const T *x, const T *weight, const T *bias, const T *residual, T *y) {                                     \
        product_of_rows<T, N, SPLITS, false>(rows, columns, inner, activation, x, Plain<T, false>(weight, columns, inner),\
            bias, residual, y);                                                                                        \
    }                                                                                                                  \
    extern "C" __global__ void CLUSTER(SPLITS) __launch_bounds__(THREADS, 4)                                           \
        opara_matmul_gated_rows_##N##_by##SPLITS##_##NAME(unsigned rows, unsigned columns, unsigned inner,             \
            int activation, const T *x, const T *weight, const T *bias, T *y) {                                        \
        product_of_rows<T, N, SPLITS, true>(rows, columns, inner, activation, x, Plain<T, true>(weight, columns, inner),\
            bias, nullptr, y);                                                                                         \
    }
#define GEMVS(T, NAME, N)                                                                                              \
    GEMV(T, NAME, N, 1)                                                                                                \
    GEMV(T, NAME, N, 2)                                                                                                \
    GEMV(T, NAME, N, 4)                                                                                                \
    GEMV(T, NAME, N, 8)
#define ALL_GEMVS(T, NAME)                                                                                             \
    GEMVS(T, NAME, 8)                                                                                                  \
    GEMVS(T, NAME, 16)                                                                                                 \
    GEMVS(T, NAME, 32)                                                                                                 \
    GEMVS(T, NAME, 64)
