// Element types, and several of them at once.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// What sums of a type are kept in.
template <typename T> struct Sum { using type = float; };
template <> struct Sum<double> { using type = double; };

__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }

template <typename T> __device__ inline T narrow(typename Sum<T>::type x) { return x; }
template <> __device__ inline __half narrow<__half>(float x) { return __float2half_rn(x); }
template <> __device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// N neighbours, loaded and stored at once.
template <typename T, int N> struct alignas(sizeof(T) * N) Vec { T at[N]; };

template <typename T, int N> __device__ inline Vec<T, N> load(const T *from) {
    return *reinterpret_cast<const Vec<T, N> *>(from);
}
template <typename T, int N> __device__ inline void store(T *to, Vec<T, N> v) {
    *reinterpret_cast<Vec<T, N> *>(to) = v;
}
