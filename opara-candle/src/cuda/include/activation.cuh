// What follows a product: the codes of `Activation`, as the host gives them.
#pragma once
#include <type_traits>

#include "numbers.cuh"

enum Activation { NONE = 0, RELU = 1, GELU = 2, GELU_ERF = 3, SILU = 4 };

// What is rounded once is written as `fma`: bits do not depend on how elements are loaded.
template <int ACTIVATION, typename S> __device__ inline S activate(S x) {
    if constexpr (ACTIVATION == RELU) return x < (S)0 ? (S)0 : x; // NaN stays.
    if constexpr (ACTIVATION == GELU) {
        S half = (S)0.5 * x, cubic = fma((S)0.044715 * x * x, x, x);
        return fma(half, tanh((S)0.7978845608028654 * cubic), half);
    }
    if constexpr (ACTIVATION == GELU_ERF) {
        // `normcdf` would have more digits far below zero, where the result is next to nothing, for twice the time.
        S half = (S)0.5 * x;
        return fma(half, erf((S)0.7071067811865476 * x), half);
    }
    if constexpr (ACTIVATION == SILU) return x / ((S)1 + exp(-x));
    return x;
}

// Calls `f` with the activation as a constant, so that what loops over elements does not ask for it.
template <typename F> __device__ inline void with_activation(int activation, F f) {
    switch (activation) {
    case RELU: return f(std::integral_constant<int, RELU>());
    case GELU: return f(std::integral_constant<int, GELU>());
    case GELU_ERF: return f(std::integral_constant<int, GELU_ERF>());
    case SILU: return f(std::integral_constant<int, SILU>());
    default: return f(std::integral_constant<int, NONE>());
    }
}
