"""Writes a Llama with seeded random weights in bf16 as a folder that both servers load: safetensors, a configuration, and a tokenizer
of bytes that is filled up with made-up words to the size of the vocabulary, all of ASCII, so that every token has a text of its own.
Speed does not depend on what weights say.

    weights.py OUT [1b|8b|tiny] [--layers N] [--vocab N] [--seed N]

`checkpoint.py` writes BERT; this one needs numpy alone, and writes 16 GB about as fast as the disk takes them.
"""
import argparse
import json
import os
import pathlib
from concurrent.futures import ThreadPoolExecutor
from statistics import NormalDist

import numpy

STD = 0.02
# Values that a thread draws and writes at a time: 32 MB.
CHUNK = 1 << 24
# Layers, width, inner width, heads, heads of keys and values, width of a head, vocabulary, tied embeddings. Those of Llama-3.2-1B,
# Llama-3.1-8B, and one for tests.
SIZES = {
    "1b": (16, 2048, 8192, 32, 8, 64, 128256, True),
    "8b": (32, 4096, 14336, 32, 8, 128, 128256, False),
    "tiny": (2, 256, 512, 8, 4, 32, 2048, True),
}


def shapes(layers, width, inner, heads, kv_heads, head, vocab, is_tied):
    """Of all tensors, by name."""
    of = {"model.embed_tokens.weight": (vocab, width), "model.norm.weight": (width,)}
    if not is_tied:
        of["lm_head.weight"] = (vocab, width)
    for index in range(layers):
        layer = f"model.layers.{index}."
        for name, rows, columns in [
            ("self_attn.q_proj", heads * head, width),
            ("self_attn.k_proj", kv_heads * head, width),
            ("self_attn.v_proj", kv_heads * head, width),
            ("self_attn.o_proj", width, heads * head),
            ("mlp.gate_proj", inner, width),
            ("mlp.up_proj", inner, width),
            ("mlp.down_proj", width, inner),
        ]:
            of[f"{layer}{name}.weight"] = (rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            of[f"{layer}{name}.weight"] = (width,)
    return dict(sorted(of.items()))


def bf16(values):
    """The bits of f32 values as bf16, rounded to nearest even."""
    bits = numpy.asarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def write_weights(path, of, seed):
    """safetensors: the length of the header, the header, and the tensors one behind another."""
    header, ends = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in of.items():
        begins, ends = ends, ends + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begins, ends]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # A normal distribution in 65,536 steps of equal likelihood: drawing 16 random bits and looking them up is several times faster
    # than drawing floats and rounding them.
    steps = bf16([NormalDist(0, STD).inv_cdf((step + 0.5) / 65536) for step in range(65536)])
    one = bf16([1.0])

    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.flush()
        file.truncate(8 + len(text) + ends)

        def write(chunk):
            name, tensor, first, count = chunk
            if name.endswith("norm.weight"):
                values = numpy.repeat(one, count)
            else:
                random = numpy.random.Generator(numpy.random.SFC64([seed, tensor, first]))
                values = steps[random.integers(0, 65536, count, numpy.uint16)]
            data, at = memoryview(values).cast("B"), 8 + len(text) + header[name]["data_offsets"][0] + 2 * first
            while data:
                written = os.pwrite(file.fileno(), data, at)
                data, at = data[written:], at + written

        chunks = []
        for tensor, (name, shape) in enumerate(of.items()):
            size = int(numpy.prod(shape))
            chunks += [(name, tensor, first, min(CHUNK, size - first)) for first in range(0, size, CHUNK)]
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
            for _ in threads.map(write, chunks):
                pass
    return ends


def byte_letters():
    """The letter that stands for each byte in a byte-level vocabulary: printable ones for themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) if byte in plain else chr(256 + others.index(byte)) for byte in range(256)]


def made_up_word(number):
    """Four letters behind a space, which is written Ġ."""
    return "Ġ" + "".join(chr(ord("a") + number // 26**place % 26) for place in (3, 2, 1, 0))


def write_tokenizer(out, vocab, write):
    words = byte_letters()
    words += [made_up_word(number) for number in range(vocab - 2 - len(words))]
    specials = [(vocab - 2, "<|begin_of_text|>"), (vocab - 1, "<|end_of_text|>")]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    of_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    write("tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": of_bytes, "post_processor": None,
        "added_tokens": [{"id": token, "content": text, **flags} for token, text in specials],
        "decoder": of_bytes,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {word: token for token, word in enumerate(words)}, "merges": [],
        },
    })
    write("tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": specials[0][1], "eos_token": specials[1][1],
        "model_max_length": 131072, "clean_up_tokenization_spaces": False,
    })
    return {"bos_token_id": specials[0][0], "eos_token_id": specials[1][0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("size", nargs="?", choices=SIZES, default="1b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--vocab", type=int, help="at least 512")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    layers, width, inner, heads, kv_heads, head, vocab, is_tied = SIZES[args.size]
    layers, vocab = args.layers or layers, args.vocab or vocab
    assert 512 <= vocab < 26**4, "a vocabulary has 512 to 456,976 tokens"
    args.out.mkdir(parents=True, exist_ok=True)

    def write(name, content):
        (args.out / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    ends = write_tokenizer(args.out, vocab, write)
    write("generation_config.json", ends)
    write("config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head, "vocab_size": vocab, "tie_word_embeddings": is_tied,
        "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "attention_bias": False, "mlp_bias": False,
        "initializer_range": STD, "use_cache": True, **ends,
    })
    of = shapes(layers, width, inner, heads, kv_heads, head, vocab, is_tied)
    size = write_weights(args.out / "model.safetensors", of, args.seed)
    print(f"{args.out}: {len(of)} tensors, {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
