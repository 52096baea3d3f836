"""Writes a BERT-base with seeded random weights, as sentence-transformers keeps one, with the tokenizer of another folder.

    checkpoint.py TOKENIZER-FOLDER OUT
"""
import json
import pathlib
import shutil
import sys

import torch
from transformers import BertConfig, BertModel

source, out = map(pathlib.Path, sys.argv[1:3])
torch.manual_seed(0)
model = BertModel(BertConfig(), add_pooling_layer=False)
model.half().save_pretrained(out)
for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
    if (source / name).exists():
        shutil.copy(source / name, out / name)


def write(name, content):
    path = out / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


kind = "sentence_transformers.models."
write("modules.json", [
    {"idx": 0, "name": "0", "path": "", "type": kind + "Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": kind + "Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": kind + "Normalize"},
])
write("1_Pooling/config.json", {"word_embedding_dimension": 768, "pooling_mode_mean_tokens": True})
write("sentence_bert_config.json", {"max_seq_length": 512, "do_lower_case": False})
