// What is done to many tensors in a launch.
#include "tables.cuh"

// The columns of matrices as rows: each tensor is matrices of so many rows and columns, one behind the other.
template <typename T>
__device__ inline void turn(unsigned numel, unsigned block, unsigned rows, unsigned columns, const T *from, T *to) {
    const unsigned begin = block * SHARE<T>, end = min(numel - begin, SHARE<T>) + begin, all = rows * columns;
    for (unsigned i = begin + threadIdx.x; i < end; i += THREADS) {
        const unsigned matrix = i / all, place = i - matrix * all, column = place / rows;
        to[i] = from[matrix * all + (place - column * rows) * columns + column];
    }
}

#define TURN(NAME, T)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) opara_layout_turn_##NAME(                                    \
        const __grid_constant__ Counts numels, const __grid_constant__ Counts ends, const __grid_constant__ Counts rows, \
        const __grid_constant__ Counts columns, const __grid_constant__ Table<const T *> from,                         \
        const __grid_constant__ Table<T *> to) {                                                                       \
        const Work work(ends);                                                                                         \
        turn((unsigned)numels.at[work.tensor], work.block, (unsigned)rows.at[work.tensor],                             \
             (unsigned)columns.at[work.tensor], from.at[work.tensor], to.at[work.tensor]);                             \
    }
TURN(f16, __half)
TURN(bf16, __nv_bfloat16)
TURN(f32, float)

// Moving averages: parts of what was there, and of what is new.
extern "C" __global__ void __launch_bounds__(THREADS) opara_elementwise_average_f32(
    const __grid_constant__ Counts numels, const __grid_constant__ Counts ends, const __grid_constant__ Factors kept,
    const __grid_constant__ Factors taken, const __grid_constant__ Table<const float *> from,
    const __grid_constant__ Table<float *> to) {
    const Work work(ends);
    const float *x = from.at[work.tensor];
    float *y = to.at[work.tensor];
    const float old_part = (float)kept.at[work.tensor], new_part = (float)taken.at[work.tensor];
    const unsigned begin = work.block * SHARE<float>;
    const unsigned end = min((unsigned)numels.at[work.tensor] - begin, SHARE<float>) + begin;
    for (unsigned i = begin + threadIdx.x; i < end; i += THREADS) y[i] = fmaf(old_part, y[i], new_part * x[i]);
}
