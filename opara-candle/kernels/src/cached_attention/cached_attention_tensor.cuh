// What cached_attention.cuh has, for types of 16 bits and query heads that share keys, on tensor cores: a warp takes 16 places at a time
// for all of these heads, so that each key and value is read once. Memory's speed limits it. A warp's next keys and values are on their
// way into shared memory, the first of them before the kernel waits for its predecessors; how much it asks for ahead is what shared memory
// has room for.
//
// Scores and sums are transposed, since an instruction has 16 rows and 8 columns: places by heads, and elements by heads. Which warp of
// which block has a place is decided by how many a sequence has: its result does not depend on the sequences beside it.
#pragma once
#include "new_token.cuh"
#include "tensor.cuh"

// Columns and rows of an instruction: query heads that share keys, at most, and places that a warp takes at a time.
constexpr unsigned COLUMNS = 8, PLACES = 16;
// Rows in shared memory beside the queries: the new key and value.
constexpr unsigned KEY = COLUMNS, VALUE = KEY + 1, NEW_ROWS = VALUE + 1;

// What some of the places give for 4 elements of a head: the largest score in bits, the weights' sum, and that of values by weight.
struct Part {
    float most = LOWEST, sum = 0;
    Vec<float, 4> value{};
};

template <unsigned N> __device__ inline Part joined(const Part (&parts)[N]) {
    Part all;
#pragma unroll
    for (unsigned p = 0; p < N; p++) all.most = fmaxf(all.most, parts[p].most);
#pragma unroll
    for (unsigned p = 0; p < N; p++) {
        const float its = exp2_approx(parts[p].most - all.most);
        all.sum = fmaf(parts[p].sum, its, all.sum);
#pragma unroll
        for (unsigned n = 0; n < 4; n++) all.value.at[n] = fmaf(parts[p].value.at[n], its, all.value.at[n]);
    }
    return all;
}

// Elements from one head's sums to the next, of a warp: lanes reach different banks.
template <unsigned DIM> constexpr unsigned SUMS = DIM + 4;

// Sums of `warps` warps, each at so many strides, then of the cluster's blocks, into y: of `group` heads in a fixed order.
template <typename T, unsigned DIM, unsigned BLOCKS>
__device__ inline void join(unsigned warps, unsigned group, unsigned dim, const float (&stats)[WARPS][COLUMNS][2], const float *sums,
                            unsigned stride, T *y) {
    __shared__ alignas(16) float of_block[COLUMNS][DIM], stats_of_block[COLUMNS][4];
    const unsigned quads = dim / 4, all = group * quads, block = BLOCKS == 1 ? 0 : blockIdx.z;
    if (threadIdx.x < all) {
        const unsigned h = threadIdx.x / quads, d = threadIdx.x % quads * 4;
        Part parts[WARPS];
#pragma unroll
        for (unsigned w = 0; w < WARPS; w++) {
            if (w >= warps) continue;
            parts[w].most = stats[w][h][0], parts[w].sum = stats[w][h][1];
            parts[w].value = load<float, 4>(sums + w * stride + h * SUMS<DIM> + d);
        }
        const Part part = joined(parts);
        store(of_block[h] + d, part.value);
        if (d == 0) stats_of_block[h][0] = part.most, stats_of_block[h][1] = part.sum;
    }
    sync_cluster<BLOCKS>();
    const unsigned of_each = (all + BLOCKS - 1) / BLOCKS, i = block * of_each + threadIdx.x;
    if (threadIdx.x < of_each && i < all) {
        const unsigned h = i / quads, d = i % quads * 4;
        Part parts[BLOCKS];
#pragma unroll
        for (unsigned b = 0; b < BLOCKS; b++) {
            const Vec<float, 4> numbers = load_from_block<BLOCKS>(b, stats_of_block[h]);
            parts[b].most = numbers.at[0], parts[b].sum = numbers.at[1];
            parts[b].value = load_from_block<BLOCKS>(b, of_block[h] + d);
        }
        const Part part = joined(parts);
        Vec<T, 4> out;
#pragma unroll
        for (unsigned n = 0; n < 4; n++) out.at[n] = narrow<T>(part.value.at[n] / part.sum);
        store<T, 4>(y + h * dim + d, out);
    }
    // What others still read stays.
    if constexpr (BLOCKS > 1) sync_cluster<BLOCKS>();
}

// Heads of DIM elements at most, of a cache that is IN_PAGES or not: two kernels, since registers are few. Of a warp's ring, a slot has the keys or the values of its 16 places; both take turns in it.
template <typename T, unsigned DIM, unsigned BLOCKS, bool IN_PAGES>
__device__ inline void step_on_tensor_cores(Sizes of, const T *qkv, const T *q_scale, const T *k_scale, const unsigned *start,
                                            const unsigned *pages, const float *rotary, T *cache, T *y) {
    // A row's vectors of 16 bytes, and those of a slot and of a new row: eight of these lie in different banks.
    constexpr unsigned UNITS = DIM / EACH, SLOT = PLACES * UNITS, NEW_ROW = UNITS + 1, RINGS = NEW_ROWS * NEW_ROW;
    extern __shared__ uint4 dynamic[];
    __shared__ float stats[WARPS][COLUMNS][2];
    const unsigned kv = blockIdx.x, item = blockIdx.y, block = BLOCKS == 1 ? 0 : blockIdx.z;
    const unsigned group = of.heads / of.kv_heads, dim = of.dim, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned slots = (bytes_of_dynamic_memory() / sizeof(uint4) - RINGS) / (WARPS * SLOT);
    const unsigned ring = RINGS + warp * slots * SLOT, ring_end = ring + slots * SLOT;
    trigger_dependents();

    // Where the new token stands, what turns it, and the tokens before it: no kernel before this one writes them.
    // The first pages are asked for before it is known which of them are needed.
    const unsigned *own_pages = IN_PAGES ? pages + item * (of.capacity / PAGE) : nullptr;
    const unsigned page_of_lane = IN_PAGES && lane < of.capacity / PAGE ? own_pages[lane] : 0;
    const unsigned limit = min(of.capacity, of.positions), position = start[item];
    const unsigned at = min(position, limit - 1), end = at + 1;
    const unsigned oldest = of.window && end > of.window ? end - of.window : 0, first_place = oldest / PLACES * PLACES;
    // Tiles begin at multiples of their places: each is in one page.
    const unsigned share = (end - first_place + BLOCKS * PLACES - 1) / (BLOCKS * PLACES) * PLACES, begin = first_place + block * share;
    const unsigned stop = min(end, begin + share), tiles = begin < stop ? (stop - begin + PLACES - 1) / PLACES : 0;
    const unsigned of_kind = of.kv_heads * (IN_PAGES ? PAGE : of.capacity) * dim;
    T *keys = cache + (IN_PAGES ? kv * PAGE * dim : ((size_t)item * 2 * of.kv_heads + kv) * of.capacity * dim);
    // Where a place's keys begin; the values are behind those of all heads.
    auto at_place = [&](unsigned page, unsigned place) {
        return IN_PAGES ? (size_t)page * (2 * of_kind) + place % PAGE * dim : (size_t)place * dim;
    };
    unsigned asked = 0, asked_at = ring;
    auto ask = [&](bool is_first) {
        const unsigned tile = asked / 2 * WARPS + warp, unit = lane % UNITS;
        const unsigned tile_place = begin + tile * PLACES, at_page = tile_place / PAGE;
        unsigned page = 0;
        if (IN_PAGES && is_first) page = __shfl_sync(~0u, page_of_lane, at_page);
        if (IN_PAGES && tile < tiles && (!is_first || at_page >= 32)) page = own_pages[at_page];
        const T *from = keys + (asked % 2 ? of_kind : 0) + unit * EACH + at_place(page, tile_place);
        if (tile < tiles)
#pragma unroll
            for (unsigned n = 0; n < PLACES; n += 32 / UNITS) {
                const unsigned row = n + lane / UNITS, place = begin + tile * PLACES + row;
                // The new one is not read back from where it is written to. What is not read is zero: weights of zero have no NaN.
                const bool is_read = oldest <= place && place < stop && place != at && unit * EACH < dim;
                copy_async(dynamic + asked_at + row * UNITS + (unit ^ row % 8), from + row * dim, is_read);
            }
        commit();
        asked++, asked_at = asked_at + SLOT == ring_end ? ring : asked_at + SLOT;
    };
    for (unsigned n = 0; n < slots; n++) ask(true);

    // The new token's queries, zeros for those that are not there, its key and its value: each as many neighbours as it has vectors.
    const unsigned row = threadIdx.x / UNITS, first = threadIdx.x % UNITS * EACH;
    const bool is_there = first < dim && (row < group || row == KEY || row == VALUE);
    const Turn turn(first, lane, of.pairs, rotary + (size_t)at * 2 * of.pairs);
    wait_for_predecessors();
    Vec<T, EACH> own{};
    if (is_there) {
        const unsigned head = row < group ? kv * group + row : of.heads + (row == KEY ? kv : of.kv_heads + kv);
        own = load<T, EACH>(qkv + ((size_t)item * (of.heads + 2 * of.kv_heads) + head) * dim + first);
    }
    if (q_scale || of.pairs) {
        float v[EACH];
#pragma unroll
        for (unsigned n = 0; n < EACH; n++) v[n] = widen(own.at[n]);
        if (q_scale) normalise<T, UNITS>(v, dim, of.eps, (row == KEY ? k_scale : q_scale) + first, is_there);
        if (of.pairs) turn.operator()<T>(v);
#pragma unroll
        for (unsigned n = 0; n < EACH; n++) own.at[n] = row == VALUE ? own.at[n] : narrow<T>(v[n]);
    }
    if (row < NEW_ROWS) store(reinterpret_cast<T *>(dynamic + row * NEW_ROW) + first, own);
    // A token beyond the end is not written: its row would be that of the last place.
    const bool is_written = position < limit && begin <= at && at < stop && is_there && row >= KEY;
    if (is_written) store(keys + (row == KEY ? 0 : of_kind) + at_place(IN_PAGES ? own_pages[at / PAGE] : 0, at) + first, own);
    __syncthreads();

    unsigned q[UNITS / 4][4];
#pragma unroll
    for (unsigned n = 0; n < UNITS / 4; n++) ldmatrix<false>(q[n], dynamic + lane % 8 * NEW_ROW + n * 4 + lane / 8);
    // The row of the next slot that the lane addresses, that of place `at` among the new ones, and the vector that it begins with:
    // the others are at a distance by exclusive or, so that lanes reach different banks.
    unsigned taken_at = ring;
    auto take = [&](unsigned place, unsigned new_row, unsigned &unit) {
        wait_for_first(slots);
        __syncwarp();
        const unsigned row = lane % 16, is_new = place + row == at, slot = taken_at;
        taken_at = slot + SLOT == ring_end ? ring : slot + SLOT;
        unit = lane / 16 ^ (is_new ? 0 : row % 8);
        return dynamic + (is_new ? new_row * NEW_ROW : slot + row * UNITS);
    };
    // Of scores a lane has those of two places and two heads, of sums the same heads.
    const unsigned of_lane = lane / 4, column = lane % 4 * 2;
    const float scale = of.scale * LOG2E;
    float most[2] = {LOWEST, LOWEST}, sum[2] = {}, total[UNITS / 2][4] = {};
    for (unsigned tile = warp; tile < tiles; tile += WARPS) {
        const unsigned place = begin + tile * PLACES;
        float part[2][4] = {}, weight[4], now[2] = {most[0], most[1]};
        unsigned unit;
        const uint4 *key = take(place, KEY, unit);
#pragma unroll
        for (unsigned n = 0; n < UNITS / 2; n++) {
            unsigned a[4];
            ldmatrix<false>(a, key + (2 * n ^ unit));
            mma(part[n % 2], a, q[n / 2][n % 2 * 2], q[n / 2][n % 2 * 2 + 1], T());
        }
        __syncwarp();
        ask(false);
#pragma unroll
        for (unsigned n = 0; n < 4; n++) {
            const unsigned its = place + of_lane + n / 2 * 8;
            weight[n] = oldest <= its && its < stop ? (part[0][n] + part[1][n]) * scale : -INFINITY;
            now[n % 2] = fmaxf(now[n % 2], weight[n]);
        }
#pragma unroll
        for (unsigned distance = 4; distance < 32; distance *= 2)
#pragma unroll
            for (unsigned n = 0; n < 2; n++) now[n] = fmaxf(now[n], __shfl_xor_sync(~0u, now[n], distance));
        // Sums are of the weights that values have: rounded ones.
        const float kept[2] = {exp2_approx(most[0] - now[0]), exp2_approx(most[1] - now[1])};
#pragma unroll
        for (unsigned n = 0; n < 4; n++) weight[n] = widen(narrow<T>(exp2_approx(weight[n] - now[n % 2])));
#pragma unroll
        for (unsigned n = 0; n < 2; n++) sum[n] = fmaf(sum[n], kept[n], weight[n] + weight[n + 2]), most[n] = now[n];
#pragma unroll
        for (unsigned n = 0; n < UNITS / 2; n++)
#pragma unroll
            for (unsigned i = 0; i < 4; i++) total[n][i] *= kept[i % 2];
        const unsigned upper = transposed(pack<T>(weight[0], weight[1])), lower = transposed(pack<T>(weight[2], weight[3]));
        const uint4 *value = take(place, VALUE, unit);
#pragma unroll
        for (unsigned n = 0; n < UNITS / 2; n++) {
            unsigned a[4];
            ldmatrix<true>(a, value + (2 * n ^ unit));
            mma(total[n], {a[0], a[2], a[1], a[3]}, upper, lower, T());
        }
        __syncwarp();
        ask(false);
    }

    // Where its ring was, whose slots are all used up, a warp leaves its sums.
    float *sums = reinterpret_cast<float *>(dynamic + ring);
    if (warp < tiles)
#pragma unroll
        for (unsigned n = 0; n < 2; n++) {
#pragma unroll
            for (unsigned distance = 4; distance < 32; distance *= 2) sum[n] += __shfl_xor_sync(~0u, sum[n], distance);
            if (of_lane == 0) stats[warp][column + n][0] = most[n], stats[warp][column + n][1] = sum[n];
#pragma unroll
            for (unsigned i = 0; i < UNITS; i++)
                sums[(column + n) * SUMS<DIM> + i * 8 + of_lane] = total[i / 2][i % 2 * 2 + n];
        }
    __syncthreads();
    join<T, DIM, BLOCKS>(min(tiles, WARPS), group, dim, stats, reinterpret_cast<float *>(dynamic + RINGS), slots * SLOT * 4,
                         y + ((size_t)item * of.heads + kv * group) * dim);
}

// OF_PROCESSOR blocks of a multiprocessor: as many as its registers are enough for. There is no table of distances.
#define KERNEL(T, NAME, DIM, OF_PROCESSOR, IN_PAGES)                                                                      \
    extern "C" __global__ void CLUSTER(SHARES) __launch_bounds__(THREADS, OF_PROCESSOR)                                \
        opara_attention_cached_tensor_##NAME(unsigned numel, unsigned heads, unsigned kv_heads, unsigned dim,          \
            unsigned pairs, unsigned positions, unsigned capacity, unsigned window, unsigned distances, float scale,   \
            float eps, const T *qkv, const T *q_scale, const T *k_scale, const unsigned *start, const unsigned *pages, \
            const float *rotary, const float *by_distance, T *cache, T *y) {                                           \
        const Sizes of = {heads, kv_heads, dim, pairs, positions, capacity, window, distances, scale, eps};            \
        step_on_tensor_cores<T, DIM, SHARES, IN_PAGES>(of, qkv, q_scale, k_scale, start, pages, rotary, cache, y);        \
    }
#define ATTENTIONS(T, NAME)                                                                                            \
    KERNEL(T, 64_##NAME, 64, 4, false)                                                                                 \
    KERNEL(T, 128_##NAME, 128, 2, false)                                                                               \
    KERNEL(T, 64_pages_##NAME, 64, 4, true)                                                                            \
    KERNEL(T, 128_pages_##NAME, 128, 2, true)
