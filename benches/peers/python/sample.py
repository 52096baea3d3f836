"""Measures calls: device, wall and host time per call, throughput, and time per kernel."""

import gc
import json
import pathlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable

import torch

Call = Callable[[], torch.Tensor]

PROFILED_CALLS = 10
SPIN_CALLS = 8
MIN_FLUSH_BYTES = 256 * 2**20
# Categories of profiler events that occupy the GPU.
DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")


def synchronize() -> None:
    """Waits for the device. On the CPU results are complete when a call returns."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Flush:
    """Overwrites the L2 cache with a buffer of 4 times its size, and waits."""

    def __init__(self):
        self.buffer = None
        if torch.cuda.is_available():
            size = 4 * torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
            self.buffer = torch.empty(max(size, MIN_FLUSH_BYTES), dtype=torch.uint8, device="cuda")

    def __call__(self) -> None:
        if self.buffer is not None:
            self.buffer.zero_()
            # Synchronizes the whole device, because a call may use other streams than the current one.
            synchronize()


class WallEvent:
    """Replaces `torch.cuda.Event` on the CPU."""

    def record(self) -> None:
        self.ns = time.perf_counter_ns()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "WallEvent") -> float:
        return (end.ns - self.ns) / 1e6


def event():
    return torch.cuda.Event(enable_timing=True) if torch.cuda.is_available() else WallEvent()


def run(call: Call, iters: int, flush: bool) -> dict[str, list[float]]:
    """Device, wall and host microseconds of each of `iters` calls: between events, until completion, until return.

    `call` must enqueue on the current stream, or join it at its end.
    """
    clear = Flush() if flush else lambda: None
    # Recorded once beforehand, because an event allocates at its first record.
    events = [(event(), event()) for _ in range(iters)]
    for pair in events:
        for each in pair:
            each.record()
    call()
    synchronize()

    stamps = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for start, end in events:
            clear()
            start.record()
            t0 = time.perf_counter_ns()
            call()
            t1 = time.perf_counter_ns()
            end.record()
            end.synchronize()
            stamps.append((t0, t1, time.perf_counter_ns()))
    finally:
        if collecting:
            gc.enable()

    if torch.cuda.is_available():
        gpu = [start.elapsed_time(end) * 1e3 for start, end in events]
    else:
        gpu = [(t2 - t0) / 1e3 for t0, _, t2 in stamps]
    return {
        "gpu_us": [round(us, 2) for us in gpu],
        "wall_us": [round((t2 - t0) / 1e3, 2) for t0, _, t2 in stamps],
        "host_us": [round((t1 - t0) / 1e3, 2) for t0, t1, _ in stamps],
    }


def spin(call: Call, seconds: float) -> int:
    """Calls for `seconds`, a few calls ahead of the device, and returns the number of calls."""
    calls, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(SPIN_CALLS):
            call()
        synchronize()
        calls += SPIN_CALLS
    return calls


def kernels(call: Call) -> list[dict]:
    """Kernels and copies of one call, with their counts and microseconds, the longest first."""
    if not torch.cuda.is_available():
        raise RuntimeError("kernels can only be measured on a GPU, and there is none")
    call()
    synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(PROFILED_CALLS):
            call()
        synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return summary(json.loads(path.read_text(errors="replace"))["traceEvents"])


def summary(events: list[dict]) -> list[dict]:
    """Averages the device events in a trace of `PROFILED_CALLS` calls per call."""
    totals = defaultdict(lambda: [0, 0.0])
    for e in events:
        if e.get("cat") in DEVICE_EVENTS:
            total = totals[e["name"]]
            total[0] += 1
            total[1] += e["dur"]
    rows = [
        {"name": name, "calls": round(count / PROFILED_CALLS), "us": round(us / PROFILED_CALLS, 3)}
        for name, (count, us) in totals.items()
    ]
    return sorted(rows, key=lambda row: -row["us"])
