// Sums, differences, products and quotients of two operands of f64 that broadcast against each other. A block computes a part of one row;
// within a row an operand's elements lie beside each other, or are one.

constexpr unsigned THREADS = 256, EACH = 8;

// Where rows begin. The index of a row has three dimensions, the last of which runs fastest.
struct Rows {
    size_t strides[3];

    __device__ size_t at(unsigned outer, unsigned middle, unsigned inner) const {
        return outer * strides[0] + middle * strides[1] + inner * strides[2];
    }
};

struct Sum {
    __device__ static double of(double x, double y) { return x + y; }
};
struct Difference {
    __device__ static double of(double x, double y) { return x - y; }
};
struct Product {
    __device__ static double of(double x, double y) { return x * y; }
};
struct Quotient {
    __device__ static double of(double x, double y) { return x / y; }
};

template <typename F>
__device__ inline void binary(unsigned columns, unsigned middle, unsigned inner, Rows of_x, unsigned x_step, Rows of_y,
                              unsigned y_step, const double *x, const double *y, double *out) {
    const unsigned parts = (columns - 1) / (THREADS * EACH) + 1, row = blockIdx.x / parts;
    const unsigned first = blockIdx.x % parts * (THREADS * EACH) + threadIdx.x;
    const unsigned of_inner = row % inner, of_middle = row / inner % middle, of_outer = row / inner / middle;
    x += of_x.at(of_outer, of_middle, of_inner);
    y += of_y.at(of_outer, of_middle, of_inner);
    out += (size_t)row * columns;
#pragma unroll
    for (unsigned i = 0; i < EACH; i++) {
        const unsigned at = first + i * THREADS;
        if (at < columns) out[at] = F::of(x[at * x_step], y[at * y_step]);
    }
}

#define BINARY(NAME, F)                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) opara_elementwise_double_##NAME##_f64(                       \
        size_t numel, unsigned columns, unsigned middle, unsigned inner, size_t x_outer, size_t x_middle,              \
        size_t x_inner, unsigned x_step, size_t y_outer, size_t y_middle, size_t y_inner, unsigned y_step,             \
        const double *x, const double *y, double *out) {                                                               \
        binary<F>(columns, middle, inner, {{x_outer, x_middle, x_inner}}, x_step, {{y_outer, y_middle, y_inner}},      \
                  y_step, x, y, out);                                                                                  \
    }

BINARY(add, Sum)
BINARY(sub, Difference)
BINARY(mul, Product)
BINARY(div, Quotient)
