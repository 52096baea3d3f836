// A module for each type: a program loads those that it uses.
#include "one_query.cuh"

ATTENTIONS(__half, f16)
