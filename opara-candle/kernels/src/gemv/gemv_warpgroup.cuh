// Products of a weight's rows with 2 to 256 rows of x on warpgroups (sm_90a), for types of 16 bits: gemv.cuh has those with one row. The
// weight is the first operand of an instruction, whose 64 rows are then full however few rows x has. Memory's speed limits these
// products.
//
// A cluster of SPLITS blocks computes the results of 64 rows of the weight for each of a block's WARPGROUPS: each block has a part of the
// inner dimension. From 65 rows of x on, which each block reads anew from the second level of the cache, a block has two. What it
// multiplies next is on its way into shared memory; the first of that is asked for before the kernel waits for its predecessors.
//
// Sums are in an order that the sizes of the weight decide, and an instruction gives a column the same bits whatever columns it has
// beside it: a row's result depends neither on the rows beside it nor on how many there are.
#pragma once
#include "activation.cuh"
#include "cluster.cuh"
#include "dependent.cuh"
#include "warpgroup.cuh"

// COUNT rows of a line each, which the block copies to shared memory: a thread has 16 bytes of every STEP-th row.
template <typename T, unsigned COUNT, unsigned THREADS> struct Lines {
    static constexpr unsigned STEP = THREADS / CHUNKS, OF_THREAD = (COUNT + STEP - 1) / STEP;

    __device__ static unsigned column() { return threadIdx.x % CHUNKS * WIDE<T>; }
    // Calls f with the number of each of the thread's rows, and with the row.
    template <typename F> __device__ static void each(F f) {
#pragma unroll
        for (unsigned n = 0; n < OF_THREAD; n++) {
            const unsigned row = threadIdx.x / CHUNKS + n * STEP;
            if (COUNT % STEP == 0 || row < COUNT) f(n, row);
        }
    }
    // Where a row's 16 bytes are in a tile.
    __device__ static T *place(T *tile, unsigned row) { return tile + swizzled<T>(row, threadIdx.x % CHUNKS); }
};

// Four neighbouring results of a row of x, and what is added to them.
template <bool GATED> struct Four {
    unsigned row, column;
    float bias[GATED ? 2 : 1][4], residual[4];

    // Asks for what is added, with zeros where there is nothing. Beyond the end: the last one again, whose result is not stored.
    template <typename T>
    __device__ Four(unsigned row, unsigned column, unsigned columns, const T *of_bias, const T *of_residual)
        : row(row), column(column), bias{}, residual{} {
#pragma unroll
        for (unsigned e = 0; e < 4; e++) {
            const unsigned at = min(column + e, columns - 1);
            if (of_bias) {
#pragma unroll
                for (unsigned half = 0; half < (GATED ? 2 : 1); half++) bias[half][e] = widen(of_bias[half * columns + at]);
            }
            if (of_residual) residual[e] = widen(of_residual[(size_t)row * columns + at]);
        }
    }
};

// Results of up to N rows of x, of one row of the weight each, or of two if GATED: a gate and what it lets through, which is `columns`
// rows further down. The activation is the gate's, or comes before the residual.
template <typename T, unsigned N, unsigned WARPGROUPS, unsigned SPLITS, bool GATED>
__device__ inline void gemv(unsigned rows, unsigned columns, unsigned inner, int activation, const T *x, const T *weight,
                            const T *bias, const T *residual, T *y) {
    // Rows of the weight that a block takes, and floats between the sums of two rows of x: lanes that store at once reach different banks.
    constexpr unsigned ROWS = 64 * WARPGROUPS, PITCH = ROWS + 4, THREADS = 128 * WARPGROUPS;
    constexpr unsigned RESULTS = GATED ? ROWS / 2 : ROWS, FOURS = RESULTS / 4, SLOT = (ROWS + N) * LINE<T>;
    using OfWeight = Lines<T, ROWS, THREADS>;
    using OfX = Lines<T, N, THREADS>;
    extern __shared__ __align__(BASE) uint4 dynamic[];
    T *const room = reinterpret_cast<T *>(dynamic);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, base = blockIdx.x * RESULTS;
    const unsigned slots = bytes_of_dynamic_memory() / (SLOT * (unsigned)sizeof(T)), ahead = slots - 1;
    const unsigned steps = (inner + LINE<T> - 1) / LINE<T>;
    const unsigned first = steps * blockIdx.z / SPLITS, past = steps * (blockIdx.z + 1) / SPLITS;

    const T *of_tile[OfWeight::OF_THREAD];
    OfWeight::each([&](unsigned n, unsigned row) {
        // Beyond the end: the last one again, whose result is not stored.
        const unsigned result = min(base + row % RESULTS, columns - 1);
        of_tile[n] = weight + ((size_t)(row / RESULTS) * columns + result) * inner + OfWeight::column();
    });
    auto ask_weight = [&](unsigned step, unsigned slot) {
        const unsigned at = step * LINE<T>;
        OfWeight::each([&](unsigned n, unsigned row) {
            copy_async(OfWeight::place(room + slot * SLOT, row), of_tile[n] + at, at + OfWeight::column() < inner);
        });
    };
    auto ask_x = [&](unsigned step, unsigned slot) {
        const unsigned at = step * LINE<T> + OfX::column();
        OfX::each([&](unsigned, unsigned row) {
            const bool is_there = row < rows && at < inner;
            T *const to = OfX::place(room + slot * SLOT + ROWS * LINE<T>, row);
            copy_async(to, x + (is_there ? (size_t)row * inner + at : 0), is_there);
        });
    };

    trigger_dependents();
    for (unsigned n = 0; n < ahead; n++) {
        if (first + n < past) ask_weight(first + n, n);
        commit();
    }
    wait_for_predecessors();
    // x of these steps: through registers, since copies are waited for in order, and the first step is to begin as soon as its part of the
    // weight is there.
    for (unsigned n = 0; n < ahead; n++) {
        Vec<T, WIDE<T>> held[OfX::OF_THREAD];
        const unsigned at = (first + n) * LINE<T> + OfX::column();
        OfX::each([&](unsigned of, unsigned row) {
            held[of] = Vec<T, WIDE<T>>{};
            if (row < rows && first + n < past && at < inner) held[of] = load<T, WIDE<T>>(x + (size_t)row * inner + at);
        });
        OfX::each([&](unsigned of, unsigned row) {
            store<T, WIDE<T>>(OfX::place(room + n * SLOT + ROWS * LINE<T>, row), held[of]);
        });
    }
    // The blocks of the cluster share the results. A thread's first ones have what is added by the time that their sums are there.
    const unsigned begin = blockIdx.z * THREADS + threadIdx.x;
    auto four_at = [&](unsigned i) {
        return Four<GATED>(min(i / FOURS, rows - 1), base + i % FOURS * 4, columns, bias, residual);
    };
    Four<GATED> four = four_at(begin);

    float sum[N / 8][4] = {};
    unsigned slot = 0, asked_slot = ahead;
    for (unsigned step = first; step < past; step++) {
        wait_for_first(ahead);
        wgmma_wait();
        fence_shared_writes();
        __syncthreads();
        const unsigned long long of_weight = matrix_descriptor(room + slot * SLOT + warp / 4 * 64 * LINE<T>);
        const unsigned long long of_x = matrix_descriptor(room + slot * SLOT + ROWS * LINE<T>);
        wgmma_fence();
#pragma unroll
        for (unsigned d = 0; d < 4; d++)
            wgmma(sum, of_weight + d * ONE_OPERAND, of_x + d * ONE_OPERAND, step > first || d > 0, T());
        wgmma_commit();
        // The barrier has passed: no warp still multiplies what lies in the slot before this one.
        if (step + ahead < past) ask_weight(step + ahead, asked_slot), ask_x(step + ahead, asked_slot);
        commit();
        if (++slot == slots) slot = 0;
        if (++asked_slot == slots) asked_slot = 0;
    }
    wgmma_wait(sum);
    wait_pending<0>();
    __syncthreads();

    // Sums of the block, where slots were.
    float *const sums = reinterpret_cast<float *>(dynamic);
#pragma unroll
    for (unsigned n = 0; n < N / 8; n++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++)
            sums[(n * 8 + lane % 4 * 2 + e % 2) * PITCH + warp * 16 + lane / 4 + e / 2 * 8] = sum[n][e];
    sync_cluster<SPLITS>();
    with_activation(activation, [&](auto kind) {
        for (unsigned i = begin; i < rows * FOURS; i += SPLITS * THREADS) {
            if (i != begin) four = four_at(i);
            if (four.column >= columns) continue;
            auto total = [&](unsigned half) {
                const float *const at = sums + four.row * PITCH + half * RESULTS + (four.column - base);
                Vec<float, 4> all = load_from_block<SPLITS>(0, at);
#pragma unroll
                for (unsigned split = 1; split < SPLITS; split++) {
                    const Vec<float, 4> some = load_from_block<SPLITS>(split, at);
#pragma unroll
                    for (unsigned e = 0; e < 4; e++) all.at[e] += some.at[e];
                }
#pragma unroll
                for (unsigned e = 0; e < 4; e++) all.at[e] += four.bias[half][e];
                return all;
            };
            const Vec<float, 4> value = total(0);
            [[maybe_unused]] Vec<float, 4> through{};
            if constexpr (GATED) through = total(1);
            Vec<T, 4> results;
#pragma unroll
            for (unsigned e = 0; e < 4; e++) {
                const float result = activate<kind>(value.at[e]);
                results.at[e] = narrow<T>(GATED ? result * through.at[e] : result + four.residual[e]);
            }
            T *const to = y + (size_t)four.row * columns + four.column;
            if (columns % 4 == 0) {
                store<T, 4>(to, results);
            } else {
#pragma unroll
                for (unsigned e = 0; e < 4; e++)
                    if (four.column + e < columns) to[e] = results.at[e];
            }
        }
    });
    // Other blocks of the cluster may still read this one's sums.
    leave_cluster<SPLITS>();
}

// Kernels of N rows at most.
#define GEMV(T, NAME, N, WARPGROUPS, BLOCKS, SPLITS)                                                                   \
    extern "C" __global__ void CLUSTER(SPLITS) __launch_bounds__(128 * WARPGROUPS, BLOCKS)                             \
        opara_matmul_rows_##N##_by##SPLITS##_##NAME(unsigned rows, unsigned columns, unsigned inner, int activation,   \
            const T *x, const T *weight, const T *bias, const T *residual, T *y) {                                     \
        gemv<T, N, WARPGROUPS, SPLITS, false>(rows, columns, inner, activation, x, weight, bias, residual, y);         \
    }                                                                                                                  \
    extern "C" __global__ void CLUSTER(SPLITS) __launch_bounds__(128 * WARPGROUPS, BLOCKS)                             \
        opara_matmul_gated_rows_##N##_by##SPLITS##_##NAME(unsigned rows, unsigned columns, unsigned inner,             \
            int activation, const T *x, const T *weight, const T *bias, T *y) {                                        \
        gemv<T, N, WARPGROUPS, SPLITS, true>(rows, columns, inner, activation, x, weight, bias, nullptr, y);           \
    }
#define GEMVS(T, NAME, N, WARPGROUPS, BLOCKS)                                                                          \
    GEMV(T, NAME, N, WARPGROUPS, BLOCKS, 1)                                                                            \
    GEMV(T, NAME, N, WARPGROUPS, BLOCKS, 2)                                                                            \
    GEMV(T, NAME, N, WARPGROUPS, BLOCKS, 4)                                                                            \
    GEMV(T, NAME, N, WARPGROUPS, BLOCKS, 8)
#define ALL_GEMVS(T, NAME)                                                                                             \
    GEMVS(T, NAME, 8, 1, 4)                                                                                            \
    GEMVS(T, NAME, 16, 1, 4)                                                                                           \
    GEMVS(T, NAME, 32, 1, 4)                                                                                           \
    GEMVS(T, NAME, 64, 1, 4)                                                                                           \
    GEMVS(T, NAME, 128, 2, 2)                                                                                          \
    GEMVS(T, NAME, 256, 2, 1)
