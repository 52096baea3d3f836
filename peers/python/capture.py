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


def captured(
    launch: Callable[[torch.Tensor], tuple[torch.Tensor, object]], x: torch.Tensor, stream: torch.cuda.Stream
) -> Callable[[], torch.Tensor]:
    """Captures `launch` of a static tensor on `stream`. Returns a call that copies `x` to that tensor and replays.

    `launch` returns its result and an object that must outlive the capture.
    """
    static = x.clone()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_CALLS):
            kept = launch(static)
            # Other streams may still read the tensors that are dropped next.
            torch.cuda.synchronize()
            del kept
    release_workspaces()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        output, kept = launch(static)
    # The graph's pool keeps their memory reserved.
    del kept

    def call() -> torch.Tensor:
        static.copy_(x)
        graph.replay()
        return output

    return call
