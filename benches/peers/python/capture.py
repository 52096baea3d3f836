"""Captures launches into a CUDA graph; a call copies the input and replays the graph."""

from collections.abc import Callable

import torch

WARM_UP_CALLS = 3


def release_workspaces() -> None:
    """Drops torch's cuBLAS workspaces, one per stream; later calls allocate new ones.

    A graph keeps the address of its workspace, but other code drops the workspaces too (torch.compile before it
    records). So a capture must allocate its own workspace in its own pool, whose memory stays reserved while the graph
    lives.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()


def recorded(launch: Callable[[], tuple[object, object]], stream: torch.cuda.Stream) -> Callable[[], object]:
    """Captures `launch` on `stream`. Returns a call that replays it, and returns its result.

    `launch` returns its result and an object that must outlive the capture.
    """
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_CALLS):
            kept = launch()
            # Other streams may still read the tensors that are dropped next.
            torch.cuda.synchronize()
            del kept
    release_workspaces()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        output, kept = launch()
    # The graph's pool keeps their memory reserved.
    del kept

    def call() -> object:
        graph.replay()
        return output

    return call


def captured(
    launch: Callable[[torch.Tensor], tuple[torch.Tensor, object]], x: torch.Tensor, stream: torch.cuda.Stream
) -> Callable[[], torch.Tensor]:
    """Captures `launch` of a static tensor on `stream`. Returns a call that copies `x` to that tensor and replays.

    `launch` returns its result and an object that must outlive the capture.
    """
    static = x.clone()
    replay = recorded(lambda: launch(static), stream)

    def call() -> torch.Tensor:
        static.copy_(x)
        return replay()

    return call
