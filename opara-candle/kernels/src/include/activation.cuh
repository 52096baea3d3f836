// Activation functions of the epilogue. The codes are the values of `Activation::code` on the host.
#pragma once
#include <type_traits>

#include "numbers.cuh"

enum Activation { NONE = 0, RELU = 1, GELU = 2, GELU_ERF = 3, SILU = 4 };

// `fma` is written out wherever a result is rounded once. Otherwise the compiler could contract it in one load path and
// not in another, and the bits would depend on the path.
template <int ACTIVATION, typename S> __device__ inline S activate(S x) {
    if constexpr (ACTIVATION == RELU) return x < (S)0 ? (S)0 : x; // NaN stays.
    if constexpr (ACTIVATION == GELU) {
        S half = (S)0.5 * x, cubic = fma((S)0.044715 * x * x, x, x);
        return fma(half, tanh((S)0.7978845608028654 * cubic), half);
    }
    if constexpr (ACTIVATION == GELU_ERF) {
        // `normcdf` is more accurate far below zero, where the result is almost zero, but takes twice as long.
        S half = (S)0.5 * x;
        return fma(half, erf((S)0.7071067811865476 * x), half);
    }
    if constexpr (ACTIVATION == SILU) return x / ((S)1 + exp(-x));
    return x;
}

// The gate of a smooth activation, 1 / (1 + exp(-z)): the activation is x times its gate. The gate's relative error is at most 3e-5, and a
// result of 16 bits rounds by more. GELU's gate is less than 1e-8 below -5.7, and so is its error.
template <int ACTIVATION> __device__ inline float quick_gate(float x) {
    const float square = x * x;
    float z = x;
    if constexpr (ACTIVATION == GELU) z = 1.5957691216057308f * fmaf(0.044715f * square, x, x);
    if constexpr (ACTIVATION == GELU_ERF) {
        // z of the normal distribution down to -5.7, fitted by least squares with weights (Lawson). The first coefficient is positive, so
        // that beyond the gate is closed or open.
        float inner = 8.0389184e-13f;
        inner = fmaf(inner, square, -1.32979623e-10f);
        inner = fmaf(inner, square, 9.4246093e-09f);
        inner = fmaf(inner, square, -3.71797585e-07f);
        inner = fmaf(inner, square, 8.73893451e-06f);
        inner = fmaf(inner, square, -1.11745233e-04f);
        inner = fmaf(inner, square, -7.92187523e-05f);
        inner = fmaf(inner, square, 7.27216502e-02f);
        z = x * fmaf(inner, square, 1.59572461f);
    }
    return __fdividef(1.f, 1.f + __expf(-z));
}

template <typename T, int ACTIVATION>
constexpr bool is_quick = sizeof(T) == 2 && (ACTIVATION == GELU || ACTIVATION == GELU_ERF || ACTIVATION == SILU);

// `activate` for a result of type T.
template <typename T, int ACTIVATION, typename S> __device__ inline S activate_for(S x) {
    if constexpr (is_quick<T, ACTIVATION>) return x * quick_gate<ACTIVATION>(x);
    else return activate<ACTIVATION>(x);
}

// The derivative of an activation. At 0 a ReLU has candle's, 1.
template <int ACTIVATION> __device__ inline float derivative(float x) {
    if constexpr (ACTIVATION == RELU) return x >= 0 ? 1.f : 0.f;
    if constexpr (ACTIVATION == GELU) {
        // Beyond that the square would overflow.
        if (fabsf(x) > 1e4f) return x > 0 ? 1.f : 0.f;
        const float square = x * x, t = tanhf(0.7978845608028654f * fmaf(0.044715f * square, x, x));
        const float inner = 0.7978845608028654f * fmaf(0.134145f, square, 1.f);
        return fmaf(0.5f * x * fmaf(-t, t, 1.f), inner, fmaf(0.5f, t, 0.5f));
    }
    if constexpr (ACTIVATION == GELU_ERF)
        return fmaf(x * 0.3989422804014327f, expf(-0.5f * x * x), fmaf(0.5f, erff(0.7071067811865476f * x), 0.5f));
    if constexpr (ACTIVATION == SILU) {
        const float gate = 1 / (1 + expf(-x));
        return gate * fmaf(x, 1 - gate, 1.f);
    }
    return 1;
}

// `derivative` for a result of type T.
template <typename T, int ACTIVATION> __device__ inline float derivative_for(float x) {
    if constexpr (is_quick<T, ACTIVATION>) {
        const float gate = quick_gate<ACTIVATION>(x);
        if constexpr (ACTIVATION == SILU) return gate * fmaf(x, 1 - gate, 1.f);
        if constexpr (ACTIVATION == GELU_ERF) return fmaf(x * 0.3989422804014327f, __expf(-0.5f * x * x), gate);
        // Beyond that the square would overflow.
        if (fabsf(x) > 1e4f) return x > 0 ? 1.f : 0.f;
        return gate * fmaf(x * (1 - gate) * 1.5957691216057308f, fmaf(0.134145f, x * x, 1.f), 1.f);
    } else {
        return derivative<ACTIVATION>(x);
    }
}

// Calls `f` with the activation as a compile-time constant, so that loops over elements do not branch on it.
template <typename F> __device__ inline void with_activation(int activation, F f) {
    switch (activation) {
    case RELU: return f(std::integral_constant<int, RELU>());
    case GELU: return f(std::integral_constant<int, GELU>());
    case GELU_ERF: return f(std::integral_constant<int, GELU_ERF>());
    case SILU: return f(std::integral_constant<int, SILU>());
    default: return f(std::integral_constant<int, NONE>());
    }
}
