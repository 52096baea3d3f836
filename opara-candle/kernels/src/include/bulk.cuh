// Copies of boxes of a matrix into shared memory, by one thread (sm_90; PTX ISA, "cp.async.bulk.tensor"), and the
// barriers that count their bytes (PTX ISA, "mbarrier"). For older architectures, kernels that use this header are not compiled.
#pragma once

// A matrix as the driver describes it: where it lies, its sizes, and its boxes.
struct alignas(64) Matrix {
    unsigned long long words[16];
};

// A barrier in shared memory. Its phases end one after the other; a thread waits for one by its parity.
struct Barrier {
    unsigned long long word;

    __device__ unsigned at() const { return (unsigned)__cvta_generic_to_shared(this); }
    // Of this many arrivals a phase.
    __device__ void init(unsigned arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at()), "r"(arrivals) : "memory"); }
    // Arrives, and has the phase wait for these bytes, too.
    __device__ void expect(unsigned bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at()), "r"(bytes) : "memory");
    }
    __device__ void arrive() { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at()) : "memory"); }
    __device__ void wait(unsigned parity) {
        asm volatile("{.reg .pred is_over;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 is_over, [%0], %1;\n"
                     "@!is_over bra again;}" ::"r"(at()), "r"(parity)
                     : "memory");
    }
};

// Shows the barriers that a thread has made to copies, and behind the next __syncthreads to the block.
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Copies the box that begins at a column and a row to `to` in this block; zeros where the matrix has ended. `done` counts its bytes.
template <typename T> __device__ inline void copy_box(T *to, const Matrix &of, unsigned column, unsigned row, Barrier &done) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                     (unsigned)__cvta_generic_to_shared(to)),
                 "l"(&of), "r"(column), "r"(row), "r"(done.at())
                 : "memory");
}
