"""The worker's requests, one method each; worker.py documents their arguments and answers."""

import gc
import importlib.metadata
import platform
import time

import torch
from safetensors.torch import save_file

import models
import sample


def framework(name: str, cache: str | None):
    """The modes of a framework, an object with `modes`, `packages`, `prepare` and `clear`."""
    if name == "torch":
        from torch_modes import TorchModes

        return TorchModes()
    from onnx_modes import OnnxModes

    return OnnxModes(cache)


class Session:
    """A framework with at most one model and input, and the modes prepared for them."""

    def __init__(self, name: str, cache: str | None):
        # Not inference_mode: it restricts torch.export, torch.compile and the version counter of in-place changes.
        torch.set_grad_enabled(False)
        self.framework = framework(name, cache)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.cell: models.Cell | None = None
        self.prepared = {}

    def hello(self) -> dict:
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}
        if torch.backends.cudnn.is_available():
            versions["cudnn"] = str(torch.backends.cudnn.version())
        for package in self.framework.packages:
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                pass
        return {"versions": versions, "modes": self.framework.modes}

    def load(self, model: str, dtype: str, batch: int, seed: int = 0) -> dict:
        start = time.perf_counter()
        key, module = (model, dtype, seed), None
        if self.cell is not None and key == (self.cell.model, self.cell.dtype, self.cell.seed):
            module = self.cell.module
        self.cell = None
        self.prepared.clear()
        gc.collect()
        self.framework.clear()
        if module is None:
            module = models.build(model, dtype, seed, self.device)
        x = models.example(model, dtype, batch, seed, self.device)
        self.cell = models.Cell(model, dtype, batch, seed, module, x)
        sample.synchronize()
        return {"seconds": round(time.perf_counter() - start, 3)}

    def prepare(self, mode: str, output: str) -> dict:
        if self.cell is None:
            raise RuntimeError("nothing is loaded")
        self.prepared.pop(mode, None)
        gc.collect()
        start = time.perf_counter()
        prepared = self.framework.prepare(mode, self.cell)
        seconds = time.perf_counter() - start
        save_file({"output": prepared.call().float().cpu().contiguous()}, output)
        self.prepared[mode] = prepared
        return {"seconds": round(seconds, 3), "peak_bytes": prepared.peak_bytes, "note": prepared.note}

    def run(self, mode: str, iters: int, flush: bool = False) -> dict:
        return sample.run(self.call(mode), iters, flush)

    def spin(self, mode: str, seconds: float) -> dict:
        return {"calls": sample.spin(self.call(mode), seconds)}

    def kernels(self, mode: str) -> dict:
        return {"kernels": sample.kernels(self.call(mode))}

    def call(self, mode: str) -> sample.Call:
        if mode not in self.prepared:
            raise ValueError(f"mode {mode!r} is not prepared")
        return self.prepared[mode].call
