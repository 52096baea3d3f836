// The index of the largest element of each row.
#include "dependent.cuh"
#include "largest.cuh"

template <typename T>
__device__ inline void argmax(unsigned rows, unsigned columns, const T *x, unsigned *y) {
    using S = typename Sum<T>::type;
    __shared__ Largest<S> room[32];
    trigger_dependents();
    wait_for_predecessors();
    const unsigned row = blockIdx.x;
    if (row >= rows) return;
    x += (size_t)row * columns;
    Largest<S> best = Largest<S>::none();
    each<T>(x, columns, threadIdx.x, blockDim.x, [&](unsigned at, S v) { best = best.or_later(v, at); });
    best = of_block(best, room);
    if (threadIdx.x == 0) y[row] = best.at;
}

#define ARGMAX(T, NAME)                                                                                                \
    extern "C" __global__ void __launch_bounds__(1024) opara_reduction_argmax_##NAME(unsigned rows, unsigned columns,  \
        const T *x, unsigned *y) {                                                                                     \
        argmax<T>(rows, columns, x, y);                                                                                \
    }

ARGMAX(float, f32)
ARGMAX(double, f64)
ARGMAX(__half, f16)
ARGMAX(__nv_bfloat16, bf16)
