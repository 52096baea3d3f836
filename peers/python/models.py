"""The models that are measured and their inputs, those of `models/tests/reference/full.py` with any seed and batch."""

import pathlib
import sys
from dataclasses import dataclass

import torch

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "models" / "tests" / "reference"))
from full import DeepFM  # noqa: E402
from torch_seeded import fill, ids, images  # noqa: E402

DTYPES = {"f32": torch.float32, "f16": torch.float16}
# Sides of the pictures.
PICTURES = {"googlenet": 224, "inception": 299, "nasnet": 331}
TRANSFORMERS = ("bert", "t5")
TOKENS = 128
FIELDS = 26
VOCAB = 10000
# With these a convolution's results are about as large as its inputs.
GAIN = 2**0.5
NASNET_GAIN = 1.2


class LastHidden(torch.nn.Module):
    """An encoder of transformers as a function from tokens to hidden states."""

    def __init__(self, encoder: torch.nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.encoder(input_ids=tokens).last_hidden_state


def without_masks():
    """transformers, for encoders of texts that fill their batch.

    Where it is captured or compiled it cannot see that nothing is masked, and makes a mask of ones. That has no stride along
    the keys, which PyTorch's fused attention does not take: it would fall back to products in f32.
    """
    import transformers
    from transformers.masking_utils import AttentionMaskInterface

    AttentionMaskInterface.register("sdpa", lambda *_, **__: None)
    return transformers


def bert(seed: int) -> torch.nn.Module:
    """BERT-base. The whole is filled, since names of seeded tensors start with `bert.`."""
    transformers = without_masks()
    return LastHidden(fill(transformers.BertForMaskedLM(transformers.BertConfig()), seed).bert)


def t5(seed: int) -> torch.nn.Module:
    """T5-small's encoder, whose bias of positions lies as PyTorch's fused attention takes it."""
    transformers = without_masks()
    config = transformers.T5Config(d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8)
    encoder = fill(transformers.T5ForConditionalGeneration(config), seed).get_encoder()
    attention = encoder.block[0].layer[0].SelfAttention
    bias = attention.compute_bias
    attention.compute_bias = lambda *args, **kwargs: bias(*args, **kwargs).contiguous()
    return LastHidden(encoder)


def googlenet(seed: int) -> torch.nn.Module:
    import torchvision

    return fill(torchvision.models.GoogLeNet(aux_logits=False, init_weights=False), seed, gain=GAIN)


def inception(seed: int) -> torch.nn.Module:
    import torchvision

    return fill(torchvision.models.Inception3(aux_logits=False, init_weights=False), seed, gain=GAIN)


def nasnet(seed: int) -> torch.nn.Module:
    """NASNet-A Large."""
    import timm

    return fill(timm.create_model("nasnetalarge"), seed, gain=NASNET_GAIN)


def deepfm(seed: int) -> torch.nn.Module:
    return fill(DeepFM(), seed)


MODELS = {make.__name__: make for make in (bert, t5, googlenet, inception, nasnet, deepfm)}


def build(model: str, dtype: str, seed: int, device: torch.device) -> torch.nn.Module:
    if model not in MODELS:
        raise ValueError(f"unknown model {model!r}: one of {', '.join(MODELS)}")
    return MODELS[model](seed).eval().requires_grad_(False).to(device, DTYPES[dtype])


def example(model: str, dtype: str, batch: int, seed: int, device: torch.device) -> torch.Tensor:
    """The input: tokens or values of fields as int64, or seeded pictures in `dtype`."""
    if side := PICTURES.get(model):
        return images(seed, (batch, 3, side, side)).to(device, DTYPES[dtype])
    return ids((batch, TOKENS if model in TRANSFORMERS else FIELDS), VOCAB).to(device)


@dataclass(frozen=True)
class Cell:
    """What `load` made: one model in one type with one input. The model takes the input alone and gives one tensor."""

    model: str
    dtype: str
    batch: int
    seed: int
    module: torch.nn.Module
    input: torch.Tensor
