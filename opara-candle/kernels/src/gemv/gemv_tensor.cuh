// Products of a weight's rows with 2 to 16 rows of x on tensor cores, for types of 16 bits: gemv.cuh has those with one row. Memory's
// speed limits them. A warp takes 16 rows of the weight, or with others of its block a part of each, and then the next ones as long as
// there are any. What it multiplies next is on its way into shared memory, asked for row by row, since neighbours in memory come faster;
// the first of that is asked for before the kernel waits for its predecessors. How much a warp asks for ahead is what shared memory has room
// for beside x.
//
// Sums are in an order that the sizes of the weight decide: a row's result does not depend on the rows beside it.
#pragma once
#include "few_rows.cuh"

// Rows of the weight that a warp takes at a time: those of an mma instruction.
constexpr unsigned ROWS = 16;
// Elements of a row that a warp takes at a time, and its 16 bytes.
constexpr unsigned CHUNK = 128, UNITS = CHUNK / 8;
// Bytes that a block asks for at a time.
constexpr unsigned STEP = WARPS * ROWS * CHUNK * 2;
// Elements behind each row in shared memory, so that lanes that read two rows at once read different banks.
constexpr unsigned APART = 32;

// Rows `from` to `from + 8` of x, as far as there are any, normalised if there is a scale, with zeros behind their ends; behind the last
// one of x is a row of zeros, if there are fewer than R. The sum of squares of a row is in eight parts, whatever R is: part i has every
// eighth 32 vectors from those of warp i on. The caller waits for the block's other threads.
template <typename T, unsigned R>
__device__ inline void stage(unsigned from, unsigned rows, unsigned inner, unsigned padded, float eps, const T *x, const T *scale,
                             T *room, float (&squares)[8][WARPS]) {
    constexpr unsigned N = WIDE<T>, AT_ONCE = WARPS * 32 * N;
    const unsigned stride = padded + APART, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned begin = threadIdx.x * N, last = begin + (padded - 1) / AT_ONCE * AT_ONCE;
    float square[8] = {};
    Vec<T, N> held[8], of_scale{};
    auto load_rows = [&](unsigned at) {
#pragma unroll
        for (unsigned r = 0; r < 8; r++) {
            held[r] = Vec<T, N>{};
            if (from + r < rows && at < inner) held[r] = load<T, N>(x + (size_t)(from + r) * inner + at);
        }
    };
    auto store_rows = [&](unsigned at) {
#pragma unroll
        for (unsigned r = 0; r < 8; r++)
            if (from + r <= rows && at < padded) store<T, N>(room + (from + r) * stride + at, held[r]);
    };
    auto add_squares = [&] {
#pragma unroll
        for (unsigned r = 0; r < 8; r++)
#pragma unroll
            for (unsigned n = 0; n < N; n++) square[r] = fmaf(widen(held[r].at[n]), widen(held[r].at[n]), square[r]);
    };
    // The last part stays in registers until the factors are known.
    for (unsigned at = begin; at < last; at += AT_ONCE) {
        load_rows(at);
        if (scale) add_squares();
        store_rows(at);
    }
    load_rows(last);
    if (!scale) return store_rows(last);
    if (last < inner) of_scale = load<T, N>(scale + last);
    add_squares();
#pragma unroll
    for (unsigned r = 0; r < 8; r += 4) {
        const float four[4] = {square[r], square[r + 1], square[r + 2], square[r + 3]}, all = reduce_four(four);
        if (lane % 8 == 0) squares[r + lane / 8][warp] = all;
    }
    __syncthreads();
    float own = 0;
    if (lane < 8) {
#pragma unroll
        for (unsigned part = 0; part < WARPS; part++) own += squares[lane][part];
        own = rsqrtf(own / inner + eps);
    }
    float factor[8];
#pragma unroll
    for (unsigned r = 0; r < 8; r++) factor[r] = __shfl_sync(~0u, own, r);
    auto normalise = [&] {
#pragma unroll
        for (unsigned r = 0; r < 8; r++)
#pragma unroll
            for (unsigned n = 0; n < N; n++)
                held[r].at[n] = narrow<T>(widen(held[r].at[n]) * factor[r] * widen(of_scale.at[n]));
    };
    normalise();
    store_rows(last);
    // Each thread has what it stored itself.
    for (unsigned at = begin; at < last; at += AT_ONCE) {
        of_scale = load<T, N>(scale + at);
#pragma unroll
        for (unsigned r = 0; r < 8; r++)
            if (from + r < rows) held[r] = load<T, N>(room + (from + r) * stride + at);
        normalise();
        store_rows(at);
    }
}

// `columns` results of each row, of one row of the weight each, or of two if GATED: a gate and what it lets through, which is
// `columns` rows further down. `splits` warps share them. The activation is the gate's, or comes before the residual.
template <typename T, unsigned R, bool GATED>
__device__ inline void gemv(unsigned rows, unsigned columns, unsigned inner, unsigned splits, int activation, float eps,
                            const T *x, const T *scale, const T *weight, const T *bias, const T *residual, T *y) {
    constexpr unsigned RESULTS = GATED ? ROWS / 2 : ROWS, TILES = R / 8;
    extern __shared__ uint4 dynamic[];
    // Sums of warps: of some results, while the ones before are added up.
    __shared__ float partial[2][WARPS][ROWS][R], squares[TILES][8][WARPS];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = warp % splits, set = warp / splits;
    const unsigned of_block = WARPS / splits * RESULTS, step = gridDim.x * of_block;
    const unsigned chunks = (inner + CHUNK - 1) / CHUNK, padded = chunks * CHUNK, parts = (chunks + splits - 1) / splits;
    T *room = reinterpret_cast<T *>(dynamic);
    const unsigned of_x = min(rows + 1, R) * (padded + APART);
    uint4 *ring = dynamic + of_x * sizeof(T) / 16 + warp * ROWS * UNITS;
    const unsigned steps = (bytes_of_dynamic_memory() - of_x * sizeof(T)) / STEP;
    // Rows that lanes read at once lie in different banks.
    auto slot = [&](unsigned at, unsigned row, unsigned unit) {
        return ring + at * (STEP / 16) + row * UNITS + (unit ^ (row & 1) << 2);
    };

    // The order of terms is free: lane l has elements 8 * (l % 4) and the next seven of each 32, which are those of two instructions.
    const unsigned group = lane / 4, of_lane = lane % 4 * 8;
    // What is asked for next: a part of the rows for some results, and where it goes.
    unsigned asked_base = blockIdx.x * of_block, asked_part = 0, asked_slot = 0;
    auto ask = [&] {
        const unsigned chunk = asked_part * splits + split, first = asked_base + set * RESULTS;
        if (first < columns && chunk < chunks) {
            const unsigned unit = lane % UNITS, at = chunk * CHUNK + unit * 8;
#pragma unroll
            for (unsigned of = 0; of < ROWS; of += 32 / UNITS) {
                const unsigned row = of + lane / UNITS;
                // Beyond the end: the last one again, whose result is not stored.
                const unsigned result = min(first + (GATED ? row % 8 : row), columns - 1);
                const size_t from = GATED && row >= 8 ? columns + result : result;
                copy_async(slot(asked_slot, row, unit), weight + from * inner + at, at < inner);
            }
        }
        commit();
        if (++asked_part == parts) asked_part = 0, asked_base += step;
        if (++asked_slot == steps) asked_slot = 0;
    };

    // A thread's first result has its bias and residual by the time that its sum is there.
    const unsigned first_row = threadIdx.x / of_block, in_first = threadIdx.x % of_block;
    float of_bias[GATED ? 2 : 1] = {}, of_residual = 0;
    auto ask_bias = [&](unsigned column) {
        if (!bias || column >= columns || first_row >= rows) return;
        of_bias[0] = widen(bias[column]);
        if constexpr (GATED) of_bias[1] = widen(bias[columns + column]);
    };
    auto ask_residual = [&](unsigned column) {
        if (residual && column < columns && first_row < rows) of_residual = widen(residual[(size_t)first_row * columns + column]);
    };

    trigger_dependents();
    for (unsigned at = 0; at < steps; at++) ask();
    unsigned base = blockIdx.x * of_block;
    ask_bias(base + in_first);
    if (scale)
        for (unsigned at = threadIdx.x * 64; at < inner; at += WARPS * 32 * 64) fetch(scale + at);
    wait_for_predecessors();
#pragma unroll
    for (unsigned tile = 0; tile < TILES; tile++)
        stage<T, R>(tile * 8, rows, inner, padded, eps, x, scale, room, squares[tile]);
    __syncthreads();

    for (unsigned side = 0, taken = 0; base < columns; base += step, side ^= 1) {
        float sum[TILES][4] = {};
        ask_residual(base + in_first);
        for (unsigned part = 0; part < parts; part++) {
            wait_for_first(steps);
            __syncwarp();
            const unsigned chunk = part * splits + split;
            if (chunk < chunks && base + set * RESULTS < columns) {
#pragma unroll
                for (unsigned l = 0; l < UNITS / 4; l++) {
                    const unsigned unit = l * 4 + lane % 4;
                    const uint4 upper = *slot(taken, group, unit), lower = *slot(taken, group + 8, unit);
#pragma unroll
                    for (unsigned tile = 0; tile < TILES; tile++) {
                        const unsigned row = min(tile * 8 + group, rows);
                        const T *from = room + row * (padded + APART) + chunk * CHUNK + l * 32 + of_lane;
                        const uint4 of_x = *reinterpret_cast<const uint4 *>(from);
                        mma(sum[tile], {upper.x, lower.x, upper.y, lower.y}, of_x.x, of_x.y, T());
                        mma(sum[tile], {upper.z, lower.z, upper.w, lower.w}, of_x.z, of_x.w, T());
                    }
                }
            }
            __syncwarp();
            ask();
            if (++taken == steps) taken = 0;
        }
#pragma unroll
        for (unsigned tile = 0; tile < TILES; tile++)
#pragma unroll
            for (unsigned half = 0; half < 2; half++) {
                float *to = &partial[side][warp][group + half * 8][tile * 8 + lane % 4 * 2];
                to[0] = sum[tile][half * 2], to[1] = sum[tile][half * 2 + 1];
            }
        __syncthreads();

        for (unsigned at = threadIdx.x; at < of_block * rows; at += WARPS * 32) {
            const unsigned row = at / of_block, in_block = at % of_block, column = base + in_block;
            if (column >= columns) continue;
            const unsigned first = in_block / RESULTS * splits, result = in_block % RESULTS;
            const bool is_first = at == threadIdx.x;
            auto total = [&](unsigned of_row, unsigned half, unsigned at_bias) {
                float all = is_first ? of_bias[half] : bias ? widen(bias[at_bias]) : 0.f;
                for (unsigned s = 0; s < splits; s++) all += partial[side][first + s][of_row][row];
                return all;
            };
            float value;
            if constexpr (GATED) {
                const float gate = total(result, 0, column), through = total(result + 8, 1, columns + column);
                with_activation(activation, [&](auto kind) { value = activate<kind>(gate) * through; });
            } else {
                with_activation(activation, [&](auto kind) { value = activate<kind>(total(result, 0, column)); });
                if (residual) value += is_first ? of_residual : widen(residual[(size_t)row * columns + column]);
            }
            y[(size_t)row * columns + column] = narrow<T>(value);
        }
        ask_bias(base + step + in_first);
    }
}

#define GEMVS(T, NAME)                                                                                                 \
    GEMV(T, NAME, 8)                                                                                                   \
    GEMV(T, NAME, 16)
