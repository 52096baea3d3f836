// f32 GEMM on tensor cores: y = activation(x * weight^T + bias + residual), where the rows of x may be the elements under
// the windows of a convolution. Every product is three TF32 products, and partial sums over 32 columns are accumulated in
// f32 outside the tensor cores, which round towards zero (Ootomo and Yokota, "Recovering single precision accuracy from
// tensor cores", 2022). What they cut off on average is added again. The result is at least as accurate as an f32 GEMM on
// CUDA cores. Operands that cannot be split give NaN; those results are recomputed without tensor cores.

// For other architectures no kernels are compiled, rather than empty ones.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#include "activation.cuh"
#include "cluster.cuh"
#include "warpgroup.cuh"

// Columns of the output tile of a block. It has 64 rows per warpgroup.
constexpr unsigned TILE_COLUMNS = 64;

// Columns of an operand's tile in shared memory.
constexpr unsigned ROW = LINE<float>;

// Adds what tensor cores cut off a sum on average: in each step half of the last bit of 32 columns. Of one result that is
// less than other errors are, but all results of all layers are too small, and such errors add up where roundings do not.
// Sums that end in zeros are exact, as those of small whole numbers are, and stay so.
__device__ inline float with_cut_off(float sum) {
    const float more = fmaf(sum, 1.5f * 0x1p-24f, sum);
    return (__float_as_uint(sum) & 0xff) == 0 ? sum : more;
}

// Rows of `columns` elements.
struct Matrix {
    const float *at;
    unsigned rows, columns;

    // Four elements of a row.
    __device__ Vec<float, 4> four(unsigned row, unsigned column) const {
        return load<float, 4>(at + (size_t)row * columns + column);
    }
};

// The elements of images, (batch, h, w, channels), under each window, as rows: for each row and column of a window its
// channels, which are multiples of four. They are zeros outside of the image. Windows are counted in the order of the
// result, (batch, down, right).
struct Windows {
    const float *at;
    unsigned rows, h, w, channels, taps, stride, dilation, top, left, down, right;

    // Where a window begins: the image, and a row and a column of it, which may be outside.
    struct Place {
        unsigned image;
        int row, column;
    };
    __device__ Place place(unsigned window) const {
        const unsigned line = window / right;
        return {line / down, (int)(line % down * stride) - (int)top, (int)(window % right * stride) - (int)left};
    }
    // The element that such a place, and a row and a column of a window, stand for; images have less than 2^31.
    __device__ int element(const Place &from) const {
        return ((int)(from.image * h) + from.row) * (int)(w * channels) + from.column * (int)channels;
    }
    __device__ bool is_inside(int row, int column) const { return (unsigned)row < h && (unsigned)column < w; }

    __device__ Vec<float, 4> four(unsigned window, unsigned element_of_row) const {
        const unsigned tap = element_of_row / channels;
        const Place first = place(window);
        const Place under{first.image, first.row + (int)(tap / taps * dilation), first.column + (int)(tap % taps * dilation)};
        if (!is_inside(under.row, under.column)) return {};
        return load<float, 4>(at + element(under) + element_of_row % channels);
    }
};

// Copies tiles of COUNT rows and ROW columns of a matrix to shared memory. Each of THREADS threads copies its own 16-byte
// chunks.
template <unsigned COUNT, unsigned THREADS> struct Rows {
    static constexpr unsigned STEP = THREADS / CHUNKS;
    static_assert(STEP % 8 == 0 && COUNT % STEP == 0, "a thread's chunks have the same swizzle in all of its rows");

    // The column of the thread's chunk, and its first row.
    __device__ static unsigned column() { return threadIdx.x % CHUNKS * WIDE<float>; }
    __device__ static unsigned first_row() { return threadIdx.x / CHUNKS; }

    // Calls f with the offset of each of the thread's rows from its first.
    template <typename F> __device__ static void each(F f) {
#pragma unroll
        for (unsigned row = 0; row < COUNT; row += STEP) f(row);
    }
};

// The tile begins at row `first` and at column `begin`; columns from `end` on count as zeros.
template <unsigned COUNT, unsigned THREADS, typename M> struct TileLoader;

template <unsigned COUNT, unsigned THREADS> struct TileLoader<COUNT, THREADS, Matrix> : Rows<COUNT, THREADS> {
    const float *at;
    unsigned rows, columns, next, end;

    __device__ TileLoader(const Matrix &of, unsigned first, unsigned begin, unsigned end)
        : columns(of.columns), next(begin + this->column()), end(end) {
        const unsigned row = first + this->first_row();
        rows = row < of.rows ? of.rows - row : 0;
        at = of.at + (size_t)row * columns + next;
    }

    // Starts the asynchronous copy of the next ROW columns, with zeros outside the matrix.
    __device__ void fill(float *room) {
        this->each([&](unsigned row) {
            copy_async(room + row * ROW, at + (size_t)row * columns, row < rows && next < end);
        });
        at += ROW, next += ROW;
    }
};

template <unsigned COUNT, unsigned THREADS> struct TileLoader<COUNT, THREADS, Windows> : Rows<COUNT, THREADS> {
    using Rows<COUNT, THREADS>::STEP;
    const Windows &of;
    // Of each row: where its window begins. A row that is not there begins far outside.
    int element[COUNT / STEP], row[COUNT / STEP], column_of[COUNT / STEP];
    // The next element of a row, and the row and column of a window and the channel that it is.
    unsigned next, end, down, right, channel;

    __device__ TileLoader(const Windows &of, unsigned first, unsigned begin, unsigned end)
        : of(of), next(begin + this->column()), end(end) {
        const unsigned tap = next / of.channels;
        channel = next % of.channels, down = tap / of.taps, right = tap % of.taps;
        this->each([&](unsigned at) {
            constexpr int FAR = -(1 << 30);
            const unsigned window = first + this->first_row() + at;
            const Windows::Place place = of.place(window);
            const bool is_there = window < of.rows;
            element[at / STEP] = is_there ? of.element(place) : 0;
            row[at / STEP] = is_there ? place.row : FAR, column_of[at / STEP] = place.column;
        });
    }

    __device__ void fill(float *room) {
        const int lower = down * of.dilation, farther = right * of.dilation;
        const int from_first = (lower * (int)of.w + farther) * (int)of.channels + (int)channel;
        this->each([&](unsigned at) {
            const unsigned n = at / STEP;
            const bool is_there = next < end && of.is_inside(row[n] + lower, column_of[n] + farther);
            copy_async(room + at * ROW, of.at + (is_there ? element[n] + from_first : 0), is_there);
        });
        next += ROW, channel += ROW;
        while (channel >= of.channels) {
            channel -= of.channels;
            if (++right == of.taps) right = 0, down++;
        }
    }
};

// N contiguous elements of y without tensor cores, from one row of x and N rows of the weight. Each sum is accumulated
// in f32, term by term.
template <int N, typename X>
__device__ inline Vec<float, N> without_tensor_cores(unsigned inner, const X &x, unsigned row, const float *weight) {
    Vec<float, N> sum{};
#pragma unroll 1
    for (unsigned column = 0; column < inner; column += N) {
        const Vec<float, N> of_x = x.four(row, column);
        bool is_a_number = false;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const Vec<float, N> of_weight = load<float, N>(weight + (size_t)n * inner + column);
#pragma unroll
            for (int e = 0; e < N; e++) sum.at[n] = fmaf(of_x.at[e], of_weight.at[e], sum.at[n]);
            is_a_number |= sum.at[n] == sum.at[n];
        }
        // Once all N sums are NaN, nothing can change them.
        if (!is_a_number) break;
    }
    return sum;
}

// The SPLITS blocks of a cluster compute the same tile of y (K-split): each accumulates over a part of the columns of x
// and of the weight.
template <unsigned GROUPS, unsigned SPLITS, typename X>
__device__ inline void product(unsigned columns, unsigned inner, int activation, const X &x, const float *weight,
                               const float *bias, const float *residual, float *y) {
    constexpr unsigned THREADS = 128 * GROUPS, TILE_ROWS = 64 * GROUPS;
    // A stage holds the high and the low parts of a tile of the weight, and a tile of x.
    constexpr unsigned LOW = TILE_COLUMNS * ROW, OF_X = 2 * LOW, STAGE = OF_X + TILE_ROWS * ROW;
    using XTile = TileLoader<TILE_ROWS, THREADS, X>;
    using WeightTile = TileLoader<TILE_COLUMNS, THREADS, Matrix>;
    extern __shared__ __align__(BASE) float room[];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned row = blockIdx.y * TILE_ROWS, column = blockIdx.x * TILE_COLUMNS;
    const unsigned my_chunk = swizzled<float>(threadIdx.x / CHUNKS, threadIdx.x % CHUNKS);
    const unsigned steps = (inner + ROW - 1) / ROW, first = steps * blockIdx.z / SPLITS;
    const unsigned past = steps * (blockIdx.z + 1) / SPLITS, bound = min(inner, past * ROW);
    XTile of_x(x, row, first * ROW, bound);
    WeightTile of_weight({weight, columns, inner}, column, first * ROW, bound);

    auto fill = [&](unsigned stage) {
        of_weight.fill(room + stage + my_chunk);
        of_x.fill(room + stage + OF_X + my_chunk);
        commit();
    };
    // Splits the weight tile; the high parts take its place. Tensor cores would cut a number off instead of rounding it, and
    // the products of low parts, which are left out, would be twice as large. A thread reads and writes only chunks that
    // it copied itself; the barrier then publishes all of them.
    auto split = [&](unsigned stage) {
        WeightTile::each([&](unsigned r) {
            float *const at = room + stage + my_chunk + r * ROW;
            Vec<float, 4> high = load<float, 4>(at), low;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const Tf32Split parts(__float_as_uint(high.at[e]));
                high.at[e] = __uint_as_float(parts.high), low.at[e] = __uint_as_float(parts.low);
            }
            store<float, 4>(at, high), store<float, 4>(at + LOW, low);
        });
        fence_shared_writes();
        __syncthreads();
    };
    unsigned high[4][4], low[4][4];
    auto load_x = [&](unsigned stage) {
#pragma unroll
        for (int d = 0; d < 4; d++) {
            unsigned own[4];
            ldmatrix<false>(own, room + stage + OF_X + swizzled<float>(warp * 16 + lane % 16, d * 2 + lane / 16));
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const Tf32Split parts(own[e]);
                high[d][e] = parts.high, low[d][e] = parts.low;
            }
        }
    };

    // Three stages in flight: one is multiplied, one is split, one is being copied. Past the last column the tiles are
    // zero.
    unsigned current = 0, next = STAGE, loading = 2 * STAGE;
    fill(current), fill(next);
    wait_pending<1>();
    split(current);
    float sum[8][4] = {}, part[8][4];
    for (unsigned step = first; step < past; step++) {
        load_x(current);
        wgmma_fence();
        const unsigned long long high_of_weight = matrix_descriptor(room + current);
        const unsigned long long low_of_weight = matrix_descriptor(room + current + LOW);
#pragma unroll
        for (int d = 0; d < 4; d++) {
            wgmma(part, low[d], high_of_weight + d * ONE_OPERAND, d > 0);
            wgmma(part, high[d], low_of_weight + d * ONE_OPERAND, true);
        }
#pragma unroll
        for (int d = 0; d < 4; d++) wgmma(part, high[d], high_of_weight + d * ONE_OPERAND, true);
        wgmma_commit();
        wait_pending<0>();
        split(next);
        // The barrier in `split` has passed: no warp still reads the stage multiplied before this one, so it can be
        // refilled.
        fill(loading);
        wgmma_wait(part);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[n][e] += part[n][e];
        const unsigned free = current;
        current = next, next = loading, loading = free;
    }

    // The epilogue goes through shared memory, which no warp uses for operands any more. The padding of 8 floats per
    // row puts the eight-float groups of four rows into different banks.
    constexpr unsigned PITCH = TILE_COLUMNS + 8, N = WIDE<float>;
    wait_pending<0>();
    __syncthreads();
    float *const own = room + (warp * 16 + lane / 4) * PITCH + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) store<float, 2>(own + 8 * r * PITCH + n * 8, {sum[n][2 * r], sum[n][2 * r + 1]});
    sync_cluster<SPLITS>();
    // Calls f with row and column in the tile, and the sums, of each N elements that this thread stores.
    auto each_sum = [&](auto f) {
#pragma unroll 1
        for (unsigned i = blockIdx.z * THREADS + threadIdx.x; i < TILE_ROWS * TILE_COLUMNS / N; i += SPLITS * THREADS) {
            const unsigned r = row + i / (TILE_COLUMNS / N), c = column + i % (TILE_COLUMNS / N) * N;
            if (r >= x.rows || c >= columns) continue;
            const unsigned at = (r - row) * PITCH + (c - column);
            Vec<float, N> all = load_from_block<SPLITS>(0, room + at);
#pragma unroll
            for (unsigned split = 1; split < SPLITS; split++) {
                const Vec<float, N> some = load_from_block<SPLITS>(split, room + at);
#pragma unroll
                for (int e = 0; e < N; e++) all.at[e] += some.at[e];
            }
#pragma unroll
            for (int e = 0; e < N; e++) all.at[e] = with_cut_off(all.at[e]);
            f(r, c, all);
        }
    };
    with_activation(activation, [&](auto of) {
        auto finish = [&](unsigned r, unsigned c, Vec<float, N> all) {
            Vec<float, N> added{};
            if (bias) added = load<float, N>(bias + c);
            if (residual) {
                const Vec<float, N> more = load<float, N>(residual + (size_t)r * columns + c);
#pragma unroll
                for (int e = 0; e < N; e++) added.at[e] += more.at[e];
            }
#pragma unroll
            for (int e = 0; e < N; e++) all.at[e] = activate<of.value>(all.at[e] + added.at[e]);
            store<float, N>(y + (size_t)r * columns + c, all);
        };
        float largest = 0;
        each_sum([&](unsigned r, unsigned c, const Vec<float, N> &all) {
#pragma unroll
            for (int e = 0; e < N; e++) largest = max_nan(largest, fabsf(all.at[e]));
            finish(r, c, all);
        });
        // Operands that could not be split are rare. A second pass over the sums keeps them out of the first one's loop.
        if (largest < SPLIT_SUM) return;
        each_sum([&](unsigned r, unsigned c, Vec<float, N> all) {
            bool is_split = true;
#pragma unroll
            for (int e = 0; e < N; e++) is_split &= fabsf(all.at[e]) < SPLIT_SUM;
            if (is_split) return;
            const Vec<float, N> again = without_tensor_cores<N>(inner, x, r, weight + (size_t)c * inner);
#pragma unroll
            for (int e = 0; e < N; e++)
                if (!(fabsf(all.at[e]) < SPLIT_SUM)) all.at[e] = again.at[e];
            finish(r, c, all);
        });
    });
    // Keep this block's shared memory alive until all blocks of the cluster have read it.
    leave_cluster<SPLITS>();
}

#define KERNEL(GROUPS, BLOCKS, SPLITS) extern "C" __global__ void CLUSTER(SPLITS) __launch_bounds__(128 * GROUPS, BLOCKS)

#define PRODUCT(GROUPS, BLOCKS, SPLITS, NAME)                                                                          \
    KERNEL(GROUPS, BLOCKS, SPLITS)                                                                                     \
    opara_matmul_product_##NAME##_f32(unsigned rows, unsigned columns, unsigned inner, int activation, const float *x, \
                               const float *weight, const float *bias, float *y) {                                     \
        product<GROUPS, SPLITS>(columns, inner, activation, Matrix{x, rows, inner}, weight, bias, nullptr, y);         \
    }                                                                                                                  \
    KERNEL(GROUPS, BLOCKS, SPLITS)                                                                                     \
    opara_convolution_##NAME##_f32(unsigned rows, unsigned columns, unsigned inner, int activation, unsigned h,        \
                                   unsigned w, unsigned channels, unsigned taps, unsigned stride, unsigned dilation,   \
                                   unsigned top, unsigned left, unsigned down, unsigned right, const float *x,         \
                                   const float *weight, const float *bias, const float *residual, float *y) {          \
        const Windows windows{x, rows, h, w, channels, taps, stride, dilation, top, left, down, right};                \
        product<GROUPS, SPLITS>(columns, inner, activation, windows, weight, bias, residual, y);                       \
    }

PRODUCT(1, 3, 1, 64x64_by1)
PRODUCT(1, 3, 2, 64x64_by2)
PRODUCT(1, 3, 4, 64x64_by4)
PRODUCT(1, 3, 8, 64x64_by8)
PRODUCT(2, 2, 1, 128x64_by1)
PRODUCT(2, 2, 2, 128x64_by2)

#endif
