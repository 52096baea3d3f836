"""The measured models and their inputs: those of `models/tests/reference/full.py` with any seed and batch size."""

import sys
from dataclasses import dataclass

import torch

import places

sys.path.append(str(places.REFERENCE))
from full import DeepFM  # noqa: E402
from torch_seeded import fill, ids, images  # noqa: E402

DTYPES = {"f32": torch.float32, "f16": torch.float16}
# Side of the input images in pixels.
PICTURES = {"googlenet": 224, "inception": 299, "nasnet": 331}
TRANSFORMERS = ("bert", "t5")
TOKENS = 128
FIELDS = 26
VOCAB = 10000
# These gains keep a convolution's outputs about as large as its inputs.
GAIN = 2**0.5
NASNET_GAIN = 1.2


class LastHidden(torch.nn.Module):
    """Wraps an encoder of transformers as a function from tokens to hidden states."""

    def __init__(self, encoder: torch.nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.encoder(input_ids=tokens).last_hidden_state


def without_masks():
    """Imports transformers and turns attention masks off, for batches without padding.

    When it is captured or compiled, transformers cannot see that nothing is masked, and creates a mask of ones. That
    mask has stride 0 along the keys. PyTorch's fused attention does not support this and falls back to matmuls in f32.
    """
    import transformers
    from transformers.masking_utils import AttentionMaskInterface

    AttentionMaskInterface.register("sdpa", lambda *_, **__: None)
    return transformers


def bert(seed: int) -> torch.nn.Module:
    """BERT-base. The full model is filled, because names of seeded tensors start with `bert.`."""
    transformers = without_masks()
    return LastHidden(fill(transformers.BertForMaskedLM(transformers.BertConfig()), seed).bert)


def t5(seed: int) -> torch.nn.Module:
    """T5-small's encoder, with a contiguous position bias, which PyTorch's fused attention requires."""
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
    """The input: tokens or field values as int64, or seeded images in `dtype`."""
    if side := PICTURES.get(model):
        return images(seed, (batch, 3, side, side)).to(device, DTYPES[dtype])
    return ids((batch, TOKENS if model in TRANSFORMERS else FIELDS), VOCAB).to(device)


@dataclass(frozen=True)
class Cell:
    """The result of `load`: a model in one dtype with one input. The model maps this input to one tensor."""

    model: str
    dtype: str
    batch: int
    seed: int
    module: torch.nn.Module
    input: torch.Tensor
