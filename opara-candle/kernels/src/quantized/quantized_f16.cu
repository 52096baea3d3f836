// A module for each type: a program loads those that it uses.
#include "quantized.cuh"

QUANTIZED(__half, f16)
