"""Times a step of training in PyTorch: forward, backward and fused AdamW, of the models of `benches/training/`.

    python3 benches/peers/python/train.py --models bert-base --dtype bf16 --batch 8

Prints a line of JSON for each contestant: eager; graph, a CUDA graph of the whole step; compile, torch.compile of the loss, by default and
in its mode reduce-overhead, with a compiled optimizer. `ms` is the median of `--steps` steps on the clock, with the device idle before
each, `gpu_ms` that between events. Types of 16 bits hold weights, too, as candle's do; with `--autocast` weights are f32. TF32 is off for
matmuls, as in PyTorch's default.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import capture

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
TOKENS = 128
LONG = 1024
WORDS_OF_LLAMA, TOKENS_OF_LLAMA = 128256, 512
Step = Callable[[], torch.Tensor]


def mlp() -> nn.Module:
    sizes = [784, 256, 256, 10]
    layers = [layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def normed(inside: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, out, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(out)
    )


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


def resnet(stages: list[int], wider: int) -> nn.Module:
    blocks, inside = [], 64
    for stage, count in enumerate(stages):
        between = 64 << stage
        for at in range(count):
            blocks.append(Block(inside, between, between * wider, 2 if at == 0 and stage > 0 else 1))
            inside = between * wider
    return nn.Sequential(normed(3, 64, 3), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10))


class Inverted(nn.Module):
    def __init__(self, inside: int, wider: int, out: int, kernel: int, stride: int, activation: Callable, is_squeezed: bool):
        super().__init__()
        between = inside * wider
        wide = [normed(inside, between, 1), activation()] if wider > 1 else []
        self.wide = nn.Sequential(*wide, normed(between, between, kernel, stride, between), activation())
        squeeze = [nn.Conv2d(between, inside // 4, 1), activation(), nn.Conv2d(inside // 4, between, 1), nn.Sigmoid()]
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), *squeeze) if is_squeezed else None
        self.narrow = normed(between, out, 1)
        self.is_residual = stride == 1 and inside == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.wide(x)
        if self.squeeze is not None:
            y = y * self.squeeze(y)
        y = self.narrow(y)
        return x + y if self.is_residual else y


def inverted(blocks: list[tuple], activation: Callable, is_squeezed: bool) -> nn.Module:
    layers, inside = [normed(3, 32, 3), activation()], 32
    for wider, out, count, stride, kernel in blocks:
        for at in range(count):
            layers.append(Inverted(inside, wider, out, kernel, stride if at == 0 else 1, activation, is_squeezed))
            inside = out
    layers += [normed(inside, 1280, 1), activation(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(1280, 10))


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


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        dropped = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        self.model = GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa", use_cache=False, **dropped))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids).logits.flatten(0, 1)


class BertBase(nn.Module):
    def __init__(self):
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa")
        self.bert = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(config.hidden_size, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.bert(ids).last_hidden_state[:, 0])


class Changed(nn.Module):
    """A linear layer that stays, with a change of rank 16."""

    def __init__(self, stays: nn.Linear):
        super().__init__()
        self.stays = stays
        self.down = nn.Linear(stays.in_features, 16, bias=False)
        self.up = nn.Linear(16, stays.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stays(x) + self.up(self.down(x)) * 2.0


class LlamaLora(nn.Module):
    def __init__(self):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
        heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64}
        others = {"tie_word_embeddings": True, "use_cache": False, "attn_implementation": "sdpa"}
        with torch.device("cuda"):
            self.model = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS_OF_LLAMA, **sizes, **heads, **others))
            self.model.requires_grad_(False)
            for layer in self.model.model.layers:
                for part in (layer.self_attn, layer.mlp):
                    for name, linear in list(part.named_children()):
                        if isinstance(linear, nn.Linear):
                            setattr(part, name, Changed(linear))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids).logits.flatten(0, 1)


def vit_small() -> nn.Module:
    import timm

    return timm.create_model("vit_small_patch16_224")


def image(rows: int, side: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, 3, side, side, device="cuda", dtype=dtype)


def kinds(rows: int, kinds: int) -> torch.Tensor:
    return torch.arange(rows, device="cuda") * 7919 % kinds


def pictures(rows: int, dtype: torch.dtype) -> tuple:
    return image(rows, 32, dtype), kinds(rows, 10)


# A model, and a batch of this number of items.
MODELS = {
    "mlp": (mlp, lambda rows, dtype: (torch.randn(rows, 784, device="cuda", dtype=dtype), kinds(rows, 10))),
    "resnet18-32": (lambda: resnet([2, 2, 2, 2], 1), pictures),
    "resnet50-32": (lambda: resnet([3, 4, 6, 3], 4), pictures),
    "mobilenet2-32": (lambda: inverted(MOBILENET2, nn.ReLU6, False), pictures),
    "efficientnet0-32": (lambda: inverted(EFFICIENTNET0, nn.SiLU, True), pictures),
    "bert-base": (BertBase, lambda rows, dtype: (kinds(rows * TOKENS, 30000).view(rows, TOKENS), kinds(rows, 2))),
    "gpt2": (Gpt2, lambda rows, dtype: (kinds(rows * LONG, 50257).view(rows, LONG), kinds(rows * LONG, 50257))),
    "llama-1b-lora": (
        LlamaLora,
        lambda rows, dtype: (
            kinds(rows * TOKENS_OF_LLAMA, WORDS_OF_LLAMA).view(rows, TOKENS_OF_LLAMA),
            kinds(rows * TOKENS_OF_LLAMA, WORDS_OF_LLAMA),
        ),
    ),
    "vit-small": (vit_small, lambda rows, dtype: (image(rows, 224, dtype), kinds(rows, 1000))),
}


def trained(name: str, dtype: torch.dtype, rows: int, autocast: bool, is_images_last: bool) -> tuple[nn.Module, tuple]:
    """The model and its batch, on the GPU."""
    torch.manual_seed(0)
    make, batch = MODELS[name]
    of_weights = torch.float32 if autocast else dtype
    module = make().cuda().to(of_weights).train()
    x, right = batch(rows, of_weights)
    if is_images_last and x.dim() == 4:
        module, x = module.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return module, (x, right)


def loss_of(module: nn.Module, dtype: torch.dtype, autocast: bool) -> Callable:
    def loss(x: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype, enabled=autocast):
            logits = module(x)
        return F.cross_entropy(logits.float(), right)

    return loss


def stepped(loss: Callable, optimizer: torch.optim.Optimizer, batch: tuple, update: Callable | None = None) -> Step:
    update = update or optimizer.step

    def step() -> torch.Tensor:
        value = loss(*batch)
        value.backward()
        update()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return step


def contestants(name: str, dtype: torch.dtype, rows: int, autocast: bool, is_images_last: bool) -> dict[str, Callable[[], Step]]:
    def made(capturable: bool = False) -> tuple:
        module, batch = trained(name, dtype, rows, autocast, is_images_last)
        optimizer = torch.optim.AdamW([of for of in module.parameters() if of.requires_grad], lr=1e-4, fused=True, capturable=capturable)
        return loss_of(module, dtype, autocast), optimizer, batch

    def graph() -> Step:
        step = stepped(*made(capturable=True))
        return capture.recorded(lambda: (step(), None), torch.cuda.Stream())

    def compiled(mode: str) -> Callable[[], Step]:
        def of() -> Step:
            loss, optimizer, batch = made()
            return stepped(torch.compile(loss, mode=mode), optimizer, batch, torch.compile(optimizer.step))

        return of

    def compiled_graph() -> Step:
        loss, optimizer, batch = made(capturable=True)
        step = stepped(torch.compile(loss), optimizer, batch)
        return capture.recorded(lambda: (step(), None), torch.cuda.Stream())

    return {
        "eager": lambda: stepped(*made()),
        "graph": graph,
        "compile": compiled("default"),
        "compile-reduce-overhead": compiled("reduce-overhead"),
        "compile-graph": compiled_graph,
    }


def measure(make: Callable[[], Step], steps: int) -> dict:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    begin = time.perf_counter()
    step = make()
    first = step().item()
    for _ in range(5):
        step()
    ready_s = time.perf_counter() - begin
    wall, gpu, last = [], [], 0.0
    for _ in range(steps):
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        at = time.perf_counter()
        start.record()
        value = step()
        end.record()
        torch.cuda.synchronize()
        wall.append((time.perf_counter() - at) * 1e3)
        gpu.append(start.elapsed_time(end))
        last = value.item()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    return {
        "ms": statistics.median(wall),
        "gpu_ms": statistics.median(gpu),
        "first_loss": first,
        "last_loss": last,
        "peak_mib": round(peak),
        "ready_s": round(ready_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--only", type=lambda text: text.split(","))
    parser.add_argument("--autocast", action="store_true", help="f32 weights, computed in --dtype")
    parser.add_argument("--channels-last", action="store_true")
    args = parser.parse_args()
    for model in args.models:
        ways = contestants(model, DTYPES[args.dtype], args.batch, args.autocast, args.channels_last)
        for contestant, make in ways.items():
            if args.only and contestant not in args.only:
                continue
            try:
                line = measure(make, args.steps)
            except Exception as error:  # noqa: BLE001 - an error is a result, too
                line = {"failed": str(error).splitlines()[0][:200] if str(error) else type(error).__name__}
            torch._dynamo.reset()
            of = {"model": model, "dtype": args.dtype, "batch": args.batch, "contestant": contestant}
            print(json.dumps(of | line | {"torch": torch.__version__, "device": torch.cuda.get_device_name()}), flush=True)


if __name__ == "__main__":
    main()
