"""Runs a model with PyTorch: eagerly, as a sequential CUDA graph, as Opara's graph, and with torch.compile."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

import capture
import opara_fx
import sample
from models import TRANSFORMERS, Cell

COMPILED = ("reduce-overhead", "max-autotune")
# torch.compile compiles and warms up in the first call, records its graphs in the second, and then replays them.
FIRST_CALLS = 3

Way = tuple[sample.Call, str | None]


@dataclass(frozen=True)
class Prepared:
    """A prepared call, its peak memory in bytes if known, and a note."""

    call: sample.Call
    peak_bytes: int | None
    note: str | None


def eager(cell: Cell) -> Way:
    return lambda: cell.module(cell.input), None


def graph(cell: Cell) -> Way:
    """A sequential CUDA graph."""
    return capture.captured(lambda static: (cell.module(static), None), cell.input, torch.cuda.Stream()), None


def opara(cell: Cell) -> Way:
    # symbolic_trace fails on the code of transformers, which branches on shapes.
    module, traced_by = opara_fx.trace(cell.module, cell.input, symbolic=cell.model not in TRANSFORMERS)
    call, note = opara_fx.parallel(opara_fx.Plan(module, cell.input), cell.input)
    return call, f"{note}, {traced_by}"


def compiled(mode: str) -> Callable[[Cell], Way]:
    """torch.compile, whose graphs copy their input themselves."""

    def way(cell: Cell) -> Way:
        import torch._inductor.config
        from torch._dynamo.exc import Unsupported
        from torch._dynamo.utils import counters

        def calling(fullgraph: bool) -> sample.Call:
            module = torch.compile(cell.module, mode=mode, dynamic=False, fullgraph=fullgraph)

            def call() -> torch.Tensor:
                # Allows the previous call's output to be overwritten.
                torch.compiler.cudagraph_mark_step_begin()
                return module(cell.input)

            return call

        # Otherwise it prints a table for each tuned operator.
        torch._inductor.config.autotune_num_choices_displayed = 0
        skipped, notes = counters["inductor"]["cudagraph_skips"], []
        call = calling(fullgraph=True)
        try:
            call()
        except Unsupported:
            notes.append("with graph breaks")
            call = calling(fullgraph=False)
            call()
        if counters["inductor"]["cudagraph_skips"] > skipped:
            notes.append("without CUDA graphs in part")
        return call, ", ".join(notes) or None

    return way


WAYS = {"eager": eager, "graph": graph, "opara": opara} | {mode: compiled(mode) for mode in COMPILED}


class TorchModes:
    """PyTorch with TF32 as in candle: on for cuDNN's convolutions, off for matmuls."""

    packages = ("torchvision", "transformers", "timm")

    def __init__(self):
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        self.modes = list(WAYS) if torch.cuda.is_available() else ["eager"]

    def clear(self) -> None:
        """Drops compiled code and cached memory. The caller must drop its calls first."""
        torch._dynamo.reset()
        capture.release_workspaces()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def prepare(self, mode: str, cell: Cell) -> Prepared:
        """Prepares a mode, including its first calls.

        `peak_bytes` is the peak of tensor memory during preparation minus that before: intermediate results, static
        inputs, workspaces, and autotuning. It includes the memory kept by CUDA graphs. None on the CPU.
        """
        if mode not in self.modes:
            raise ValueError(f"unknown mode {mode!r}: one of {', '.join(self.modes)}")
        # Otherwise only the first mode would count the workspaces.
        capture.release_workspaces()
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        call, note = WAYS[mode](cell)
        for _ in range(FIRST_CALLS):
            call()
        sample.synchronize()
        return Prepared(call, torch.cuda.max_memory_allocated() - before if on_gpu else None, note)
