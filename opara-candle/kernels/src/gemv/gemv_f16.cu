// A module for each type: a program loads those that it uses.
#include "gemv.cuh"

GEMV(__half, f16, 1)
