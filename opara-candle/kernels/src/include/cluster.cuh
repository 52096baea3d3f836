// Thread block clusters: barrier and distributed shared memory (sm_90; PTX ISA, "Cluster"). For older architectures,
// kernels that use this header are not compiled. With one block per cluster, these functions work within the block.
#pragma once
#include "numbers.cuh"

// Kernel attribute: clusters of BLOCKS blocks along z.
#if __CUDA_ARCH__ >= 900
#define CLUSTER(BLOCKS) __cluster_dims__(1, 1, BLOCKS)
#else
#define CLUSTER(BLOCKS)
#endif

// Barrier of all threads of the cluster; shared memory written before is visible after it.
template <unsigned BLOCKS> __device__ inline void sync_cluster() {
    if constexpr (BLOCKS == 1) {
        __syncthreads();
    } else {
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    }
}

// Barrier behind which no block of the cluster reads another's shared memory. Each thread must have stored the values that it loaded there,
// or numbers made of them: a store waits for its operands. The barrier makes nothing visible, since that would wait for memory.
template <unsigned BLOCKS> __device__ inline void leave_cluster() {
    if constexpr (BLOCKS > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Loads four floats from another block's shared memory, at the address that `at` has in this block.
template <unsigned BLOCKS> __device__ inline Vec<float, 4> load_from_block(unsigned block, const float *at) {
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
