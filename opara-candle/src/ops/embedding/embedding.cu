// Rows of a table that ids name.
#include "numbers.cuh"
#include <cassert>
#include <cstdint>
#include <limits>

// As in candle, the largest id of a type stands for a row of zeros.
template <typename I> constexpr I NOTHING = std::numeric_limits<I>::max();

template <typename T, typename I>
__device__ inline void embedding(unsigned numel, unsigned columns, size_t rows, const I *ids, const T *table, T *y) {
    constexpr int N = WIDE<T>;
    const bool together = columns % N == 0 && are_aligned(table, (const T *)y);
    const Share mine = Share::of<N>(numel, together);
    if (mine.count == 0) return;
    // Where an element of y is in the table, or null.
    auto source = [&](unsigned i) -> const T * {
        const I id = ids[i / columns];
        if (id == NOTHING<I>) return nullptr;
        assert((size_t)id < rows);
        return table + (size_t)id * columns + i % columns;
    };
    if (together) {
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
    extern "C" __global__ void opara_embedding_##ID##_##NAME(unsigned numel, unsigned columns, size_t rows,            \
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
