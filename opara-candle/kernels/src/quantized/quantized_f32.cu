// A module for each type: a program loads those that it uses.
#include "quantized.cuh"

QUANTIZED(float, f32)
