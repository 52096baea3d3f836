"""Writes a BERT-base with seeded random weights in f16, as sentence-transformers keeps one, with the tokenizer of another
folder. With `mini-lm` it has the sizes of all-MiniLM-L6-v2.

    checkpoint.py TOKENIZER-FOLDER OUT [base|mini-lm]
"""
import json
import pathlib
import shutil
import sys

import numpy
from safetensors.numpy import save_file

SIZES = {"base": (768, 3072, 12, 512), "mini-lm": (384, 1536, 6, 256)}
WIDTH, INNER, LAYERS, LONGEST = SIZES[sys.argv[3] if len(sys.argv) > 3 else "base"]
WORDS, POSITIONS = 30522, 512
source, out = map(pathlib.Path, sys.argv[1:3])
out.mkdir(parents=True, exist_ok=True)
random = numpy.random.default_rng(0)
tensors = {}


def matrix(name, rows, columns):
    tensors[name + ".weight"] = (0.05 * random.standard_normal((rows, columns), numpy.float32)).astype(numpy.float16)


def linear(name, rows, columns):
    matrix(name, rows, columns)
    tensors[name + ".bias"] = (0.05 * random.standard_normal(rows, numpy.float32)).astype(numpy.float16)


def norm(name):
    tensors[name + ".weight"] = numpy.ones(WIDTH, numpy.float16)
    tensors[name + ".bias"] = numpy.zeros(WIDTH, numpy.float16)


for name, rows in (("word", WORDS), ("position", POSITIONS), ("token_type", 2)):
    matrix(f"embeddings.{name}_embeddings", rows, WIDTH)
norm("embeddings.LayerNorm")
for index in range(LAYERS):
    layer = f"encoder.layer.{index}."
    for part in ("query", "key", "value"):
        linear(layer + "attention.self." + part, WIDTH, WIDTH)
    linear(layer + "attention.output.dense", WIDTH, WIDTH)
    norm(layer + "attention.output.LayerNorm")
    linear(layer + "intermediate.dense", INNER, WIDTH)
    linear(layer + "output.dense", WIDTH, INNER)
    norm(layer + "output.LayerNorm")
save_file(tensors, out / "model.safetensors", {"format": "pt"})
for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
    if (source / name).exists():
        shutil.copy(source / name, out / name)


def write(name, content):
    path = out / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


write("config.json", {
    "architectures": ["BertModel"], "model_type": "bert", "vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
    "num_attention_heads": 12, "intermediate_size": INNER, "hidden_act": "gelu", "max_position_embeddings": POSITIONS,
    "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
})
kind = "sentence_transformers.models."
write("modules.json", [
    {"idx": 0, "name": "0", "path": "", "type": kind + "Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": kind + "Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": kind + "Normalize"},
])
write("1_Pooling/config.json", {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True})
write("sentence_bert_config.json", {"max_seq_length": LONGEST, "do_lower_case": False})
