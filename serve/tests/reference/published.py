"""Compares opara-serve's vectors with sentence-transformers' on models of published sizes with random weights.

Usage: python3 published.py VECTORS [NAME..] [--device 0 --dtype f16]
       (VECTORS: the program `cargo build --release -p opara-serve --example vectors` makes, with `--features cudnn` for a GPU;
       sentence-transformers 6; some GB of disk)

Prints for each model the least cosine of its texts and the largest difference of an element by the largest element.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, PreTrainedTokenizerFast

BASE = {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768, "intermediate_size": 3072}
# Name: configuration, how the hidden states are pooled, and whether Dense and Normalize stand behind.
CASES = {
    "bert-base": (transformers.BertConfig(), "mean"),
    "xlm-roberta-base": (transformers.XLMRobertaConfig(vocab_size=250002, max_position_embeddings=514, type_vocab_size=1), "cls"),
    "distilbert-base": (transformers.DistilBertConfig(), "mean"),
    "modernbert-base": (transformers.ModernBertConfig(), "cls"),
    "deberta-v3-base": (
        transformers.DebertaV2Config(
            **BASE, vocab_size=128100, relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True,
            pos_att_type=["p2c", "c2p"], position_biased_input=False, max_relative_positions=-1, type_vocab_size=0),
        "mean"),
    "nomic-embed": (transformers.NomicBertConfig(), "mean"),
    "sentence-t5-base": (transformers.T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12), "mean", True),
    "mt5-base": (transformers.MT5Config(vocab_size=32128, d_model=768, d_ff=2048, num_layers=12, num_heads=12), "mean"),
    "gte-base": (transformers.GteConfig(vocab_size=30528, type_vocab_size=0, rope_parameters={"rope_theta": 5e5, "rope_type": "default"}), "cls"),
    "qwen3-embedding-0.6b": (
        transformers.Qwen3Config(
            vocab_size=151669, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
            num_key_value_heads=8, head_dim=128, rope_theta=1e6, max_position_embeddings=32768),
        "lasttoken"),
}


def words(count):
    """A tokenizer of words, which are their numbers."""
    tokenizer = Tokenizer(models.WordLevel({f"w{id}": id for id in range(count)}, unk_token="w5"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    # Not the padding token of any model above.
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", unk_token="w5")


def texts():
    rng = np.random.default_rng(3)
    return [" ".join(f"w{id}" for id in rng.integers(10, 20000, length)) for length in (1, 7, 40, 150, 400)]


def main(vectors, arguments):
    at = next((at for at, argument in enumerate(arguments) if argument.startswith("-")), len(arguments))
    names, options = arguments[:at], arguments[at:]
    for name in names or CASES:
        config, pooling, *more = CASES[name]
        torch.manual_seed(1)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            model = AutoModel.from_config(config)
            with torch.no_grad():
                # Random norms and shifts, too.
                for parameter in model.parameters():
                    if parameter.dim() == 1:
                        parameter.add_(torch.randn_like(parameter) * 0.1)
            model.save_pretrained(folder / "plain")
            words(config.vocab_size).save_pretrained(folder / "plain")
            transformer = Transformer(str(folder / "plain"), max_seq_length=512)
            width = model.config.hidden_size
            modules = [transformer, Pooling(width, pooling_mode=pooling)]
            if more:
                modules += [Dense(width, width, bias=False, activation_function=torch.nn.Identity()), Normalize()]
            whole = SentenceTransformer(modules=modules, device="cpu")
            whole.save(str(folder / "whole"))
            expected = whole.encode(texts(), batch_size=8)
            told = subprocess.run([vectors, "--folder", folder / "whole", *options, *texts()], check=True, capture_output=True)
            got = np.array(json.loads(told.stdout)["vectors"], dtype=np.float64)
        expected = expected.astype(np.float64)
        cosines = (got * expected).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(expected, axis=1)
        difference = np.abs(got - expected).max() / np.abs(expected).max()
        print(f"{name}: cosine {cosines.min():.9f}, difference {difference:.1e}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
