"""Writes ../data/t5-*.safetensors: the results of transformers with seeded weights.

Usage: python3 t5.py      (transformers 5.23; needs numpy, safetensors, torch)
"""

import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import T5Config, T5ForConditionalGeneration

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "weights"))
import seeded  # noqa: E402

SEED = 7
# Config::tiny() of models/src/t5/config.rs.
TINY = dict(
    vocab_size=60, d_model=32, d_kv=8, d_ff=128, num_layers=2, num_heads=4,
    relative_attention_num_buckets=8, relative_attention_max_distance=20,
    decoder_start_token_id=0,
)  # fmt: skip
MODELS = {
    "relu-tied": dict(feed_forward_proj="relu"),
    "gelu-untied": dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_decoder_layers=3),
    "silu-tied": dict(feed_forward_proj="gated-silu"),
}


def load(config):
    model = T5ForConditionalGeneration(config)
    if not config.scale_decoder_outputs:
        # transformers ties the embeddings of new models; checkpoints of v1.1 have a separate head.
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(seeded.tensor(SEED, name, tuple(parameter.shape))))
    return model.eval()


def tokens(batch, length, step):
    return (torch.arange(batch * length) * step % TINY["vocab_size"]).reshape(batch, length)


for name, options in MODELS.items():
    model = load(T5Config(**TINY, **options))
    ids, decoder_ids = tokens(2, 24, 31), tokens(2, 36, 17)
    mask = torch.ones_like(ids)
    mask[1, 13:] = 0
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids, use_cache=False)
        greedy = dict(max_new_tokens=40, do_sample=False, use_cache=False)
        generated = model.generate(input_ids=ids, attention_mask=mask, **greedy)
    results = {
        "ids": ids, "mask": mask, "decoder_ids": decoder_ids, "encoded": out.encoder_last_hidden_state,
        "logits": out.logits[:, ::5], "generated": generated,
    }  # fmt: skip
    file = ROOT / f"models/tests/data/t5-{name}.safetensors"
    save_file({key: value.contiguous() for key, value in results.items()}, file)
    print(file.name, generated.tolist())
