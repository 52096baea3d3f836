"""Writes ../data/decoder/NAME.json and NAME.safetensors: what transformers computes with seeded weights.

Usage: python3 decoder.py [FOLDER]      (transformers 5.17; needs numpy, safetensors, torch)
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "weights"))
import seeded  # noqa: E402

SEED, BATCH, PROMPT, LENGTH = 11, 2, 10, 28
SMALL = dict(
    vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=None,
    pad_token_id=None,
)  # fmt: skip
LLAMA3 = dict(
    rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)  # fmt: skip
# Two texts are long enough that the window hides positions. Each model has one rotary kind.
MODELS = {
    "llama3": dict(model_type="llama", rope_parameters=LLAMA3, tie_word_embeddings=False),
    "smollm2": dict(model_type="llama", tie_word_embeddings=True),
    "mistral": dict(model_type="mistral", sliding_window=7, head_dim=16),
    "qwen2": dict(model_type="qwen2", tie_word_embeddings=True),
    "qwen2-windows": dict(model_type="qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen3": dict(model_type="qwen3", head_dim=16, tie_word_embeddings=True),
    "gemma3": dict(
        model_type="gemma3_text", head_dim=16, num_hidden_layers=4, sliding_window=6, sliding_window_pattern=3,
        query_pre_attn_scalar=12, tie_word_embeddings=True,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0},
        },
    ),
    "gemma3-caps": dict(
        model_type="gemma3_text", head_dim=8, sliding_window=6, sliding_window_pattern=2, query_pre_attn_scalar=8,
        final_logit_softcapping=2.0, tie_word_embeddings=True,
    ),
    "phi3": dict(model_type="phi3", sliding_window=9),
    "phi3-short": dict(model_type="phi3", original_max_position_embeddings=32),
    "phi3-long": dict(model_type="phi3", original_max_position_embeddings=16),
}  # fmt: skip
# A quarter of each head is not rotated, as in Phi-4-mini.
LONG_ROPE = dict(
    rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75, short_factor=[1.0, 1.1, 1.3],
    long_factor=[1.0, 2.5, 4.0],
)  # fmt: skip


def load(name, options):
    options = {**SMALL, **options}
    kind = options.pop("model_type")
    if name in ("phi3-short", "phi3-long"):
        options["rope_parameters"] = {
            **LONG_ROPE, "original_max_position_embeddings": options["original_max_position_embeddings"],
        }  # fmt: skip
    config = AutoConfig.for_model(kind, **options)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for parameter, tensor in model.named_parameters():
            tensor.copy_(torch.from_numpy(seeded.tensor(SEED, parameter, tuple(tensor.shape))))
    return config, model.eval()


folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "models/tests/data/decoder"
folder.mkdir(parents=True, exist_ok=True)
failed = []
for name, options in MODELS.items():
    try:
        config, model = load(name, options)
        ids = (torch.arange(BATCH * LENGTH) * 31 % SMALL["vocab_size"]).reshape(BATCH, LENGTH)
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits
            greedy = dict(max_new_tokens=12, do_sample=False, use_cache=True)
            prompt = ids[:, :PROMPT]
            generated = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), **greedy)
        results = {"ids": ids, "logits": logits, "generated": generated[:, PROMPT:]}
        save_file({key: value.contiguous() for key, value in results.items()}, folder / f"{name}.safetensors")
        (folder / f"{name}.json").write_text(json.dumps(config.to_dict(), indent=1, default=str) + "\n")
        print(name, generated[0, PROMPT:].tolist(), sorted(n for n, _ in model.named_parameters())[:4], flush=True)
    except Exception as error:  # The others are written all the same.
        failed.append(name)
        print(name, "FAILED", repr(error), flush=True)
sys.exit(bool(failed))
