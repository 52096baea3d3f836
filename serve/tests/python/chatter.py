"""Writes a tiny Llama of random weights that calls tools and reasons: its texts mean nothing, its chat template writes calls and
reasoning as Qwen's do.

    chatter.py OUT-FOLDER
"""
import json
import pathlib
import struct
import sys

import numpy

WIDTH, INNER, LAYERS, HEADS, KV_HEADS, CONTEXT = 32, 48, 3, 4, 2, 4096
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)

# Tokens are bytes, by the letters that GPT-2 has for them.
printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
others = [byte for byte in range(256) if byte not in printed]
letters = {**{byte: chr(byte) for byte in printed}, **{byte: chr(256 + at) for at, byte in enumerate(others)}}
vocab = {letters[byte]: byte for byte in range(256)}
added = [{"id": 256 + at, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
          "special": True} for at, name in enumerate(SPECIAL)]
byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
tokenizer = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
    "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
              "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []},
}

TEMPLATE = r"""{%- if tools %}{{- '<|im_start|>system\n' }}{%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.reasoning_content %}{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{%- endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

random, tensors = numpy.random.default_rng(3), {}


def matrix(name, rows, columns):
    tensors[name] = 0.05 * random.standard_normal((rows, columns), numpy.float32)


words, head = 256 + len(SPECIAL), WIDTH // HEADS
matrix("model.embed_tokens.weight", words, WIDTH)
matrix("lm_head.weight", words, WIDTH)
tensors["model.norm.weight"] = numpy.ones(WIDTH, numpy.float32)
for index in range(LAYERS):
    layer = f"model.layers.{index}."
    for name, rows in (("q", HEADS * head), ("k", KV_HEADS * head), ("v", KV_HEADS * head)):
        matrix(f"{layer}self_attn.{name}_proj.weight", rows, WIDTH)
    matrix(f"{layer}self_attn.o_proj.weight", WIDTH, HEADS * head)
    for name in ("gate", "up"):
        matrix(f"{layer}mlp.{name}_proj.weight", INNER, WIDTH)
    matrix(f"{layer}mlp.down_proj.weight", WIDTH, INNER)
    for name in ("input", "post_attention"):
        tensors[f"{layer}{name}_layernorm.weight"] = numpy.ones(WIDTH, numpy.float32)

header, start = {"__metadata__": {"format": "pt"}}, 0
for name, tensor in tensors.items():
    header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [start, start + tensor.nbytes]}
    start += tensor.nbytes
header = json.dumps(header).encode()
with open(out / "model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header + b"".join(tensor.tobytes() for tensor in tensors.values()))

files = {
    "tokenizer.json": tokenizer,
    "tokenizer_config.json": {"eos_token": "<|im_end|>", "chat_template": TEMPLATE},
    "config.json": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": words, "hidden_size": WIDTH,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
        "eos_token_id": 257, "torch_dtype": "float32",
    },
    "generation_config.json": {"eos_token_id": [257, 258], "temperature": 0.7, "top_p": 0.8, "top_k": 20, "do_sample": True},
}
for name, content in files.items():
    (out / name).write_text(json.dumps(content))
