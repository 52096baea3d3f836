// Writes new rows to a buffer, at positions that are on the device. Elements are moved as units of their size.

// Outer dimensions before the rows; the last runs fastest. `at` gives an offset for these strides.
struct Outer {
    unsigned dims[2];

    __device__ size_t at(unsigned outer, const unsigned (&strides)[3]) const {
        const unsigned rest = outer / dims[1];
        return (size_t)(rest / dims[0]) * strides[0] + (size_t)(rest % dims[0]) * strides[1] +
               (size_t)(outer % dims[1]) * strides[2];
    }
};

template <typename T>
__device__ inline void write_rows(unsigned outers, unsigned len, unsigned row, unsigned rows, Outer of,
                                  const unsigned (&from)[3], unsigned row_stride, const unsigned (&positions)[3],
                                  const T *fresh, const unsigned *at, T *buffer) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= outers * rows * row) return;
    const unsigned unit = i % row, r = i / row % rows, outer = i / row / rows;
    const unsigned position = at[of.at(outer, positions)];
    // The row would lie beyond the end of the buffer.
    if (position >= len || r >= len - position) return;
    buffer[((size_t)outer * len + position + r) * row + unit] =
        fresh[of.at(outer, from) + (size_t)r * row_stride + unit];
}

#define WRITE_ROWS(T, NAME)                                                                                            \
    extern "C" __global__ void opara_layout_write_rows_##NAME(unsigned outers, unsigned len, unsigned row, unsigned rows, \
        unsigned middle, unsigned inner, unsigned f0, unsigned f1, unsigned f2, unsigned row_stride, unsigned p0,      \
        unsigned p1, unsigned p2, const T *fresh, const unsigned *at, T *buffer) {                                     \
        const unsigned from[3] = {f0, f1, f2}, positions[3] = {p0, p1, p2};                                            \
        write_rows<T>(outers, len, row, rows, {{middle, inner}}, from, row_stride, positions, fresh, at, buffer);      \
    }

WRITE_ROWS(unsigned char, u8)
WRITE_ROWS(unsigned short, i16)
WRITE_ROWS(unsigned, u32)
WRITE_ROWS(unsigned long long, i64)
WRITE_ROWS(uint4, v128)
