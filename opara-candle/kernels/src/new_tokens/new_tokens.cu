// What becomes of new tokens' queries, keys and values before they attend to a cache: both queries and keys are normalised and turned by
// their positions, keys and values go into the cache, and queries lie head by head, (batch, tokens, heads, dim).
#include "new_token.cuh"

// LANES neighbours have one head of one token. Tokens from a sequence's number in `counts` on are not its own, if there are any: they
// count as zeros. Of a sequence whose tokens reach beyond the cache, or beyond the positions that there
// are, those beyond are not written.
template <typename T, unsigned LANES>
__device__ inline void write_new_tokens(unsigned numel, unsigned tokens, unsigned heads, unsigned kv_heads, unsigned dim,
                                        unsigned pairs, unsigned positions, unsigned capacity, float eps, const T *qkv,
                                        const T *q_scale, const T *k_scale, const unsigned *start, const unsigned *counts,
                                        const unsigned *pages, const float *rotary, T *cache, T *y) {
    const unsigned rows = heads + 2 * kv_heads, all = numel / (heads * dim) * rows;
    const unsigned own = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES, row = min(own, all - 1);
    const unsigned of_all = row / rows, head = row % rows, item = of_all / tokens, token = of_all % tokens;
    const unsigned lane = threadIdx.x % 32, first = lane % LANES * EACH;
    const bool is_there = own < all && first < dim, is_query = head < heads, is_value = head >= heads + kv_heads;
    trigger_dependents();
    // Where the token stands, its page, and what turns it: no kernel before this one writes them.
    const unsigned end = min(capacity, positions), at = min(start[item], end) + token;
    const Turn turn(first, lane, pairs, rotary + (size_t)min(at, end - 1) * 2 * pairs);
    const Cache<T> in(cache, pages, item, is_query ? 0 : head - heads, kv_heads, capacity, dim);
    const size_t to = is_there && !is_query && at < end ? in.at(at) : 0;
    const bool is_own = is_there && (!counts || token < counts[item]);
    wait_for_predecessors();
    float v[EACH] = {}, unchanged[EACH];
    if (is_own) load_wide(qkv + (size_t)row * dim + first, v);
#pragma unroll
    for (unsigned n = 0; n < EACH; n++) unchanged[n] = v[n];
    // Lanes that are neighbours exchange elements: those of values, too, which stay what they are.
    if (q_scale) normalise<T, LANES>(v, dim, eps, (is_query ? q_scale : k_scale) + first, is_there);
    if (pairs) turn.operator()<T>(v);
#pragma unroll
    for (unsigned n = 0; n < EACH; n++) v[n] = is_value ? unchanged[n] : v[n];
    if (!is_there) return;
    if (is_query) {
        store_narrow(y + ((size_t)of_all * heads + head) * dim + first, v);
    } else if (at < end) {
        // Keys of all heads come before their values.
        store_narrow(in.keys + to + first, v);
    }
}

#define NEW_TOKENS(T, NAME, LANES)                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS) opara_elementwise_new_tokens_##LANES##_##NAME(               \
        unsigned numel, unsigned tokens, unsigned heads, unsigned kv_heads, unsigned dim, unsigned pairs,              \
        unsigned positions, unsigned capacity, float eps, const T *qkv, const T *q_scale, const T *k_scale,            \
        const unsigned *start, const unsigned *counts, const unsigned *pages, const float *rotary, T *cache, T *y) {   \
        write_new_tokens<T, LANES>(numel, tokens, heads, kv_heads, dim, pairs, positions, capacity, eps, qkv, q_scale, \
                                   k_scale, start, counts, pages, rotary, cache, y);                                   \
    }
#define ALL_NEW_TOKENS(T, NAME)                                                                                        \
    NEW_TOKENS(T, NAME, 8)                                                                                             \
    NEW_TOKENS(T, NAME, 16)                                                                                            \
    NEW_TOKENS(T, NAME, 32)

ALL_NEW_TOKENS(float, f32)
ALL_NEW_TOKENS(__half, f16)
ALL_NEW_TOKENS(__nv_bfloat16, bf16)
