// Optimizers: see `rule.rs`. Every operation is rounded as candle's operators round it, each of which is a kernel of its own.
#include "candle.cuh"
#include "tables.cuh"

// Elements whose squares a block sums, as in `rule.rs`.
constexpr unsigned SUMMED = 16384;

// Places in the control block, as in `rule.rs`.
enum Place {
    STEPS, BASE, RATE, FIRST, SECOND, FACTOR, NORM, MAX_NORM, BETA1, BETA2, SCHEDULE, WARM_UP, TOTAL, REMAINS, IS_SKIPPED, SKIPPED,
    TAKEN, BATCHES, SCALE, GOOD, GROWTH
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
    control[IS_SKIPPED] = 1;
    control[TAKEN] += 1;
    if (control[TAKEN] < control[BATCHES]) return;
    control[TAKEN] = 0;
    const double parts = control[BATCHES] * control[SCALE];
    const double norm = sqrt(room[0]) / parts;
    control[NORM] = norm;
    if ((control[MAX_NORM] > 0 || control[GROWTH] > 0) && !(norm <= 1.7976931348623157e308)) {
        control[SKIPPED] += 1;
        if (control[GROWTH] > 0) {
            control[SCALE] /= 2;
            control[GOOD] = 0;
        }
        return;
    }
    control[IS_SKIPPED] = 0;
    control[FACTOR] = (control[MAX_NORM] > 0 && norm > control[MAX_NORM] ? control[MAX_NORM] / norm : 1) / parts;
    if (control[GROWTH] > 0) {
        control[GOOD] += 1;
        if (control[GOOD] >= control[GROWTH]) {
            control[SCALE] *= 2;
            control[GOOD] = 0;
        }
    }
    control[STEPS] += 1;
    control[FIRST] = 1 / (1 - power(control[BETA1], control[STEPS]));
    control[SECOND] = 1 / (1 - power(control[BETA2], control[STEPS]));
    control[RATE] = control[BASE] * of_rate(control);
}

// A sum for each block. The order does not depend on alignment.
template <typename T> __device__ inline void square_sums(unsigned numel, unsigned block, const T *gradient, double *sum) {
    constexpr int N = WIDE<T>;
    __shared__ double room[THREADS];
    const bool vectors = are_aligned(gradient) && numel % N == 0;
    const unsigned begin = block * SUMMED, end = min(numel - begin, SUMMED) + begin;
    double own = 0;
    for (unsigned at = begin + threadIdx.x * N; at < end; at += THREADS * N) {
        const Vec<T, N> g = vectors ? load<T, N>(gradient + at) : load_some<T, N, false>(gradient + at, end - at);
#pragma unroll
        for (int n = 0; n < N; n++) own = fma((double)widen(g.at[n]), (double)widen(g.at[n]), own);
    }
    room[threadIdx.x] = own;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) room[threadIdx.x] += room[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) *sum = room[0];
}

// Loads the elements of this thread, changes each by `of`, and stores values and moments.
template <int MOMENTS, typename T, typename F>
__device__ inline void change(unsigned numel, unsigned block, const T *gradient, T *value, T *moments, F of) {
    constexpr int N = WIDE<T>;
    const unsigned begin = block * SHARE<T>, end = min(numel - begin, SHARE<T>) + begin;
    if (are_aligned(gradient, value, moments) && numel % N == 0) {
        Vec<T, N> g[VECTORS], p[VECTORS], m[VECTORS][MOMENTS + 1];
#pragma unroll
        for (unsigned v = 0; v < VECTORS; v++) {
            const unsigned at = begin + (v * THREADS + threadIdx.x) * N;
            if (at >= end) continue;
            g[v] = load<T, N>(gradient + at);
            p[v] = load<T, N>(value + at);
#pragma unroll
            for (int k = 0; k < MOMENTS; k++) m[v][k] = load<T, N>(moments + (size_t)k * numel + at);
        }
#pragma unroll
        for (unsigned v = 0; v < VECTORS; v++) {
            const unsigned at = begin + (v * THREADS + threadIdx.x) * N;
            if (at >= end) continue;
#pragma unroll
            for (int n = 0; n < N; n++) {
                T own[MOMENTS + 1];
#pragma unroll
                for (int k = 0; k < MOMENTS; k++) own[k] = m[v][k].at[n];
                p[v].at[n] = of(p[v].at[n], g[v].at[n], own);
#pragma unroll
                for (int k = 0; k < MOMENTS; k++) m[v][k].at[n] = own[k];
            }
            store<T, N>(value + at, p[v]);
#pragma unroll
            for (int k = 0; k < MOMENTS; k++) store<T, N>(moments + (size_t)k * numel + at, m[v][k]);
        }
        return;
    }
    for (unsigned i = begin + threadIdx.x; i < end; i += THREADS) {
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

// The rules: each gives the change of a value by its gradient and its moments.
template <typename T> struct Descent {
    static constexpr int MOMENTS = 0;
    Numbers<T> of;
    __device__ T operator()(T p, T g, T *) const { return sub_rn(p, times(of.gradient(g, p), of.rate)); }
};

template <typename T> struct Momentum {
    static constexpr int MOMENTS = 1;
    Numbers<T> of;
    T kept;
    bool is_nesterov;
    __device__ T operator()(T p, T g, T *m) const {
        g = of.gradient(g, p);
        m[0] = add_rn(times(m[0], kept), g);
        return sub_rn(p, times(is_nesterov ? add_rn(g, times(m[0], kept)) : m[0], of.rate));
    }
};

// Means of two decays.
template <typename T> struct Betas {
    T b1, c1, b2, c2;
    __device__ Betas(double beta1, double beta2)
        : b1(number<T>(beta1)), c1(number<T>(1 - beta1)), b2(number<T>(beta2)), c2(number<T>(1 - beta2)) {}
};

template <typename T> struct Adam {
    static constexpr int MOMENTS = 2;
    Numbers<T> of;
    Betas<T> by;
    T least;
    bool is_decoupled;
    __device__ T operator()(T p, T g, T *m) const {
        g = is_decoupled ? times(g, of.factor) : of.gradient(g, p);
        m[0] = add_rn(times(m[0], by.b1), times(g, by.c1));
        m[1] = add_rn(times(m[1], by.b2), times(mul_rn(g, g), by.c2));
        const T step = times(m[0], of.first) / scaled(root(times(m[1], of.second)), number<T>(1), least);
        return sub_rn(is_decoupled ? times(p, of.kept) : p, times(step, of.rate));
    }
};

template <typename T> struct Lion {
    static constexpr int MOMENTS = 1;
    Numbers<T> of;
    Betas<T> by;
    __device__ T operator()(T p, T g, T *m) const {
        g = times(g, of.factor);
        const T step = add_rn(times(m[0], by.b1), times(g, by.c1)), zero = number<T>(0);
        const T sign = step > zero ? number<T>(1) : step < zero ? number<T>(-1) : step;
        m[0] = add_rn(times(m[0], by.b2), times(g, by.c2));
        return sub_rn(times(p, of.kept), times(sign, of.rate));
    }
};

// Sums of gradients, and averages of values.
template <typename T> struct Blend {
    T kept, added;
    bool is_first;
    __device__ T operator()(T to, T from, T *) const {
        return is_first ? from : add_rn(times(to, kept), times(from, added));
    }
};

template <typename T>
__device__ inline void blend(bool is_average, double kept, const double *control, unsigned numel, unsigned block, const T *from,
                             T *to) {
    if (is_average && control[IS_SKIPPED] != 0) return;
    const Blend<T> of{number<T>(is_average ? kept : 1), number<T>(is_average ? 1 - kept : 1), !is_average && control[TAKEN] == 0};
    change<0>(numel, block, from, to, (T *)nullptr, of);
}

template <typename T> __device__ inline void round_all(unsigned numel, unsigned block, const float *values, T *copies) {
    const unsigned begin = block * SHARE<float>, end = min(numel - begin, SHARE<float>) + begin;
    for (unsigned i = begin + threadIdx.x; i < end; i += THREADS) copies[i] = narrow<T>(values[i]);
}

// The parameters that all rules have, and the change of this block's elements by RULE with these numbers behind those of the launch.
#define OF_TENSORS(T)                                                                                                  \
    const __grid_constant__ Counts numels, const __grid_constant__ Counts ends, const __grid_constant__ Factors decays, \
        const __grid_constant__ Factors rates, const double *control, const __grid_constant__ Table<const T *> gradients, \
        const __grid_constant__ Table<T *> values
#define CHANGE(RULE, T, OWN, ...)                                                                                      \
    if (control[IS_SKIPPED] != 0) return;                                                                              \
    const Work work(ends);                                                                                             \
    const Numbers<T> numbers(control, decays.at[work.tensor], rates.at[work.tensor]);                                  \
    change<RULE<T>::MOMENTS>((unsigned)numels.at[work.tensor], work.block, gradients.at[work.tensor],                  \
                             values.at[work.tensor], OWN, RULE<T>{numbers, ##__VA_ARGS__});

#define KERNELS(NAME, T)                                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS) opara_reduction_square_sums_##NAME(                          \
        const __grid_constant__ Counts numels, const __grid_constant__ Counts ends,                                    \
        const __grid_constant__ Table<const T *> gradients, double *sums) {                                            \
        const Work work(ends);                                                                                         \
        square_sums((unsigned)numels.at[work.tensor], work.block, gradients.at[work.tensor], sums + blockIdx.x);       \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) opara_elementwise_optimizer_blend_##NAME(                    \
        int is_average, double kept, const __grid_constant__ Counts numels, const __grid_constant__ Counts ends,       \
        const double *control, const __grid_constant__ Table<const T *> from, const __grid_constant__ Table<T *> to) { \
        const Work work(ends);                                                                                         \
        blend(is_average != 0, kept, control, (unsigned)numels.at[work.tensor], work.block, from.at[work.tensor],      \
              to.at[work.tensor]);                                                                                     \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) opara_elementwise_optimizer_descent_##NAME(OF_TENSORS(T)) {  \
        CHANGE(Descent, T, (T *)nullptr)                                                                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) opara_elementwise_optimizer_momentum_##NAME(                 \
        int is_nesterov, double momentum, OF_TENSORS(T), const __grid_constant__ Table<T *> moments) {                 \
        CHANGE(Momentum, T, moments.at[work.tensor], number<T>(momentum), is_nesterov != 0)                            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) opara_elementwise_optimizer_adam_##NAME(                     \
        int is_decoupled, double beta1, double beta2, double eps, OF_TENSORS(T),                                       \
        const __grid_constant__ Table<T *> moments) {                                                                  \
        CHANGE(Adam, T, moments.at[work.tensor], Betas<T>(beta1, beta2), number<T>(eps), is_decoupled != 0)            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) opara_elementwise_optimizer_lion_##NAME(                     \
        double beta1, double beta2, OF_TENSORS(T), const __grid_constant__ Table<T *> moments) {                       \
        CHANGE(Lion, T, moments.at[work.tensor], Betas<T>(beta1, beta2))                                               \
    }
#define ROUND(NAME, T)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS) opara_elementwise_optimizer_round_##NAME(                    \
        const __grid_constant__ Counts numels, const __grid_constant__ Counts ends,                                    \
        const __grid_constant__ Table<const float *> values, const __grid_constant__ Table<T *> copies) {              \
        const Work work(ends);                                                                                         \
        round_all((unsigned)numels.at[work.tensor], work.block, values.at[work.tensor], copies.at[work.tensor]);           \
    }
ROUND(f16, __half)
ROUND(bf16, __nv_bfloat16)
KERNELS(f16, __half)
KERNELS(bf16, __nv_bfloat16)
KERNELS(f32, float)
KERNELS(f64, double)
