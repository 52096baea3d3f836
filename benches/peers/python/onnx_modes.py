"""Runs models exported from PyTorch with ONNX Runtime's CUDA provider and its CUDA graph."""

import importlib.util
import os
import pathlib
import shutil
import tempfile

import numpy
import torch

import sample
from models import PICTURES, Cell
from torch_modes import Prepared

# The limit of a protobuf message. The weights of a larger model are stored in a separate file.
MAX_MESSAGE_BYTES = 2**31 - 2**20
# With an example of batch size 1 the export would treat the batch size as a constant.
EXPORT_BATCH = 2
# ONNX Runtime runs the model once without capture, captures it, and then replays it.
FIRST_RUNS = 3
QUIET = 3


def weight_bytes(module: torch.nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))


def export(cell: Cell, path: pathlib.Path, dynamic: bool) -> None:
    """Exports the model to `path`, for any batch size (`dynamic`) or for the cell's."""
    x = cell.input
    if dynamic:
        x = x[:1].expand(EXPORT_BATCH, *x.shape[1:]).contiguous()
    torch.onnx.export(
        cell.module,
        (x,),
        path,
        dynamo=True,
        input_names=["input"],
        output_names=["output"],
        dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=4096)},) if dynamic else None,
        external_data=weight_bytes(cell.module) > MAX_MESSAGE_BYTES,
        verbose=False,
    )


def batch_symbol(path: pathlib.Path) -> str | None:
    """The symbol of the batch size in the model's input, or None if it is a number."""
    import onnx

    batch = onnx.load(path, load_external_data=False).graph.input[0].type.tensor_type.shape.dim[0]
    return batch.dim_param or None


def exported(cell: Cell, cache: pathlib.Path) -> pathlib.Path:
    """The path of the model in `cache`. Exports it if needed: for any batch size if possible, else for the cell's."""
    import onnx

    key = f"{cell.model}-{cell.dtype}-seed{cell.seed}-torch{torch.__version__}-onnx{onnx.__version__}"
    folders = {True: cache / key, False: cache / f"{key}-batch{cell.batch}"}
    for folder in folders.values():
        if (path := folder / "model.onnx").exists():
            return path
    for dynamic, folder in folders.items():
        # Renamed only when complete: another worker may read the cache, and this one may be killed.
        part = pathlib.Path(tempfile.mkdtemp(dir=cache, prefix="part-"))
        try:
            export(cell, part / "model.onnx", dynamic)
            if dynamic and batch_symbol(part / "model.onnx") is None:
                raise RuntimeError("the export treated the batch size as a constant")
            os.replace(part, folder)
            return folder / "model.onnx"
        except Exception as error:
            if (path := folder / "model.onnx").exists():
                return path  # Another worker exported it meanwhile.
            if not dynamic:
                raise
            print(f"cannot export {key} for any batch size; exporting it for {cell.batch}: {error}")
        finally:
            shutil.rmtree(part, ignore_errors=True)


def options(path: pathlib.Path, batch: int):
    """Session options that make every shape of the model static."""
    import onnxruntime

    made = onnxruntime.SessionOptions()
    made.log_severity_level = QUIET
    if symbol := batch_symbol(path):
        made.add_free_dimension_override_by_name(symbol, batch)
    return made


def check() -> None:
    """Raises an error that names missing packages, if any."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(f"{', '.join(missing)} missing; pip install -r requirements.txt")
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise RuntimeError("onnxruntime has no CUDAExecutionProvider; pip install onnxruntime-gpu instead")
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no GPU, which makes the stream and the tensors; install a torch with CUDA")


class OnnxModes:
    """ONNX Runtime on one of torch's streams. TF32 is on for image models; one switch covers all operators."""

    packages = ("onnxruntime-gpu", "onnxruntime", "onnx", "onnxscript", "torchvision", "transformers", "timm")
    modes = ["graph"]

    def __init__(self, cache: str | None):
        check()
        self.temporary = None if cache else tempfile.TemporaryDirectory()
        self.cache = pathlib.Path(cache or self.temporary.name)
        self.cache.mkdir(parents=True, exist_ok=True)
        # torch uses the same stream, so that its events measure the session. The default stream cannot be captured.
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)

    def clear(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def prepare(self, mode: str, cell: Cell) -> Prepared:
        """Exports the model if needed, and creates a session that replays its CUDA graph.

        `peak_bytes` is the free GPU memory before the session is created, minus that after the first runs, minus the
        size of the model's file (the weights). ONNX Runtime releases no memory in between. The number includes its
        arena's reserve, the static input and output, and, in a process's first session, the libraries' allocations.
        """
        if mode not in self.modes:
            raise ValueError(f"unknown mode {mode!r}: one of {', '.join(self.modes)}")
        path = exported(cell, self.cache)
        output = torch.empty_like(cell.module(cell.input))
        self.clear()
        before, _ = torch.cuda.mem_get_info()
        try:
            call, note = self.session(path, cell, output, shared=True), None
        except Exception as error:
            print(f"no session on torch's stream: {error}")
            call, note = self.session(path, cell, output, shared=False), "own stream, host waits"
        torch.cuda.synchronize()
        after, _ = torch.cuda.mem_get_info()
        weights = sum(file.stat().st_size for file in path.parent.iterdir())
        return Prepared(call, max(0, before - after - weights), note)

    def session(self, path: pathlib.Path, cell: Cell, output: torch.Tensor, shared: bool) -> sample.Call:
        """Creates a session with a captured graph, on torch's stream if `shared`, else on a separate one."""
        import onnxruntime

        provider = {
            "device_id": str(output.device.index),
            "enable_cuda_graph": "1",
            "use_tf32": "1" if cell.model in PICTURES else "0",
            "cudnn_conv_algo_search": "EXHAUSTIVE",
        }
        if shared:
            provider["user_compute_stream"] = str(self.stream.cuda_stream)
        session = onnxruntime.InferenceSession(
            path,
            options(path, cell.batch),
            providers=[("CUDAExecutionProvider", provider)],
            # The fallback would retry without the options and hide the error.
            enable_fallback=0,
        )
        # If the library of the CUDA provider does not load, only the CPU provider is left.
        if "CUDAExecutionProvider" not in session.get_providers():
            raise RuntimeError("onnxruntime could not load its CUDA provider; its reason is in the log")
        run = onnxruntime.RunOptions()
        if shared:
            run.add_run_config_entry("disable_synchronize_execution_providers", "1")

        static = cell.input.clone()
        binding = session.io_binding()
        for tensor, bind, name in (
            (static, binding.bind_input, session.get_inputs()[0].name),
            (output, binding.bind_output, session.get_outputs()[0].name),
        ):
            element = getattr(numpy, str(tensor.dtype).removeprefix("torch."))
            bind(name, "cuda", tensor.device.index, element, tuple(tensor.shape), tensor.data_ptr())

        def call() -> torch.Tensor:
            static.copy_(cell.input)
            if not shared:
                self.stream.synchronize()
            session.run_with_iobinding(binding, run)
            return output

        for _ in range(FIRST_RUNS):
            call()
            torch.cuda.synchronize()
        return call
