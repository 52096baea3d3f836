// A module for each type: a program loads those that it uses.
#include "quantized.cuh"

QUANTIZED(__nv_bfloat16, bf16)
