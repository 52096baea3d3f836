"""The models of `benches/training/` in PyTorch, each with the rules from the names of a start file to its own."""

import functools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from start import Rules

TOKENS_OF_BERT = 128
WORDS_OF_GPT2, TOKENS_OF_GPT2 = 50257, 1024
WORDS_OF_LLAMA, TOKENS_OF_LLAMA = 128256, 512


def named(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def mlp() -> nn.Module:
    sizes = [784, 256, 256, 10]
    layers = {}
    for at, (inside, out) in enumerate(zip(sizes, sizes[1:])):
        layers |= {str(at): nn.Linear(inside, out), f"relu{at}": nn.ReLU()}
    layers.popitem()
    return named(**layers)


def normed(inside: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inside, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return named(conv=conv, norm=nn.BatchNorm2d(out))


def ended(inside: int) -> dict[str, nn.Module]:
    """The mean of each channel, and ten numbers of these."""
    return {"pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "head": nn.Linear(inside, 10)}


class Block(nn.Module):
    """Of two convolutions, or of three if the last one has more channels."""

    def __init__(self, inside: int, between: int, out: int, stride: int):
        super().__init__()
        if out == between:
            self.all = nn.ModuleList([normed(inside, out, 3, stride), normed(out, out, 3)])
        else:
            middle = normed(between, between, 3, stride)
            self.all = nn.ModuleList([normed(inside, between, 1), middle, normed(between, out, 1)])
        self.shortcut = normed(inside, out, 1, stride) if stride > 1 or inside != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.all[0](x)
        for layer in self.all[1:]:
            y = layer(F.relu(y))
        return F.relu(y + self.shortcut(x))


RESNET = Rules(((r"(\d+\.\d+)\.(\d+)\.(.+)", r"\1.all.\2.\3"),))


def resnet(stages: list[int], wider: int) -> nn.Module:
    layers, inside = {"stem": normed(3, 64, 3), "relu": nn.ReLU()}, 64
    for stage, count in enumerate(stages):
        between, blocks = 64 << stage, []
        for at in range(count):
            blocks.append(Block(inside, between, between * wider, 2 if at == 0 and stage > 0 else 1))
            inside = between * wider
        layers[str(stage)] = nn.Sequential(*blocks)
    return named(**layers, **ended(inside))


class Inverted(nn.Module):
    def __init__(self, inside: int, wider: int, out: int, kernel: int, stride: int, activation: Callable, is_squeezed: bool):
        super().__init__()
        between = inside * wider
        self.activation = activation()
        self.wide = normed(inside, between, 1) if wider > 1 else None
        self.inside = normed(between, between, kernel, stride, between)
        self.squeeze = nn.Conv2d(between, inside // 4, 1) if is_squeezed else None
        self.excite = nn.Conv2d(inside // 4, between, 1) if is_squeezed else None
        self.narrow = normed(between, out, 1)
        self.is_residual = stride == 1 and inside == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x if self.wide is None else self.activation(self.wide(x))
        y = self.activation(self.inside(y))
        if self.squeeze is not None:
            y = y * self.excite(self.activation(self.squeeze(F.adaptive_avg_pool2d(y, 1)))).sigmoid()
        y = self.narrow(y)
        return x + y if self.is_residual else y


def inverted(all_blocks: list[tuple], activation: Callable, is_squeezed: bool) -> nn.Module:
    layers, inside = {"stem": normed(3, 32, 3), "stem_activation": activation()}, 32
    for kind, (wider, out, count, stride, kernel) in enumerate(all_blocks):
        blocks = []
        for at in range(count):
            blocks.append(Inverted(inside, wider, out, kernel, stride if at == 0 else 1, activation, is_squeezed))
            inside = out
        layers[str(kind)] = nn.Sequential(*blocks)
    return named(**layers, last=normed(inside, 1280, 1), last_activation=activation(), **ended(1280))


# Inside times the channels, channels behind, number, stride and kernel.
MOBILENET2 = [
    (1, 16, 1, 1, 3),
    (6, 24, 2, 1, 3),
    (6, 32, 3, 2, 3),
    (6, 64, 4, 2, 3),
    (6, 96, 3, 1, 3),
    (6, 160, 3, 2, 3),
    (6, 320, 1, 1, 3),
]
EFFICIENTNET0 = [
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
]


class BertBase(nn.Module):
    def __init__(self):
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa")
        self.bert = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(config.hidden_size, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.bert(ids).last_hidden_state[:, 0])


class Gpt2(nn.Module):
    RULES = Rules(
        (
            (r"(wte|wpe|ln_f)\.(.+)", r"model.transformer.\1.\2"),
            (r"(\d+)\.(ln_[12])\.(.+)", r"model.transformer.h.\1.\2.\3"),
            (r"(\d+)\.qkv\.(.+)", r"model.transformer.h.\1.attn.c_attn.\2"),
            (r"(\d+)\.out\.(.+)", r"model.transformer.h.\1.attn.c_proj.\2"),
            (r"(\d+)\.up\.(.+)", r"model.transformer.h.\1.mlp.c_fc.\2"),
            (r"(\d+)\.down\.(.+)", r"model.transformer.h.\1.mlp.c_proj.\2"),
        ),
        transposed=r".*\.(c_attn|c_proj|c_fc)\.weight",
    )

    def __init__(self):
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        dropped = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        self.model = GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa", use_cache=False, **dropped))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids).logits.flatten(0, 1)


class Changed(nn.Module):
    """A linear layer that stays, with a change of rank 16."""

    def __init__(self, stays: nn.Linear):
        super().__init__()
        self.stays = stays
        self.lora_A = nn.Linear(stays.in_features, 16, bias=False)
        self.lora_B = nn.Linear(16, stays.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stays(x) + self.lora_B(self.lora_A(x)) * 2.0


class LlamaLora(nn.Module):
    RULES = Rules(
        (
            (r"stays\.(.+)", r"model.model.\1"),
            (r"(\d+)\.stays\.(.+)", r"model.model.layers.\1.\2"),
            (r"(\d+)\.([qkvo]_proj)\.(.+)", r"model.model.layers.\1.self_attn.\2.\3"),
            (r"(\d+)\.(gate|up|down)_proj\.(.+)", r"model.model.layers.\1.mlp.\2_proj.\3"),
        )
    )

    def __init__(self):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
        heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64}
        numbers = {"rms_norm_eps": 1e-5, "rope_theta": 500000.0}
        others = {"tie_word_embeddings": True, "use_cache": False, "attn_implementation": "sdpa"}
        self.model = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS_OF_LLAMA, **sizes, **heads, **numbers, **others))
        self.model.requires_grad_(False)
        for layer in self.model.model.layers:
            for part in (layer.self_attn, layer.mlp):
                for name, linear in list(part.named_children()):
                    if isinstance(linear, nn.Linear):
                        setattr(part, name, Changed(linear))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids).logits.flatten(0, 1)


VIT = Rules(
    (
        (r"vit\.embeddings\.cls_token", "cls_token"),
        (r"vit\.embeddings\.position_embeddings", "pos_embed"),
        (r"vit\.embeddings\.patch_embeddings\.projection\.(.+)", r"patch_embed.proj.\1"),
        (r"vit\.encoder\.layer\.(\d+)\.attention\.attention\.query\.(.+)", r"blocks.\1.attn.qkv.\2#0"),
        (r"vit\.encoder\.layer\.(\d+)\.attention\.attention\.key\.(.+)", r"blocks.\1.attn.qkv.\2#1"),
        (r"vit\.encoder\.layer\.(\d+)\.attention\.attention\.value\.(.+)", r"blocks.\1.attn.qkv.\2#2"),
        (r"vit\.encoder\.layer\.(\d+)\.attention\.output\.dense\.(.+)", r"blocks.\1.attn.proj.\2"),
        (r"vit\.encoder\.layer\.(\d+)\.layernorm_before\.(.+)", r"blocks.\1.norm1.\2"),
        (r"vit\.encoder\.layer\.(\d+)\.layernorm_after\.(.+)", r"blocks.\1.norm2.\2"),
        (r"vit\.encoder\.layer\.(\d+)\.intermediate\.dense\.(.+)", r"blocks.\1.mlp.fc1.\2"),
        (r"vit\.encoder\.layer\.(\d+)\.output\.dense\.(.+)", r"blocks.\1.mlp.fc2.\2"),
        (r"vit\.layernorm\.(.+)", r"norm.\1"),
        (r"classifier\.(.+)", r"head.\1"),
    )
)


def vit_small() -> nn.Module:
    import timm

    return timm.create_model("vit_small_patch16_224", norm_layer=functools.partial(nn.LayerNorm, eps=1e-12))


Batch = tuple[torch.Tensor, torch.Tensor]




def kinds(rows: int, of: int) -> torch.Tensor:
    return torch.arange(rows) * 7919 % of


@dataclass(frozen=True)
class Model:
    make: Callable[[], nn.Module]
    # A batch of this number of items, of f32 where it has no ids.
    batch: Callable[[int], Batch]
    rules: Rules = Rules()


def of_numbers(make: Callable[[], nn.Module], shape: tuple[int, ...], of: int, rules: Rules = Rules()) -> Model:
    return Model(make, lambda rows: (torch.randn(rows, *shape), kinds(rows, of)), rules)


def of_texts(make: Callable[[], nn.Module], tokens: int, words: int, rules: Rules) -> Model:
    """A model that names each token of its text again."""

    def batch(rows: int) -> Batch:
        ids = kinds(rows * tokens, words)
        return ids.view(rows, tokens), ids

    return Model(make, batch, rules)


PICTURE = (3, 32, 32)
MODELS = {
    "mlp": of_numbers(mlp, (784,), 10),
    "resnet18-32": of_numbers(lambda: resnet([2, 2, 2, 2], 1), PICTURE, 10, RESNET),
    "resnet50-32": of_numbers(lambda: resnet([3, 4, 6, 3], 4), PICTURE, 10, RESNET),
    "mobilenet2-32": of_numbers(lambda: inverted(MOBILENET2, nn.ReLU6, False), PICTURE, 10),
    "efficientnet0-32": of_numbers(lambda: inverted(EFFICIENTNET0, nn.SiLU, True), PICTURE, 10),
    "bert-base": Model(
        BertBase, lambda rows: (kinds(rows * TOKENS_OF_BERT, 30000).view(rows, TOKENS_OF_BERT), kinds(rows, 2))
    ),
    "gpt2": of_texts(Gpt2, TOKENS_OF_GPT2, WORDS_OF_GPT2, Gpt2.RULES),
    "llama-1b-lora": of_texts(LlamaLora, TOKENS_OF_LLAMA, WORDS_OF_LLAMA, LlamaLora.RULES),
    "vit-small": of_numbers(vit_small, (3, 224, 224), 1000, VIT),
}
