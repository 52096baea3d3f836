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
Step = Callable[[], torch.Tensor]


def mlp() -> nn.Module:
    sizes = [784, 256, 256, 10]
    layers = [layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Block(nn.Module):
    def __init__(self, inside: int, out: int, stride: int):
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out))
        self.two = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        shortcut = [nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out)]
        self.shortcut = nn.Sequential(*shortcut) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.two(F.relu(self.one(x))) + self.shortcut(x))


def resnet18() -> nn.Module:
    blocks, inside = [], 64
    for stage, out in enumerate([64, 128, 256, 512]):
        for at in range(2):
            blocks.append(Block(inside, out, 2 if at == 0 and stage > 0 else 1))
            inside = out
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class BertBase(nn.Module):
    def __init__(self):
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa")
        self.bert = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(config.hidden_size, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.bert(ids).last_hidden_state[:, 0])


def vit_small() -> nn.Module:
    import timm

    return timm.create_model("vit_small_patch16_224")


def image(rows: int, side: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, 3, side, side, device="cuda", dtype=dtype)


def kinds(rows: int, kinds: int) -> torch.Tensor:
    return torch.arange(rows, device="cuda") * 7919 % kinds


# A model, and a batch of this number of items.
MODELS = {
    "mlp": (mlp, lambda rows, dtype: (torch.randn(rows, 784, device="cuda", dtype=dtype), kinds(rows, 10))),
    "resnet18-32": (resnet18, lambda rows, dtype: (image(rows, 32, dtype), kinds(rows, 10))),
    "bert-base": (BertBase, lambda rows, dtype: (kinds(rows * TOKENS, 30000).view(rows, TOKENS), kinds(rows, 2))),
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
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True, capturable=capturable)
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
