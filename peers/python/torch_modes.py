"""PyTorch's ways to run a model: eager, as one CUDA graph, as Opara's graph, and through torch.compile."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

import capture
import opara_fx
import sample
from models import TRANSFORMERS, Cell

COMPILED = ("reduce-overhead", "max-autotune")
# torch.compile runs once to compile and warm up, once to record its graphs, and replays them from then on.
FIRST_CALLS = 3

Way = tuple[sample.Call, str | None]


@dataclass(frozen=True)
class Prepared:
    """A call that is ready, the peak of its memory in bytes where that is known, and a remark."""

    call: sample.Call
    peak_bytes: int | None
    note: str | None


def eager(cell: Cell) -> Way:
    return lambda: cell.module(cell.input), None


def graph(cell: Cell) -> Way:
    """A sequential CUDA graph."""
    return capture.captured(lambda static: (cell.module(static), None), cell.input, torch.cuda.Stream()), None


def opara(cell: Cell) -> Way:
    # Code of transformers looks at shapes too much for symbolic_trace.
    module, traced_by = opara_fx.trace(cell.module, cell.input, symbolic=cell.model not in TRANSFORMERS)
    call, note = opara_fx.parallel(opara_fx.Plan(module, cell.input), cell.input)
    return call, f"{note}, {traced_by}"


def compiled(mode: str) -> Callable[[Cell], Way]:
    """torch.compile, whose graphs copy their input in themselves."""

    def way(cell: Cell) -> Way:
        import torch._inductor.config
        from torch._dynamo.exc import Unsupported
        from torch._dynamo.utils import counters

        def calling(fullgraph: bool) -> sample.Call:
            module = torch.compile(cell.module, mode=mode, dynamic=False, fullgraph=fullgraph)

            def call() -> torch.Tensor:
                # The output of the call before may be overwritten.
                torch.compiler.cudagraph_mark_step_begin()
                return module(cell.input)

            return call

        # Else it prints a table for each operator that it tunes.
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
    """PyTorch with TF32 where candle has it: in cuDNN's convolutions, and not in products of matrices."""

    packages = ("torchvision", "transformers", "timm")

    def __init__(self):
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        self.modes = list(WAYS) if torch.cuda.is_available() else ["eager"]

    def clear(self) -> None:
        """Forgets what torch.compile made, and gives memory back. Whoever holds calls drops them before."""
        torch._dynamo.reset()
        capture.release_workspaces()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def prepare(self, mode: str, cell: Cell) -> Prepared:
        """Sets a mode up, its first calls included.

        `peak_bytes` is the most that tensors took meanwhile over what they took before: intermediate results, static
        inputs, workspaces, and trials of algorithms. What a CUDA graph keeps is part of it. None on the CPU.
        """
        if mode not in self.modes:
            raise ValueError(f"unknown mode {mode!r}: one of {', '.join(self.modes)}")
        # So that each mode counts its own workspaces, and not only the first.
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
