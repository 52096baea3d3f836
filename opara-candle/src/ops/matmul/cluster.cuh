// What blocks of a cluster do together (sm_90; PTX ISA, "Cluster"). There are no kernels that use it in code for older ones. Blocks of none
// are their own.
#pragma once
#include "numbers.cuh"

// Before a kernel whose clusters are so many blocks along z.
#define CLUSTER(BLOCKS) __cluster_dims__(1, 1, BLOCKS)

// Until all have come, and see what all have written.
template <unsigned BLOCKS> __device__ inline void meet() {
    if constexpr (BLOCKS == 1) {
        __syncthreads();
    } else {
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    }
}

// What another one has where this one has `at`, in shared memory.
template <unsigned BLOCKS> __device__ inline Vec<float, 4> load_of(unsigned block, const float *at) {
    if constexpr (BLOCKS == 1) {
        return load<float, 4>(at);
    } else {
        Vec<float, 4> v{};
        unsigned there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((unsigned)__cvta_generic_to_shared(at)), "r"(block));
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.at[0]), "=f"(v.at[1]), "=f"(v.at[2]), "=f"(v.at[3])
                     : "r"(there)
                     : "memory");
        return v;
    }
}
