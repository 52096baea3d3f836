// The epilogue of a matmul as a kernel of its own: adds a bias, unless it is null, and applies an activation. And its gradient.
#include "activation.cuh"

template <int ACTIVATION, typename T>
__device__ inline void bias_act(unsigned numel, unsigned columns, const T *x, const T *bias, T *y) {
    using S = typename Sum<T>::type;
    constexpr int N = WIDE<T>;
    const bool vectors = columns % N == 0 && are_aligned(x, bias, y);
    const ThreadElements mine = ThreadElements::of<N>(numel, vectors);
    if (mine.count == 0) return;
    if (vectors) {
        Vec<T, N> v = load<T, N>(x + mine.first), b{}, out;
        if (bias) b = load<T, N>(bias + mine.first % columns);
#pragma unroll
        for (int n = 0; n < N; n++) out.at[n] = narrow<T>(activate_for<T, ACTIVATION>((S)widen(v.at[n]) + (S)widen(b.at[n])));
        store<T, N>(y + mine.first, out);
        return;
    }
    for (unsigned n = 0, i = mine.first; n < mine.count; n++, i += mine.step) {
        S v = widen(x[i]);
        if (bias) v += (S)widen(bias[i % columns]);
        y[i] = narrow<T>(activate_for<T, ACTIVATION>(v));
    }
}

// y = gradient * activation'(x).
template <int ACTIVATION, typename T>
__device__ inline void activation_slope(unsigned numel, const T *x, const T *gradient, T *y) {
    constexpr int N = WIDE<T>;
    const bool vectors = numel % N == 0 && are_aligned(x, gradient, (const T *)y);
    const ThreadElements mine = ThreadElements::of<N>(numel, vectors);
    if (mine.count == 0) return;
    if (vectors) {
        const Vec<T, N> v = load<T, N>(x + mine.first), g = load<T, N>(gradient + mine.first);
        Vec<T, N> out;
#pragma unroll
        for (int n = 0; n < N; n++) out.at[n] = narrow<T>(widen(g.at[n]) * derivative_for<T, ACTIVATION>(widen(v.at[n])));
        store<T, N>(y + mine.first, out);
        return;
    }
    for (unsigned n = 0, i = mine.first; n < mine.count; n++, i += mine.step)
        y[i] = narrow<T>(widen(gradient[i]) * derivative_for<T, ACTIVATION>(widen(x[i])));
}

#define SLOPES(T, NAME)                                                                                                \
    extern "C" __global__ void opara_elementwise_activation_slope_##NAME(unsigned numel, int activation, const T *x,   \
        const T *gradient, T *y) {                                                                                     \
        with_activation(activation, [&](auto of) { activation_slope<of.value>(numel, x, gradient, y); });              \
    }

SLOPES(float, f32)
SLOPES(__half, f16)
SLOPES(__nv_bfloat16, bf16)

#define KERNELS(T, NAME)                                                                                               \
    extern "C" __global__ void opara_elementwise_bias_act_##NAME(unsigned numel, unsigned columns, int activation, const T *x, \
        const T *bias, T *y) {                                                                                         \
        with_activation(activation, [&](auto of) { bias_act<of.value>(numel, columns, x, bias, y); });                 \
    }

KERNELS(float, f32)
KERNELS(double, f64)
KERNELS(__half, f16)
KERNELS(__nv_bfloat16, bf16)
