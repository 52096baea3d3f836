"""Seeded weights, bitwise equal to those of the `seeded` function of opara-weights.

Usage: python3 seeded.py SEED NAME DIM...      (prints the first 8 values)
"""

import sys

import numpy as np


def tensor(seed, name, shape, gain=1):
    """The float32 weights of the tensor `name`; convolution kernels are multiplied by `gain`."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = ((key ^ byte) * 0x100000001B3) % 2**64

    count = int(np.prod(shape, dtype=np.int64))
    x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x += np.uint64(key ^ seed)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    u = (x >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)

    one, tenth = np.float32(1), np.float32(0.1)
    if len(shape) >= 2:
        fan_in = np.prod(shape[1:], dtype=np.int64)
        share = np.float32(0.125 if name.endswith("Attention.q.weight") else 1)
        values = u * (np.float32(np.sqrt(3 / np.float64(fan_in))) * share)
    elif name.endswith((".weight", ".gamma")):
        values = one + tenth * u
    elif name.endswith("running_var"):
        values = one + tenth * np.abs(u)
    else:
        values = tenth * u
    if len(shape) == 4:
        values = values * np.float32(gain)
    return values.reshape(shape)


if __name__ == "__main__":
    seed, name, *shape = sys.argv[1:]
    values = tensor(int(seed), name, [int(dim) for dim in shape])
    print(*map(str, values.reshape(-1)[:8]))
