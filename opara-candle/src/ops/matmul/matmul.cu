// Products in f32 by tensor cores, activation(x * weight^T + bias). Each is three of TF32, and the sums of 32 columns are added up
// outside of tensor cores, which round towards zero (Ootomo and Yokota, "Recovering single precision accuracy from tensor cores",
// 2022): what comes out is as near as what other cores add up one by one. Operands that cannot be split make NaN, and their
// results are computed once more without tensor cores.

// Code for other architectures has no such kernels, rather than empty ones.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#include "activation.cuh"
#include "cluster.cuh"
#include "warpgroup.cuh"

// What a block makes of y is so wide, and 64 rows high for each of its warpgroups.
constexpr unsigned ACROSS = 64;

// Of x or the weight: COUNT rows, a ROW of each at a time, as one of THREADS asks for its parts of them.
template <unsigned COUNT, unsigned THREADS> struct Matrix {
    static constexpr unsigned STEP = THREADS / PARTS;
    static_assert(STEP % 8 == 0 && COUNT % STEP == 0, "parts of a thread lie alike in their rows");
    const float *at;
    unsigned rows, columns, column, end;

    // From a row and a column on, up to `end`.
    __device__ Matrix(const float *matrix, unsigned first, unsigned all, unsigned columns, unsigned begin, unsigned end)
        : columns(columns), column(begin + threadIdx.x % PARTS * WIDE<float>), end(end) {
        const unsigned row = first + threadIdx.x / PARTS;
        rows = row < all ? all - row : 0;
        at = matrix + (size_t)row * columns + column;
    }

    // Calls `f` with each of the thread's rows, counted from its first.
    template <typename F> __device__ static void each(F f) {
#pragma unroll
        for (unsigned row = 0; row < COUNT; row += STEP) f(row);
    }

    // Asks for the next columns, zeros where there are none.
    __device__ void fill(float *room) {
        each([&](unsigned row) {
            copy_later(room + row * ROW, at + (size_t)row * columns, row < rows && column < end);
        });
        at += ROW, column += ROW;
    }
};

// N neighbours of y without tensor cores, from a row of x and N rows of the weight: each sum term by term, as f32 adds up.
template <int N>
__device__ inline Vec<float, N> without_tensor_cores(unsigned inner, const float *x, const float *weight) {
    Vec<float, N> sum{};
#pragma unroll 1
    for (unsigned column = 0; column < inner; column += N) {
        const Vec<float, N> of_x = load<float, N>(x + column);
        bool is_a_number = false;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const Vec<float, N> of_weight = load<float, N>(weight + (size_t)n * inner + column);
#pragma unroll
            for (int e = 0; e < N; e++) sum.at[n] = fmaf(of_x.at[e], of_weight.at[e], sum.at[n]);
            is_a_number |= sum.at[n] == sum.at[n];
        }
        // NaN stays, whatever is added.
        if (!is_a_number) break;
    }
    return sum;
}

// A cluster of SPLITS blocks makes the same of y, each from a part of the columns of x and the weight.
template <unsigned GROUPS, unsigned SPLITS>
__device__ inline void product(unsigned rows, unsigned columns, unsigned inner, int activation, const float *x,
                               const float *weight, const float *bias, float *y) {
    constexpr unsigned THREADS = 128 * GROUPS, DOWN = 64 * GROUPS;
    // A stage is the weight, what is beyond what tensor cores see of it, and x.
    constexpr unsigned REST = ACROSS * ROW, X = 2 * REST, STAGE = X + DOWN * ROW;
    using Down = Matrix<DOWN, THREADS>;
    using Across = Matrix<ACROSS, THREADS>;
    extern __shared__ __align__(BASE) float room[];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned row = blockIdx.y * DOWN, column = blockIdx.x * ACROSS;
    const unsigned mine = place(threadIdx.x / PARTS, threadIdx.x % PARTS);
    const unsigned steps = (inner + ROW - 1) / ROW, first = steps * blockIdx.z / SPLITS;
    const unsigned past = steps * (blockIdx.z + 1) / SPLITS, bound = min(inner, past * ROW);
    Down of_x(x, row, rows, inner, first * ROW, bound);
    Across of_weight(weight, column, columns, inner, first * ROW, bound);

    auto fill = [&](unsigned stage) {
        of_weight.fill(room + stage + mine);
        of_x.fill(room + stage + X + mine);
        commit();
    };
    // A thread takes what it has asked for itself, then all meet.
    auto split = [&](unsigned stage) {
        Across::each([&](unsigned r) {
            float *const at = room + stage + mine + r * ROW;
            Vec<float, 4> four = load<float, 4>(at);
#pragma unroll
            for (float &v : four.at) v = __uint_as_float(Halves::beyond(__float_as_uint(v)));
            store<float, 4>(at + REST, four);
        });
        publish();
        __syncthreads();
    };
    unsigned leading[4][4], rest[4][4];
    auto load_x = [&](unsigned stage) {
#pragma unroll
        for (int d = 0; d < 4; d++) {
            unsigned own[4];
            load_matrices<false>(own, room + stage + X + place(warp * 16 + lane % 16, d * 2 + lane / 16));
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const Halves halves(own[e]);
                leading[d][e] = halves.leading, rest[d][e] = halves.rest;
            }
        }
    };

    // One is multiplied, one is split, one is on its way. Behind the last columns are zeros.
    unsigned here = 0, next = STAGE, last = 2 * STAGE;
    fill(here), fill(next);
    wait_but<1>();
    split(here);
    float sum[8][4] = {}, part[8][4];
    for (unsigned step = first; step < past; step++) {
        load_x(here);
        begin();
        const unsigned long long of_leading = describe(room + here), of_rest = describe(room + here + REST);
#pragma unroll
        for (int d = 0; d < 4; d++) {
            multiply(part, rest[d], of_leading + d * EIGHT_COLUMNS, d > 0);
            multiply(part, leading[d], of_rest + d * EIGHT_COLUMNS, true);
        }
#pragma unroll
        for (int d = 0; d < 4; d++) multiply(part, leading[d], of_leading + d * EIGHT_COLUMNS, true);
        end();
        wait_but<0>();
        split(next);
        // All have met: nobody is at what was multiplied before this.
        fill(last);
        wait(part);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[n][e] += part[n][e];
        const unsigned free = here;
        here = next, next = last, last = free;
    }

    // By way of shared memory, where nobody multiplies any more: the eights of four rows in banks of their own.
    constexpr unsigned PITCH = ACROSS + 8, N = WIDE<float>;
    wait_but<0>();
    __syncthreads();
    float *const own = room + (warp * 16 + lane / 4) * PITCH + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) store<float, 2>(own + 8 * r * PITCH + n * 8, {sum[n][2 * r], sum[n][2 * r + 1]});
    meet<SPLITS>();
    with_activation(activation, [&](auto of) {
#pragma unroll 1
        for (unsigned i = blockIdx.z * THREADS + threadIdx.x; i < DOWN * ACROSS / N; i += SPLITS * THREADS) {
            const unsigned r = i / (ACROSS / N), c = i % (ACROSS / N) * N;
            if (row + r >= rows || column + c >= columns) continue;
            Vec<float, N> all = load_of<SPLITS>(0, room + r * PITCH + c), added{};
#pragma unroll
            for (unsigned split = 1; split < SPLITS; split++) {
                const Vec<float, N> some = load_of<SPLITS>(split, room + r * PITCH + c);
#pragma unroll
                for (int e = 0; e < N; e++) all.at[e] += some.at[e];
            }
            bool is_split = true;
#pragma unroll
            for (int e = 0; e < N; e++) is_split &= fabsf(all.at[e]) < SPLIT_SUM;
            if (!is_split) {
                const Vec<float, N> again = without_tensor_cores<N>(inner, x + (size_t)(row + r) * inner,
                                                                    weight + (size_t)(column + c) * inner);
#pragma unroll
                for (int e = 0; e < N; e++)
                    if (!(fabsf(all.at[e]) < SPLIT_SUM)) all.at[e] = again.at[e];
            }
            if (bias) added = load<float, N>(bias + column + c);
#pragma unroll
            for (int e = 0; e < N; e++) all.at[e] = activate<of.value>(all.at[e] + added.at[e]);
            store<float, N>(y + (size_t)(row + r) * columns + column + c, all);
        }
    });
    // Until nobody reads what is this block's.
    if (SPLITS > 1) meet<SPLITS>();
}

#define PRODUCT(GROUPS, BLOCKS, SPLITS, NAME)                                                                          \
    extern "C" __global__ void CLUSTER(SPLITS) __launch_bounds__(128 * GROUPS, BLOCKS)                                 \
        opara_product_##NAME##_f32(unsigned rows, unsigned columns, unsigned inner, int activation, const float *x,    \
                                   const float *weight, const float *bias, float *y) {                                 \
        product<GROUPS, SPLITS>(rows, columns, inner, activation, x, weight, bias, y);                                 \
    }

PRODUCT(1, 3, 1, 64x64_by1)
PRODUCT(1, 3, 2, 64x64_by2)
PRODUCT(1, 3, 4, 64x64_by4)
PRODUCT(1, 3, 8, 64x64_by8)
PRODUCT(2, 2, 1, 128x64_by1)
PRODUCT(2, 2, 2, 128x64_by2)

#endif
