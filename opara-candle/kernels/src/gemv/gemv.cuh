// Products of a weight's rows with up to eight rows of x in f32, and with one row in 16 bits, which a decoder makes for each token:
// memory's speed is all that limits them. A warp takes four rows of the weight, or with others of its block a part of each, and then the
// next ones as long as there are any. What it multiplies next is on its way into shared memory, where each lane reads only what it has asked
// for itself; the first of that is asked for before the kernel waits for its predecessors.
//
// Sums are in an order that the sizes of the weight decide: a row's result does not depend on the rows beside it. The norm's factor
// is the same for a whole row of x, so that it is multiplied with at the end.
#pragma once
#include "few_rows.cuh"

// Rows of the weight that a warp takes at a time.
constexpr unsigned LOADS = 4;
// Chunks of its rows that a warp asks for ahead.
constexpr unsigned STEPS = 4;

// A weight of the elements of x. A lane has N neighbours of a row at a time, and a scale of theirs if it has BYTES_OF_SCALE.
template <typename T> struct Elements {
    static constexpr unsigned N = WIDE<T>, BYTES_OF_SCALE = 0;
    const T *weight;
    struct Held {
        Vec<T, N> of;
        // Four of them from `first` on.
        __device__ void four(unsigned first, float (&to)[4]) const {
#pragma unroll
            for (unsigned n = 0; n < 4; n++) to[n] = widen(of.at[first + n]);
        }
        // The sum of all before, with that of these.
        __device__ static float with(float sum, float of_these) { return of_these; }
        __device__ static float begun(float sum) { return sum; }
    };
    __device__ void ask(void *to, void *, size_t element, bool is_there) const { copy_async(to, weight + element, is_there); }
    __device__ static Held held(const void *at, const void *) { return {*reinterpret_cast<const Vec<T, N> *>(at)}; }
};

// Elements of a row that a warp takes at a time, N for each lane.
template <unsigned N> constexpr unsigned CHUNK = 32 * N;

// Where four neighbours of a row of x are in shared memory: those that the lanes of a warp read at once follow one another.
template <unsigned N> __device__ inline unsigned place(unsigned element) {
    const unsigned chunk = element / CHUNK<N>, lane = element % CHUNK<N> / N, part = element % N / 4;
    return chunk * CHUNK<N> + part * 128 + lane * 4;
}

// x in f32, times the norm's scale if there is one, with zeros behind its end: R rows of `padded` elements. And the sum of squares of
// each row of x in eight parts, whatever R is: part i has every eighth chunk of 32 vectors from chunk i on.
template <typename T, unsigned OF_LANE, unsigned R>
__device__ inline void stage(unsigned rows, unsigned inner, unsigned padded, const T *x, const T *scale, float *room,
                             float (&squares)[WARPS][R]) {
    constexpr unsigned N = WIDE<T>, PARTS = WARPS / R;
    const unsigned warp = threadIdx.x / 32, row = warp % R, part = warp / R;
    const unsigned first = (part * 32 + threadIdx.x % 32) * N, step = PARTS * 32 * N;
    float *to = room + row * padded, square[R] = {};
    for (unsigned begin = first; begin < padded; begin += R * step) {
#pragma unroll
        for (unsigned round = 0; round < R; round++) {
            const unsigned at = begin + round * step;
            if (at >= padded) break;
            const bool is_there = row < rows && at < inner;
            Vec<T, N> v{}, of_scale{};
            if (is_there) v = load<T, N>(x + (size_t)row * inner + at);
            if (is_there && scale) of_scale = load<T, N>(scale + at);
#pragma unroll
            for (unsigned four = 0; four < N / 4; four++) {
                Vec<float, 4> wide;
#pragma unroll
                for (unsigned n = 0; n < 4; n++) {
                    wide.at[n] = widen(v.at[four * 4 + n]);
                    square[round] = fmaf(wide.at[n], wide.at[n], square[round]);
                    if (scale) wide.at[n] *= widen(of_scale.at[four * 4 + n]);
                }
                store<float, 4>(to + place<OF_LANE>(at + four * 4), wide);
            }
        }
    }
    if (!scale) return;
#pragma unroll
    for (unsigned round = 0; round < R; round++) {
        const float all = warp_reduce<Add>(square[round]);
        if (threadIdx.x % 32 == 0) squares[round * PARTS + part][row] = all;
    }
}

// `columns` results of each row, of one row of the weight each, or of two if GATED: a gate and what it lets through, which is
// `columns` rows further down. `splits` warps share them. The activation is the gate's, or comes before the residual.
template <typename T, unsigned R, bool GATED, typename Weight>
__device__ inline void products(unsigned rows, unsigned columns, unsigned inner, unsigned splits, int activation, float eps, const T *x,
                                const T *scale, const Weight weight, const T *bias, const T *residual, T *y) {
    constexpr unsigned N = Weight::N, RESULTS = GATED ? LOADS / 2 : LOADS, ROUNDS = 8 / R;
    extern __shared__ float4 dynamic[];
    // Sums of warps: of some rounds, while others are added up.
    __shared__ float partial[2][ROUNDS][WARPS][LOADS][R], squares[WARPS][R];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = warp % splits, set = warp / splits;
    const unsigned sets = WARPS / splits, of_block = sets * RESULTS, step = gridDim.x * of_block;
    const unsigned chunks = (inner + CHUNK<N> - 1) / CHUNK<N>, padded = chunks * CHUNK<N>;
    const unsigned parts = (chunks + splits - 1) / splits;
    float *room = reinterpret_cast<float *>(dynamic);
    // Of what is asked for at a time: 16 bytes of each row for each lane, and then scales.
    constexpr unsigned OF_ROWS = LOADS * WARPS * 32, OF_SLOT = OF_ROWS * (16 + Weight::BYTES_OF_SCALE);
    char *const ring = reinterpret_cast<char *>(room + R * padded);
    auto slot = [&](unsigned at, unsigned l) { return ring + at * OF_SLOT + (l * WARPS * 32 + threadIdx.x) * 16; };
    auto slot_of_scale = [&](unsigned at, unsigned l) {
        return ring + at * OF_SLOT + OF_ROWS * 16 + (l * WARPS * 32 + threadIdx.x) * Weight::BYTES_OF_SCALE;
    };

    // What is asked for next: a part of the rows for some results, and where it goes.
    unsigned asked_base = blockIdx.x * of_block, asked_part = 0, asked_slot = 0;
    auto ask = [&] {
        if (asked_base + set * RESULTS < columns) {
            const unsigned at = (asked_part * splits + split) * CHUNK<N> + lane * N;
#pragma unroll
            for (unsigned l = 0; l < LOADS; l++) {
                // Beyond the end: the last one again, whose result is not stored.
                const unsigned result = min(asked_base + set * RESULTS + (GATED ? l / 2 : l), columns - 1);
                const size_t row = GATED && l % 2 ? columns + result : result;
                weight.ask(slot(asked_slot, l), slot_of_scale(asked_slot, l), row * inner + at, at < inner);
            }
        }
        commit();
        if (++asked_part == parts) asked_part = 0, asked_base += step;
        if (++asked_slot == STEPS) asked_slot = 0;
    };
    // A thread adds up the sums of one result in so many rounds: what it adds besides is there by then.
    const unsigned most = min(ROUNDS, WARPS * 32 / (of_block * R));
    const unsigned in_block = threadIdx.x % of_block, row = threadIdx.x / of_block % R, round = threadIdx.x / of_block / R;
    float of_bias[GATED ? 2 : 1] = {}, of_residual = 0;
    auto column_from = [&](unsigned base) { return round < most ? base + round * step + in_block : columns; };
    auto ask_bias = [&](unsigned column) {
        if (!bias || column >= columns) return;
        of_bias[0] = widen(bias[column]);
        if constexpr (GATED) of_bias[1] = widen(bias[columns + column]);
    };

    trigger_dependents();
#pragma unroll
    for (unsigned at = 0; at < STEPS; at++) ask();
    unsigned base = blockIdx.x * of_block, column = column_from(base);
    ask_bias(column);
    if (scale)
        for (unsigned at = threadIdx.x * WIDE<T>; at < inner; at += WARPS * 32 * WIDE<T>) fetch(scale + at);
    wait_for_predecessors();
    stage<T, N, R>(rows, inner, padded, x, scale, room, squares);
    __syncthreads();

    for (unsigned rounds = 0, side = 0, taken = 0; base < columns; base += step) {
        if (rounds == 0 && residual && column < columns && row < rows)
            of_residual = widen(residual[(size_t)row * columns + column]);
        float sum[R][LOADS] = {};
        for (unsigned part = 0; part < parts; part++) {
            wait_pending<STEPS - 1>();
            const unsigned chunk = part * splits + split;
            if (chunk < chunks && base + set * RESULTS < columns) {
                typename Weight::Held held[LOADS];
#pragma unroll
                for (unsigned l = 0; l < LOADS; l++) held[l] = Weight::held(slot(taken, l), slot_of_scale(taken, l));
                const float *of_lane = room + chunk * CHUNK<N> + lane * 4;
#pragma unroll
                for (unsigned r = 0; r < R; r++) {
                    float of_these[LOADS];
#pragma unroll
                    for (unsigned l = 0; l < LOADS; l++) of_these[l] = held[l].begun(sum[r][l]);
#pragma unroll
                    for (unsigned four = 0; four < N / 4; four++) {
                        const Vec<float, 4> wide = load<float, 4>(of_lane + r * padded + four * 128);
#pragma unroll
                        for (unsigned l = 0; l < LOADS; l++) {
                            float elements[4];
                            held[l].four(four * 4, elements);
#pragma unroll
                            for (unsigned n = 0; n < 4; n++) of_these[l] = fmaf(elements[n], wide.at[n], of_these[l]);
                        }
                    }
#pragma unroll
                    for (unsigned l = 0; l < LOADS; l++) sum[r][l] = held[l].with(sum[r][l], of_these[l]);
                }
            }
            ask();
            if (++taken == STEPS) taken = 0;
        }
#pragma unroll
        for (unsigned r = 0; r < R; r++) {
            const float all = reduce_four(sum[r]);
            if (lane % 8 == 0) partial[side][rounds][warp][lane / 8][r] = all;
        }
        if (++rounds < most && base + step < columns) continue;

        __syncthreads();
        if (column < columns && row < rows) {
            const unsigned first = in_block / RESULTS * splits, result = in_block % RESULTS;
            float factor = 1;
            if (scale) {
                float all = 0;
#pragma unroll
                for (unsigned i = 0; i < WARPS; i++) all += squares[i][row];
                factor = rsqrtf(all / inner + eps);
            }
            auto total = [&](unsigned l, float bias) {
                float all = 0;
                for (unsigned s = 0; s < splits; s++) all += partial[side][round][first + s][l][row];
                return fmaf(all, factor, bias);
            };
            float value;
            if constexpr (GATED) {
                const float gate = total(2 * result, of_bias[0]), through = total(2 * result + 1, of_bias[1]);
                with_activation(activation, [&](auto kind) { value = activate<kind>(gate) * through; });
            } else {
                with_activation(activation, [&](auto kind) { value = activate<kind>(total(result, of_bias[0])); });
                value += of_residual;
            }
            y[(size_t)row * columns + column] = narrow<T>(value);
        }
        column = column_from(base + step), rounds = 0, side ^= 1;
        ask_bias(column);
    }
}

template <typename T, unsigned R, bool GATED>
__device__ inline void gemv(unsigned rows, unsigned columns, unsigned inner, unsigned splits, int activation, float eps,
                            const T *x, const T *scale, const T *weight, const T *bias, const T *residual, T *y) {
    products<T, R, GATED>(rows, columns, inner, splits, activation, eps, x, scale, Elements<T>{weight}, bias, residual, y);
}

#define GEMVS(T, NAME)                                                                                                 \
    GEMV(T, NAME, 1)                                                                                                   \
    GEMV(T, NAME, 2)                                                                                                   \
    GEMV(T, NAME, 4)                                                                                                   \
    GEMV(T, NAME, 8)
