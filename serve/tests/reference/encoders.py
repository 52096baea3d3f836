"""Writes ../data/encoders/NAME.json: what transformers computes with tiny encoders of seeded weights.

Usage: python3 encoders.py [NAME..]      (transformers 5.24; needs numpy, torch, safetensors)

A file has the checkpoint's config.json, the names and shapes of its tensors, token ids of three texts, and of each text the mean of its
hidden states, the first and the last. Heads have their outputs instead. Every tensor is `seeded.tensor(7, name, shape)`.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "weights"))
import seeded  # noqa: E402

SEED = 7
VOCAB = 60
LENGTHS = (3, 11, 7)
SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
BERT = {**SIZES, "max_position_embeddings": 40}
DECODER = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 64, "rope_theta": 10000.0}
DEBERTA = {
    **BERT, "relative_attention": True, "max_relative_positions": -1, "position_buckets": 4, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0, "layer_norm_eps": 1e-7,
}
MODERN = {
    **SIZES, "num_hidden_layers": 4, "max_position_embeddings": 64, "local_attention": 4, "global_attn_every_n_layers": 3,
    "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3,
}
JINA = {
    **BERT, "model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu", "emb_pooler": "mean",
    "hidden_act": "gelu", "type_vocab_size": 2, "layer_norm_eps": 1e-12, "num_attention_heads": 4, "architectures": ["JinaBertForMaskedLM"],
}
T5 = {
    "vocab_size": VOCAB, "d_model": 32, "d_kv": 12, "d_ff": 48, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
}
GTE = {**BERT, "max_position_embeddings": 64, "type_vocab_size": 2}
# Scaling by NTK is a larger base, and frequencies that are all divided by one number.
SCALE = 2.0
NTK = {"rope_type": "linear", "rope_theta": 1000.0 * SCALE, "factor": SCALE ** (2 / 8)}
# The same as checkpoints write it that come with code of their own: fields that take the place of transformers'.
NEW = {
    "model_type": "new", "architectures": ["NewModel"], "rope_parameters": None, "rope_theta": 1000.0, "layer_norm_type": "layer_norm",
    "rope_scaling": {"type": "ntk", "factor": SCALE}, "position_embedding_type": "rope", "pack_qkv": True, "unpad_inputs": False,
    "use_memory_efficient_attention": False, "logn_attention_scale": False, "logn_attention_clip1": False,
}
NVEMBED = {
    "model_type": "nvembed", "architectures": ["NVEmbedModel"], "hidden_size": 32, "add_eos": True, "add_pad_token": True, "mask_type": "b",
    "is_mask_instruction": True, "padding_side": "right",
    "text_config": {**DECODER, "model_type": "bidir_mistral", "rms_norm_eps": 1e-5, "sliding_window": 4, "hidden_act": "silu"},
    "latent_attention_config": {
        "model_type": "latent_attention", "hidden_dim": 32, "latent_dim": 32, "num_latents_value": 6, "num_cross_heads": 2,
        "cross_dim_head": 20, "output_normalize": True},
}
LABELS = {"id2label": {0: "sad", 1: "glad", 2: "mad"}, "label2id": {"sad": 0, "glad": 1, "mad": 2}}
ONE = {"id2label": {0: "score"}, "label2id": {"score": 0}}
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}

# Name: class of the model, fields of the configuration, and what is kept of its output.
CASES = {
    "bert": ("BertModel", BERT, "hidden"),
    "bert_classifier": ("BertForSequenceClassification", {**BERT, **LABELS}, "logits"),
    "bert_splade": ("BertForMaskedLM", BERT, "splade"),
    "roberta": ("RobertaModel", {**BERT, "pad_token_id": 1}, "hidden"),
    "roberta_classifier": ("RobertaForSequenceClassification", {**BERT, **LABELS, "pad_token_id": 1}, "logits"),
    "roberta_splade": ("RobertaForMaskedLM", {**BERT, "pad_token_id": 1}, "splade"),
    "xlm_roberta": ("XLMRobertaModel", {**BERT, "type_vocab_size": 1, "pad_token_id": 1}, "hidden"),
    "xlm_roberta_reranker": ("XLMRobertaForSequenceClassification", {**BERT, **ONE, "type_vocab_size": 1, "pad_token_id": 1}, "logits"),
    "camembert": ("CamembertModel", {**BERT, "type_vocab_size": 1, "pad_token_id": 1}, "hidden"),
    "distilbert": (
        "DistilBertModel",
        {"vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 40}, "hidden"),
    "distilbert_classifier": (
        "DistilBertForSequenceClassification",
        {"vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 40, **LABELS}, "logits"),
    "distilbert_splade": (
        "DistilBertForMaskedLM",
        {"vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 40}, "splade"),
    "electra": ("ElectraModel", {**BERT, "embedding_size": 16}, "hidden"),
    "electra_classifier": ("ElectraForSequenceClassification", {**BERT, **LABELS, "embedding_size": 16}, "logits"),
    "modernbert": ("ModernBertModel", MODERN, "hidden"),
    "modernbert_classifier": ("ModernBertForSequenceClassification", {**MODERN, **LABELS, "classifier_pooling": "mean"}, "logits"),
    "modernbert_splade": ("ModernBertForMaskedLM", MODERN, "splade"),
    "deberta": ("DebertaV2Model", DEBERTA, "hidden"),
    "deberta_classifier": ("DebertaV2ForSequenceClassification", {**DEBERTA, **ONE, "pooler_hidden_size": 32}, "logits"),
    "nomic": ("NomicBertModel", {**BERT, "max_position_embeddings": 64}, "hidden"),
    "qwen3": ("Qwen3Model", {**DECODER, "head_dim": 16}, "hidden"),
    "qwen3_reranker": ("Qwen3ForSequenceClassification", {**DECODER, **ONE, "head_dim": 16}, "logits"),
    "qwen2": ("Qwen2Model", DECODER, "hidden"),
    "qwen2_bidirectional": ("Qwen2Model", {**DECODER, "is_causal": False}, "hidden"),
    "t5": ("T5EncoderModel", T5, "hidden"),
    "mt5": ("MT5EncoderModel", T5, "hidden"),
    "gte": ("GteModel", GTE, "hidden"),
    "gte_reranker": ("GteForSequenceClassification", {**GTE, **ONE}, "logits"),
    "gte_new": ("GteModel", {**GTE, "type_vocab_size": 0, "rope_parameters": NTK}, "hidden"),
    "nvembed": ("NVEmbed", NVEMBED, "hidden"),
    "chinese_clip": (
        "ChineseCLIPModel",
        {"text_config": {**TOWER, "vocab_size": VOCAB, "max_position_embeddings": 24},
         "vision_config": {**TOWER, "image_size": 16, "patch_size": 8}, "projection_dim": 24}, "towers"),
    "clip": (
        "CLIPModel",
        {"text_config": {**TOWER, "vocab_size": VOCAB, "max_position_embeddings": 24, "projection_dim": 24, "eos_token_id": VOCAB - 1,
                         "bos_token_id": 1},
         "vision_config": {**TOWER, "image_size": 16, "patch_size": 8, "projection_dim": 24}, "projection_dim": 24}, "towers"),
    "siglip": (
        "SiglipModel",
        {"text_config": {**TOWER, "vocab_size": VOCAB, "max_position_embeddings": 16, "projection_size": 32},
         "vision_config": {**TOWER, "image_size": 16, "patch_size": 8}}, "towers"),
    "jina": ("Jina", JINA, "hidden"),
    "albert": ("AlbertModel", {**BERT, "embedding_size": 16}, "hidden"),
}


def texts():
    """Token ids, none of which is special to a model."""
    start = 0
    for length in LENGTHS:
        yield [5 + (start + place) * 31 % (VOCAB - 6) for place in range(length)]
        start += length


def seed(folder, prefix=""):
    """Gives each tensor of a saved checkpoint its seeded values, and lists names and shapes. Names get a prefix."""
    path = folder / "model.safetensors"
    with safe_open(path, "numpy") as file:
        found = {prefix + name: file.get_tensor(name) for name in sorted(file.keys())}
        shapes = {name: list(tensor.shape) for name, tensor in found.items()}
        kept = {name: tensor for name, tensor in found.items() if not np.issubdtype(tensor.dtype, np.floating)}
    values = {name: kept.get(name, seeded.tensor(SEED, name, tuple(shape))) for name, shape in shapes.items()}
    save_file(values, path, metadata={"format": "pt"})
    return {name: shape for name, shape in shapes.items() if name not in kept}


def causal(model, ids):
    """The mask of an encoder that sees all tokens, where the model's own would be causal."""
    return {"attention_mask": torch.zeros(1, 1, ids.shape[1], ids.shape[1])}


class Jina(torch.nn.Module):
    """Jina's second embedding models, whose code is not part of transformers: https://arxiv.org/abs/2310.19923."""

    def __init__(self):
        super().__init__()
        width, inner = JINA["hidden_size"], JINA["intermediate_size"]
        names = {}
        for table, rows in (("word_embeddings", VOCAB), ("token_type_embeddings", 2)):
            names[f"embeddings.{table}"] = torch.nn.Embedding(rows, width)
        names["embeddings.LayerNorm"] = torch.nn.LayerNorm(width, 1e-12)
        for layer in range(JINA["num_hidden_layers"]):
            at = f"encoder.layer.{layer}"
            for part in ("self.query", "self.key", "self.value", "output.dense"):
                names[f"{at}.attention.{part}"] = torch.nn.Linear(width, width)
            names[f"{at}.attention.output.LayerNorm"] = torch.nn.LayerNorm(width, 1e-12)
            names[f"{at}.mlp.gated_layers"] = torch.nn.Linear(width, 2 * inner, bias=False)
            names[f"{at}.mlp.wo"] = torch.nn.Linear(inner, width)
            names[f"{at}.mlp.layernorm"] = torch.nn.LayerNorm(width, 1e-12)
        self.parts = names
        self.tensors = {f"{name}.{of}": tensor for name, part in names.items() for of, tensor in part.named_parameters()}

    def forward(self, input_ids):
        parts, heads = self.parts, JINA["num_attention_heads"]
        types = torch.zeros_like(input_ids)
        x = parts["embeddings.word_embeddings"](input_ids) + parts["embeddings.token_type_embeddings"](types)
        x = parts["embeddings.LayerNorm"](x)
        places = torch.arange(x.shape[1])
        slopes = torch.tensor([2.0 ** (-8 * (head + 1) / heads) for head in range(heads)])
        biases = -slopes[:, None, None] * (places[None, :] - places[:, None]).abs()
        for layer in range(JINA["num_hidden_layers"]):
            part = lambda name: parts[f"encoder.layer.{layer}.{name}"]  # noqa: E731
            split = lambda y: y.unflatten(-1, (heads, -1)).transpose(1, 2)  # noqa: E731
            query, key, value = (split(part(f"attention.self.{name}")(x)) for name in ("query", "key", "value"))
            scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + biases
            context = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
            x = part("attention.output.LayerNorm")(part("attention.output.dense")(context) + x)
            gate, up = part("mlp.gated_layers")(x).chunk(2, -1)
            x = part("mlp.layernorm")(part("mlp.wo")(torch.nn.functional.gelu(gate) * up) + x)
        return types_of_output(last_hidden_state=x)


class NVEmbed(torch.nn.Module):
    """NV-Embed, whose code is not part of transformers: https://arxiv.org/abs/2405.17428."""

    def __init__(self):
        super().__init__()
        text, latent = NVEMBED["text_config"], NVEMBED["latent_attention_config"]
        width, count, self.heads = latent["latent_dim"], latent["num_latents_value"], latent["num_cross_heads"]
        inner = self.heads * latent["cross_dim_head"]
        fields = {name: value for name, value in text.items() if name != "model_type"}
        # A window that hides nothing: the checkpoints' code has none.
        config = transformers.MistralConfig(**{**fields, "sliding_window": None})
        self.text = transformers.AutoModel.from_config(config, attn_implementation="eager")
        self.latents = torch.nn.Parameter(torch.empty(count, width))
        parts = {
            "0.norm": torch.nn.LayerNorm(width), "0.norm_context": torch.nn.LayerNorm(width),
            "0.fn.to_q": torch.nn.Linear(width, inner, bias=False), "0.fn.to_kv": torch.nn.Linear(width, 2 * inner, bias=False),
            "0.fn.to_out": torch.nn.Linear(inner, width, bias=False), "1.norm": torch.nn.LayerNorm(width),
            "1.fn.net.0": torch.nn.Linear(width, 8 * width), "1.fn.net.2": torch.nn.Linear(4 * width, width),
        }
        self.parts = parts
        self.tensors = {f"embedding_model.{name}": tensor for name, tensor in self.text.named_parameters()}
        self.tensors["latent_attention_model.latents"] = self.latents
        at = "latent_attention_model.cross_attend_blocks"
        self.tensors |= {f"{at}.{name}.{of}": tensor for name, part in parts.items() for of, tensor in part.named_parameters()}

    def forward(self, input_ids):
        parts = self.parts
        hidden = self.text(input_ids=input_ids, **causal(self.text, input_ids)).last_hidden_state
        split = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(-2, -3)  # noqa: E731
        key, value = parts["0.fn.to_kv"](parts["0.norm_context"](self.latents)).chunk(2, -1)
        query, key, value = split(parts["0.fn.to_q"](parts["0.norm"](hidden))), split(key), split(value)
        seen = torch.nn.functional.scaled_dot_product_attention(query, key[None], value[None])
        x = parts["0.fn.to_out"](seen.transpose(1, 2).flatten(2)) + hidden
        up, gate = parts["1.fn.net.0"](parts["1.norm"](x)).chunk(2, -1)
        return types_of_output(last_hidden_state=parts["1.fn.net.2"](up * torch.nn.functional.gelu(gate)) + x)


def types_of_output(**fields):
    return type("Output", (), fields)


def own(model, config):
    """Seeded values for a module of this file: its configuration, its tensors' shapes, and itself."""
    for name, tensor in model.tensors.items():
        tensor.data = torch.from_numpy(seeded.tensor(SEED, name, tuple(tensor.shape)))
    return config, {name: list(tensor.shape) for name, tensor in sorted(model.tensors.items())}, model


def saved(model_class, config, prefix=""):
    """The same for one of transformers, as it saves and loads it."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model_class(config).save_pretrained(folder)
        tensors = seed(folder, prefix)
        config = json.loads((folder / "config.json").read_text())
        model = model_class.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    return config, tensors, model


@torch.no_grad()
def write(name):
    kind, fields, kept = CASES[name]
    if kind in ("Jina", "NVEmbed"):
        config, tensors, model = own(globals()[kind](), fields)
    else:
        model_class = getattr(transformers, kind)
        config, tensors, model = saved(model_class, model_class.config_class(**fields), "new." if name == "gte_new" else "")
        config |= NEW if name == "gte_new" else {}
    model.requires_grad_(False)
    out = {"kind": kept, "config": config, "tensors": tensors, "ids": list(texts()), "expected": []}
    for ids in out["ids"]:
        row = torch.tensor([ids])
        more = causal(model, row) if fields.get("is_causal") is False else {}
        if kept == "hidden":
            hidden = model(input_ids=row, **more).last_hidden_state[0]
            found = {"mean": hidden.mean(0), "first": hidden[0], "last": hidden[-1]}
        elif kept == "logits":
            model.config.pad_token_id = model.config.pad_token_id or 0
            found = {"logits": model(input_ids=row, **more).logits[0]}
        elif kept == "splade":
            found = {"splade": torch.log1p(torch.relu(model(input_ids=row, **more).logits[0])).amax(0)}
        else:
            found = {}
        out["expected"].append({key: value.tolist() for key, value in found.items()})
    if kept == "towers":
        towers(model, out)
    path = pathlib.Path(__file__).parent.parent / "data" / "encoders" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    text = json.dumps(rounded(out), indent=None, separators=(",", ":"))
    path.write_text(text + "\n")
    print(name, len(text), file=sys.stderr)


def rounded(value):
    """The same with seven digits of each number."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def towers(model, out):
    """Vectors of texts, padded as the model was trained, and of a picture."""
    length = model.config.text_config.max_position_embeddings
    for ids, found in zip(out["ids"], out["expected"]):
        ids.append(VOCAB - 1)
        is_siglip = "siglip" in model.config.model_type
        row = ids + [1] * (length - len(ids)) if is_siglip else ids
        features = model.get_text_features(input_ids=torch.tensor([row]))
        found["text"] = (features if torch.is_tensor(features) else features.pooler_output)[0].tolist()
    values = seeded.tensor(SEED, "input", (3 * 16 * 16,)) * np.float32(10)
    features = model.get_image_features(pixel_values=torch.from_numpy(values.reshape(1, 3, 16, 16)))
    out["image"] = (features if torch.is_tensor(features) else features.pooler_output)[0].tolist()


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        write(case)
