// A module for each type: a program loads those that it uses.
#include "gemv.cuh"

GEMVS(float, f32)
