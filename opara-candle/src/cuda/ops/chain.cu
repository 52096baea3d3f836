// A chain of candle's element-wise kernels in one launch: what one of them would store, and the next one load, stays with
// the thread. Every step does what the kernel that it stands for does, in that kernel's type, so the bits are the same.
#include "numbers.cuh"

enum Type { F32, F16, BF16 };
enum Code {
    COPY, ADD, SUB, MUL, DIV, MAX, MIN, AFFINE, SQR, SQRT, NEG, ABS, RECIP, RELU, EXP, TANH, SILU, GELU, GELU_ERF, SIGMOID
};
// The result of the step before, one that was saved, or memory.
enum Source { LAST, SAVED, MEMORY };

constexpr int STEPS = 12, DIMS = 4, SLOTS = 4;

// Element i is at place i, or, if there is a rank, at the place that dims and strides give.
struct Operand {
    const void *from;
    unsigned dims[DIMS], strides[DIMS];
    unsigned char source, slot, type, rank;
};
struct Step {
    Operand operand[2];
    void *to; // May be null.
    float mul, add;
    unsigned char code, type, operands, slot; // A slot beyond the last is none.
};
// driver/kernels/chain.rs has the same.
struct Chain {
    unsigned elements, steps;
    Step step[STEPS];
};
static_assert(sizeof(Chain) == 1448, "as there");

__device__ inline float scaled(float x, float mul, float add) { return fmaf(x, mul, add); }
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline float smaller(float a, float b) { return fminf(a, b); }
__device__ inline float root(float x) { return sqrtf(x); }
__device__ inline float magnitude(float x) { return fabsf(x); }
__device__ inline float exponential(float x) { return expf(x); }

// The 16-bit types alike. A product and its sum may be contracted, as in candle's.
#define OF_16_BITS(T)                                                                                                  \
    __device__ inline T scaled(T x, T mul, T add) { return x * mul + add; }                                            \
    __device__ inline T larger(T a, T b) { return __hmax_nan(a, b); }                                                  \
    __device__ inline T smaller(T a, T b) { return __hmin_nan(a, b); }                                                 \
    __device__ inline T root(T x) { return hsqrt(x); }                                                                 \
    __device__ inline T magnitude(T x) { return __habs(x); }                                                           \
    __device__ inline T exponential(T x) { return hexp(x); }
OF_16_BITS(__half)
OF_16_BITS(__nv_bfloat16)

template <typename T> __device__ inline T gelu(T x) {
    T cube = x * x * x;
    T inner = x + (T)0.044715 * cube;
    return (T)0.5 * x * ((T)1.0 + narrow<T>(tanhf(widen((T)(1.12837916709551257390 * 0.70710678118654752440) * inner))));
}

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

// N elements of a thread, a block apart.
template <int N> struct Elements {
    unsigned first, apart, count;

    template <typename T> __device__ void load(const Operand &operand, float (&to)[N]) const {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const unsigned i = min(first + n * apart, count - 1);
            unsigned rest = i, at = operand.rank ? 0 : i;
            for (int d = (int)operand.rank - 1; d >= 0; d--) {
                at += rest % operand.dims[d] * operand.strides[d];
                rest /= operand.dims[d];
            }
            to[n] = widen(((const T *)operand.from)[at]);
        }
    }

    template <typename T> __device__ void store(const float (&from)[N], void *to) const {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const unsigned i = first + n * apart;
            if (i < count) ((T *)to)[i] = narrow<T>(from[n]);
        }
    }
};

template <int N> __device__ inline void copy(float (&to)[N], const float (&from)[N]) {
#pragma unroll
    for (int n = 0; n < N; n++) to[n] = from[n];
}

template <int N> __device__ inline void run(const Chain &chain) {
    const Elements<N> mine = {blockIdx.x * blockDim.x * N + threadIdx.x, blockDim.x, chain.elements};
    float last[N] = {}, saved[SLOTS][N] = {};
    for (int s = 0; s < chain.steps; s++) {
        const Step &step = chain.step[s];
        float values[2][N] = {};
#pragma unroll
        for (int o = 0; o < 2; o++) {
            if (o >= step.operands) continue;
            const Operand &operand = step.operand[o];
            if (operand.source == LAST) {
                copy(values[o], last);
            } else if (operand.source == SAVED) {
#pragma unroll
                for (int slot = 0; slot < SLOTS; slot++)
                    if (operand.slot == slot) copy(values[o], saved[slot]);
            } else if (operand.type == F16) {
                mine.template load<__half>(operand, values[o]);
            } else if (operand.type == BF16) {
                mine.template load<__nv_bfloat16>(operand, values[o]);
            } else {
                mine.template load<float>(operand, values[o]);
            }
        }
        copy(last, values[0]);
        if (step.type == F16) {
            apply<__half>(step, last, values[1]);
            if (step.to) mine.template store<__half>(last, step.to);
        } else if (step.type == BF16) {
            apply<__nv_bfloat16>(step, last, values[1]);
            if (step.to) mine.template store<__nv_bfloat16>(last, step.to);
        } else {
            apply<float>(step, last, values[1]);
            if (step.to) mine.template store<float>(last, step.to);
        }
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++)
            if (step.slot == slot) copy(saved[slot], last);
    }
}

extern "C" __global__ void opara_chain(const __grid_constant__ Chain chain) { run<1>(chain); }
extern "C" __global__ void opara_chain4(const __grid_constant__ Chain chain) { run<4>(chain); }
