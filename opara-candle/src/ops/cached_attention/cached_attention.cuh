// One new token a sequence: its key and value go into the cache, and its queries attend to what the cache has. A block, or a cluster
// of them, makes all query heads that share keys; each of its blocks takes a part of the cache's places. How many are in use
// stands on the device.
//
// A warp has one query head; the other warps of its block read the same keys and values at the same time, from the L1 cache. Lanes
// that are neighbours have 8 elements of a place each, of which a warp takes several at a time. Each keeps a softmax of its own that
// goes on from place to place (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018); these are put together at
// the end ("Flash-Decoding", Dao et al., 2023), always in the same order.
#pragma once
#include "cluster.cuh"
#include "dependent.cuh"
#include "rows.cuh"

constexpr unsigned WARPS = 8, THREADS = 32 * WARPS;
// Elements of a lane.
constexpr unsigned EACH = 8;
// The largest score before the first one: finite, so that differences are.
constexpr float LOWEST = -1e30f;
constexpr float LOG2E = 1.4426950408889634f;

// 8 neighbours in f32.
template <typename T> __device__ inline void load_wide(const T *from, float (&to)[EACH]) {
#pragma unroll
    for (unsigned part = 0; part < EACH / WIDE<T>; part++) {
        const Vec<T, WIDE<T>> v = load<T, WIDE<T>>(from + part * WIDE<T>);
#pragma unroll
        for (unsigned n = 0; n < WIDE<T>; n++) to[part * WIDE<T> + n] = widen(v.at[n]);
    }
}

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
        load_wide(row + first % pairs, cos);
        load_wide(row + pairs + first % pairs, sin);
        if (!is_first) return;
#pragma unroll
        for (unsigned n = 0; n < EACH; n++) sin[n] = -sin[n];
    }

    // All lanes of the warp call it.
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

// The softmax so far of one query head, and the sum of values by it: of a lane its elements of that.
struct State {
    float most = LOWEST, sum = 0, value[EACH] = {};

    __device__ void add(const State &other) {
        const float both = fmaxf(most, other.most), mine = exp2f(most - both), its = exp2f(other.most - both);
        most = both, sum = sum * mine + other.sum * its;
#pragma unroll
        for (unsigned n = 0; n < EACH; n++) value[n] = value[n] * mine + other.value[n] * its;
    }
};

struct Sizes {
    unsigned heads, kv_heads, dim, pairs, positions, capacity, window;
    float scale, eps;
};

// Of HEADS query heads that share keys each has WARPS / HEADS warps, which take turns.
template <typename T, unsigned LANES, unsigned HEADS, unsigned BLOCKS>
__device__ inline void attend(Sizes of, const T *qkv, const T *q_scale, const T *k_scale, const unsigned *start,
                              const float *rotary, T *cache, T *y) {
    constexpr unsigned TURNS = WARPS / HEADS, AT_ONCE = 32 / LANES, STEP = TURNS * AT_ONCE, AHEAD = 4;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, sub = lane / LANES, first = lane % LANES * EACH;
    const unsigned kv = blockIdx.x, item = blockIdx.y, block = blockIdx.z, group = of.heads / of.kv_heads, dim = of.dim;
    const unsigned head = warp % HEADS, turn_of_warp = warp / HEADS;
    const bool is_there = first < dim;
    let_the_next_begin();
    // Where the new token stands, what turns it, and the tokens before it: no kernel before this one writes them.
    const unsigned at = min(start[item], min(of.capacity, of.positions) - 1), end = at + 1;
    const unsigned oldest = of.window && end > of.window ? end - of.window : 0;
    const unsigned share = (end - oldest + BLOCKS - 1) / BLOCKS, begin = oldest + block * share;
    const unsigned stop = min(end, begin + share);
    T *keys = cache + ((size_t)item * 2 * of.kv_heads + kv) * of.capacity * dim;
    T *values = keys + (size_t)of.kv_heads * of.capacity * dim;
    const Turn turn(first, lane, of.pairs, rotary + (size_t)at * 2 * of.pairs);
    Vec<T, EACH> key[AHEAD], value[AHEAD];
    auto ask = [&](unsigned place) {
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) {
            const unsigned p = place + a * STEP;
            key[a] = value[a] = Vec<T, EACH>{};
            // The new one is not read back from where it is written to.
            if (p >= stop || p == at || !is_there) continue;
#pragma unroll
            for (unsigned part = 0; part < EACH / WIDE<T>; part++) {
                const size_t from = (size_t)p * dim + first + part * WIDE<T>;
                const Vec<T, WIDE<T>> k = load<T, WIDE<T>>(keys + from), v = load<T, WIDE<T>>(values + from);
#pragma unroll
                for (unsigned n = 0; n < WIDE<T>; n++)
                    key[a].at[part * WIDE<T> + n] = k.at[n], value[a].at[part * WIDE<T> + n] = v.at[n];
            }
        }
    };
    const unsigned first_place = begin + turn_of_warp * AT_ONCE + sub;
    ask(first_place);
    wait_for_those_before();

    // The new token.
    const T *row = qkv + (size_t)item * (of.heads + 2 * of.kv_heads) * dim;
    float q[EACH] = {}, new_key[EACH] = {}, new_value[EACH] = {};
    if (is_there) {
        if (head < group) load_wide(row + (kv * group + head) * dim + first, q);
        load_wide(row + (of.heads + kv) * dim + first, new_key);
        load_wide(row + (of.heads + of.kv_heads + kv) * dim + first, new_value);
    }
    if (k_scale) normalise<T, LANES>(new_key, dim, of.eps, k_scale + first, is_there);
    if (q_scale) normalise<T, LANES>(q, dim, of.eps, q_scale + first, is_there);
    turn.operator()<T>(new_key);
    turn.operator()<T>(q);
    if (begin <= at && at < stop && warp == 0 && sub == 0 && is_there) {
        store_narrow(keys + (size_t)at * dim + first, new_key);
        store_narrow(values + (size_t)at * dim + first, new_value);
    }

    State state;
    for (unsigned place = first_place; place - sub < stop; place += STEP * AHEAD) {
        if (place != first_place) ask(place);
        float score[AHEAD], most = state.most;
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) {
            const unsigned p = place + a * STEP;
            float dot = 0;
#pragma unroll
            for (unsigned n = 0; n < EACH; n++)
                dot = fmaf(q[n], p == at ? new_key[n] : widen(key[a].at[n]), dot);
            score[a] = warp_reduce<Add>(dot, LANES) * of.scale;
            score[a] = p < stop ? score[a] * LOG2E : -INFINITY;
            most = fmaxf(most, score[a]);
        }
        const float kept = exp2f(state.most - most);
        state.most = most, state.sum *= kept;
#pragma unroll
        for (unsigned n = 0; n < EACH; n++) state.value[n] *= kept;
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) {
            const bool is_new = place + a * STEP == at;
            const float weight = exp2f(score[a] - most);
            state.sum += weight;
#pragma unroll
            for (unsigned n = 0; n < EACH; n++)
                state.value[n] = fmaf(weight, is_new ? new_value[n] : widen(value[a].at[n]), state.value[n]);
        }
    }

    // Places of a warp, then the warps of all blocks of the cluster.
    constexpr unsigned DIM = LANES * EACH;
    __shared__ alignas(16) float room[WARPS][DIM], stats[WARPS][4];
#pragma unroll
    for (unsigned distance = LANES; distance < 32; distance *= 2) {
        State other;
        other.most = __shfl_xor_sync(~0u, state.most, distance);
        other.sum = __shfl_xor_sync(~0u, state.sum, distance);
#pragma unroll
        for (unsigned n = 0; n < EACH; n++) other.value[n] = __shfl_xor_sync(~0u, state.value[n], distance);
        state.add(other);
    }
    if (sub == 0) {
#pragma unroll
        for (unsigned n = 0; n < EACH; n++) room[warp][first + n] = state.value[n];
        if (first == 0) stats[warp][0] = state.most, stats[warp][1] = state.sum;
    }
    sync_cluster<BLOCKS>();
    const unsigned quads = dim / 4;
    for (unsigned i = block * THREADS + threadIdx.x; i < group * quads; i += BLOCKS * THREADS) {
        const unsigned h = i / quads, d = i % quads * 4;
        Vec<float, 4> numbers[BLOCKS * TURNS], parts[BLOCKS * TURNS];
        float most = LOWEST, sum = 0;
#pragma unroll
        for (unsigned b = 0; b < BLOCKS * TURNS; b++) {
            numbers[b] = load_from_block<BLOCKS>(b / TURNS, stats[b % TURNS * HEADS + h]);
            parts[b] = load_from_block<BLOCKS>(b / TURNS, room[b % TURNS * HEADS + h] + d);
        }
#pragma unroll
        for (unsigned b = 0; b < BLOCKS * TURNS; b++) most = fmaxf(most, numbers[b].at[0]);
        Vec<float, 4> total{};
#pragma unroll
        for (unsigned b = 0; b < BLOCKS * TURNS; b++) {
            const float its = exp2f(numbers[b].at[0] - most);
            sum += numbers[b].at[1] * its;
#pragma unroll
            for (unsigned n = 0; n < 4; n++) total.at[n] += parts[b].at[n] * its;
        }
        Vec<T, 4> out;
#pragma unroll
        for (unsigned n = 0; n < 4; n++) out.at[n] = narrow<T>(total.at[n] / sum);
        store<T, 4>(y + ((size_t)item * of.heads + kv * group + h) * dim + d, out);
    }
    // What others still read stays.
    sync_cluster<BLOCKS>();
}

// Blocks that share a sequence's places: a cluster, where there are any.
#if __CUDA_ARCH__ >= 900
#define SHARES 8
#else
#define SHARES 1
#endif

#define ATTENTION(T, NAME, LANES, HEADS)                                                                               \
    extern "C" __global__ void CLUSTER(SHARES) __launch_bounds__(THREADS)                                              \
        opara_cached_attention_##LANES##x##HEADS##_##NAME(unsigned numel, unsigned heads, unsigned kv_heads,           \
            unsigned dim, unsigned pairs, unsigned positions, unsigned capacity, unsigned window, float scale,         \
            float eps, const T *qkv, const T *q_scale, const T *k_scale, const unsigned *start, const float *rotary,   \
            T *cache, T *y) {                                                                                          \
        const Sizes of = {heads, kv_heads, dim, pairs, positions, capacity, window, scale, eps};                       \
        attend<T, LANES, HEADS, SHARES>(of, qkv, q_scale, k_scale, start, rotary, cache, y);                           \
    }
#define ATTENTIONS(T, NAME)                                                                                            \
    ATTENTION(T, NAME, 8, 4)                                                                                           \
    ATTENTION(T, NAME, 8, 8)                                                                                           \
    ATTENTION(T, NAME, 16, 4)                                                                                          \
    ATTENTION(T, NAME, 16, 8)                                                                                          \
    ATTENTION(T, NAME, 32, 4)
