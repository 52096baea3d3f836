// Products of a weight's rows with 65 to 256 rows of x, with the bits of gemv_warpgroup.cuh: the same sums in the same order.
//
// A block has 128 rows of the weight, as two warpgroups, and N rows of x. A thread has the tiles of both copied, and barriers count their
// bytes: with tiles that all threads copy, the warpgroups would wait for each other, and for addresses, at each tile. SPLITS blocks are a
// cluster, of which each has a part of the inner dimension.
#pragma once
#include "bulk.cuh"
#include "dependent.cuh"
#include "four_results.cuh"
#include "warpgroup.cuh"

template <typename T, unsigned N, unsigned SPLITS, bool GATED>
__device__ inline void gemv_many(unsigned all_rows, unsigned columns, unsigned inner, int activation, const Matrix &x, const Matrix &weight,
                                 const T *bias, const T *residual, T *y) {
    constexpr unsigned ROWS = 128, PITCH = ROWS + 4, THREADS = 2 * 128, SLOT = (ROWS + N) * LINE<T>, MOST_SLOTS = 8;
    constexpr unsigned RESULTS = GATED ? ROWS / 2 : ROWS;
    extern __shared__ __align__(BASE) uint4 dynamic[];
    T *const room = reinterpret_cast<T *>(dynamic);
    __shared__ Barrier full[MOST_SLOTS], empty[MOST_SLOTS];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, base = blockIdx.x * RESULTS;
    const unsigned first_row = blockIdx.y * N, rows = min(all_rows - first_row, N);
    const unsigned slots = min(bytes_of_dynamic_memory() / (SLOT * (unsigned)sizeof(T)), MOST_SLOTS);
    const unsigned steps = (inner + LINE<T> - 1) / LINE<T>;
    const unsigned first = steps * blockIdx.z / SPLITS, past = steps * (blockIdx.z + 1) / SPLITS;
    auto ask_weight = [&](unsigned step, unsigned slot) {
        full[slot].expect(SLOT * sizeof(T));
#pragma unroll
        for (unsigned half = 0; half < 2; half++)
            copy_box(room + slot * SLOT + half * 64 * LINE<T>, weight, step * LINE<T>, GATED ? half * columns + base : base + half * 64,
                     full[slot]);
    };
    auto ask_x = [&](unsigned step, unsigned slot) {
        copy_box(room + slot * SLOT + ROWS * LINE<T>, x, step * LINE<T>, first_row, full[slot]);
    };

    trigger_dependents();
    if (threadIdx.x == 0) {
        for (unsigned slot = 0; slot < slots; slot++) full[slot].init(1), empty[slot].init(2);
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
        // The step before is multiplied, by this warpgroup: when it is by both, what comes next takes its place.
        wgmma_wait<1>();
        if (step > first && threadIdx.x % 128 == 0) {
            empty[before].arrive();
            const unsigned next = step - 1 + slots;
            if (threadIdx.x == 0 && next < past) {
                empty[before].wait(parity_before);
                ask_weight(next, before), ask_x(next, before);
            }
        }
        before = slot, parity_before = parity;
        if (++slot == slots) slot = 0, parity ^= 1;
    }
    wgmma_wait(sum);
    // Both warpgroups have multiplied.
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
    const T *const of_rows = residual ? residual + (size_t)first_row * columns : nullptr;
    const Four<GATED> four(begin, RESULTS / 4, rows, base, columns, bias, of_rows);
    sync_cluster<SPLITS>();
    store_fours<SPLITS, THREADS>(four, begin, sums, PITCH, base, rows, columns, activation, bias, of_rows, y + (size_t)first_row * columns);
    // Other blocks of the cluster may still read this one's sums.
    leave_cluster<SPLITS>();
}

// Kernels of N rows at a time.
#define GEMV(T, NAME, N, BLOCKS, SPLITS)                                                                               \
    extern "C" __global__ void CLUSTER(SPLITS) __launch_bounds__(256, BLOCKS)                                          \
        opara_matmul_many_##N##_by##SPLITS##_##NAME(unsigned rows, unsigned columns, unsigned inner, int activation,   \
            const __grid_constant__ Matrix x, const __grid_constant__ Matrix weight, const T *bias, const T *residual, \
            T *y) {                                                                                                    \
        gemv_many<T, N, SPLITS, false>(rows, columns, inner, activation, x, weight, bias, residual, y);                \
    }                                                                                                                  \
    extern "C" __global__ void CLUSTER(SPLITS) __launch_bounds__(256, BLOCKS)                                          \
        opara_matmul_gated_many_##N##_by##SPLITS##_##NAME(unsigned rows, unsigned columns, unsigned inner,             \
            int activation, const __grid_constant__ Matrix x, const __grid_constant__ Matrix weight, const T *bias,    \
            T *y) {                                                                                                    \
        gemv_many<T, N, SPLITS, true>(rows, columns, inner, activation, x, weight, bias, nullptr, y);                  \
    }
// 256 rows are faster than twice 128 where no blocks have to be beside each other.
#define ALL_GEMVS(T, NAME)                                                                                             \
    GEMV(T, NAME, 128, 2, 1)                                                                                           \
    GEMV(T, NAME, 128, 2, 2)                                                                                           \
    GEMV(T, NAME, 128, 2, 4)                                                                                           \
    GEMV(T, NAME, 128, 2, 8)                                                                                           \
    GEMV(T, NAME, 256, 1, 1)
