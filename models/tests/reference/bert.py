"""Writes ../data/bert.json: the results of transformers' BERT with seeded weights.

Usage: python3 bert.py      (transformers 5.23; needs numpy, torch)
"""

import json
import pathlib

import torch
import transformers

from torch_seeded import fill

SEED = 7
BATCH, SEQ, VOCAB = 2, 17, 100


@torch.no_grad()
def main():
    # Config::tiny() of models/src/bert/config.rs.
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    # Names start with `bert.`, as in checkpoints of the whole.
    model = fill(transformers.BertForMaskedLM(config), SEED).bert
    ids = (torch.arange(BATCH * SEQ) * 31 % VOCAB).reshape(BATCH, SEQ)
    types = (torch.arange(SEQ) > SEQ // 2).long().expand(BATCH, SEQ)
    hidden = model(input_ids=ids, token_type_ids=types).last_hidden_state
    path = pathlib.Path(__file__).parent.parent / "data" / "bert.json"
    path.write_text(json.dumps({"first": hidden[:, 0].tolist(), "last": hidden[:, -1].tolist()}) + "\n")


if __name__ == "__main__":
    main()
