// Random numbers by counters.
#pragma once

// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
__device__ inline uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const unsigned a = __umulhi(0xD2511F53u, counter.x), b = 0xD2511F53u * counter.x;
        const unsigned c = __umulhi(0xCD9E8D57u, counter.z), d = 0xCD9E8D57u * counter.z;
        counter = {c ^ counter.y ^ key.x, d, a ^ counter.w ^ key.y, b};
        key = {key.x + 0x9E3779B9u, key.y + 0xBB67AE85u};
    }
    return counter;
}
