// Concatenates up to eight matrices with equal numbers of rows along their columns, in one launch.
#include "numbers.cuh"

// Copies units of 1, 2, 4, 8 or 16 bytes; the element type does not matter.

template <typename T>
__device__ void cat(size_t units, unsigned row, T *y, const T *const (&part)[8], const unsigned (&width)[8]) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= units) return;
    unsigned r = i / row, c = i % row;
#pragma unroll
    for (int p = 0; p < 8; p++) {
        if (c < width[p]) {
            y[i] = part[p][(size_t)r * width[p] + c];
            return;
        }
        c -= width[p];
    }
}

#define CAT(T, NAME)                                                                                                   \
    extern "C" __global__ void opara_layout_cat_##NAME(size_t units, unsigned row, T *y, const T *p0, unsigned w0,     \
        const T *p1, unsigned w1, const T *p2, unsigned w2, const T *p3, unsigned w3, const T *p4, unsigned w4,        \
        const T *p5, unsigned w5, const T *p6, unsigned w6, const T *p7, unsigned w7) {                                \
        const T *const part[8] = {p0, p1, p2, p3, p4, p5, p6, p7};                                                     \
        const unsigned width[8] = {w0, w1, w2, w3, w4, w5, w6, w7};                                                    \
        cat<T>(units, row, y, part, width);                                                                            \
    }

CAT(unsigned char, u8)
CAT(unsigned short, i16)
CAT(unsigned, u32)
CAT(unsigned long long, i64)
CAT(uint4, v128)

// Concatenates sums part + other; `other` may be null. A thread computes N contiguous elements.
template <typename T, int N>
__device__ void cat_sums(size_t numel, unsigned row, int relu, T *y, const T *const (&part)[8], const T *const (&other)[8],
                         const unsigned (&width)[8]) {
    using S = typename Sum<T>::type;
    unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (i >= numel) return;
    unsigned r = i / row, c = i % row;
#pragma unroll
    for (int p = 0; p < 8; p++) {
        if (c < width[p]) {
            const size_t at = (size_t)r * width[p] + c;
            Vec<T, N> v = load<T, N>(part[p] + at);
            if (other[p]) {
                Vec<T, N> u = load<T, N>(other[p] + at);
#pragma unroll
                for (int n = 0; n < N; n++) v.at[n] = narrow<T>((S)widen(v.at[n]) + (S)widen(u.at[n]));
            }
#pragma unroll
            // NaN passes through.
            for (int n = 0; n < N; n++) v.at[n] = relu && widen(v.at[n]) < 0 ? narrow<T>(0) : v.at[n];
            store<T, N>(y + i, v);
            return;
        }
        c -= width[p];
    }
}

#define CAT_SUMS(T, N, NAME)                                                                                           \
    extern "C" __global__ void opara_layout_cat_sums_##N##_##NAME(size_t numel, unsigned row, int relu, T *y, const T *p0, \
        const T *q0, unsigned w0, const T *p1, const T *q1, unsigned w1, const T *p2, const T *q2, unsigned w2,        \
        const T *p3, const T *q3, unsigned w3, const T *p4, const T *q4, unsigned w4, const T *p5, const T *q5,        \
        unsigned w5, const T *p6, const T *q6, unsigned w6, const T *p7, const T *q7, unsigned w7) {                   \
        const T *const part[8] = {p0, p1, p2, p3, p4, p5, p6, p7}, *const other[8] = {q0, q1, q2, q3, q4, q5, q6, q7}; \
        const unsigned width[8] = {w0, w1, w2, w3, w4, w5, w6, w7};                                                    \
        cat_sums<T, N>(numel, row, relu, y, part, other, width);                                                       \
    }

#define EVERY(T, WIDEST, NAME)                                                                                         \
    CAT_SUMS(T, 1, NAME)                                                                                               \
    CAT_SUMS(T, 2, NAME)                                                                                               \
    WIDEST

EVERY(float, CAT_SUMS(float, 4, f32), f32)
EVERY(double, , f64)
EVERY(__half, CAT_SUMS(__half, 4, f16) CAT_SUMS(__half, 8, f16), f16)
EVERY(__nv_bfloat16, CAT_SUMS(__nv_bfloat16, 4, bf16) CAT_SUMS(__nv_bfloat16, 8, bf16), bf16)
