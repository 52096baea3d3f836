// A chain of candle's kernels in one launch: what one of them would store, and the next one load, stays with the thread.
// Every step does what the kernel that it stands for does, in that kernel's type, and adds up in its order, so the bits are the
// same.
#include <type_traits>

#include "candle_rows.cuh"

enum Type { F32, F16, BF16 };
enum Code {
    COPY, ADD, SUB, MUL, DIV, MAX, MIN, AFFINE, SQR, SQRT, NEG, ABS, RECIP, RELU, EXP, TANH, SILU, GELU, GELU_ERF, SIGMOID,
    // Of a row: the first three make one number of it.
    ROW_SUM, ROW_MAX, ROW_MIN, SOFTMAX, LAYER_NORM, RMS_NORM
};
constexpr int STEPS = 12, DIMS = 4, SLOTS = 4, OPERANDS = 3, READS = 16;

// An operand in memory. Element i is at place i, or, if there is a rank, at the place that dims and strides give.
struct Read {
    const void *from;
    unsigned dims[DIMS], strides[DIMS];
    unsigned char type, rank;
};
// The result of the step before, then those that were saved in slots, then what is read.
enum Source { LAST, SAVED, READ = SAVED + SLOTS };
// Small: a launch finds none of this in a cache.
struct Step {
    void *to; // May be null.
    // Of a norm the first is what keeps its divisor from zero, of a sum how many neighbours a thread takes.
    float mul, add;
    unsigned char code, type, operands, source[OPERANDS], slot; // A slot beyond the last is none.
    unsigned char numbers; // One of each row, instead of each element, is what it TAKES, or MAKES.
};
constexpr unsigned char TAKES = 1, MAKES = 2;
// driver/kernels/chain.rs has the same.
struct Chain {
    unsigned elements, columns, steps, reads; // Columns of a row, where a block makes one.
    Step step[STEPS];
    Read read[READS];
};
static_assert(sizeof(Chain) == 1072, "as there");

// x becomes the result. All types fit into f32.
template <typename T, int N> __device__ inline void apply(const Step &step, float (&xs)[N], const float (&ys)[N]) {
#define EACH(result)                                                                                                   \
    _Pragma("unroll") for (int n = 0; n < N; n++) {                                                                    \
        const T x = narrow<T>(xs[n]), y = narrow<T>(ys[n]);                                                            \
        xs[n] = widen((T)(result));                                                                                    \
    }                                                                                                                  \
    break
    const T one = (T)1.0, zero = (T)0.0, mul = narrow<T>(step.mul), add = narrow<T>(step.add);
    switch (step.code) {
    case ADD: EACH(x + y);
    case SUB: EACH(x - y);
    case MUL: EACH(x * y);
    case DIV: EACH(x / y);
    case MAX: EACH(larger(x, y));
    case MIN: EACH(smaller(x, y));
    case AFFINE: EACH(scaled(x, mul, add));
    case SQR: EACH(x * x);
    case SQRT: EACH(root(x));
    case NEG: EACH(-x);
    case ABS: EACH(magnitude(x));
    case RECIP: EACH(one / x);
    case RELU: EACH(larger(x, zero));
    case EXP: EACH(exponential(x));
    case TANH: EACH(narrow<T>(tanhf(widen(x))));
    case SILU: EACH(x / (one + exponential(-x)));
    case GELU: EACH(gelu(x));
    case GELU_ERF: EACH(x * narrow<T>(normcdff(widen(x))));
    case SIGMOID: EACH(one / (one + exponential(-x)));
    default: EACH(x);
    }
#undef EACH
}

// N elements of a thread, some of which may be beyond the last.
template <int N> struct Elements {
    unsigned first, apart, end;

    __device__ unsigned element(int n) const { return min(first + n * apart, end - 1); }

    template <typename T> __device__ void load(const Read &read, float (&to)[N]) const {
        unsigned at[N];
#pragma unroll
        for (int n = 0; n < N; n++) at[n] = element(n);
        if (read.rank > 0) {
            unsigned rest[N];
#pragma unroll
            for (int n = 0; n < N; n++) rest[n] = at[n], at[n] = 0;
#pragma unroll 1
            for (int d = read.rank - 1; d > 0; d--) {
                const unsigned dim = read.dims[d], stride = read.strides[d];
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const unsigned outer = rest[n] / dim;
                    at[n] += (rest[n] - outer * dim) * stride;
                    rest[n] = outer;
                }
            }
#pragma unroll
            for (int n = 0; n < N; n++) at[n] += rest[n] * read.strides[0];
        }
#pragma unroll
        for (int n = 0; n < N; n++) to[n] = widen(((const T *)read.from)[at[n]]);
    }

    __device__ void load(const Read &read, float (&to)[N]) const {
        if (read.type == F16) load<__half>(read, to);
        else if (read.type == BF16) load<__nv_bfloat16>(read, to);
        else load<float>(read, to);
    }

    template <typename T> __device__ void store(const float (&from)[N], void *to) const {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const unsigned i = first + n * apart;
            if (i < end) ((T *)to)[i] = narrow<T>(from[n]);
        }
    }
};

template <int N> __device__ inline void copy(float (&to)[N], const float (&from)[N]) {
#pragma unroll
    for (int n = 0; n < N; n++) to[n] = from[n];
}

// A step in the arithmetic of a type. `mine` are the elements that it makes.
template <typename T, int N, bool ROWS>
__device__ inline void make(const Step &step, const Elements<N> &mine, unsigned columns, float (&xs)[N],
                            const float (&ys)[N], const float (&zs)[N]) {
    if constexpr (ROWS) {
        switch (step.code) {
        case ROW_SUM:
            if constexpr (std::is_same_v<T, __half>) candle_fold<CandleSum, T>(xs, columns);
            else candle_sum<T>(xs, columns, step.mul);
            break;
        case ROW_MAX: candle_fold<CandleMax, T>(xs, columns); break;
        case ROW_MIN: candle_fold<CandleMin, T>(xs, columns); break;
        case SOFTMAX: candle_softmax<T>(xs, columns); break;
        case LAYER_NORM: candle_layer_norm<T>(xs, ys, zs, columns, step.mul); break;
        case RMS_NORM: candle_rms_norm<T>(xs, ys, columns, step.mul); break;
        default: apply<T>(step, xs, ys);
        }
    } else {
        apply<T>(step, xs, ys);
    }
    if (step.to) mine.template store<T>(xs, step.to);
}

template <int N, bool ROWS> __device__ inline void run(const Chain &chain) {
    const unsigned first = ROWS ? blockIdx.x * chain.columns : blockIdx.x * blockDim.x * N;
    const Elements<N> elements = {first + threadIdx.x, blockDim.x, ROWS ? first + chain.columns : chain.elements};
    // All threads take the row's number, and one stores it.
    const Elements<N> number = {blockIdx.x, 0, blockIdx.x + 1}, own = {blockIdx.x + threadIdx.x, 1, blockIdx.x + 1};
    float last[N] = {}, saved[SLOTS][N] = {};
#pragma unroll 1
    for (int s = 0; s < chain.steps; s++) {
        const Step step = chain.step[s];
        float values[OPERANDS][N] = {};
#pragma unroll
        for (int o = 0; o < (ROWS ? OPERANDS : 2); o++) {
            if (o >= step.operands) break;
            const unsigned source = step.source[o];
            if (source >= READ) {
                (ROWS && step.numbers & TAKES ? number : elements).load(chain.read[source - READ], values[o]);
            } else {
                copy(values[o], last);
#pragma unroll
                for (int slot = 0; slot < SLOTS; slot++)
                    if (source == SAVED + slot) copy(values[o], saved[slot]);
            }
        }
        copy(last, values[0]);
        const Elements<N> made = ROWS && step.numbers & MAKES ? own : elements;
        if (step.type == F16) make<__half, N, ROWS>(step, made, chain.columns, last, values[1], values[2]);
        else if (step.type == BF16) make<__nv_bfloat16, N, ROWS>(step, made, chain.columns, last, values[1], values[2]);
        else make<float, N, ROWS>(step, made, chain.columns, last, values[1], values[2]);
        if (step.slot >= SLOTS) continue;
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++)
            if (step.slot == slot) copy(saved[slot], last);
    }
}

extern "C" __global__ void opara_chain(const __grid_constant__ Chain chain) { run<1, false>(chain); }
extern "C" __global__ void opara_chain4(const __grid_constant__ Chain chain) { run<4, false>(chain); }
// A block makes a row, a thread four elements of it.
extern "C" __global__ void __launch_bounds__(1024) opara_chain_rows(const __grid_constant__ Chain chain) {
    run<4, true>(chain);
}
