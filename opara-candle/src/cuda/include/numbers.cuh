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

// As many neighbours as 16 bytes hold.
template <typename T> constexpr int WIDE = 16 / sizeof(T);

// Whether these can be loaded and stored 16 bytes at once. Null can.
template <typename... T> __device__ inline bool are_aligned(const T *...at) {
    return (((unsigned long long)at % 16 == 0) && ...);
}

// N neighbours at once if TOGETHER, else as many of them as are there, and zeros.
template <typename T, int N, bool TOGETHER> __device__ inline Vec<T, N> load_some(const T *from, unsigned there) {
    if constexpr (TOGETHER) {
        return load<T, N>(from);
    } else {
        Vec<T, N> v;
#pragma unroll
        for (int n = 0; n < N; n++) v.at[n] = n < there ? from[n] : narrow<T>(0);
        return v;
    }
}

template <typename T, int N, bool TOGETHER> __device__ inline void store_some(T *to, Vec<T, N> v, unsigned there) {
    if constexpr (TOGETHER) {
        store<T, N>(to, v);
    } else {
#pragma unroll
        for (int n = 0; n < N; n++)
            if (n < there) to[n] = v.at[n];
    }
}

// What a thread makes of a result: as many elements as 16 bytes hold. They are counted in 32 bits: the host sees to it that
// there are fewer than 2^31.
struct Share {
    unsigned first, step, count;

    // Of this thread: neighbours if TOGETHER, else those that its warp takes together are.
    template <int N> __device__ static Share of(unsigned numel, bool together) {
        unsigned block = blockIdx.x * blockDim.x * N;
        unsigned first = block + threadIdx.x * (together ? N : 1), step = together ? 1 : blockDim.x;
        unsigned count = first >= numel ? 0 : together ? N : min((unsigned)N, (numel - first + step - 1) / step);
        return {first, step, count};
    }
};
