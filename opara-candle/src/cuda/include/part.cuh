// What a thread makes of a chain's results, and where that is in memory.
#pragma once
#include "numbers.cuh"

// The place of an element: dimensions and strides follow each other from the innermost one on. Without any it is its number.
template <unsigned... PLACES> struct Place {
    __device__ static unsigned of(unsigned element) { return element; }
};
template <unsigned DIM, unsigned STRIDE> struct Place<DIM, STRIDE> {
    __device__ static unsigned of(unsigned element) { return element * STRIDE; }
};
template <unsigned DIM, unsigned STRIDE, unsigned... OUTER> struct Place<DIM, STRIDE, OUTER...> {
    __device__ static unsigned of(unsigned element) {
        const unsigned outer = element / DIM;
        return (element - outer * DIM) * STRIDE + Place<OUTER...>::of(outer);
    }
};

// N elements of a thread: neighbours if APART is 1, which then are all there or none of them, else those that its block's others are
// between. They are some of all, or of a row if there are COLUMNS: a block has ROWS, along y, and a warp each if there are
// several.
template <int N, unsigned APART, unsigned ELEMENTS, unsigned COLUMNS, unsigned ROWS> struct Part {
    static constexpr int elements = N;
    static constexpr unsigned columns = COLUMNS, rows = ROWS;
    unsigned row, begin, first, end;

    __device__ Part() {
        row = blockIdx.x * ROWS + threadIdx.y;
        begin = row * (COLUMNS ? COLUMNS : blockDim.x * N);
        first = begin + threadIdx.x * (APART == 1 ? N : 1);
        end = COLUMNS ? begin + COLUMNS : ELEMENTS;
    }

    // Where element n is within the row. It may be beyond the last.
    __device__ unsigned column(unsigned n) const { return first - begin + n * APART; }

    // What is not there is another.
    __device__ unsigned there(unsigned n) const {
        return APART == 1 ? min(first, end - N) + n : min(first + n * APART, end - 1);
    }

    template <typename T, unsigned... PLACES> __device__ Vec<T, N> load(const void *from) const {
        Vec<T, N> to;
#pragma unroll
        for (int n = 0; n < N; n++) to.at[n] = ((const T *)from)[Place<PLACES...>::of(there(n))];
        return to;
    }
    // Neighbours that are neighbours in memory, too.
    template <typename T, unsigned... PLACES> __device__ Vec<T, N> load_together(const void *from) const {
        return ::load<T, N>((const T *)from + Place<PLACES...>::of(there(0)));
    }
    // Neighbours that are one number in memory.
    template <typename T, unsigned... PLACES> __device__ Vec<T, N> load_once(const void *from) const {
        return all<T>(((const T *)from)[Place<PLACES...>::of(there(0))]);
    }
    // The row's number.
    template <typename T, unsigned... PLACES> __device__ Vec<T, N> load_number(const void *from) const {
        return all<T>(((const T *)from)[Place<PLACES...>::of(row)]);
    }

    template <typename T> __device__ void store(const Vec<T, N> &from, void *to) const {
#pragma unroll
        for (int n = 0; n < N; n++)
            if (first + n * APART < end) ((T *)to)[first + n * APART] = from.at[n];
    }
    template <typename T> __device__ void store_together(const Vec<T, N> &from, void *to) const {
        if (first < end) ::store((T *)to + first, from);
    }
    template <typename T> __device__ void store_number(const Vec<T, N> &from, void *to) const {
        if (threadIdx.x == 0) ((T *)to)[row] = from.at[0];
    }

    template <typename T> __device__ static Vec<T, N> all(T x) {
        Vec<T, N> to;
#pragma unroll
        for (int n = 0; n < N; n++) to.at[n] = x;
        return to;
    }
};
