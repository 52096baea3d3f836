"""A worker of the benchmark harness: runs models in one other framework, controlled by its parent process in Rust.

Usage: python3 worker.py torch
       python3 worker.py onnxruntime [--cache DIR]      (DIR caches exported models; default: a temporary folder)

Each line of stdin is a request in JSON, answered by one line of JSON on stdout. Output of libraries goes to stderr.
A failure is answered by {"error": "one line, at most 300 characters"}; its traceback goes to stderr, and the worker
continues. Times without a unit in their name are in seconds.

hello       {"do":"hello"}
            -> {"versions":{"torch":"2.11.0+cu130","python":"3.12.3",..}, "modes":["eager","graph",..]}
            The installed versions and the modes for `prepare`, or an error that names the packages to install.
load        {"do":"load", "model":M, "dtype":"f32"|"f16", "batch":N, "seed":S}
            -> {"seconds":s}
            Creates a model and its input on the device, and drops everything loaded and prepared before. If only the
            batch size changes, the model is kept. M is bert, t5, deepfm, googlenet, inception or nasnet.
prepare     {"do":"prepare", "mode":X, "output":"/path/x.safetensors"}
            -> {"seconds":s, "peak_bytes":n|null, "note":"7 streams"|null}
            Prepares a mode, including its first calls. It stays ready until the next load, as do other modes. The
            result of one call is written to the file `output`, in float32 under the name `output`. `prepare` in
            torch_modes.py and onnx_modes.py documents `peak_bytes`. The first mode that is prepared bears the one-time
            costs of the process (loading kernels, cuDNN's search for algorithms).
run         {"do":"run", "mode":X, "iters":30, "flush":false}
            -> {"gpu_us":[..], "wall_us":[..], "host_us":[..]}      (microseconds, one of each per call)
            Times between two events on the stream, from the start of a call until completion, and until its return.
            With `flush`, the L2 cache is overwritten before each call. One call before the measurement is not counted.
spin        {"do":"spin", "mode":X, "seconds":0.3}
            -> {"calls":n}
            Calls for that long, so that the GPU's utilization can be read meanwhile.
kernels     {"do":"kernels", "mode":X}
            -> {"kernels":[{"name":"..", "calls":n, "us":t},..]}
            Kernels and copies of one call, with their counts and total microseconds, averaged over 10 calls.
quit        {"do":"quit"}, answered by {}, or the end of stdin: the worker exits.

A call does what a user does for a new input that is already on the device: if a mode reads a static input, the new
input is first copied to it on the same stream. The output is not copied. Without a GPU there is only the mode eager,
for testing, with `gpu_us` equal to `wall_us`.
"""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import TextIO

REQUESTS = ("hello", "load", "prepare", "run", "spin", "kernels")
ERROR_CHARS = 300


def one_line(error: BaseException) -> str:
    """The error and, if it arose while handling another one, its root cause, in at most `ERROR_CHARS` characters."""
    chain = [error]
    while before := chain[-1].__cause__ or (None if chain[-1].__suppress_context__ else chain[-1].__context__):
        chain.append(before)
    # A failed capture reports that ending the capture failed; the root cause is the first error of the chain.
    texts = [f"{type(e).__name__}: {' '.join(str(e).split())}" for e in dict.fromkeys((chain[0], chain[-1]))]
    if len(texts) == 1:
        return texts[0][:ERROR_CHARS]
    half = (ERROR_CHARS - len(" (after )")) // 2
    return f"{texts[0][:half]} (after {texts[1][:half]})"


def answer(session: Callable[[], object], line: str) -> dict:
    """The answer to one request other than quit."""
    try:
        request = json.loads(line)
        do = request.pop("do")
        if do not in REQUESTS:
            raise ValueError(f"unknown request {do!r}")
        return getattr(session(), do)(**request)
    except Exception as error:
        traceback.print_exc()
        return {"error": one_line(error)}


def is_quit(line: str) -> bool:
    try:
        return json.loads(line)["do"] == "quit"
    except (ValueError, KeyError, TypeError):
        return False


def serve(session: Callable[[], object], requests: Iterable[str], answers: TextIO) -> None:
    """Answers each line of `requests` with the method of `session()` that it names."""
    for line in requests:
        if not line.strip():
            continue
        leaving = is_quit(line)
        print(json.dumps({} if leaving else answer(session, line)), file=answers, flush=True)
        if leaving:
            break


def lazily(framework: str, cache: str | None) -> Callable[[], object]:
    """Creates the session at the first request, so that a missing package gives an error answer and not a crash."""
    made = []

    def session():
        if not made:
            try:
                from session import Session

                made.append(Session(framework, cache))
            except ModuleNotFoundError as error:
                raise RuntimeError(f"{error}; pip install -r requirements.txt") from None
        return made[0]

    return session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=("torch", "onnxruntime"))
    parser.add_argument("--cache", metavar="DIR", help="keeps exported models (onnxruntime)")
    arguments = parser.parse_args()

    # Redirects the stdout of libraries and their child processes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    # Otherwise the profiler keeps slowing launches down after `kernels`. torch reads this variable when it is loaded.
    os.environ["TEARDOWN_CUPTI"] = "1"
    serve(lazily(arguments.framework, arguments.cache), sys.stdin, answers)


if __name__ == "__main__":
    main()
