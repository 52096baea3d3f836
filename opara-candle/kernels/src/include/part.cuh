// The tile of one thread of a fused kernel: which elements it computes, and how it loads and stores them.
#pragma once
#include "numbers.cuh"

// The offset of an element in a strided view. The arguments are dimension, stride, dimension, stride, from the
// innermost one on; without arguments the view is contiguous.
template <unsigned... VIEW> struct StridedIndex {
    __device__ static unsigned of(unsigned element) { return element; }
};
template <unsigned DIM, unsigned STRIDE> struct StridedIndex<DIM, STRIDE> {
    __device__ static unsigned of(unsigned element) { return element * STRIDE; }
};
template <unsigned DIM, unsigned STRIDE, unsigned... OUTER> struct StridedIndex<DIM, STRIDE, OUTER...> {
    __device__ static unsigned of(unsigned element) {
        const unsigned outer = element / DIM;
        return (element - outer * DIM) * STRIDE + StridedIndex<OUTER...>::of(outer);
    }
};

// The tile of one thread: N elements. With APART == 1 they are contiguous (one vector load; N divides the row),
// otherwise APART is the block's number of threads per row, so that loads of neighbouring threads coalesce. With
// COLUMNS > 0 the elements belong to one row, and a block computes ROWS rows along y, one warp each if there are
// several.
template <int N, unsigned APART, unsigned ELEMENTS, unsigned COLUMNS, unsigned ROWS> struct ThreadTile {
    static constexpr int elements = N;
    static constexpr unsigned columns = COLUMNS, rows = ROWS;
    unsigned row, begin, first, end;

    __device__ ThreadTile() {
        row = blockIdx.x * ROWS + threadIdx.y;
        begin = row * (COLUMNS ? COLUMNS : blockDim.x * N);
        first = begin + threadIdx.x * (APART == 1 ? N : 1);
        end = COLUMNS ? begin + COLUMNS : ELEMENTS;
    }

    // The column of element n. It may be past the end of the row.
    __device__ unsigned column(unsigned n) const { return first - begin + n * APART; }

    // The index of element n, clamped: past the end it is that of an element that exists.
    __device__ unsigned clamped(unsigned n) const {
        return APART == 1 ? min(first, end - N) + n : min(first + n * APART, end - 1);
    }

    template <typename T, unsigned... VIEW> __device__ Vec<T, N> load(const void *from) const {
        Vec<T, N> to;
#pragma unroll
        for (int n = 0; n < N; n++) to.at[n] = ((const T *)from)[StridedIndex<VIEW...>::of(clamped(n))];
        return to;
    }
    // One vector load: the tile is contiguous in memory, too.
    template <typename T, unsigned... VIEW> __device__ Vec<T, N> load_vector(const void *from) const {
        return ::load<T, N>((const T *)from + StridedIndex<VIEW...>::of(clamped(0)));
    }
    // All elements of the tile are one element in memory.
    template <typename T, unsigned... VIEW> __device__ Vec<T, N> load_broadcast(const void *from) const {
        return all<T>(((const T *)from)[StridedIndex<VIEW...>::of(clamped(0))]);
    }
    // The scalar of the row.
    template <typename T, unsigned... VIEW> __device__ Vec<T, N> load_row_scalar(const void *from) const {
        return all<T>(((const T *)from)[StridedIndex<VIEW...>::of(row)]);
    }

    template <typename T> __device__ void store(const Vec<T, N> &from, void *to) const {
#pragma unroll
        for (int n = 0; n < N; n++)
            if (first + n * APART < end) ((T *)to)[first + n * APART] = from.at[n];
    }
    template <typename T> __device__ void store_vector(const Vec<T, N> &from, void *to) const {
        if (first < end) ::store((T *)to + first, from);
    }
    template <typename T> __device__ void store_row_scalar(const Vec<T, N> &from, void *to) const {
        if (threadIdx.x == 0) ((T *)to)[row] = from.at[0];
    }

    template <typename T> __device__ static Vec<T, N> all(T x) {
        Vec<T, N> to;
#pragma unroll
        for (int n = 0; n < N; n++) to.at[n] = x;
        return to;
    }
};
