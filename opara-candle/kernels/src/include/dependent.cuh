// Programmatic dependent launch (sm_90; PTX ISA, "griddepcontrol"): a kernel begins before its predecessor in a graph has ended.
// Without a programmatic edge, and in code for older GPUs, it begins after its predecessor, like any kernel.
#pragma once

// After this call, all writes of preceding kernels are visible. Some block of a kernel must call it, so that the kernel does not end before
// they do. Before it, a block may load only through the arguments that `early` in the table of effects names, and store nothing; a kernel
// begins early only where no preceding kernel of the graph writes to their memory.
__device__ inline void wait_for_predecessors() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel begin as soon as all blocks of this one have called it and there is room.
__device__ inline void trigger_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
