"""Captures launches into a CUDA graph that copies its input in and replays."""

from collections.abc import Callable

import torch

WARM_UP_CALLS = 3


def release_workspaces() -> None:
    """Drops the workspaces that torch keeps for cuBLAS, one a stream; later calls make new ones.

    A graph keeps the address of its workspace, and others drop the workspaces too (torch.compile before it records). So
    a capture must make its own, in its own pool, where nobody else can get the memory while the graph lives.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()


def captured(
    launch: Callable[[torch.Tensor], tuple[torch.Tensor, object]], x: torch.Tensor, stream: torch.cuda.Stream
) -> Callable[[], torch.Tensor]:
    """The call that copies `x` to a static tensor and replays what `launch` does with that, captured on `stream`.

    `launch` returns its result and whatever else must outlive the capture.
    """
    static = x.clone()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_CALLS):
            kept = launch(static)
            # Before anything is dropped that another stream may be reading.
            torch.cuda.synchronize()
            del kept
    release_workspaces()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        output, kept = launch(static)
    # From here on its memory belongs to the graph alone.
    del kept

    def call() -> torch.Tensor:
        static.copy_(x)
        graph.replay()
        return output

    return call
