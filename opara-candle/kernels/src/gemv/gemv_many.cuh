// Products of a weight's rows with 65 to 256 rows of x, with the bits of gemv_warpgroup.cuh: the same sums in the same order.
//
// A block has 64 rows of the weight for each of its WARPGROUPS, and N rows of x. A thread has the tiles of both copied, and barriers count their
// bytes: with tiles that all threads copy, the warpgroups would wait for each other, and for addresses, at each tile. SPLITS blocks are a
// cluster, of which each has a part of the inner dimension.
#pragma once
#include "bulk.cuh"
#include "dependent.cuh"
#include "four_results.cuh"
#include "warpgroup.cuh"

template <typename T, unsigned N, unsigned WARPGROUPS, unsigned SPLITS, bool GATED>
__device__ inline void gemv_many(unsigned rows, unsigned columns, unsigned inner, int activation, const Matrix &x, const Matrix &weight,
                                 const T *bias, const T *residual, T *y) {
    constexpr unsigned ROWS = 64 * WARPGROUPS, PITCH = ROWS + 4, THREADS = 128 * WARPGROUPS, SLOT = (ROWS + N) * LINE<T>, MOST_SLOTS = 8;
    static_assert(!GATED || WARPGROUPS == 2, "one has the gates");
    constexpr unsigned RESULTS = GATED ? ROWS / 2 : ROWS;
    extern __shared__ __align__(BASE) uint4 dynamic[];
    T *const room = reinterpret_cast<T *>(dynamic);
    __shared__ Barrier full[MOST_SLOTS], empty[MOST_SLOTS];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, base = blockIdx.x * RESULTS;
    const unsigned slots = min(bytes_of_dynamic_memory() / (SLOT * (unsigned)sizeof(T)), MOST_SLOTS);
    const unsigned steps = (inner + LINE<T> - 1) / LINE<T>;
    const unsigned first = steps * blockIdx.z / SPLITS, past = steps * (blockIdx.z + 1) / SPLITS;
    auto ask_weight = [&](unsigned step, unsigned slot) {
        full[slot].expect(SLOT * sizeof(T));
#pragma unroll
        for (unsigned n = 0; n < WARPGROUPS; n++)
            copy_box(room + slot * SLOT + n * 64 * LINE<T>, weight, step * LINE<T>, base + n * (GATED ? columns : 64), full[slot]);
    };
    auto ask_x = [&](unsigned step, unsigned slot) {
        copy_box(room + slot * SLOT + ROWS * LINE<T>, x, step * LINE<T>, 0, full[slot]);
    };

    trigger_dependents();
    if (threadIdx.x == 0) {
        for (unsigned slot = 0; slot < slots; slot++) full[slot].init(1), empty[slot].init(WARPGROUPS);
        publish_barriers();
        for (unsigned n = 0; n < slots && first + n < past; n++) ask_weight(first + n, n);
    }
    wait_for_predecessors();
    if (threadIdx.x == 0)
        for (unsigned n = 0; n < slots && first + n < past; n++) ask_x(first + n, n);
    __syncthreads();

    float sum[N / 8][4] = {};
    unsigned slot = 0, parity = 0, before = 0, parity_before = 0;
    for (unsigned step = first; step < past; step++) {
        full[slot].wait(parity);
        const unsigned long long of_weight = matrix_descriptor(room + slot * SLOT + warp / 4 * 64 * LINE<T>);
        const unsigned long long of_x = matrix_descriptor(room + slot * SLOT + ROWS * LINE<T>);
        wgmma_fence();
#pragma unroll
        for (unsigned d = 0; d < 4; d++)
            wgmma(sum, of_weight + d * ONE_OPERAND, of_x + d * ONE_OPERAND, step > first || d > 0, T());
        wgmma_commit();
        // This warpgroup has multiplied the step before: when all have, what comes next takes its place.
        wgmma_wait<1>();
        if (step > first && threadIdx.x % 128 == 0) {
            empty[before].arrive();
            const unsigned next = step - 1 + slots;
            if (threadIdx.x == 0 && next < past) {
                empty[before].wait(parity_before);
                ask_weight(next, before), ask_x(next, before);
            }
        }
        // The warp of the thread that asked multiplies as one again.
        __syncwarp();
        before = slot, parity_before = parity;
        if (++slot == slots) slot = 0, parity ^= 1;
    }
    wgmma_wait(sum);
    // All warpgroups have multiplied.
    __syncthreads();

    // Sums of the block, where slots were.
    float *const sums = reinterpret_cast<float *>(dynamic);
#pragma unroll
    for (unsigned n = 0; n < N / 8; n++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++)
            sums[(n * 8 + lane % 4 * 2 + e % 2) * PITCH + warp * 16 + lane / 4 + e / 2 * 8] = sum[n][e];
    // The blocks of the cluster share the results. What is added to a thread's first ones is on its way while they meet.
    const unsigned begin = blockIdx.z * THREADS + threadIdx.x;
    const Four<GATED> four(begin, RESULTS / 4, rows, base, columns, bias, residual);
    sync_cluster<SPLITS>();
    store_fours<SPLITS, THREADS>(four, begin, sums, PITCH, base, rows, columns, activation, bias, residual, y);
    // Other blocks of the cluster may still read this one's sums.
    leave_cluster<SPLITS>();
}

// Kernels of N rows at a time, and of ROWS rows of the weight.
#define GEMV(T, NAME, N, ROWS, BLOCKS, SPLITS)                                                                         \
    extern "C" __global__ void CLUSTER(SPLITS) __launch_bounds__(2 * ROWS, BLOCKS)                                     \
        opara_matmul_many_##N##_of##ROWS##_by##SPLITS##_##NAME(unsigned rows, unsigned columns, unsigned inner,        \
            int activation, const __grid_constant__ Matrix x, const __grid_constant__ Matrix weight, const T *bias,    \
            const T *residual, T *y) {                                                                                 \
        gemv_many<T, N, ROWS / 64, SPLITS, false>(rows, columns, inner, activation, x, weight, bias, residual, y);     \
    }
#define GATED_GEMV(T, NAME, N, ROWS, BLOCKS, SPLITS)                                                                   \
    extern "C" __global__ void CLUSTER(SPLITS) __launch_bounds__(2 * ROWS, BLOCKS)                                     \
        opara_matmul_gated_many_##N##_of##ROWS##_by##SPLITS##_##NAME(unsigned rows, unsigned columns, unsigned inner,  \
            int activation, const __grid_constant__ Matrix x, const __grid_constant__ Matrix weight, const T *bias,    \
            T *y) {                                                                                                    \
        gemv_many<T, N, ROWS / 64, SPLITS, true>(rows, columns, inner, activation, x, weight, bias, nullptr, y);       \
    }
#define GEMVS(KIND, T, NAME, N, ROWS, BLOCKS)                                                                          \
    KIND(T, NAME, N, ROWS, BLOCKS, 1)                                                                                  \
    KIND(T, NAME, N, ROWS, BLOCKS, 2)                                                                                  \
    KIND(T, NAME, N, ROWS, BLOCKS, 4)                                                                                  \
    KIND(T, NAME, N, ROWS, BLOCKS, 8)
#define ALL_GEMVS(T, NAME)                                                                                             \
    GEMVS(GEMV, T, NAME, 128, 128, 2)                                                                                  \
    GEMVS(GEMV, T, NAME, 256, 128, 1)                                                                                  \
    GEMVS(GEMV, T, NAME, 256, 192, 1)                                                                                  \
    GEMVS(GATED_GEMV, T, NAME, 128, 128, 2)                                                                            \
    GEMVS(GATED_GEMV, T, NAME, 256, 128, 1)
