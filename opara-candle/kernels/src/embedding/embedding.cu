// Embedding lookup: gathers rows of a table by id.
#include "dependent.cuh"
#include "numbers.cuh"
#include <cassert>
#include <cstdint>
#include <limits>

// As in candle, the largest value of the id type gives a row of zeros.
template <typename I> constexpr I ZERO_ROW = std::numeric_limits<I>::max();

template <typename T, typename I>
__device__ inline void embedding(unsigned numel, unsigned columns, size_t rows, const I *ids, const T *table, T *y) {
    constexpr int N = WIDE<T>;
    trigger_dependents();
    const bool vectors = columns % N == 0 && are_aligned(table, (const T *)y);
    const ThreadElements mine = ThreadElements::of<N>(numel, vectors);
    if (mine.count == 0) return;
    // The address in the table of element i of y, or null for a row of zeros.
    auto source = [&](unsigned i) -> const T * {
        const I id = ids[i / columns];
        if (id == ZERO_ROW<I>) return nullptr;
        assert((size_t)id < rows);
        return table + (size_t)id * columns + i % columns;
    };
    if (vectors) {
        const T *from = source(mine.first);
        store<T, N>(y + mine.first, from ? load<T, N>(from) : Vec<T, N>{});
        return;
    }
    for (unsigned n = 0, i = mine.first; n < mine.count; n++, i += mine.step) {
        const T *from = source(i);
        y[i] = from ? *from : narrow<T>(0);
    }
}

#define EMBEDDING(I, ID, T, NAME)                                                                                      \
    extern "C" __global__ void opara_gather_embedding_##ID##_##NAME(unsigned numel, unsigned columns, size_t rows,     \
        const I *ids, const T *table, T *y) {                                                                          \
        embedding<T, I>(numel, columns, rows, ids, table, y);                                                          \
    }
#define EMBEDDINGS(T, NAME)                                                                                            \
    EMBEDDING(uint8_t, u8, T, NAME)                                                                                    \
    EMBEDDING(uint32_t, u32, T, NAME)                                                                                  \
    EMBEDDING(int64_t, i64, T, NAME)

EMBEDDINGS(float, f32)
EMBEDDINGS(double, f64)
EMBEDDINGS(__half, f16)
EMBEDDINGS(__nv_bfloat16, bf16)
