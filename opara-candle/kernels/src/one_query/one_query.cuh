// Attention of one query a head to keys and values that are all there, at any strides.
#pragma once
#include "places.cuh"

// Elements from one item, head and place of an operand to the next.
struct Strides {
    unsigned item, head, place;
};

template <typename T, unsigned LANES, unsigned HEADS, unsigned BLOCKS>
__device__ inline void one_query(unsigned heads, unsigned dim, unsigned keys, Strides of_q, Strides of_k, Strides of_v,
                                 Strides of_bias, float scale, float cap, const T *q, const T *k, const T *v, const T *added, T *y) {
    const unsigned head = blockIdx.x, item = blockIdx.y;
    const Share<LANES, HEADS> my(1, dim);
    auto of_head = [&](Strides of) { return (size_t)item * of.item + (size_t)head * of.head; };
    trigger_dependents();
    k += of_head(of_k), v += of_head(of_v);
    auto key = [&](unsigned p) { return k + (size_t)p * of_k.place; };
    auto value = [&](unsigned p) { return v + (size_t)p * of_v.place; };
    auto bias = [&](unsigned p) { return added ? widen(added[of_head(of_bias) + p]) : 0.f; };
    auto begin = [&](bool) {
        Query own;
        if (my.is_there) load_wide(q + of_head(of_q) + my.first, own.q);
        return own;
    };
    attend<T, LANES, HEADS, BLOCKS, false>(my, 0, keys, 0, 1, dim, scale, cap, y + ((size_t)item * heads + head) * dim, key, value, bias,
                                           begin);
}

#define ATTENTION(T, NAME, LANES, HEADS, BLOCKS, CLUSTERS)                                                             \
    extern "C" __global__ void CLUSTERS __launch_bounds__(THREADS)                                                     \
        opara_attention_one_query_##LANES##x##HEADS##_##NAME(unsigned numel, unsigned heads, unsigned dim,             \
            unsigned keys, unsigned q_item, unsigned q_head, unsigned k_item, unsigned k_head, unsigned k_place,       \
            unsigned v_item, unsigned v_head, unsigned v_place, unsigned bias_item, unsigned bias_head, float scale,   \
            float cap,                                                                                                 \
            const T *q, const T *k, const T *v, const T *bias, T *y) {                                                 \
        one_query<T, LANES, HEADS, BLOCKS>(heads, dim, keys, {q_item, q_head, 0}, {k_item, k_head, k_place},           \
                                           {v_item, v_head, v_place}, {bias_item, bias_head, 1}, scale, cap, q, k, v, \
                                           bias, y);                                                                         \
    }
#define ATTENTIONS(T, NAME)                                                                                            \
    ATTENTION(T, NAME, 8, 1, 1, )                                                                                      \
    ATTENTION(T, NAME, 16, 1, 1, )                                                                                     \
    ATTENTION(T, NAME, 8, 4, SHARES, CLUSTER(SHARES))                                                                  \
    ATTENTION(T, NAME, 16, 4, SHARES, CLUSTER(SHARES))                                                                 \
    ATTENTION(T, NAME, 32, 4, SHARES, CLUSTER(SHARES))
