// Products of a weight's rows with 2 to 64 rows of x on warpgroups (sm_90a), for types of 16 bits: gemv.cuh has those with one row. The
// weight is the first operand of an instruction, whose 64 rows are then full however few rows x has. Memory's speed limits these
// products.
//
// A cluster of SPLITS blocks computes the results of 64 rows of the weight: each block has a part of the inner dimension. What it multiplies
// next is on its way into shared memory; the first of that is asked for before the kernel waits for its predecessors. More rows of x have
// the kernels of gemv_many.cuh.
//
// Sums are in an order that the sizes of the weight decide, and an instruction gives a column the same bits whatever columns it has
// beside it: a row's result depends neither on the rows beside it nor on how many there are.
#pragma once
#include "dependent.cuh"
#include "four_results.cuh"
#include "warpgroup.cuh"

// Threads of a block: a warpgroup.
constexpr unsigned THREADS = 128;

// COUNT rows of a line each, which the block copies to shared memory: a thread has 16 bytes of every STEP-th row.
template <typename T, unsigned COUNT> struct Lines {
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

// Results of up to N rows of x, of one row of the weight each, or of two if GATED: a gate and what it lets through, which is `columns`
// rows further down. The activation is the gate's, or comes before the residual.
template <typename T, unsigned N, unsigned SPLITS, bool GATED>
__device__ inline void gemv(unsigned rows, unsigned columns, unsigned inner, int activation, const T *x, const T *weight,
                            const T *bias, const T *residual, T *y) {
    // Rows of the weight that a block takes, and floats between the sums of two rows of x: lanes that store at once reach different banks.
    constexpr unsigned ROWS = 64, PITCH = ROWS + 4;
    constexpr unsigned RESULTS = GATED ? ROWS / 2 : ROWS, SLOT = (ROWS + N) * LINE<T>;
    using OfWeight = Lines<T, ROWS>;
    using OfX = Lines<T, N>;
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
    const Four<GATED> four(begin, RESULTS / 4, rows, base, columns, bias, residual);

    float sum[N / 8][4] = {};
    unsigned slot = 0, asked_slot = ahead;
    for (unsigned step = first; step < past; step++) {
        wait_for_first(ahead);
        wgmma_wait();
        fence_shared_writes();
        __syncthreads();
        const unsigned long long of_weight = matrix_descriptor(room + slot * SLOT);
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
    store_fours<SPLITS, THREADS>(four, begin, sums, PITCH, base, rows, columns, activation, bias, residual, y);
    // Other blocks of the cluster may still read this one's sums.
    leave_cluster<SPLITS>();
}

// Kernels of N rows at most.
#define GEMV(T, NAME, N, SPLITS)                                                                                       \
    extern "C" __global__ void CLUSTER(SPLITS) __launch_bounds__(THREADS, 4)                                           \
        opara_matmul_rows_##N##_by##SPLITS##_##NAME(unsigned rows, unsigned columns, unsigned inner, int activation,   \
            const T *x, const T *weight, const T *bias, const T *residual, T *y) {                                     \
        gemv<T, N, SPLITS, false>(rows, columns, inner, activation, x, weight, bias, residual, y);                     \
    }                                                                                                                  \
    extern "C" __global__ void CLUSTER(SPLITS) __launch_bounds__(THREADS, 4)                                           \
        opara_matmul_gated_rows_##N##_by##SPLITS##_##NAME(unsigned rows, unsigned columns, unsigned inner,             \
            int activation, const T *x, const T *weight, const T *bias, T *y) {                                        \
        gemv<T, N, SPLITS, true>(rows, columns, inner, activation, x, weight, bias, nullptr, y);                       \
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
