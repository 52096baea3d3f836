// Products of a weight's rows with rows of x on warpgroups (sm_90a), for x of 16 bits. The weight is the first operand of an instruction,
// whose 64 rows are then full however few rows x has. Memory's speed limits these products of few rows.
//
// A cluster of SPLITS blocks computes the results of 64 rows of the weight: each block has a part of the inner dimension. What it multiplies
// next is on its way into shared memory; the first of that is asked for before the kernel waits for its predecessors.
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

// Rows of the weight that a block takes.
constexpr unsigned ROWS = 64;

// Where a block's rows of a weight are: `columns` results of one row each, or of two if GATED, `columns` apart.
template <bool GATED> struct RowsOfBlock {
    static constexpr unsigned RESULTS = GATED ? ROWS / 2 : ROWS;
    unsigned columns;

    __device__ static unsigned base() { return blockIdx.x * RESULTS; }
    // The row of the weight. Beyond the end: the last one again, whose result is not stored.
    __device__ size_t row(unsigned of_block) const {
        return (size_t)(of_block / RESULTS) * columns + min(base() + of_block % RESULTS, columns - 1);
    }
};

// A weight of the elements of x.
template <typename T, bool GATED> struct Plain {
    using Tile = Lines<T, ROWS>;
    // Lines of a step, and its bytes.
    static constexpr unsigned LINES = 1, BYTES = ROWS * LINE<T> * sizeof(T);
    const T *of_tile[Tile::OF_THREAD];
    unsigned inner;

    __device__ Plain(const T *weight, unsigned columns, unsigned inner) : inner(inner) {
        const RowsOfBlock<GATED> rows{columns};
        Tile::each([&](unsigned n, unsigned row) { of_tile[n] = weight + rows.row(row) * inner + Tile::column(); });
    }
    // Starts the copies of a step.
    __device__ void ask(unsigned line, unsigned, T *tile) const {
        const unsigned at = line * LINE<T>;
        Tile::each([&](unsigned n, unsigned row) {
            copy_async(Tile::place(tile, row), of_tile[n] + at, at + Tile::column() < inner);
        });
    }
    // Starts sum = tile * x, or sum += tile * x if `adds`, and calls `meanwhile`.
    template <int N, typename F>
    __device__ static void multiply(float (&sum)[N][4], const T *tile, unsigned long long of_x, bool adds, F meanwhile) {
        const unsigned long long of_weight = matrix_descriptor(tile);
        wgmma_fence();
#pragma unroll
        for (unsigned d = 0; d < 4; d++) wgmma(sum, of_weight + d * ONE_OPERAND, of_x + d * ONE_OPERAND, adds || d > 0, T());
        wgmma_commit();
        meanwhile();
    }
};

// Results of up to N rows of x, of one row of the weight each, or of two if GATED: a gate and what it lets through, which is `columns`
// rows further down. The activation is the gate's, or comes before the residual.
template <typename T, unsigned N, unsigned SPLITS, bool GATED, typename Weight>
__device__ inline void product_of_rows(unsigned rows, unsigned columns, unsigned inner, int activation, const T *x, const Weight &weight,
                                       const T *bias, const T *residual, T *y) {
    // Floats between the sums of two rows of x: lanes that store at once reach different banks.
    constexpr unsigned PITCH = ROWS + 4, RESULTS = RowsOfBlock<GATED>::RESULTS;
    // A step has some lines, one behind the other. Those that the part of the inner dimension lacks are zeros.
    constexpr unsigned LINES = Weight::LINES, OF_WEIGHT = Weight::BYTES / sizeof(T), SLOT = OF_WEIGHT + LINES * N * LINE<T>;
    static_assert(Weight::BYTES % BASE == 0, "tiles of x begin there");
    using OfX = Lines<T, N>;
    extern __shared__ __align__(BASE) uint4 dynamic[];
    T *const room = reinterpret_cast<T *>(dynamic);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, base = RowsOfBlock<GATED>::base();
    const unsigned slots = bytes_of_dynamic_memory() / (SLOT * (unsigned)sizeof(T)), ahead = slots - 1;
    const unsigned lines = (inner + LINE<T> - 1) / LINE<T>, steps = (lines + LINES - 1) / LINES;
    const unsigned first = steps * blockIdx.z / SPLITS * LINES, past = min(steps * (blockIdx.z + 1) / SPLITS * LINES, lines);

    auto tile_of_x = [&](unsigned slot, unsigned of_step) { return room + slot * SLOT + OF_WEIGHT + of_step * N * LINE<T>; };
    auto ask_x = [&](unsigned line, unsigned slot) {
#pragma unroll
        for (unsigned of_step = 0; of_step < LINES; of_step++) {
            const unsigned at = (line + of_step) * LINE<T> + OfX::column();
            OfX::each([&](unsigned, unsigned row) {
                const bool is_there = row < rows && at < inner && line + of_step < past;
                copy_async(OfX::place(tile_of_x(slot, of_step), row), x + (is_there ? (size_t)row * inner + at : 0), is_there);
            });
        }
    };

    trigger_dependents();
    for (unsigned n = 0; n < ahead; n++) {
        if (first + n * LINES < past) weight.ask(first + n * LINES, past, room + n * SLOT);
        commit();
    }
    wait_for_predecessors();
    // x of these steps: through registers, since copies are waited for in order, and the first step is to begin as soon as its part of the
    // weight is there.
    for (unsigned n = 0; n < ahead * LINES; n++) {
        Vec<T, WIDE<T>> held[OfX::OF_THREAD];
        const unsigned at = (first + n) * LINE<T> + OfX::column();
        OfX::each([&](unsigned of, unsigned row) {
            held[of] = Vec<T, WIDE<T>>{};
            if (row < rows && first + n < past && at < inner) held[of] = load<T, WIDE<T>>(x + (size_t)row * inner + at);
        });
        OfX::each([&](unsigned of, unsigned row) {
            store<T, WIDE<T>>(OfX::place(tile_of_x(n / LINES, n % LINES), row), held[of]);
        });
    }
    // The blocks of the cluster share the results. A thread asks for the bias and the residual of its first ones while sums are computed.
    const unsigned begin = blockIdx.z * THREADS + threadIdx.x;
    const Four<GATED> four(begin, RESULTS / 4, rows, base, columns, bias, residual);

    float sum[N / 8][4] = {};
    unsigned slot = 0, asked_slot = ahead;
    for (unsigned line = first; line < past; line += LINES) {
        wait_for_first(ahead);
        wgmma_wait();
        fence_shared_writes();
        __syncthreads();
        const T *const tile = room + slot * SLOT;
        weight.multiply(sum, tile, matrix_descriptor(tile + OF_WEIGHT), line > first, [&] {
            // The barrier has passed: no warp still multiplies what lies in the slot before this one.
            const unsigned next = line + ahead * LINES;
            if (next < past) weight.ask(next, past, room + asked_slot * SLOT), ask_x(next, asked_slot);
            commit();
        });
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
