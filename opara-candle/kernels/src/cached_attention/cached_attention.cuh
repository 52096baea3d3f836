// One new token a sequence: its key and value go into the cache, and its queries attend to what the cache has. How many of the cache's
// places are in use stands on the device.
#pragma once
#include "new_token.cuh"

template <typename T, unsigned LANES, unsigned HEADS, unsigned BLOCKS>
__device__ inline void step(Sizes of, const T *qkv, const T *q_scale, const T *k_scale, const unsigned *start,
                            const unsigned *pages, const float *rotary, const float *by_distance, T *cache, T *y) {
    const unsigned kv = blockIdx.x, item = blockIdx.y, group = of.heads / of.kv_heads, dim = of.dim;
    const Share<LANES, HEADS> my(group, dim);
    trigger_dependents();
    // Where the new token stands, and the tokens before it: no kernel before this one writes them.
    const unsigned limit = min(of.capacity, of.positions), position = start[item];
    const unsigned at = min(position, limit - 1), end = at + 1;
    const Cache<T> in(cache, pages, item, kv, of.kv_heads, of.capacity, dim);
    const unsigned oldest = of.window && end > of.window ? end - of.window : 0;
    auto key = [&](unsigned p) { return in.keys + in.at(p); };
    auto value = [&](unsigned p) { return key(p) + in.to_values; };
    auto bias = [&](unsigned p) {
        return by_distance ? by_distance[(size_t)(kv * group + my.head) * of.distances + (at - p)] : 0.f;
    };
    auto begin = [&](bool is_its_place) {
        const Turn turn(my.first, my.lane, of.pairs, rotary + (size_t)at * 2 * of.pairs);
        const T *row = qkv + (size_t)item * (of.heads + 2 * of.kv_heads) * dim;
        Query own;
        if (my.is_there) {
            load_wide(row + (kv * group + my.head) * dim + my.first, own.q);
            load_wide(row + (of.heads + kv) * dim + my.first, own.key);
            load_wide(row + (of.heads + of.kv_heads + kv) * dim + my.first, own.value);
        }
        if (k_scale) normalise<T, LANES>(own.key, dim, of.eps, k_scale + my.first, my.is_there);
        if (q_scale) normalise<T, LANES>(own.q, dim, of.eps, q_scale + my.first, my.is_there);
        if (of.pairs) {
            turn.operator()<T>(own.key);
            turn.operator()<T>(own.q);
        }
        // A token beyond the end is not written: its row would be that of the last place.
        if (is_its_place && position < limit && my.warp == 0 && my.sub == 0 && my.is_there) {
            store_narrow(key(at) + my.first, own.key);
            store_narrow(value(at) + my.first, own.value);
        }
        return own;
    };
    attend<T, LANES, HEADS, BLOCKS, true>(my, oldest, end, at, group, dim, of.scale, 0, y + ((size_t)item * of.heads + kv * group) * dim,
                                          key, value, bias, begin);
}

// OF_PROCESSOR blocks of a multiprocessor: two leave a thread half the registers, which is worth it where there are more blocks than
// multiprocessors. The bits are the same.
#define KERNEL(T, NAME, LANES, HEADS, BLOCKS, CLUSTERS, OF_PROCESSOR, SHAPE)                                           \
    extern "C" __global__ void CLUSTERS __launch_bounds__(THREADS, OF_PROCESSOR)                                       \
        opara_attention_cached_##SHAPE##_##NAME(unsigned batch, unsigned heads, unsigned kv_heads, unsigned group,     \
            unsigned dim, unsigned pairs, unsigned positions, unsigned capacity, unsigned window, unsigned distances,  \
            float scale, float eps, const T *qkv, const T *q_scale, const T *k_scale, const unsigned *start, const unsigned *pages, \
            const float *rotary, const float *by_distance, T *cache, T *y) {                                           \
        const Sizes of = {heads, kv_heads, dim, pairs, positions, capacity, window, distances, scale, eps};            \
        step<T, LANES, HEADS, BLOCKS>(of, qkv, q_scale, k_scale, start, pages, rotary, by_distance, cache, y);         \
    }
#define ATTENTION(T, NAME, LANES, HEADS, BLOCKS, CLUSTERS)                                                             \
    KERNEL(T, NAME, LANES, HEADS, BLOCKS, CLUSTERS, 1, LANES##x##HEADS)                                                \
    KERNEL(T, NAME, LANES, HEADS, BLOCKS, CLUSTERS, 2, LANES##x##HEADS##_twice)
#define ATTENTIONS(T, NAME)                                                                                            \
    ATTENTION(T, NAME, 8, 1, 1, )                                                                                      \
    ATTENTION(T, NAME, 16, 1, 1, )                                                                                     \
    ATTENTION(T, NAME, 8, 4, SHARES, CLUSTER(SHARES))                                                                  \
    ATTENTION(T, NAME, 8, 8, SHARES, CLUSTER(SHARES))                                                                  \
    ATTENTION(T, NAME, 16, 4, SHARES, CLUSTER(SHARES))                                                                 \
    ATTENTION(T, NAME, 16, 8, SHARES, CLUSTER(SHARES))                                                                 \
    ATTENTION(T, NAME, 32, 4, SHARES, CLUSTER(SHARES))                                                                 \
    ATTENTION(T, NAME, 32, 8, SHARES, CLUSTER(SHARES))
