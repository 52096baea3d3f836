// A module for each type: a program loads those that it uses.
#include "gemv.cuh"

GEMV(__nv_bfloat16, bf16, 1)
