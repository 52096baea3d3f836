"""Writes data/deepfm.json: the results of DeepFM in PyTorch with seeded weights.

Usage: python3 deepfm.py      (needs torch)
"""

import json
import sys
from pathlib import Path

import torch

TESTS = Path(__file__).parent.parent
sys.path.append(str(TESTS.parent.parent / "weights"))
import seeded  # noqa: E402


class DeepFM(torch.nn.Module):
    def __init__(self, field_sizes, embedding_dim, hidden_sizes):
        super().__init__()
        self.first = torch.nn.ModuleList([torch.nn.Embedding(size, 1) for size in field_sizes])
        self.second = torch.nn.ModuleList([torch.nn.Embedding(size, embedding_dim) for size in field_sizes])
        sizes = [len(field_sizes) * embedding_dim, *hidden_sizes, 1]
        layers = [torch.nn.Linear(*pair) for pair in zip(sizes, sizes[1:])]
        self.deep = torch.nn.Sequential(*[m for layer in layers for m in (layer, torch.nn.ReLU())][:-1])

    def forward(self, ids):
        e = torch.stack([t(ids[:, i]) for i, t in enumerate(self.second)], 1)
        linear = sum(t(ids[:, i]) for i, t in enumerate(self.first))
        fm = 0.5 * (e.sum(1) ** 2 - (e**2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(linear + fm + self.deep(e.flatten(1)))


@torch.no_grad()
def main():
    config = {"field_sizes": [7, 30, 2, 11], "embedding_dim": 4, "hidden_sizes": [8, 6]}
    seed = 7
    model = DeepFM(**config).double().eval()
    for name, tensor in model.state_dict().items():
        tensor.copy_(torch.from_numpy(seeded.tensor(seed, name, tuple(tensor.shape))))
    ids = [[0, 0, 0, 0], [6, 29, 1, 10], [3, 17, 0, 5], [1, 2, 1, 9], [5, 11, 1, 0]]
    expected = {"seed": seed, "config": config, "ids": ids, "probabilities": model(torch.tensor(ids)).tolist()}
    (TESTS / "data" / "deepfm.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
