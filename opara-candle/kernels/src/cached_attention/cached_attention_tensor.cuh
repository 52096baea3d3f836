// Attention of one new token a sequence, as in cached_attention.cuh, for types of 16 bits, on tensor cores: a warp takes a tile of 16 places
// at a time for all query heads that share keys, so that each key and value is read once. How long a block takes from its first instruction
// to its last limits it, more than memory does: it has few instructions, and asks for keys and values before its predecessors have ended.
//
// Scores and sums are transposed, since an instruction has 16 rows and 8 columns: places by heads, and elements by heads.
//
// A sequence's places are divided by their number alone, so that its bits do not depend on the sequences beside it: into rounds, in which
// each warp has a tile, and these into groups, of which each warp has a softmax of its own. Groups are put together first, then warps.
// Blocks of a cluster have a group each of a long sequence; a short one is a block's own, group after group, since waiting for other
// blocks takes longer.
#pragma once
#include "new_token.cuh"
#include "softmaxes.cuh"

// Rows of an instruction, and places of a round.
constexpr unsigned PLACES = 16, ROUND = WARPS * PLACES;
// Rows in shared memory beside the queries: the new key and value.
constexpr unsigned KEY = COLUMNS, VALUE = KEY + 1, NEW_ROWS = VALUE + 1;
// Rounds up to which a sequence is short: of a cluster that has one sequence, and of one that has as many as blocks. Its blocks have longer
// ones together, one after another.
constexpr unsigned SHORT_ALONE = 2, SHORT_BESIDE = 16;

// Where a sequence's places lie and how they are divided.
struct Division {
    unsigned at, oldest, first, rounds, of_group;

    __device__ Division(const Sizes &of, unsigned position) {
        at = min(position, min(of.capacity, of.positions) - 1);
        oldest = of.window && at + 1 > of.window ? at + 1 - of.window : 0;
        // Tiles begin at multiples of their places: each is in one page.
        first = oldest / PLACES * PLACES;
        rounds = (at + ROUND - first) / ROUND, of_group = (rounds + SHARES - 1) / SHARES;
    }
    __device__ unsigned tiles() const { return (at + PLACES - first) / PLACES; }
};

// Heads of DIM elements at most, of a cache that is IN_PAGES or not: two kernels, since registers are few. A warp's ring has PAIRS of
// slots, for the keys and the values of a tile.
template <typename T, unsigned DIM, unsigned BLOCKS, bool IN_PAGES, unsigned PAIRS> struct OnTensorCores {
    // Of a row: its vectors of 16 bytes, steps of an instruction, and bytes. Rows lie so that eight of them reach different banks: vector v
    // of row r is where v ^ r % 8 would be.
    static constexpr unsigned UNITS = DIM / EACH, STEPS = UNITS / 2, ROW = UNITS * 16, SLOT = PLACES * ROW;
    // Vectors of a warp's sums; where in shared memory sums begin, and rings.
    static constexpr unsigned SUMS = STEPS * 32, OF_SUMS = NEW_ROWS * ROW, OF_RINGS = OF_SUMS + WARPS * SUMS * 16;

    const Sizes &of;
    unsigned kv, block, group, warp, lane;
    unsigned char *shared;
    Softmax (*softmaxes)[COLUMNS / 2];

    __device__ Vec<float, 4> *sums(unsigned of_warp) const { return reinterpret_cast<Vec<float, 4> *>(shared + OF_SUMS) + of_warp * SUMS; }

    // The new token's queries, its key and its value, into shared memory; the last two into the cache, if that is to be.
    __device__ void begin(unsigned item, unsigned at, bool is_written, const T *qkv, const T *q_scale, const T *k_scale,
                          const float *rotary, T *keys, unsigned to_values) const {
        const unsigned row = threadIdx.x / UNITS, unit = threadIdx.x % UNITS, first = unit * EACH, dim = of.dim;
        const bool is_there = first < dim && (row < group || row == KEY || row == VALUE);
        // Loaded beside the queries, not before the wait: registers are few there.
        const Turn turn(first, lane, of.pairs, rotary + (size_t)at * 2 * of.pairs);
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
        if (row < NEW_ROWS) store(reinterpret_cast<T *>(shared + row * ROW + (unit ^ (row < COLUMNS ? row : 0)) * 16), own);
        if (is_written && is_there && row >= KEY) store(keys + (row == KEY ? 0 : to_values) + first, own);
    }

    // A sequence, by this block or by all of the cluster.
    __device__ void attend(unsigned item, unsigned position, unsigned page_of_lane, bool is_shared, const T *qkv, const T *q_scale,
                           const T *k_scale, const unsigned *pages, const float *rotary, T *cache, T *y) const {
        const unsigned *own_pages = IN_PAGES ? pages + item * (of.capacity / PAGE) : nullptr;
        const Division div(of, position);
        const unsigned dim = of.dim, at = div.at;
        const unsigned begin_at = div.first + (is_shared ? block * div.of_group * ROUND : 0);
        const unsigned stop = is_shared ? min(at + 1, begin_at + div.of_group * ROUND) : at + 1;
        const unsigned of_kind = of.kv_heads * (IN_PAGES ? PAGE : of.capacity) * dim;
        T *keys = cache + (IN_PAGES ? kv * PAGE * dim : ((size_t)item * 2 * of.kv_heads + kv) * of.capacity * dim);
        // Where a place's keys begin; the values are behind the keys of all heads.
        auto at_place = [&](unsigned page, unsigned place) {
            return IN_PAGES ? (size_t)page * (2 * of_kind) + place % PAGE * dim : (size_t)place * dim;
        };
        const unsigned base = __cvta_generic_to_shared(shared), ring = base + OF_RINGS + warp * PAIRS * 2 * SLOT;

        // Of a copy's rows a lane has one, and a vector of it. The new place is not read back from where it is written to. What is not
        // read is zero: weights of zero have no NaN.
        constexpr unsigned ROWS = 32 / UNITS;
        const unsigned row = lane / UNITS, unit = lane % UNITS, read = unit * EACH < dim ? min(stop, at) - div.oldest : 0;
        unsigned place = begin_at + warp * PLACES, slot = 0, ahead = place + row - div.oldest, asked = place;
        const unsigned first_copy = ring + row * ROW + (unit ^ row) * 16, stride = ROWS * dim;
        // Tiles of a warp have the same place in their pages.
        const T *of_lane_row = keys + (IN_PAGES ? place % PAGE : place) * (size_t)dim + row * dim + unit * EACH;
        const T *from;
        auto find = [&]() {
            if constexpr (IN_PAGES) {
                unsigned page = __shfl_sync(~0u, page_of_lane, asked / PAGE);
                if (asked >= 32 * PAGE && asked < stop) page = own_pages[asked / PAGE];
                from = of_lane_row + (size_t)page * (2 * of_kind);
            } else from = of_lane_row + (size_t)(asked - begin_at - warp * PLACES) * dim;
        };
        auto copy = [&](const T *from, unsigned to) {
            if (asked < stop)
#pragma unroll
                for (unsigned n = 0; n < PLACES; n += ROWS, from += stride)
                    copy_async((first_copy + to ^ n % 8 * 16) + n * ROW, from, ahead + n < read);
            commit();
        };
        auto ask_keys = [&](unsigned slot) { find(), copy(from, slot); };
        auto ask_values = [&](unsigned slot) { copy(from + of_kind, slot + SLOT), asked += ROUND, ahead += ROUND; };
#pragma unroll
        for (unsigned n = 0; n < PAIRS; n++) ask_keys(n * 2 * SLOT), ask_values(n * 2 * SLOT);

        wait_for_predecessors();
        // Warps that have rows of the new token make these. A token beyond the end is not written: its row would be that of the last place.
        const bool is_written = position == at && begin_at <= at && at < stop;
        if (warp * ROWS < group || (warp * ROWS <= VALUE && warp * ROWS + ROWS > KEY)) {
            T *to = keys + at_place(is_written && IN_PAGES ? own_pages[at / PAGE] : 0, at);
            begin(item, at, is_written, qkv, q_scale, k_scale, rotary, to, of_kind);
        }
        __syncthreads();

        unsigned q[STEPS / 2][4];
#pragma unroll
        for (unsigned n = 0; n < STEPS / 2; n++) ldmatrix<false>(q[n], base + lane % 8 * ROW + (n * 4 + lane / 8 ^ lane % 8) * 16);
        // The rows that a lane addresses of a slot: that of place `at` is among the new ones. Vectors are at a distance by exclusive or.
        // Of values, which are transposed, matrices are in another order.
        const unsigned key_row = lane % 16, value_row = lane / 16 * 8 + lane % 8;
        const unsigned of_key = ring + key_row * ROW + (lane / 16 ^ lane % 8) * 16;
        const unsigned of_value = ring + SLOT + value_row * ROW + (lane / 8 % 2 ^ lane % 8) * 16;
        // A lane has scores of two places and two heads, and sums of the same heads.
        const unsigned of_lane = lane / 4;
        const float scale = of.scale * LOG2E;
        Softmax now;
        Vec<float, 4> total[STEPS] = {};
        unsigned left = div.of_group;
        bool is_first = true;
        for (; place < stop; place += ROUND) {
            float part[2][4] = {}, weight[4];
            wait_pending<2 * PAIRS - 1>();
            __syncwarp();
            const unsigned key = place + key_row == at ? base + KEY * ROW + lane / 16 * 16 : of_key + slot;
#pragma unroll
            for (unsigned n = 0; n < STEPS; n++) {
                unsigned a[4];
                ldmatrix<false>(a, key ^ n * 32);
                mma(part[n % 2], a, q[n / 2][n % 2 * 2], q[n / 2][n % 2 * 2 + 1], T());
            }
            __syncwarp();
            ask_keys(slot);
            float most[2] = {now.most[0], now.most[1]};
#pragma unroll
            for (unsigned n = 0; n < 4; n++) {
                const unsigned its = place + of_lane + n / 2 * 8 - div.oldest;
                weight[n] = its < stop - div.oldest ? __fmul_rn(part[0][n] + part[1][n], scale) : -INFINITY;
                most[n % 2] = fmaxf(most[n % 2], weight[n]);
            }
#pragma unroll
            for (unsigned distance = 4; distance < 32; distance *= 2)
#pragma unroll
                for (unsigned n = 0; n < 2; n++) most[n] = fmaxf(most[n], __shfl_xor_sync(~0u, most[n], distance));
#pragma unroll
            for (unsigned n = 0; n < 4; n++) weight[n] = exp2_approx(weight[n] - most[n % 2]);
            // Sums are of the weights that values have: rounded ones.
            const unsigned upper = transposed(packed(weight[0], weight[1], T())), lower = transposed(packed(weight[2], weight[3], T()));
            const float before[2] = {exp2_approx(now.most[0] - most[0]), exp2_approx(now.most[1] - most[1])};
#pragma unroll
            for (unsigned n = 0; n < 2; n++) now.sum[n] = fmaf(now.sum[n], before[n], weight[n] + weight[n + 2]), now.most[n] = most[n];
            // Sums of a group's first round are zeros.
            if (left != div.of_group)
#pragma unroll
                for (unsigned n = 0; n < STEPS; n++)
#pragma unroll
                    for (unsigned i = 0; i < 4; i++) total[n].at[i] *= before[i % 2];
            wait_pending<2 * PAIRS - 1>();
            __syncwarp();
            const unsigned value = place + value_row == at ? base + VALUE * ROW + lane / 8 % 2 * 16 : of_value + slot;
#pragma unroll
            for (unsigned n = 0; n < STEPS; n++) {
                unsigned a[4];
                ldmatrix<true>(a, value ^ n * 32);
                mma(total[n].at, a, upper, lower, T());
            }
            __syncwarp();
            ask_values(slot);
            if (PAIRS > 1) slot ^= 2 * SLOT;
            if (--left == 0 || place + ROUND >= stop) keep(now, total, is_first), is_first = false, left = div.of_group;
        }

        T *its_y = y + ((size_t)item * of.heads + kv * group) * dim;
        const unsigned tiles = div.tiles(), warps = min(tiles, WARPS);
        if (is_shared && BLOCKS > 1) {
            sync_cluster<BLOCKS>();
            // Rings are empty.
            auto *room = reinterpret_cast<Vec<float, 4> *>(shared + OF_RINGS);
            auto has = [&](unsigned b, unsigned warp) { return b * div.of_group * WARPS + warp < tiles; };
            join_blocks<BLOCKS, SUMS>(warps, sums(0), SUMS, softmaxes, group, dim, room, its_y, has);
        } else {
            __syncthreads();
            if (threadIdx.x < SUMS) join_warps(threadIdx.x, warps, sums(0) + threadIdx.x, SUMS, softmaxes, group, dim, its_y);
        }
    }

    // Adds the warp's softmax of a group to its softmax of the groups before.
    __device__ void keep(Softmax &now, Vec<float, 4> (&total)[STEPS], bool is_first) const {
#pragma unroll
        for (unsigned n = 0; n < 2; n++)
#pragma unroll
            for (unsigned distance = 4; distance < 32; distance *= 2) now.sum[n] += __shfl_xor_sync(~0u, now.sum[n], distance);
        Softmax &kept = softmaxes[warp][lane % (COLUMNS / 2)];
        Vec<float, 4> *of_warp = sums(warp) + lane;
        if (!is_first) {
            Softmax all = Softmax::of(load<float, 4>(kept.most));
            const Factors factors(all, now);
            now = all;
#pragma unroll
            for (unsigned n = 0; n < STEPS; n++) {
                Vec<float, 4> before = load<float, 4>(of_warp[n * 32].at);
                factors.join(before, total[n]);
                total[n] = before;
            }
            __syncwarp();
        }
        if (lane < COLUMNS / 2) store(kept.most, Vec<float, 4>{now.most[0], now.most[1], now.sum[0], now.sum[1]});
#pragma unroll
        for (unsigned n = 0; n < STEPS; n++) store(of_warp[n * 32].at, total[n]), total[n] = {};
        now = {};
    }
};

template <typename T, unsigned DIM, unsigned BLOCKS, bool IN_PAGES, unsigned PAIRS>
__device__ inline void step_on_tensor_cores(const Sizes &of, unsigned batch, unsigned group, const T *qkv, const T *q_scale,
                                            const T *k_scale, const unsigned *start, const unsigned *pages, const float *rotary,
                                            T *cache, T *y) {
    using Its = OnTensorCores<T, DIM, BLOCKS, IN_PAGES, PAIRS>;
    extern __shared__ __align__(256) unsigned char dynamic[];
    __shared__ alignas(16) Softmax softmaxes[WARPS][COLUMNS / 2];
    const unsigned block = BLOCKS == 1 ? 0 : blockIdx.z, lane = threadIdx.x % 32;
    const Its its{of, blockIdx.x, block, group, threadIdx.x / 32, lane, dynamic, softmaxes};
    trigger_dependents();
    // Where new tokens stand, and the tokens before them: no kernel before this one writes these.
    // A block's own sequence first, if it is short; then those that all blocks of the cluster have. The first pages of a sequence, one a
    // lane, are asked for before it is known which of them are needed.
    const unsigned of_cluster = gridDim.y == batch ? 1 : BLOCKS, first = blockIdx.y * of_cluster;
    auto first_pages = [&](unsigned item) {
        return IN_PAGES && lane < of.capacity / PAGE ? pages[item * (of.capacity / PAGE) + lane] : 0;
    };
    auto is_long = [&](unsigned position) {
        return BLOCKS == 1 || Division(of, position).rounds > (of_cluster == 1 ? SHORT_ALONE : SHORT_BESIDE);
    };
    const bool is_there = lane < of_cluster && first + lane < batch;
    const unsigned its_position = is_there ? start[first + lane] : 0;
    if (block < of_cluster && first + block < batch) {
        const unsigned page = first_pages(first + block), position = start[first + block];
        if (!is_long(position)) its.attend(first + block, position, page, false, qkv, q_scale, k_scale, pages, rotary, cache, y);
    }
    for (unsigned left = __ballot_sync(~0u, is_there && is_long(its_position)); left; left &= left - 1) {
        const unsigned n = __ffs(left) - 1;
        // A sequence of the block's own may be read still.
        __syncthreads();
        const unsigned position = __shfl_sync(~0u, its_position, n), page = first_pages(first + n);
        its.attend(first + n, position, page, true, qkv, q_scale, k_scale, pages, rotary, cache, y);
        // Other blocks may still read this block's sums, which the next sequence overwrites.
        if (left & (left - 1)) {
            sync_cluster<BLOCKS>();
        } else {
            leave_cluster<BLOCKS>();
        }
    }
}

// OF_PROCESSOR blocks of a multiprocessor, for which registers and shared memory are enough: of rings of one pair more than of two. There
// is no table of distances.
#define KERNEL(T, NAME, DIM, IN_PAGES, PAIRS, OF_PROCESSOR)                                                             \
    extern "C" __global__ void CLUSTER(SHARES) __launch_bounds__(THREADS, OF_PROCESSOR)                                \
        opara_attention_cached_tensor_##NAME(unsigned batch, unsigned heads, unsigned kv_heads, unsigned group,        \
            unsigned dim, unsigned pairs, unsigned positions, unsigned capacity, unsigned window, unsigned distances,  \
            float scale, float eps, const T *qkv, const T *q_scale, const T *k_scale, const unsigned *start,           \
            const unsigned *pages, const float *rotary, const float *by_distance, T *cache, T *y) {                    \
        const Sizes of = {heads, kv_heads, dim, pairs, positions, capacity, window, distances, scale, eps};            \
        step_on_tensor_cores<T, DIM, SHARES, IN_PAGES, PAIRS>(of, batch, group, qkv, q_scale, k_scale, start, pages,   \
                                                              rotary, cache, y);                                       \
    }
#define ATTENTIONS(T, NAME)                                                                                            \
    KERNEL(T, 64_##NAME, 64, false, 2, 2)                                                                              \
    KERNEL(T, 64_many_##NAME, 64, false, 1, 3)                                                                         \
    KERNEL(T, 64_pages_##NAME, 64, true, 2, 2)                                                                         \
    KERNEL(T, 64_pages_many_##NAME, 64, true, 1, 3)                                                                    \
    KERNEL(T, 128_##NAME, 128, false, 2, 1)                                                                            \
    KERNEL(T, 128_many_##NAME, 128, false, 1, 2)                                                                       \
    KERNEL(T, 128_pages_##NAME, 128, true, 2, 1)                                                                       \
    KERNEL(T, 128_pages_many_##NAME, 128, true, 1, 2)
