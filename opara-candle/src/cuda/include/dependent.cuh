// Kernels that may begin before the one before them in a graph has ended (programmatic dependent launch, sm_90; PTX ISA,
// "griddepcontrol"). Where nothing says that they may, and in code for older GPUs, they begin behind it as all do.
#pragma once

// From here on all that the kernels before have written is there. A kernel that has this calls it in all threads, and before that
// only loads through arguments that the table of effects says. It begins early where no kernel before it writes to their memory.
__device__ inline void wait_for_those_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may begin, as soon as all blocks of this one have said so and there is room.
__device__ inline void let_the_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
