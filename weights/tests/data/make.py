"""Writes the checkpoints in this folder, as PyTorch and safetensors write them.

Usage: python3 make.py      (needs torch and safetensors)
"""

import argparse
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import save_file

FOLDER = Path(__file__).parent


def ramp(*shape, dtype=torch.float32):
    """Values that vary from element to element and are exact in every float type."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 % 31) - 15).reshape(shape).to(dtype)


def tensors():
    whole = ramp(4, 5, 6)
    return OrderedDict(
        {
            "plain.weight": ramp(3, 4),
            "plain.parameter": torch.nn.Parameter(ramp(4)),
            "plain.half": ramp(5, dtype=torch.float16),
            "plain.brain": ramp(2, 3, dtype=torch.bfloat16),
            "plain.double": ramp(2, dtype=torch.float64),
            "plain.eighth": ramp(3, dtype=torch.float8_e5m2).to(torch.float8_e4m3fn),
            "plain.scalar": torch.tensor(2.5),
            "plain.empty": torch.zeros(0, 3),
            "plain.count": torch.tensor(7),
            "plain.small": torch.tensor([1, -2], dtype=torch.int32),
            "plain.bytes": torch.tensor([1, 254], dtype=torch.uint8),
            "plain.mask": torch.tensor([True, False]),
            # Views of one storage.
            "view.whole": whole,
            "view.transposed": whole.transpose(0, 2),
            "view.permuted": whole.permute(1, 0, 2),
            "view.part": whole[1:3],
            "view.columns": whole[:, 1:4, ::2],
            "view.row": whole[2, 3],
            "view.element": whole[3, 4, 5],
            # The layout of convolution weights in checkpoints trained in channels-last.
            "view.channels_last": ramp(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
        }
    )


def main():
    state = tensors()
    torch.save(state, FOLDER / "zip.pth")
    torch.save(state, FOLDER / "zip-protocol-4.pth", pickle_protocol=4)
    torch.save(state, FOLDER / "older.pth", _use_new_zipfile_serialization=False)
    save_file({name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}, FOLDER / "same.safetensors")

    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    for name, tensor in model.state_dict().items():
        tensor.copy_(ramp(*tensor.shape))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    training = {
        "epoch": 3,
        "loss": 0.25,
        "best": torch.tensor(0.5),
        "args": argparse.Namespace(name="run", rates=[0.1, 0.2], flags={"a", "b"}),
        "optimizer": optimizer.state_dict(),
        "state_dict": model.state_dict(),
    }
    torch.save(training, FOLDER / "training.pth")


if __name__ == "__main__":
    main()
