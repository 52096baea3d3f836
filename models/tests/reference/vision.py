"""Writes vision.json: the results of torchvision and timm with seeded weights on seeded images.

Usage: python3 vision.py      (torchvision 0.29, timm 1.0.31)
"""

import json
import pathlib

import timm
import torch
import torchvision
from timm.models.nasnet import NASNetALarge

from torch_seeded import fill, images

SEED = 7
CLASSES = 20
# These gains keep a layer's outputs about as large as its inputs, so that each layer affects the logits.
GAIN = 2**0.5
NASNET_GAIN = 1.2


class SmallNasNet(NASNetALarge):
    """NASNet-A with as few cells as Mobile, whose stages begin with the output right before the reduction cell."""

    def __init__(self, cells, **kwargs):
        super().__init__(**kwargs)
        self.cells = cells
        for stage in range(3):
            for index in range(stage * 6 + cells, stage * 6 + 6):
                delattr(self, f"cell_{index}")

    def forward_features(self, x):
        conv = self.conv0(x)
        previous = self.cell_stem_0(conv)
        x = self.cell_stem_1(conv, previous)
        for stage in range(3):
            if stage:
                previous, x = x, getattr(self, f"reduction_cell_{stage - 1}")(x, previous)
            for index in range(stage * 6, stage * 6 + self.cells):
                previous, x = x, getattr(self, f"cell_{index}")(x, previous)
        return self.act(x)


def main():
    torchvision_options = dict(num_classes=CLASSES, aux_logits=False, init_weights=False)
    googlenet = torchvision.models.GoogLeNet(**torchvision_options)
    inception = torchvision.models.Inception3(**torchvision_options)
    transforming = torchvision.models.GoogLeNet(transform_input=True, **torchvision_options)
    timm_inception = timm.create_model("inception_v3", num_classes=CLASSES)
    nasnet_options = dict(num_classes=CLASSES, stem_size=8, num_features=192)
    nasnet = NASNetALarge(**nasnet_options)
    small_nasnet = SmallNasNet(2, **nasnet_options)

    cases = [
        ("googlenet", googlenet, GAIN, (2, 3, 96, 107)),
        ("googlenet, transform_input", transforming, GAIN, (1, 3, 64, 64)),
        ("inception_v3", inception, GAIN, (2, 3, 107, 96)),
        ("inception_v3 of timm", timm_inception, GAIN, (1, 3, 75, 75)),
        ("nasnet", nasnet, NASNET_GAIN, (2, 3, 96, 107)),
        ("nasnet, tiny image", nasnet, NASNET_GAIN, (1, 3, 17, 33)),
        ("nasnet, 2 cells", small_nasnet, NASNET_GAIN, (1, 3, 64, 48)),
    ]
    outputs = []
    for name, model, gain, shape in cases:
        with torch.no_grad():
            logits = fill(model, SEED, gain)(images(SEED, shape))
        outputs.append(dict(name=name, gain=gain, shape=shape, logits=logits.tolist()))
    text = ",\n".join(json.dumps(output) for output in outputs)
    pathlib.Path(__file__).with_name("vision.json").write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    main()
