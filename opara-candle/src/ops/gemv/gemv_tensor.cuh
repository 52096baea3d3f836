// Products of a weight's rows with up to 16 rows of x on tensor cores, for types of 16 bits: what gemv.cuh is for f32. Memory's speed
// limits them. A warp takes 16 rows of the weight, or with others of its block a part of each, and then the next ones as long as
// there are any. What it multiplies next is on its way into shared memory, where each lane reads only what it has asked for itself; the
// first of that is asked for before the kernel waits for those before it. How much a warp asks for ahead is what shared memory has room
// for beside x.
//
// Sums are in an order that the sizes of the weight decide: a row's result does not depend on the rows beside it.
#pragma once
#include "activation.cuh"
#include "dependent.cuh"
#include "rows.cuh"
#include "tensor.cuh"

constexpr unsigned WARPS = 8;
// Rows of the weight that a warp takes at a time: those of an mma instruction.
constexpr unsigned ROWS = 16;
// Elements of a row that a warp takes at a time: each lane loads 16 bytes so many times.
constexpr unsigned LOADS = 2, CHUNK = LOADS * 32;
// Bytes that a block asks for at a time.
constexpr unsigned STEP = WARPS * ROWS * CHUNK * 2;
// Elements behind each row in shared memory, so that lanes that read two rows at once read different banks.
constexpr unsigned APART = 32;

__device__ inline unsigned bytes_of_dynamic_memory() {
    unsigned bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

// Waits until of `steps` groups, the latest ones, all but the first are pending at most.
__device__ inline void wait_for_first(unsigned steps) {
    switch (steps) {
    case 1: return wait_pending<0>();
    case 2: return wait_pending<1>();
    case 3: return wait_pending<2>();
    case 4: return wait_pending<3>();
    case 5: return wait_pending<4>();
    case 6: return wait_pending<5>();
    case 7: return wait_pending<6>();
    default: return wait_pending<7>();
    }
}

// Rows of x, normalised if there is a scale, with zeros behind their ends, and behind the last one a row of zeros, if there are fewer
// than R. The sum of squares of a row is in eight parts, whatever R is: part i has every eighth 32 vectors from those of warp i on.
template <typename T, unsigned R>
__device__ inline void stage(unsigned rows, unsigned inner, unsigned padded, float eps, const T *x, const T *scale, T *room,
                             float (&squares)[R][WARPS]) {
    constexpr unsigned N = WIDE<T>, AT_ONCE = WARPS * 32 * N;
    const unsigned stride = padded + APART, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned begin = threadIdx.x * N, last = begin + (padded - 1) / AT_ONCE * AT_ONCE;
    float square[R] = {};
    Vec<T, N> held[R];
    auto load_rows = [&](unsigned at) {
#pragma unroll
        for (unsigned r = 0; r < R; r++) {
            held[r] = Vec<T, N>{};
            if (r < rows && at < inner) held[r] = load<T, N>(x + (size_t)r * inner + at);
        }
    };
    auto store_rows = [&](unsigned at) {
#pragma unroll
        for (unsigned r = 0; r < R; r++)
            if (r <= rows && at < padded) store<T, N>(room + r * stride + at, held[r]);
    };
    auto add_squares = [&] {
#pragma unroll
        for (unsigned r = 0; r < R; r++)
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
    if (scale) {
        add_squares();
#pragma unroll
        for (unsigned r = 0; r < R; r += 4) {
            const float four[4] = {square[r], square[r + 1], square[r + 2], square[r + 3]}, all = reduce_four(four);
            if (lane % 8 == 0) squares[r + lane / 8][warp] = all;
        }
        __syncthreads();
        float own = 0;
        if (lane < R) {
#pragma unroll
            for (unsigned part = 0; part < WARPS; part++) own += squares[lane][part];
            own = rsqrtf(own / inner + eps);
        }
        float factor[R];
#pragma unroll
        for (unsigned r = 0; r < R; r++) factor[r] = __shfl_sync(~0u, own, r);
        auto normalise = [&](unsigned at) {
            Vec<T, N> of_scale{};
            if (at < inner) of_scale = load<T, N>(scale + at);
#pragma unroll
            for (unsigned r = 0; r < R; r++)
#pragma unroll
                for (unsigned n = 0; n < N; n++)
                    held[r].at[n] = narrow<T>(widen(held[r].at[n]) * factor[r] * widen(of_scale.at[n]));
        };
        normalise(last);
        store_rows(last);
        // Each thread has what it stored itself.
        for (unsigned at = begin; at < last; at += AT_ONCE) {
#pragma unroll
            for (unsigned r = 0; r < R; r++)
                if (r < rows) held[r] = load<T, N>(room + r * stride + at);
            normalise(at);
            store_rows(at);
        }
    } else {
        store_rows(last);
    }
    __syncthreads();
}

// `columns` results of each row, of one row of the weight each, or of two if GATED: a gate and what it lets through, which is
// `columns` rows further down. `splits` warps share them. The activation is the gate's, or comes before the residual.
template <typename T, unsigned R, bool GATED>
__device__ inline void gemv(unsigned rows, unsigned columns, unsigned inner, unsigned splits, int activation, float eps,
                            const T *x, const T *scale, const T *weight, const T *bias, const T *residual, T *y) {
    constexpr unsigned RESULTS = GATED ? ROWS / 2 : ROWS, TILES = R / 8;
    extern __shared__ uint4 dynamic[];
    // Sums of warps: of some results, while the ones before are added up.
    __shared__ float partial[2][WARPS][ROWS][R], squares[R][WARPS];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = warp % splits, set = warp / splits;
    const unsigned of_block = WARPS / splits * RESULTS, step = gridDim.x * of_block;
    const unsigned chunks = (inner + CHUNK - 1) / CHUNK, padded = chunks * CHUNK, parts = (chunks + splits - 1) / splits;
    T *room = reinterpret_cast<T *>(dynamic);
    const unsigned of_x = min(rows + 1, R) * (padded + APART);
    uint4 *ring = dynamic + of_x * sizeof(T) / 16 + warp * 32 + lane;
    const unsigned steps = (bytes_of_dynamic_memory() - of_x * sizeof(T)) / STEP;
    auto slot = [&](unsigned at, unsigned l, unsigned half) { return ring + ((at * LOADS + l) * 2 + half) * WARPS * 32; };

    // The order of terms is free: lane l has elements 8 * (l % 4) and the next seven of each 32, which are those of two instructions.
    const unsigned group = lane / 4, of_lane = lane % 4 * 8;
    // What is asked for next: a part of the rows for some results, and where it goes.
    unsigned asked_base = blockIdx.x * of_block, asked_part = 0, asked_slot = 0;
    auto ask = [&] {
        const unsigned chunk = asked_part * splits + split, first = asked_base + set * RESULTS;
        if (first < columns && chunk < chunks) {
            // Beyond the end: the last one again, whose result is not stored.
            const size_t upper = min(first + group, columns - 1);
            const size_t lower = GATED ? columns + upper : min(first + group + 8, columns - 1);
#pragma unroll
            for (unsigned l = 0; l < LOADS; l++) {
                const unsigned at = chunk * CHUNK + l * 32 + of_lane;
                copy_async(slot(asked_slot, l, 0), weight + upper * inner + at, at < inner);
                copy_async(slot(asked_slot, l, 1), weight + lower * inner + at, at < inner);
            }
        }
        commit();
        if (++asked_part == parts) asked_part = 0, asked_base += step;
        if (++asked_slot == steps) asked_slot = 0;
    };

    let_the_next_begin();
    for (unsigned at = 0; at < steps; at++) ask();
    unsigned base = blockIdx.x * of_block;
    wait_for_those_before();
    stage<T, R>(rows, inner, padded, eps, x, scale, room, squares);

    for (unsigned side = 0, taken = 0; base < columns; base += step, side ^= 1) {
        float sum[TILES][4] = {};
        for (unsigned part = 0; part < parts; part++) {
            wait_for_first(steps);
            const unsigned chunk = part * splits + split;
            if (chunk < chunks && base + set * RESULTS < columns) {
#pragma unroll
                for (unsigned l = 0; l < LOADS; l++) {
                    const uint4 upper = *slot(taken, l, 0), lower = *slot(taken, l, 1);
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
            auto total = [&](unsigned of_row, unsigned of_bias) {
                float all = bias ? widen(bias[of_bias]) : 0.f;
                for (unsigned s = 0; s < splits; s++) all += partial[side][first + s][of_row][row];
                return all;
            };
            float value;
            if constexpr (GATED) {
                const float gate = total(result, column), through = total(result + 8, columns + column);
                with_activation(activation, [&](auto kind) { value = activate<kind>(gate) * through; });
            } else {
                with_activation(activation, [&](auto kind) { value = activate<kind>(total(result, column)); });
                if (residual) value += widen(residual[(size_t)row * columns + column]);
            }
            y[(size_t)row * columns + column] = narrow<T>(value);
        }
    }
}

// The first argument counts the results.
#define GEMV(T, NAME, R)                                                                                               \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) opara_gemv_##R##_##NAME(unsigned numel,                \
        unsigned columns, unsigned inner, unsigned splits, int activation, float eps, const T *x, const T *scale,      \
        const T *weight, const T *bias, const T *residual, T *y) {                                                     \
        gemv<T, R, false>(numel / columns, columns, inner, splits, activation, eps, x, scale, weight, bias, residual,  \
                          y);                                                                                          \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) opara_gated_gemv_##R##_##NAME(unsigned numel,          \
        unsigned columns, unsigned inner, unsigned splits, int activation, float eps, const T *x, const T *scale,      \
        const T *weight, const T *bias, T *y) {                                                                        \
        gemv<T, R, true>(numel / columns, columns, inner, splits, activation, eps, x, scale, weight, bias, nullptr,    \
                         y);                                                                                           \
    }
#define GEMVS(T, NAME)                                                                                                 \
    GEMV(T, NAME, 8)                                                                                                   \
    GEMV(T, NAME, 16)
