// Up to eight matrices of as many rows side by side, in one launch. Units are of any type of their size.

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
    extern "C" __global__ void opara_cat_##NAME(size_t units, unsigned row, T *y, const T *p0, unsigned w0,            \
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
