"""Writes ops.json: what PyTorch answers to some convolutions and pools. Run in this folder: python ops.py"""

import json

import torch
import torch.nn.functional as F


def values(seed, shape):
    """The same values as `values` of ops.rs."""
    n = torch.Size(shape).numel()
    flat = [((i + 31 * seed) * 2654435761) % 2000003 / 1000001.5 - 1 for i in range(n)]
    return torch.tensor(flat, dtype=torch.float64).reshape(shape).float()


def rounded(y):
    """All that single precision tells apart."""
    return [float(f"{value:.9g}") for value in y.flatten().tolist()]


def conv(name, x, weight, padding=(0, 0, 0, 0), stride=1, dilation=1, groups=1, relu=False):
    """Padding is of top, bottom, left, right."""
    top, bottom, left, right = padding
    padded = F.pad(values(1, x), (left, right, top, bottom))
    y = F.conv2d(padded, values(2, weight), values(3, weight[:1]), stride, 0, dilation, groups)
    y = F.relu(y) if relu else y
    config = dict(weight=weight, padding=padding, stride=stride, dilation=dilation, groups=groups, relu=relu)
    return dict(name=name, x=x, conv=config, shape=list(y.shape), y=rounded(y))


def pool(name, x, kernel, stride, padding=0, ceil=False, count_padding=False, mean=False):
    if mean:
        y = F.avg_pool2d(values(1, x), kernel, stride, padding, ceil, count_padding)
    else:
        y = F.max_pool2d(values(1, x), kernel, stride, padding, 1, ceil)
    config = dict(kernel=kernel, stride=stride, padding=padding, ceil=ceil, count_padding=count_padding, mean=mean)
    return dict(name=name, x=x, pool=config, shape=list(y.shape), y=rounded(y))


CASES = [
    conv("padding of each edge", (1, 3, 7, 9), (4, 3, 3, 3), (1, 0, 2, 3)),
    conv("stem", (1, 3, 15, 15), (6, 3, 7, 7), (3, 3, 3, 3), stride=2, relu=True),
    conv("dilated", (1, 2, 11, 10), (3, 2, 3, 3), (2, 2, 2, 2), dilation=2),
    conv("dilated and strided", (1, 2, 12, 13), (3, 2, 3, 2), (1, 2, 0, 1), stride=3, dilation=2),
    conv("depthwise", (2, 5, 9, 8), (5, 1, 5, 5), (2, 2, 2, 2), groups=5),
    conv("depthwise, two of each", (1, 4, 9, 8), (8, 1, 3, 3), (0, 1, 0, 1), stride=2, groups=4),
    conv("groups", (1, 6, 6, 7), (9, 2, 3, 3), (1, 1, 1, 1), groups=3),
    conv("one row", (1, 4, 5, 12), (5, 4, 1, 7), (0, 0, 3, 3)),
    conv("one column", (1, 4, 12, 5), (5, 4, 7, 1), (3, 3, 0, 0)),
    conv("pointwise", (2, 7, 5, 9), (3, 7, 1, 1), relu=True),
]
for mean in [False, True]:
    for count_padding in [False, True] if mean else [False]:
        kind = ("mean, padding counts" if count_padding else "mean") if mean else "maximum"
        settings = dict(count_padding=count_padding, mean=mean)
        CASES += [
            pool(f"{kind}: floor", (1, 2, 8, 9), 3, 2, **settings),
            pool(f"{kind}: ceil", (1, 2, 8, 10), 3, 2, ceil=True, **settings),
            pool(f"{kind}: ceil with padding", (2, 1, 7, 8), 3, 2, 1, ceil=True, **settings),
            pool(f"{kind}: the last window would start in the padding", (1, 1, 5, 7), 2, 3, 1, ceil=True, **settings),
            pool(f"{kind}: side by side", (1, 2, 9, 9), 3, 1, 1, **settings),
            pool(f"{kind}: whole plane", (1, 5, 7, 7), 7, 1, **settings),
        ]

with open("ops.json", "w") as file:
    file.write("[\n" + ",\n".join(json.dumps(case) for case in CASES) + "\n]\n")
