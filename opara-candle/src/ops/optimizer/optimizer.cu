// Optimizers: see `rule.rs`. Every operation is rounded as candle's operators round it, each of which is a kernel of its own.
#include "candle.cuh"

constexpr unsigned SUMS = 64;

// Places in the control block, as in `rule.rs`.
enum Place {
    STEPS, BASE, RATE, FIRST, SECOND, FACTOR, NORM, MAX_NORM, BETA1, BETA2, SCHEDULE, WARM_UP, TOTAL, REMAINS, IS_SKIPPED, SKIPPED
};

__device__ inline double scaled(double x, double mul, double add) { return fma(x, mul, add); }
__device__ inline double root(double x) { return sqrt(x); }
__device__ inline double mul_rn(double a, double b) { return __dmul_rn(a, b); }

__device__ inline float add_rn(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double add_rn(double a, double b) { return __dadd_rn(a, b); }
__device__ inline __half add_rn(__half a, __half b) { return __hadd_rn(a, b); }
__device__ inline __nv_bfloat16 add_rn(__nv_bfloat16 a, __nv_bfloat16 b) { return __hadd_rn(a, b); }
__device__ inline float sub_rn(float a, float b) { return __fsub_rn(a, b); }
__device__ inline double sub_rn(double a, double b) { return __dsub_rn(a, b); }
__device__ inline __half sub_rn(__half a, __half b) { return __hsub_rn(a, b); }
__device__ inline __nv_bfloat16 sub_rn(__nv_bfloat16 a, __nv_bfloat16 b) { return __hsub_rn(a, b); }

// A number of the host's f64, rounded once.
template <typename T> __device__ inline T number(double x) { return x; }
template <> __device__ inline __half number<__half>(double x) { return __double2half(x); }
template <> __device__ inline __nv_bfloat16 number<__nv_bfloat16>(double x) { return __double2bfloat16(x); }

// candle's `affine` without an addend.
template <typename T> __device__ inline T times(T x, T by) { return scaled(x, by, number<T>(0)); }

// x to the power of a number of steps, by the same products as Rust's `powi`.
__device__ inline double power(double x, int n) {
    double y = 1;
    for (; n > 0; n /= 2, x *= x)
        if (n % 2) y *= x;
    return y;
}

__device__ inline double of_rate(const double *control) {
    const double at = control[STEPS] - 1, warm_up = control[WARM_UP], remains = control[REMAINS];
    if (at < warm_up) return (at + 1) / warm_up;
    const double done = fmin((at - warm_up) / fmax(control[TOTAL] - warm_up, 1.), 1.);
    switch ((int)control[SCHEDULE]) {
    case 1: return remains + (1 - remains) * (1 - done);
    case 2: return remains + (1 - remains) * 0.5 * (1 + cos(3.14159265358979323846 * done));
    case 3: return sqrt(fmax(warm_up, 1.) / fmax(at + 1, 1.));
    default: return 1;
    }
}

// One block, in a fixed order.
extern "C" __global__ void opara_elementwise_optimizer_tick_f64(unsigned count, const double *sums, double *control) {
    __shared__ double room[256];
    double sum = 0;
    for (unsigned i = threadIdx.x; i < count; i += 256) sum += sums[i];
    room[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) room[threadIdx.x] += room[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x > 0) return;
    const double norm = sqrt(room[0]);
    control[NORM] = norm;
    const bool is_skipped = control[MAX_NORM] > 0 && !(norm <= 1.7976931348623157e308);
    control[IS_SKIPPED] = is_skipped;
    if (is_skipped) {
        control[SKIPPED] += 1;
        return;
    }
    control[FACTOR] = control[MAX_NORM] > 0 && norm > control[MAX_NORM] ? control[MAX_NORM] / norm : 1;
    control[STEPS] += 1;
    control[FIRST] = 1 / (1 - power(control[BETA1], control[STEPS]));
    control[SECOND] = 1 / (1 - power(control[BETA2], control[STEPS]));
    control[RATE] = control[BASE] * of_rate(control);
}

// A sum for each block.
template <typename T> __device__ inline void square_sums(unsigned numel, const T *gradient, double *sums) {
    __shared__ double room[256];
    double sum = 0;
    for (unsigned i = blockIdx.x * 256 + threadIdx.x; i < numel; i += SUMS * 256) {
        const double g = widen(gradient[i]);
        sum = fma(g, g, sum);
    }
    room[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) room[threadIdx.x] += room[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = room[0];
}

// Loads the elements of this thread, changes each by `change`, and stores values and moments.
template <int MOMENTS, typename T, typename F>
__device__ inline void change(unsigned numel, const T *gradient, T *value, T *moments, F of) {
    constexpr int N = WIDE<T>;
    const bool vectors = are_aligned(gradient, value, moments) && numel % N == 0;
    const auto at = ThreadElements::of<N>(numel, vectors);
    if (vectors) {
        if (!at.count) return;
        const Vec<T, N> g = load<T, N>(gradient + at.first);
        Vec<T, N> p = load<T, N>(value + at.first), m[MOMENTS + 1];
#pragma unroll
        for (int k = 0; k < MOMENTS; k++) m[k] = load<T, N>(moments + (size_t)k * numel + at.first);
#pragma unroll
        for (int n = 0; n < N; n++) {
            T own[MOMENTS + 1];
#pragma unroll
            for (int k = 0; k < MOMENTS; k++) own[k] = m[k].at[n];
            p.at[n] = of(p.at[n], g.at[n], own);
#pragma unroll
            for (int k = 0; k < MOMENTS; k++) m[k].at[n] = own[k];
        }
        store<T, N>(value + at.first, p);
#pragma unroll
        for (int k = 0; k < MOMENTS; k++) store<T, N>(moments + (size_t)k * numel + at.first, m[k]);
        return;
    }
    for (unsigned n = 0; n < at.count; n++) {
        const unsigned i = at.first + n * at.step;
        T own[MOMENTS + 1];
#pragma unroll
        for (int k = 0; k < MOMENTS; k++) own[k] = moments[(size_t)k * numel + i];
        value[i] = of(value[i], gradient[i], own);
#pragma unroll
        for (int k = 0; k < MOMENTS; k++) moments[(size_t)k * numel + i] = own[k];
    }
}

// The numbers of a launch, in the element type.
template <typename T> struct Numbers {
    T factor, rate, decay, kept, first, second;

    __device__ Numbers(const double *control, double decay, double rate)
        : factor(number<T>(control[FACTOR])), rate(number<T>(control[RATE] * rate)), decay(number<T>(decay)),
          kept(number<T>(1 - __dmul_rn(__dmul_rn(control[RATE], rate), decay))), first(number<T>(control[FIRST])),
          second(number<T>(control[SECOND])) {}

    // With the decay of values, where that belongs to the gradient.
    __device__ T gradient(T g, T value) const { return add_rn(times(g, factor), times(value, decay)); }
};

template <typename T>
__device__ inline void descend(unsigned numel, double decay, double rate, const double *control, const T *gradient, T *value) {
    if (control[IS_SKIPPED] != 0) return;
    const Numbers<T> of(control, decay, rate);
    change<0>(numel, gradient, value, (T *)nullptr,
              [&](T p, T g, T *) { return sub_rn(p, times(of.gradient(g, p), of.rate)); });
}

template <typename T>
__device__ inline void roll(unsigned numel, int is_nesterov, double momentum, double decay, double rate, const double *control,
                            const T *gradient, T *value, T *moments) {
    if (control[IS_SKIPPED] != 0) return;
    const Numbers<T> of(control, decay, rate);
    const T kept = number<T>(momentum);
    change<1>(numel, gradient, value, moments, [&](T p, T g, T *m) {
        g = of.gradient(g, p);
        m[0] = add_rn(times(m[0], kept), g);
        return sub_rn(p, times(is_nesterov ? add_rn(g, times(m[0], kept)) : m[0], of.rate));
    });
}

template <typename T>
__device__ inline void adapt(unsigned numel, int is_decoupled, double beta1, double beta2, double eps, double decay, double rate,
                             const double *control, const T *gradient, T *value, T *moments) {
    if (control[IS_SKIPPED] != 0) return;
    const Numbers<T> of(control, decay, rate);
    const T b1 = number<T>(beta1), c1 = number<T>(1 - beta1), b2 = number<T>(beta2), c2 = number<T>(1 - beta2), one = number<T>(1);
    const T least = number<T>(eps);
    change<2>(numel, gradient, value, moments, [&](T p, T g, T *m) {
        g = is_decoupled ? times(g, of.factor) : of.gradient(g, p);
        m[0] = add_rn(times(m[0], b1), times(g, c1));
        m[1] = add_rn(times(m[1], b2), times(mul_rn(g, g), c2));
        const T by = times(m[0], of.first) / scaled(root(times(m[1], of.second)), one, least);
        return sub_rn(is_decoupled ? times(p, of.kept) : p, times(by, of.rate));
    });
}

template <typename T>
__device__ inline void follow_signs(unsigned numel, double beta1, double beta2, double decay, double rate, const double *control,
                                    const T *gradient, T *value, T *moments) {
    if (control[IS_SKIPPED] != 0) return;
    const Numbers<T> of(control, decay, rate);
    const T b1 = number<T>(beta1), c1 = number<T>(1 - beta1), b2 = number<T>(beta2), c2 = number<T>(1 - beta2), zero = number<T>(0);
    change<1>(numel, gradient, value, moments, [&](T p, T g, T *m) {
        g = times(g, of.factor);
        const T by = add_rn(times(m[0], b1), times(g, c1));
        const T sign = by > zero ? number<T>(1) : by < zero ? number<T>(-1) : by;
        m[0] = add_rn(times(m[0], b2), times(g, c2));
        return sub_rn(times(p, of.kept), times(sign, of.rate));
    });
}

#define KERNELS(NAME, T)                                                                                               \
    extern "C" __global__ void opara_reduction_square_sums_##NAME(unsigned numel, const T *gradient, double *sums) {   \
        square_sums(numel, gradient, sums);                                                                            \
    }                                                                                                                  \
    extern "C" __global__ void opara_elementwise_optimizer_descent_##NAME(unsigned numel, double decay, double rate,               \
                                                              const double *control, const T *gradient, T *value) {    \
        descend(numel, decay, rate, control, gradient, value);                                                         \
    }                                                                                                                  \
    extern "C" __global__ void opara_elementwise_optimizer_momentum_##NAME(                                                        \
        unsigned numel, int is_nesterov, double momentum, double decay, double rate, const double *control,            \
        const T *gradient, T *value, T *moments) {                                                                     \
        roll(numel, is_nesterov, momentum, decay, rate, control, gradient, value, moments);                            \
    }                                                                                                                  \
    extern "C" __global__ void opara_elementwise_optimizer_adam_##NAME(                                                            \
        unsigned numel, int is_decoupled, double beta1, double beta2, double eps, double decay, double rate,           \
        const double *control, const T *gradient, T *value, T *moments) {                                              \
        adapt(numel, is_decoupled, beta1, beta2, eps, decay, rate, control, gradient, value, moments);                 \
    }                                                                                                                  \
    extern "C" __global__ void opara_elementwise_optimizer_lion_##NAME(unsigned numel, double beta1, double beta2, double decay,   \
                                                           double rate, const double *control, const T *gradient,      \
                                                           T *value, T *moments) {                                     \
        follow_signs(numel, beta1, beta2, decay, rate, control, gradient, value, moments);                             \
    }
KERNELS(f16, __half)
KERNELS(bf16, __nv_bfloat16)
KERNELS(f32, float)
KERNELS(f64, double)
