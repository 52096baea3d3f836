// A chain of candle's element-wise kernels in one launch: what one of them would store, and the next one load, stays with
// the thread. Every step does what the kernel that it stands for does, in that kernel's type, so the bits are the same.
#include "numbers.cuh"

enum Type { F32, F16, BF16 };
enum Code {
    COPY, ADD, SUB, MUL, DIV, MAX, MIN, AFFINE, SQR, SQRT, NEG, ABS, RECIP, RELU, EXP, TANH, SILU, GELU, GELU_ERF
};

constexpr int LOADS = 8, STEPS = 12, STORES = 12, DIMS = 4;

// Element i of an operand: place i, or, if it has a rank, the place that dims and strides give.
struct Load {
    const void *from;
    unsigned dims[DIMS], strides[DIMS], rank, type;
};
// Operands are the numbers of loads, or of earlier steps from LOADS on.
struct Step {
    float mul, add;
    unsigned char code, type, a, b;
};
struct Store {
    void *to;
    unsigned value, type;
};
// driver/kernels/chain.rs has the same.
struct Chain {
    unsigned elements;
    unsigned char loads, steps, stores;
    Load load[LOADS];
    Step step[STEPS];
    Store store[STORES];
};
static_assert(sizeof(Chain) == 728, "as there");

__device__ inline float fused(float x, float mul, float add) { return fmaf(x, mul, add); }
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline float smaller(float a, float b) { return fminf(a, b); }
__device__ inline float root(float x) { return sqrtf(x); }
__device__ inline float magnitude(float x) { return fabsf(x); }
__device__ inline float exponential(float x) { return expf(x); }

// The 16-bit types alike. Their products and sums may be contracted, as in candle's.
#define SHORT(T)                                                                                                       \
    __device__ inline T fused(T x, T mul, T add) { return x * mul + add; }                                             \
    __device__ inline T larger(T a, T b) { return __hmax_nan(a, b); }                                                  \
    __device__ inline T smaller(T a, T b) { return __hmin_nan(a, b); }                                                 \
    __device__ inline T root(T x) { return hsqrt(x); }                                                                 \
    __device__ inline T magnitude(T x) { return __habs(x); }                                                           \
    __device__ inline T exponential(T x) { return hexp(x); }
SHORT(__half)
SHORT(__nv_bfloat16)

template <typename T> __device__ inline T number(double x) { return (T)x; }

template <typename T> __device__ inline T apply(const Step &step, T x, T y) {
    const T one = number<T>(1);
    switch (step.code) {
    case ADD: return x + y;
    case SUB: return x - y;
    case MUL: return x * y;
    case DIV: return x / y;
    case MAX: return larger(x, y);
    case MIN: return smaller(x, y);
    case AFFINE: return fused(x, narrow<T>(step.mul), narrow<T>(step.add));
    case SQR: return x * x;
    case SQRT: return root(x);
    case NEG: return -x;
    case ABS: return magnitude(x);
    case RECIP: return one / x;
    case RELU: return larger(x, number<T>(0));
    case EXP: return exponential(x);
    case TANH: return narrow<T>(tanhf(widen(x)));
    case SILU: return x / (one + exponential(-x));
    case GELU: {
        T cube = x * x * x;
        T inner = x + number<T>(0.044715) * cube;
        T slope = narrow<T>(tanhf(widen(number<T>(1.12837916709551257390 * 0.70710678118654752440) * inner)));
        return number<T>(0.5) * x * (one + slope);
    }
    case GELU_ERF: return x * narrow<T>(normcdff(widen(x)));
    default: return x;
    }
}

__device__ inline float load_as(unsigned type, const void *from, unsigned i) {
    switch (type) {
    case F16: return widen(((const __half *)from)[i]);
    case BF16: return widen(((const __nv_bfloat16 *)from)[i]);
    default: return ((const float *)from)[i];
    }
}

extern "C" __global__ void opara_chain(const __grid_constant__ Chain chain) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= chain.elements) return;
    // All types fit into this one.
    float value[LOADS + STEPS];
    for (int n = 0; n < chain.loads; n++) {
        const Load &load = chain.load[n];
        unsigned rest = i, at = load.rank ? 0 : i;
        for (int d = (int)load.rank - 1; d >= 0; d--) {
            at += rest % load.dims[d] * load.strides[d];
            rest /= load.dims[d];
        }
        value[n] = load_as(load.type, load.from, at);
    }
    for (int n = 0; n < chain.steps; n++) {
        const Step &step = chain.step[n];
        const float x = value[step.a], y = value[step.b];
        float &to = value[LOADS + n];
        switch (step.type) {
        case F16: to = widen(apply(step, narrow<__half>(x), narrow<__half>(y))); break;
        case BF16: to = widen(apply(step, narrow<__nv_bfloat16>(x), narrow<__nv_bfloat16>(y))); break;
        default: to = apply(step, x, y);
        }
    }
    for (int n = 0; n < chain.stores; n++) {
        const Store &store = chain.store[n];
        const float x = value[store.value];
        switch (store.type) {
        case F16: ((__half *)store.to)[i] = narrow<__half>(x); break;
        case BF16: ((__nv_bfloat16 *)store.to)[i] = narrow<__nv_bfloat16>(x); break;
        default: ((float *)store.to)[i] = x;
        }
    }
}
