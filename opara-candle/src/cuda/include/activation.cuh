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
