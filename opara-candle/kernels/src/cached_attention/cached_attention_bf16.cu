// A module for each type: a program loads those that it uses.
#include "cached_attention.cuh"

ATTENTIONS(__nv_bfloat16, bf16)
