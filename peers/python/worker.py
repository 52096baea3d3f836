"""A worker of the benchmark harness: runs models in one other framework, as a child process of the Rust side says.

Usage: python3 worker.py torch
       python3 worker.py onnxruntime [--cache DIR]      (DIR keeps exported models; a temporary folder without)

One JSON object a line comes in on stdin and exactly one a line goes out on stdout; what libraries print goes to stderr.
Any failure is answered by {"error": "one line, at most 300 characters"}, its traceback goes to stderr, and the worker
lives on. Times without a unit in their name are seconds.

hello       {"do":"hello"}
            -> {"versions":{"torch":"2.11.0+cu130","python":"3.12.3",..}, "modes":["eager","graph",..]}
            What is installed and what `prepare` takes, or an error that says what to install.
load        {"do":"load", "model":M, "dtype":"f32"|"f16", "batch":N, "seed":S}
            -> {"seconds":s}
            Makes a model and its input on the device, and drops what was loaded and prepared before; the model is kept
            where only the batch changes. M is bert, t5, deepfm, googlenet, inception or nasnet.
prepare     {"do":"prepare", "mode":X, "output":"/path/x.safetensors"}
            -> {"seconds":s, "peak_bytes":n|null, "note":"7 streams"|null}
            Sets a mode up, its first calls included. It stays ready until the next load, beside others. `output` gets
            the result of one call, in float32 and called `output`. What `peak_bytes` counts is said by `prepare` of
            torch_modes.py and onnx_modes.py. What a process pays only once (loading kernels, cuDNN's search for
            algorithms) falls to the mode that is prepared first.
run         {"do":"run", "mode":X, "iters":30, "flush":false}
            -> {"gpu_us":[..], "wall_us":[..], "host_us":[..]}      (microseconds, one of each a call)
            Between two events on the stream, from before a call until its results are there, and until it returned.
            With `flush`, the L2 cache is overwritten before each call. A first call is not counted.
spin        {"do":"spin", "mode":X, "seconds":0.3}
            -> {"calls":n}
            Calls for that long, so that the GPU's utilisation can be read meanwhile.
kernels     {"do":"kernels", "mode":X}
            -> {"kernels":[{"name":"..", "calls":n, "us":t},..]}
            What the GPU runs in one call, copies included: how often, and microseconds in total; means of 10 calls.
quit        {"do":"quit"}, answered by {}, or the end of stdin: the worker exits.

A call is what a user does for a new input that is on the device already: where a mode reads a static input, the new one
is copied there on the same stream first. The output stays where it is. Without a GPU there is only the mode eager, for
testing, whose `gpu_us` is `wall_us`.
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
    """What went wrong, and what was wrong first where handling that failed too, in at most `ERROR_CHARS` characters."""
    chain = [error]
    while before := chain[-1].__cause__ or (None if chain[-1].__suppress_context__ else chain[-1].__context__):
        chain.append(before)
    # A capture that breaks off reports the end of the capture; the reason is the error at the bottom.
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
    """Makes the session at the first request, so that a package that is missing is an answer and not a dead worker."""
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

    # Libraries and their child processes print to what they think is stdout.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    # Without it the profiler keeps slowing launches down after `kernels`. Read when torch loads.
    os.environ["TEARDOWN_CUPTI"] = "1"
    serve(lazily(arguments.framework, arguments.cache), sys.stdin, answers)


if __name__ == "__main__":
    main()
