// Attention of one query a head to keys and values that lie place by place. A block, or a cluster of them, makes all query heads that
// share keys; each of its blocks takes a part of the places.
//
// A warp has one query head; the other warps of its block read the same keys and values at the same time, from the L1 cache, or take
// turns with it. Lanes that are neighbours have 8 elements of a place each, of which a warp takes several at a time. Each keeps a
// softmax of its own that goes on from place to place (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018);
// these are put together at the end ("Flash-Decoding", Dao et al., 2023), always in the same order.
#pragma once
#include "cluster.cuh"
#include "dependent.cuh"
#include "rows.cuh"

constexpr unsigned WARPS = 8, THREADS = 32 * WARPS;
// Elements of a lane.
constexpr unsigned EACH = 8;
// The largest score before the first one: finite, so that differences are, and no larger than any mask's.
constexpr float LOWEST = -3.402823466e38f;
constexpr float LOG2E = 1.4426950408889634f;

// Blocks that share a sequence's places: a cluster, where there are any. Where few places are seen, a head's warps are enough.
#if __CUDA_ARCH__ >= 900
constexpr unsigned SHARES = 8;
#else
constexpr unsigned SHARES = 1;
#endif

// 8 neighbours in f32.
template <typename T> __device__ inline void load_wide(const T *from, float (&to)[EACH]) {
#pragma unroll
    for (unsigned part = 0; part < EACH / WIDE<T>; part++) {
        const Vec<T, WIDE<T>> v = load<T, WIDE<T>>(from + part * WIDE<T>);
#pragma unroll
        for (unsigned n = 0; n < WIDE<T>; n++) to[part * WIDE<T> + n] = widen(v.at[n]);
    }
}

// What a thread has to do with. Of HEADS query heads that share keys each has WARPS / HEADS warps, which take turns.
template <unsigned LANES, unsigned HEADS> struct Share {
    // Its lane among those of a place, the first of that lane's elements, its query head, and its warp's turn.
    unsigned warp, lane, sub, first, head, turn;
    // Does it have elements?
    bool is_there;

    __device__ Share(unsigned group, unsigned dim)
        : warp(threadIdx.x / 32), lane(threadIdx.x % 32), sub(lane / LANES), first(lane % LANES * EACH), head(warp % HEADS),
          turn(warp / HEADS), is_there(first < dim && head < group) {}
};

// The softmax so far of one query head, and the sum of values by it: of a lane its elements of that.
struct State {
    float most = LOWEST, sum = 0, value[EACH] = {};

    __device__ void add(const State &other) {
        const float both = fmaxf(most, other.most);
        const float mine = exp2f((most - both) * LOG2E), its = exp2f((other.most - both) * LOG2E);
        most = both, sum = sum * mine + other.sum * its;
#pragma unroll
        for (unsigned n = 0; n < EACH; n++) value[n] = value[n] * mine + other.value[n] * its;
    }
};

// The score of a product. A cap limits what its scale makes of it.
__device__ inline float scored(float product, float scale, float cap, float added) {
    return cap ? cap * tanhf(product * scale) + added : fmaf(product, scale, added);
}

// The query, and the place whose key and value the launch has of its own, if it is one that this block takes.
struct Query {
    float q[EACH] = {}, key[EACH] = {}, value[EACH] = {};
};

// What the query heads of `group` see, into y: of the places from `oldest` up to `end`, whose elements are where `key` and `value` say.
// `bias` gives what is added to the score of a place. All this is asked for before the kernel waits for its predecessors; `begin` gives the
// query after that, and is told whether place `at` is this block's. IS_NEW says that there is such a place. `cap` limits scores, if it is
// not 0.
template <typename T, unsigned LANES, unsigned HEADS, unsigned BLOCKS, bool IS_NEW, typename Key, typename Value, typename Bias,
          typename Begin>
__device__ inline void attend(const Share<LANES, HEADS> &my, unsigned oldest, unsigned end, unsigned at, unsigned group, unsigned dim,
                              float scale, float cap, T *y, Key key, Value value, Bias bias, Begin begin) {
    constexpr unsigned TURNS = WARPS / HEADS, AT_ONCE = 32 / LANES, STEP = TURNS * AT_ONCE, AHEAD = 4;
    const unsigned block = BLOCKS == 1 ? 0 : blockIdx.z;
    const unsigned share = (end - oldest + BLOCKS - 1) / BLOCKS, start = oldest + block * share;
    const unsigned stop = min(end, start + share);
    struct Asked {
        Vec<T, EACH> key[AHEAD], value[AHEAD];
        float added[AHEAD];
    };
    auto ask = [&](unsigned place) {
        Asked asked;
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) {
            const unsigned p = place + a * STEP;
            asked.key[a] = asked.value[a] = Vec<T, EACH>{}, asked.added[a] = 0;
            if (p >= stop || !my.is_there) continue;
            asked.added[a] = bias(p);
            // The new one is not read back from where it is written to.
            if (IS_NEW && p == at) continue;
            const T *its_key = key(p), *its_value = value(p);
#pragma unroll
            for (unsigned part = 0; part < EACH / WIDE<T>; part++) {
                const unsigned element = my.first + part * WIDE<T>;
                const Vec<T, WIDE<T>> k = load<T, WIDE<T>>(its_key + element);
                const Vec<T, WIDE<T>> v = load<T, WIDE<T>>(its_value + element);
#pragma unroll
                for (unsigned n = 0; n < WIDE<T>; n++)
                    asked.key[a].at[part * WIDE<T> + n] = k.at[n], asked.value[a].at[part * WIDE<T> + n] = v.at[n];
            }
        }
        return asked;
    };
    const unsigned first_place = start + my.turn * AT_ONCE + my.sub;
    Asked asked = ask(first_place);
    wait_for_predecessors();
    const bool has_new = IS_NEW && start <= at && at < stop;
    const Query own = begin(has_new);

    State state;
    auto add = [&](const Asked &now, unsigned place) {
        float score[AHEAD], most = state.most;
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) {
            const unsigned p = place + a * STEP;
            float dot = 0;
#pragma unroll
            for (unsigned n = 0; n < EACH; n++) dot = fmaf(own.q[n], widen(now.key[a].at[n]), dot);
            score[a] = scored(warp_reduce<Add>(dot, LANES), scale, cap, now.added[a]);
            score[a] = p < stop && !(IS_NEW && p == at) ? score[a] : -INFINITY;
            most = fmaxf(most, score[a]);
        }
        const float kept = exp2f((state.most - most) * LOG2E);
        state.most = most, state.sum *= kept;
#pragma unroll
        for (unsigned n = 0; n < EACH; n++) state.value[n] *= kept;
#pragma unroll
        for (unsigned a = 0; a < AHEAD; a++) {
            const float weight = exp2f((score[a] - most) * LOG2E);
            state.sum += weight;
#pragma unroll
            for (unsigned n = 0; n < EACH; n++) state.value[n] = fmaf(weight, widen(now.value[a].at[n]), state.value[n]);
        }
    };
    for (unsigned place = first_place; place - my.sub < stop; place += STEP * AHEAD) {
        add(asked, place);
        asked = ask(place + STEP * AHEAD);
    }
    if constexpr (IS_NEW) {
        // The new place comes last, in the first lanes of each head's first warp.
        float dot = 0;
#pragma unroll
        for (unsigned n = 0; n < EACH; n++) dot = fmaf(own.q[n], own.key[n], dot);
        State last;
        const float score = scored(warp_reduce<Add>(dot, LANES), scale, cap, has_new && my.is_there ? bias(at) : 0.f);
        if (has_new && my.turn == 0 && my.sub == 0) {
            last.most = fmaxf(score, LOWEST), last.sum = exp2f((score - last.most) * LOG2E);
#pragma unroll
            for (unsigned n = 0; n < EACH; n++) last.value[n] = last.sum * own.value[n];
        }
        state.add(last);
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
    if (my.sub == 0) {
#pragma unroll
        for (unsigned n = 0; n < EACH; n++) room[my.warp][my.first + n] = state.value[n];
        if (my.first == 0) stats[my.warp][0] = state.most, stats[my.warp][1] = state.sum;
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
            const float its = exp2f((numbers[b].at[0] - most) * LOG2E);
            sum += numbers[b].at[1] * its;
#pragma unroll
            for (unsigned n = 0; n < 4; n++) total.at[n] += parts[b].at[n] * its;
        }
        Vec<T, 4> out;
#pragma unroll
        for (unsigned n = 0; n < 4; n++) out.at[n] = narrow<T>(total.at[n] / sum);
        store<T, 4>(y + h * dim + d, out);
    }
    // What others still read stays.
    leave_cluster<BLOCKS>();
}
