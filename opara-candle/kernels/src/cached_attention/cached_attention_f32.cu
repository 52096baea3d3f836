// A module for each type: a program loads those that it uses.
#include "cached_attention.cuh"

ATTENTIONS(float, f32)
