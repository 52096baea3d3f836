// What becomes of a new token's queries, keys and values before anything attends, and the sizes of a launch: for kernels that write a
// cache of keys and values.
#pragma once
#include "pages.cuh"
#include "places.cuh"

template <typename T> __device__ inline void store_narrow(T *to, const float (&from)[EACH]) {
#pragma unroll
    for (unsigned part = 0; part < EACH / WIDE<T>; part++) {
        Vec<T, WIDE<T>> v;
#pragma unroll
        for (unsigned n = 0; n < WIDE<T>; n++) v.at[n] = narrow<T>(from[part * WIDE<T> + n]);
        store<T, WIDE<T>>(to + part * WIDE<T>, v);
    }
}

// What turns a lane's elements at one position.
struct Turn {
    float cos[EACH], sin[EACH];
    unsigned partner;
    bool turns;

    // The lane's first element is `first` of a head; `row` is that of the table.
    __device__ Turn(unsigned first, unsigned lane, unsigned pairs, const float *row) {
        turns = first < 2 * pairs;
        const bool is_first = first < pairs;
        partner = turns ? (is_first ? lane + pairs / EACH : lane - pairs / EACH) : lane;
        if (!turns) return;
        load_wide(row + (is_first ? first : first - pairs), cos);
        load_wide(row + (is_first ? first + pairs : first), sin);
        if (!is_first) return;
#pragma unroll
        for (unsigned n = 0; n < EACH; n++) sin[n] = -sin[n];
    }

    // All lanes of the warp call it, unless nothing turns.
    template <typename T> __device__ void operator()(float (&v)[EACH]) const {
#pragma unroll
        for (unsigned n = 0; n < EACH; n++) {
            const float other = __shfl_sync(~0u, v[n], partner);
            if (turns) v[n] = widen(narrow<T>(fmaf(v[n], cos[n], other * sin[n])));
        }
    }
};

// A head's elements, LANES neighbours having all of them, normalised.
template <typename T, unsigned LANES>
__device__ inline void normalise(float (&v)[EACH], unsigned dim, float eps, const T *scale, bool is_there) {
    float squares = 0;
#pragma unroll
    for (unsigned n = 0; n < EACH; n++) squares = fmaf(v[n], v[n], squares);
    const float factor = rsqrtf(warp_reduce<Add>(squares, LANES) / dim + eps);
    float of_scale[EACH] = {};
    if (is_there) load_wide(scale, of_scale);
#pragma unroll
    for (unsigned n = 0; n < EACH; n++) v[n] = widen(narrow<T>(v[n] * factor * of_scale[n]));
}

struct Sizes {
    unsigned heads, kv_heads, dim, pairs, positions, capacity, window, distances;
    float scale, eps;
};
