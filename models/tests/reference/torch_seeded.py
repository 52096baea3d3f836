"""torch models with the seeded weights of opara-weights, and inputs made in the same way."""

import pathlib
import sys

import numpy as np
import torch

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "weights"))
import seeded  # noqa: E402


def fill(model, seed, gain=1):
    """Gives every floating-point parameter and buffer of `model` its seeded values, and puts it into evaluation mode.

    Kernels of convolutions are multiplied by `gain`.
    """
    with torch.no_grad():
        # Each tensor once, by its first name, even where several modules share it.
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.from_numpy(seeded.tensor(seed, name, tuple(tensor.shape), gain)))
    return model.eval()


def images(seed, shape):
    """Images of `shape`, with values in [-1, 1): 10 times the seeded vector called `input`."""
    values = seeded.tensor(seed, "input", (int(np.prod(shape)),)) * np.float32(10)
    return torch.from_numpy(values.reshape(shape))


def ids(shape, vocab):
    """Indices below `vocab` of `shape`: element `i`, counted in row-major order, is `37 * i % vocab`."""
    return (torch.arange(int(np.prod(shape))) * 37 % vocab).reshape(shape)
