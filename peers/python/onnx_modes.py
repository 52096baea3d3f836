"""ONNX Runtime's CUDA provider with its CUDA graph, on models exported from PyTorch."""

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

# Of one protobuf message; a larger model has its weights beside it.
MAX_MESSAGE_BYTES = 2**31 - 2**20
# An example of batch 1 would make the export take the batch for a constant.
EXPORT_BATCH = 2
# ONNX Runtime runs once as usual, captures, and replays from then on.
FIRST_RUNS = 3
QUIET = 3


def weight_bytes(module: torch.nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))


def export(cell: Cell, path: pathlib.Path, dynamic: bool) -> None:
    """Writes the model to `path`, for any batch or for that of the cell."""
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
    """What the batch is called in the model's input, or None where it is a number."""
    import onnx

    batch = onnx.load(path, load_external_data=False).graph.input[0].type.tensor_type.shape.dim[0]
    return batch.dim_param or None


def exported(cell: Cell, cache: pathlib.Path) -> pathlib.Path:
    """The model in `cache`, exported if it is not there: for any batch if that can be done, else for the cell's."""
    import onnx

    key = f"{cell.model}-{cell.dtype}-seed{cell.seed}-torch{torch.__version__}-onnx{onnx.__version__}"
    folders = {True: cache / key, False: cache / f"{key}-batch{cell.batch}"}
    for folder in folders.values():
        if (path := folder / "model.onnx").exists():
            return path
    for dynamic, folder in folders.items():
        # Into place only when it is whole: another worker may look, and this one may be killed.
        part = pathlib.Path(tempfile.mkdtemp(dir=cache, prefix="part-"))
        try:
            export(cell, part / "model.onnx", dynamic)
            if dynamic and batch_symbol(part / "model.onnx") is None:
                raise RuntimeError("the export took the batch for a constant")
            os.replace(part, folder)
            return folder / "model.onnx"
        except Exception as error:
            if (path := folder / "model.onnx").exists():
                return path  # Another worker's, exported meanwhile.
            if not dynamic:
                raise
            print(f"no export of {key} for any batch, so for {cell.batch}: {error}")
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
    """Raises what is to be installed, if something is missing."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(f"{', '.join(missing)} missing; pip install -r requirements.txt")
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise RuntimeError("onnxruntime has no CUDAExecutionProvider; pip install onnxruntime-gpu instead")
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no GPU, which makes the stream and the tensors; install a torch with CUDA")


class OnnxModes:
    """ONNX Runtime on one stream of torch's, with TF32 for models of pictures: one switch is for all operators."""

    packages = ("onnxruntime-gpu", "onnxruntime", "onnx", "onnxscript", "torchvision", "transformers", "timm")
    modes = ["graph"]

    def __init__(self, cache: str | None):
        check()
        self.temporary = None if cache else tempfile.TemporaryDirectory()
        self.cache = pathlib.Path(cache or self.temporary.name)
        self.cache.mkdir(parents=True, exist_ok=True)
        # All of torch's work too, so that its events are on the stream that the session runs on. The default stream
        # cannot be captured.
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)

    def clear(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def prepare(self, mode: str, cell: Cell) -> Prepared:
        """Exports the model if it has not been, and makes a session that replays its CUDA graph.

        `peak_bytes` is what the GPU had free before the session was made, less what it has after the first runs and the
        size of the model's file, which are the weights: ONNX Runtime gives nothing back meanwhile. It includes what its
        arena holds in reserve, the static input and output, and, in a process's first session, what libraries load.
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
        """A session that has captured its graph, on torch's stream if `shared`, else on one of its own."""
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
            # It would try again without the options, and its error would be lost.
            enable_fallback=0,
        )
        # Where the provider's library does not load, only the CPU's is left.
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
