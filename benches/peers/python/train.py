"""Times a step of training in PyTorch: forward, backward and fused AdamW, of the models of `benches/training/`.

    python3 benches/peers/python/train.py --models bert-base --dtype bf16 --batch 8 --start bert.safetensors

Prints a line of JSON for each contestant: eager; graph, a CUDA graph of the whole step; compile, torch.compile of the loss, by default and
in its modes reduce-overhead and max-autotune, with a compiled optimizer. Each takes `--steps` steps; `losses` has the loss of each. `ms` is the median of all
steps but the first on the clock, with the device idle before each, `gpu_ms` that between events. Weights and batch are those of `--start`,
which `--example training` writes. Types of 16 bits hold weights, too, as candle's do; with `--autocast` weights are f32. TF32 is off for
matmuls, as in PyTorch's default.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn
from torch.nn import functional as F

import capture
from start import BATCH, Rules, StartError, placed
from training_models import MODELS, Batch

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
Step = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Cell:
    """What all contestants of a model share."""

    model: str
    dtype: torch.dtype
    rows: int
    device: torch.device
    start: Path | None
    is_autocast: bool
    is_images_last: bool


def weights_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, and buffers that belong to a state, but for counts of steps."""
    state = {name for name in module.state_dict() if not name.endswith("num_batches_tracked")}
    return dict(module.named_parameters()) | {name: buffer for name, buffer in module.named_buffers() if name in state}


@torch.no_grad()
def put(path: Path, module: nn.Module, rules: Rules) -> None:
    """Gives a module the weights of a file."""
    weights = weights_of(module)
    with safe_open(path, framework="pt") as file:
        given = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys() if name not in BATCH}
        for name, parts in placed(rules, given, {name: tuple(weight.shape) for name, weight in weights.items()}).items():
            whole = torch.cat([file.get_tensor(part) for part in parts])
            weights[name].copy_(whole.t() if rules.is_transposed(name) else whole)


def batch_of(path: Path, rows: int) -> Batch:
    with safe_open(path, framework="pt") as file:
        if missing := [name for name in BATCH if name not in file.keys()]:
            raise StartError(f"{path} has no tensor {missing[0]}")
        x, right = (file.get_tensor(name) for name in BATCH)
    if len(x) != rows:
        raise StartError(f"{path} has a batch of {len(x)}, and --batch is {rows}")
    return x if x.is_floating_point() else x.long(), right.long()


def trained(cell: Cell) -> tuple[nn.Module, Batch]:
    """The model and its batch, on the device."""
    torch.manual_seed(0)
    model = MODELS[cell.model]
    of_weights = torch.float32 if cell.is_autocast else cell.dtype
    with cell.device:
        module = model.make().to(of_weights).train()
    if cell.start:
        put(cell.start, module, model.rules)
    x, right = batch_of(cell.start, cell.rows) if cell.start else model.batch(cell.rows)
    x, right = x.to(cell.device), right.to(cell.device)
    if x.is_floating_point():
        x = x.to(of_weights)
    if cell.is_images_last and x.dim() == 4:
        module, x = module.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return module, (x, right)


def loss_of(cell: Cell, module: nn.Module) -> Callable:
    def loss(x: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        with torch.autocast(cell.device.type, cell.dtype, enabled=cell.is_autocast):
            logits = module(x)
        return F.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), right)

    return loss


def stepped(loss: Callable, optimizer: torch.optim.Optimizer, batch: Batch, update: Callable | None = None) -> Step:
    update = update or optimizer.step

    def step() -> torch.Tensor:
        value = loss(*batch)
        value.backward()
        update()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return step


def recorded(step: Step, module: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """The step as a CUDA graph. Recording takes steps, so weights and moments get their first numbers again."""
    first = {name: weight.cpu() for name, weight in module.state_dict().items()}
    replay = capture.recorded(lambda: (step(), None), torch.cuda.Stream())
    with torch.no_grad():
        for name, weight in module.state_dict().items():
            weight.copy_(first[name])
        for state in optimizer.state.values():
            for moment in state.values():
                moment.zero_()
    return replay


def contestants(cell: Cell) -> dict[str, Callable[[], Step]]:
    def made(capturable: bool = False) -> tuple:
        module, batch = trained(cell)
        of_gradients = [of for of in module.parameters() if of.requires_grad]
        optimizer = torch.optim.AdamW(of_gradients, lr=1e-4, fused=True, capturable=capturable)
        return module, loss_of(cell, module), optimizer, batch

    def eager() -> Step:
        _, loss, optimizer, batch = made()
        return stepped(loss, optimizer, batch)

    def graph() -> Step:
        module, loss, optimizer, batch = made(capturable=True)
        return recorded(stepped(loss, optimizer, batch), module, optimizer)

    def compiled(mode: str) -> Callable[[], Step]:
        def of() -> Step:
            _, loss, optimizer, batch = made()
            return stepped(torch.compile(loss, mode=mode), optimizer, batch, torch.compile(optimizer.step))

        return of

    def compiled_graph() -> Step:
        module, loss, optimizer, batch = made(capturable=True)
        return recorded(stepped(torch.compile(loss), optimizer, batch), module, optimizer)

    if cell.device.type == "cpu":
        return {"eager": eager}
    return {
        "eager": eager,
        "graph": graph,
        "compile": compiled("default"),
        "compile-reduce-overhead": compiled("reduce-overhead"),
        "compile-max-autotune": compiled("max-autotune"),
        "compile-graph": compiled_graph,
    }


def timed(step: Step, is_cuda: bool) -> tuple[float, float, float | None]:
    """The loss of a step, its milliseconds on the clock, and those between events."""
    if not is_cuda:
        at = time.perf_counter()
        value = step().item()
        return value, (time.perf_counter() - at) * 1e3, None
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    at = time.perf_counter()
    start.record()
    value = step()
    end.record()
    torch.cuda.synchronize()
    ms = (time.perf_counter() - at) * 1e3
    return value.item(), ms, start.elapsed_time(end)


def measure(make: Callable[[], Step], steps: int, is_cuda: bool) -> dict:
    before = 0
    if is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    begin = time.perf_counter()
    step = make()
    losses = [step().item()]
    ready_s = time.perf_counter() - begin
    wall, gpu = [], []
    for _ in range(1, steps):
        loss, ms, gpu_ms = timed(step, is_cuda)
        losses.append(loss)
        wall.append(ms)
        gpu.append(gpu_ms)
    return {
        "ms": statistics.median(wall) if wall else None,
        "gpu_ms": statistics.median(gpu) if gpu and is_cuda else None,
        # JSON has no numbers for what is not finite.
        "losses": [loss if math.isfinite(loss) else None for loss in losses],
        "peak_mib": round((torch.cuda.max_memory_allocated() - before) / 2**20) if is_cuda else None,
        "ready_s": round(ready_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30, help="the first is not timed")
    parser.add_argument("--only", type=lambda text: text.split(","))
    parser.add_argument("--start", type=Path, help="weights and batch of the one model of --models; random ones by default")
    parser.add_argument("--cpu", action="store_true", help="on the CPU, eager alone")
    parser.add_argument("--autocast", action="store_true", help="f32 weights, computed in --dtype")
    parser.add_argument("--channels-last", action="store_true")
    args = parser.parse_args()
    if args.start and len(args.models) != 1:
        parser.error("a file of --start is of one model: name one with --models")
    device = torch.device("cpu" if args.cpu else "cuda")
    for model in args.models:
        cell = Cell(model, DTYPES[args.dtype], args.batch, device, args.start, args.autocast, args.channels_last)
        for contestant, make in contestants(cell).items():
            if args.only and contestant not in args.only:
                continue
            try:
                line = measure(make, args.steps, not args.cpu)
            except Exception as error:  # noqa: BLE001 - an error is a result, too
                line = {"failed": str(error).splitlines()[0][:2000] if str(error) else type(error).__name__}
            torch._dynamo.reset()
            of = {"model": model, "dtype": args.dtype, "batch": args.batch, "contestant": contestant}
            name = "cpu" if args.cpu else torch.cuda.get_device_name()
            print(json.dumps(of | line | {"torch": torch.__version__, "device": name}), flush=True)


if __name__ == "__main__":
    main()
