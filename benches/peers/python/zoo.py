"""Measures PyTorch on the models of `benches/zoo/`: microseconds of a call, with random weights.

    python3 benches/peers/python/zoo.py --models resnet18,bert-base --dtypes float16,float32

compares with

    cargo run --release --features cudnn,zoo --example zoo -- --only MODEL --dtype DTYPE --iters 30 --unchanged exact,accurate

Prints a line of JSON for each model, dtype and contestant:

- graph: a CUDA graph of the eager model, whose inputs are not copied
- channels-last: the same with weights and images in this format, of models with images
- compile: torch.compile in its mode reduce-overhead, which replays graphs of its own and copies its inputs into them

`us` is the median GPU time of `--iters` calls, between events, with the device idle before each. With `--cpu` it is wall time, and the
contestants are eager and channels-last. TF32 is as in PyTorch's default, on for cuDNN's convolutions and off for matmuls; cuDNN's
algorithms are chosen by measurement. Attention is PyTorch's fused one wherever the models' code allows. zoo_models.py says what the
models compute.
"""

import argparse
import contextlib
import copy
import gc
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import capture
import sample
import torch_modes
import zoo_models
from models import Cell

# As candle calls them, and as PyTorch does.
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
NAMES = {name: name for name in DTYPES} | {str(dtype).removeprefix("torch."): name for name, dtype in DTYPES.items()}

# A call, and a note.
Way = tuple[sample.Call, str | None]


def eager(cell: Cell) -> Way:
    return lambda: cell.module(cell.input), None


def graph(cell: Cell) -> Way:
    return capture.recorded(lambda: (cell.module(cell.input), None), torch.cuda.Stream()), None


def is_image(x: torch.Tensor) -> bool:
    return x.dim() == 4


def channels_last(way: Callable[[Cell], Way]) -> Callable[[Cell], Way]:
    """In this order of memory. The model is copied, since the other contestants are to find it as it is."""

    def of(cell: Cell) -> Way:
        order = torch.channels_last
        inputs = tuple(x.to(memory_format=order) if is_image(x) else x for x in cell.input)
        module = copy.deepcopy(cell.module).to(memory_format=order)
        return way(Cell(cell.model, cell.dtype, cell.batch, cell.seed, module, inputs))

    return of


# The compiler comes last, since it may take longer than there is time. It chooses the order of memory of convolutions itself.
ON_GPU = {"graph": graph, "channels-last": channels_last(graph), "compile": torch_modes.compiled("reduce-overhead")}
ON_CPU = {"eager": eager, "channels-last": channels_last(eager)}


def measure(way: Callable[[Cell], Way], cell: Cell, iters: int) -> dict:
    """A contestant's numbers, or its error, which is a result, too."""
    start = time.perf_counter()
    try:
        call, note = way(cell)
        for _ in range(torch_modes.FIRST_CALLS):
            call()
        sample.synchronize()
        ready = time.perf_counter() - start
        us = statistics.median(sample.run(call, iters, flush=False)["gpu_us"])
    except Exception as error:
        return {"error": failed(error)}
    return {"us": round(us, 1), "ready_s": round(ready, 1)} | ({"note": note} if note else {})


def failed(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:400]


def rows(model: str, dtype: str, batch: int, ways: dict, iters: int, device: torch.device):
    """The numbers of each contestant that takes part."""
    try:
        module, inputs = zoo_models.build(model, zoo_models.Target(device, DTYPES[dtype], batch))
        # transformers installs hooks in its first call, which torch.compile cannot trace.
        module(inputs)
    except Exception as error:
        yield from ({"contestant": name, "error": failed(error)} for name in ways)
        return
    cell = Cell(model, dtype, batch, 0, module, inputs)
    for name, way in ways.items():
        if name != "channels-last" or any(map(is_image, inputs)):
            yield {"contestant": name} | measure(way, cell, iters)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(",")
    parser.add_argument("--models", type=listed, default=list(zoo_models.MODELS), help="by default all")
    parser.add_argument("--dtypes", type=listed, default=["float16", "float32"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--iters", type=int, default=30)
    parser.add_argument("--only", type=listed, help="contestants")
    parser.add_argument("--json", type=Path, help="file to write the lines to as well")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()

    ways = ON_CPU if args.cpu else ON_GPU
    for asked, known in ((args.models, zoo_models.MODELS), (args.dtypes, NAMES), (args.only or [], ways)):
        for name in asked:
            if name not in known:
                parser.error(f"unknown {name!r}: one of {', '.join(known)}")
    ways = {name: way for name, way in ways.items() if args.only is None or name in args.only}
    device = torch.device("cpu" if args.cpu else "cuda")
    torch.set_grad_enabled(False)
    # Sets TF32 and cuDNN.
    modes = torch_modes.TorchModes()
    about = {"torch": torch.__version__, "device": "cpu" if args.cpu else torch.cuda.get_device_name()}
    with args.json.open("w") if args.json else contextlib.nullcontext() as file:
        for model, dtype in itertools.product(args.models, args.dtypes):
            of = {"model": model, "dtype": NAMES[dtype], "batch": args.batch}
            with torch.inference_mode():
                for row in rows(model, NAMES[dtype], args.batch, ways, args.iters, device):
                    line = json.dumps(of | row | about)
                    print(line, flush=True)
                    if file:
                        print(line, file=file, flush=True)
            gc.collect()
            modes.clear()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # The compiler's processes and the captured graphs take ten seconds to end in order.
    os._exit(0)
