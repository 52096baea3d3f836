"""Writes a GGUF file of a model of Llama-3.2-1B's sizes with random weights in bf16 and no tokenizer, for llama.cpp's benchmarks.

    python3 benches/peers/python/llama_gguf.py FILE

Needs the packages gguf and numpy. What the benchmarks measure does not depend on the numbers: all matrices are made of one pool.
"""

import argparse
from pathlib import Path

import gguf
import numpy as np

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 2048, 8192, 16, 32, 8, 64, 128256
CONTEXT, THETA, EPS = 131072, 500000.0, 1e-5
# Numbers of the pool.
POOL = 1 << 25


def pool() -> np.ndarray:
    """Random numbers in bf16: the upper halves of f32."""
    numbers = np.random.default_rng(0).standard_normal(POOL, dtype=np.float32) * np.float32(0.02)
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)


def matrices() -> dict[str, tuple[int, int]]:
    """Rows and columns of each."""
    heads, kv_heads = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    of_layer = {
        "attn_q": (heads, HIDDEN),
        "attn_k": (kv_heads, HIDDEN),
        "attn_v": (kv_heads, HIDDEN),
        "attn_output": (HIDDEN, heads),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    layers = {f"blk.{i}.{name}.weight": size for i in range(LAYERS) for name, size in of_layer.items()}
    return {"token_embd.weight": (VOCABULARY, HIDDEN)} | layers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    writer = gguf.GGUFWriter(parser.parse_args().file, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_rope_freq_base(THETA)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    numbers = pool()
    for name, (rows, columns) in matrices().items():
        weight = np.resize(numbers, (rows, columns)).view(np.uint8)
        writer.add_tensor(name, weight, raw_dtype=gguf.GGMLQuantizationType.BF16)
    norms = [f"blk.{i}.{name}.weight" for i in range(LAYERS) for name in ("attn_norm", "ffn_norm")]
    for name in [*norms, "output_norm.weight"]:
        writer.add_tensor(name, np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
