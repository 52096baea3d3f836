// Results of a product from sums that blocks of a cluster have in shared memory, a part of the inner dimension each.
#pragma once
#include "activation.cuh"
#include "cluster.cuh"

// Four neighbouring results of a row of x, with their bias and residual.
template <bool GATED> struct Four {
    unsigned row, column;
    float bias[GATED ? 2 : 1][4], residual[4];

    // The `at`-th one of blocks that have the results from `base` on of each row, `fours` times four. Asks for what is added, with zeros where
    // there is nothing. Beyond the end: the last one again, whose result is not stored.
    template <typename T>
    __device__ Four(unsigned at, unsigned fours, unsigned rows, unsigned base, unsigned columns, const T *of_bias, const T *of_residual)
        : row(min(at / fours, rows - 1)), column(base + at % fours * 4), bias{}, residual{} {
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

// Stores the results of `rows` rows from `base` on, of which a thread has the `begin`-th four, which is `four`, and further ones. `sums` has a
// row of `pitch` numbers for each row of x: of results, and if GATED of their gates before. The blocks of the cluster share the results.
template <unsigned SPLITS, unsigned THREADS, bool GATED, typename T>
__device__ inline void store_fours(Four<GATED> four, unsigned begin, const float *sums, unsigned pitch, unsigned base, unsigned rows,
                                   unsigned columns, int activation, const T *bias, const T *residual, T *y) {
    const unsigned results = (pitch - 4) / (GATED ? 2 : 1), fours = results / 4;
    with_activation(activation, [&](auto kind) {
        for (unsigned i = begin; i < rows * fours; i += SPLITS * THREADS) {
            if (i != begin) four = {i, fours, rows, base, columns, bias, residual};
            if (four.column >= columns) continue;
            auto total = [&](unsigned half) {
                const float *const at = sums + four.row * pitch + half * results + (four.column - base);
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
            Vec<T, 4> stored;
#pragma unroll
            for (unsigned e = 0; e < 4; e++) {
                const float result = activate<kind>(value.at[e]);
                stored.at[e] = narrow<T>(GATED ? result * through.at[e] : result + four.residual[e]);
            }
            T *const to = y + (size_t)four.row * columns + four.column;
            if (columns % 4 == 0) {
                store<T, 4>(to, stored);
            } else {
#pragma unroll
                for (unsigned e = 0; e < 4; e++)
                    if (four.column + e < columns) to[e] = stored.at[e];
            }
        }
    });
}
