// Element types, and vectors of elements.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The accumulator type for sums of T.
template <typename T> struct Sum { using type = float; };
template <> struct Sum<double> { using type = double; };

__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }

template <typename T> __device__ inline T narrow(typename Sum<T>::type x) { return x; }
template <> __device__ inline __half narrow<__half>(float x) { return __float2half_rn(x); }
template <> __device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// The larger of the two; NaN if either is NaN.
__device__ inline float max_nan(float x, float least) {
#if __CUDA_ARCH__ >= 800
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(least));
    return y;
#else
    return x < least || least != least ? least : x;
#endif
}
__device__ inline double max_nan(double x, double least) { return x < least || least != least ? least : x; }
__device__ inline __half max_nan(__half x, __half least) { return __hmax_nan(x, least); }
__device__ inline __nv_bfloat16 max_nan(__nv_bfloat16 x, __nv_bfloat16 least) { return __hmax_nan(x, least); }

// N contiguous elements, loaded and stored with one instruction.
template <typename T, int N> struct alignas(sizeof(T) * N) Vec { T at[N]; };

template <typename T, int N> __device__ inline Vec<T, N> load(const T *from) {
    return *reinterpret_cast<const Vec<T, N> *>(from);
}
template <typename T, int N> __device__ inline void store(T *to, Vec<T, N> v) {
    *reinterpret_cast<Vec<T, N> *>(to) = v;
}

// Elements of a 16-byte vector.
template <typename T> constexpr int WIDE = 16 / sizeof(T);

// Are all pointers aligned to 16 bytes? Null counts as aligned.
template <typename... T> __device__ inline bool are_aligned(const T *...at) {
    return (((unsigned long long)at % 16 == 0) && ...);
}

// Loads N contiguous elements: as one vector, or, without VECTORS, the first `count` of them one by one and zeros for
// the others.
template <typename T, int N, bool VECTORS> __device__ inline Vec<T, N> load_some(const T *from, unsigned count) {
    if constexpr (VECTORS) {
        return load<T, N>(from);
    } else {
        Vec<T, N> v;
#pragma unroll
        for (int n = 0; n < N; n++) v.at[n] = n < count ? from[n] : narrow<T>(0);
        return v;
    }
}

template <typename T, int N, bool VECTORS> __device__ inline void store_some(T *to, Vec<T, N> v, unsigned count) {
    if constexpr (VECTORS) {
        store<T, N>(to, v);
    } else {
#pragma unroll
        for (int n = 0; n < N; n++)
            if (n < count) to[n] = v.at[n];
    }
}

// The elements that one thread computes, as many as 16 bytes hold. Indices have 32 bits: the host checks that there are
// fewer than 2^31 elements.
struct ThreadElements {
    unsigned first, step, count;

    // The elements of this thread: contiguous with `vectors`, otherwise strided by the block size, so that the loads of
    // a warp coalesce.
    template <int N> __device__ static ThreadElements of(unsigned numel, bool vectors) {
        unsigned block = blockIdx.x * blockDim.x * N;
        unsigned first = block + threadIdx.x * (vectors ? N : 1), step = vectors ? 1 : blockDim.x;
        unsigned count = first >= numel ? 0 : vectors ? N : min((unsigned)N, (numel - first + step - 1) / step);
        return {first, step, count};
    }
};
