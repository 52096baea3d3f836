"""Measures opara-serve and vLLM on one GPU, one after the other, with the same client, weights and prompts.

    side_by_side.py --weights FOLDER --name llama-1b --opara target/release/opara-serve --vllm FOLDER \\
        --cells 128/128:1,8,32,64,128,256 -o benches/results/serving.json
    side_by_side.py --table -o benches/results/serving.json

The order is opara, vllm, opara (`--order`): what the machine itself changed meanwhile shows as a difference of the first and the last.
Each server is started for its turn, and has ended with all its processes before the next one starts.

A row is written as soon as it is measured, into the file that is there, where one of the same cell and turn is replaced. Where time may
run out, `--deadline` ends a call in order, with status 3, and the same call with `--resume` goes on. A cell that fails has a row that
says so, and status 1.
"""
import argparse
import contextlib
import http.client
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import serving

# Tokens of prompt and answer together in the longest workload, with some room.
CONTEXT = 2304
START_SECONDS, STOP_SECONDS = 400, 60
# Of a server's log, where something failed.
TAIL_LINES = 30
# What a row is of.
CELL = ("model", "dtype", "workload", "clients", "gpu", "settings")
KEY = ("engine", "round", *CELL)
SORTED = ("gpu", "model", "dtype", "settings", "workload", "clients", "engine", "round")
VLLM_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
NAMES = {"opara": "opara-serve", "vllm": "vLLM"}
# Numbers of a row, whether more is better, and how the table and the losses name them.
NUMBERS = {
    "tok_s": (True, "tokens/s"),
    "ttft_p50_ms": (False, "first token, p50 ms"),
    "ttft_p99_ms": (False, "first token, p99 ms"),
    # Of whole replies: an engine that sends several tokens at once has fewer parts.
    "tpot_p50_ms": (False, "a token, p50 ms"),
    "tpot_p99_ms": (False, "a token, p99 ms"),
    "itl_p99_ms": (False, "between parts of a stream, p99 ms"),
}


class TimeIsUp(Exception):
    """The rest is for another call."""


# Servers


def opara_command(args, port):
    command = [args.opara, "--model", f"{args.name}={args.weights}", "--port", str(port), "--dtype", args.dtype]
    command += ["--context", str(args.context), "--sequences", str(args.sequences)]
    command += ["--cpu"] if args.cpu else []
    return command + shlex.split(args.opara_args), {}, "/v2/health/ready"


def vllm_command(args, port):
    command = [args.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(args.weights), "--served-model-name", args.name]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", VLLM_DTYPES[args.dtype], "--max-model-len", str(args.context)]
    command += ["--enable-prefix-caching" if args.prefix_caching else "--no-enable-prefix-caching"]
    # It need not write a line for each request, either.
    command += ["--disable-uvicorn-access-log"]
    command += ["--max-num-seqs", str(args.max_num_seqs)] if args.max_num_seqs else []
    environment = {
        "PYTHONPATH": str(args.vllm), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    return command + shlex.split(args.vllm_args), environment, "/health"


COMMANDS = {"opara": opara_command, "vllm": vllm_command}


def is_closed(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def is_ready(port, path):
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", path)
        return connection.getresponse().status == 200
    return False


def log_end(log):
    lines = pathlib.Path(log).read_text(errors="replace").splitlines()[-TAIL_LINES:]
    return "\n".join(f"    {line}" for line in [f"The log {log} ends with:", *lines])


def wait_until(condition, seconds):
    """Whether it came true."""
    ends = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends:
            return False
        time.sleep(0.2)
    return True


def lives(group):
    """Whether a process of the group does. One that ended and was not yet asked after by its parent does not."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state not in "ZX":
                return True
    return False


def stop(server, port, gpu_was_used):
    """All processes of the server, politely at first."""
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, 10)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(seconds)
        # Its own processes may outlive it.
        if wait_until(lambda: not lives(server.pid), 10):
            break
    if not wait_until(lambda: is_closed(port), 10):
        raise SystemExit(f"port {port} is still open after the server has ended")
    # The driver frees memory a moment later.
    if gpu_was_used is not None and not wait_until(lambda: gpu_memory() <= gpu_was_used + 512, 20):
        print("warning: the GPU's memory is not free after the server has ended", flush=True)


@contextlib.contextmanager
def serving_of(engine, args, left):
    """A server of the engine that is ready; its port and log."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command, environment, path = COMMANDS[engine](args, port)
    log = args.logs / f"{engine}-{os.getpid()}-{port}.log"
    print("starting", shlex.join(map(str, command)), flush=True)
    begun, used = time.monotonic(), gpu_memory()
    with open(log, "wb") as output:
        server = subprocess.Popen(
            command, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        limit = min(args.start_seconds, left())
        if not wait_until(lambda: server.poll() is not None or is_ready(port, path), limit) or server.poll() is not None:
            if server.poll() is None and left() <= 0:
                raise TimeIsUp
            reason = f"ended with {server.poll()}" if server.poll() is not None else f"was not ready after {limit:.0f} s"
            raise serving.Failed(f"{NAMES[engine]} {reason}\n{log_end(log)}")
        print(f"ready after {time.monotonic() - begun:.1f} s", flush=True)
        yield port, log
    finally:
        stop(server, port, used)


# The machine


def nvidia_smi(field):
    if not shutil.which("nvidia-smi"):
        return None
    # Of several GPUs the one that the servers see.
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", "-i", gpu]
    answer = subprocess.run(query, check=False, capture_output=True, text=True, timeout=60)
    return answer.stdout.strip() if answer.returncode == 0 else None


def gpu_memory():
    """MiB in use."""
    used = nvidia_smi("memory.used")
    return int(used) if used and used.isdigit() else None


def version_of(engine, args):
    if engine == "opara":
        told = subprocess.run([args.opara, "--version"], check=True, capture_output=True, text=True, timeout=60).stdout.split()
        return " ".join([*told[-1:], *([args.commit] if args.commit else [])])
    return next((path.name.split("-")[1].removesuffix(".dist") for path in args.vllm.glob("vllm-*.dist-info")), "unknown")


# Rows


def read_rows(path):
    return json.loads(path.read_text())["rows"] if path.exists() else []


def key(row):
    return tuple(json.dumps(row[name]) for name in KEY)


def write_row(path, row):
    """Beside those that are there. Whatever ends this program leaves the file whole."""
    rows = [other for other in read_rows(path) if key(other) != key(row)] + [row]
    rows.sort(key=lambda row: [json.dumps(row[name]) if name == "settings" else row[name] for name in SORTED])
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(path.name + ".half")
    half.write_text('{"rows": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n]}\n")
    os.replace(half, path)


def turn(engine, number, todo, args, common, left):
    """Measures the cells of one turn of an engine. Returns whether one has failed."""
    base = {"engine": engine, "round": number, "version": version_of(engine, args), **common}
    options = serving.options(args) | {"vocab": json.loads((args.weights / "config.json").read_text())["vocab_size"]}
    failed = False
    with serving_of(engine, args, left) as (port, log):
        for workload, clients in todo:
            seconds = min(args.timeout, left())
            if seconds <= 0:
                raise TimeIsUp
            row = base | {"workload": workload, "clients": clients}
            try:
                row |= serving.measure(
                    "127.0.0.1", [port], args.name, workload=workload, clients=clients, **options | {"timeout": seconds}
                )
            except serving.Failed as failure:
                if left() <= 0:
                    raise TimeIsUp from None
                row["failed"], failed = str(failure), True
                print(f"{NAMES[engine]}, {workload}, {clients} clients failed: {failure}\n{log_end(log)}", flush=True)
            else:
                told = {name: row[name] for name in ("workload", "clients", *NUMBERS, "client_busy")}
                print(f"{NAMES[engine]} {number}: {json.dumps(told)}", flush=True)
                if row["client_busy"] > serving.BUSY:
                    print(f"warning: the client was busy {row['client_busy']:.0%} of the time, and may be what was measured", flush=True)
            write_row(args.output, row)
            if "failed" in row and not is_ready(port, COMMANDS[engine](args, port)[2]):
                raise serving.Failed("the server does not answer any more")
    return failed


def run(args):
    common = {
        "model": args.name, "dtype": args.dtype, "gpu": "CPU" if args.cpu else nvidia_smi("name") or "unknown",
        # What both engines share; what is one engine's own is in `arguments`.
        "settings": {"context": args.context, "shared_prefix": args.shared_prefix, "prefix_caching": args.prefix_caching},
        "driver": None if args.cpu else nvidia_smi("driver_version"),
    }
    if args.label:
        common["settings"]["label"] = args.label
    arguments = {
        "opara": shlex.join(["--sequences", str(args.sequences), *shlex.split(args.opara_args)]),
        "vllm": shlex.join([*(["--max-num-seqs", str(args.max_num_seqs)] if args.max_num_seqs else []), *shlex.split(args.vllm_args)]),
    }
    wanted = [(workload, clients) for workload, counts in args.cells for clients in counts]
    began, failed = time.monotonic(), False

    def left():
        return args.deadline - (time.monotonic() - began)

    for at, engine in enumerate(args.order):
        number = args.order[: at + 1].count(engine)
        of_engine = {"engine": engine, "round": number, **common}
        done = {key(row) for row in read_rows(args.output) if "failed" not in row} if args.resume else set()
        todo = [cell for cell in wanted if key(of_engine | dict(zip(("workload", "clients"), cell))) not in done]
        if not todo:
            continue
        if left() < args.least_seconds:
            raise TimeIsUp
        try:
            failed |= turn(engine, number, todo, args, common | {"arguments": arguments[engine]}, left)
        except serving.Failed as failure:
            print(f"failed: {failure}", flush=True)
            failed = True
    return failed


# The table


def mean(values):
    return sum(values) / len(values)


def table(rows):
    """A line for each cell, and below what vLLM does better."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(json.dumps(row[name]) for name in CELL), []).append(row)
    lines, losses, failures, head, compared = [], [], [], None, 0
    for of in groups.values():
        sides = {engine: [row for row in of if row["engine"] == engine and "failed" not in row] for engine in NAMES}
        failures += [f"{NAMES[row['engine']]} failed at {cell_name(row)}: {row['failed']}" for row in of if "failed" in row]
        first = of[0]
        settings = [f"{name} {value}" for name, value in first["settings"].items()]
        told = "\n" + ", ".join([first["model"], first["dtype"], first["gpu"], *settings])
        if told != head:
            columns = f"{'workload':>10} {'clients':>7} {'opara tok/s':>12} {'vLLM tok/s':>12} {'ratio':>6}"
            lines += [told, columns + "  first token, p50 ms  a token, p50 ms"]
            head = told
        means = {engine: {name: mean([row[name] for row in side]) for name in NUMBERS} for engine, side in sides.items() if side}
        cells = [f"{first['workload']:>10} {first['clients']:>7}"]
        cells += [f"{means[engine]['tok_s']:>12,.0f}" if engine in means else f"{'-':>12}" for engine in NAMES]
        cells.append(f"{means['opara']['tok_s'] / means['vllm']['tok_s']:>6.2f}" if len(means) == 2 else f"{'-':>6}")
        for name, width in (("ttft_p50_ms", 20), ("tpot_p50_ms", 16)):
            cells.append(f"{' / '.join(f'{means[engine][name]:.1f}' if engine in means else '-' for engine in NAMES):>{width}}")
        lines.append(" ".join(cells))
        if len(means) == 2:
            compared += 1
            losses += lost(first, sides, means)
    if compared and not losses:
        losses = [f"In none of {compared} cells vLLM has a better number."]
    return "\n".join([*lines, "", *losses, *failures])


def cell_name(row):
    return f"{row['workload']}, {row['clients']} client{'s' * (row['clients'] > 1)}"


def lost(cell, sides, means):
    """In which numbers vLLM is ahead by more than turns of one engine differ."""
    for name, (is_more_better, told) in NUMBERS.items():
        ours, theirs = means["opara"][name], means["vllm"][name]
        if theirs <= 0 or ours == theirs or (ours > theirs) == is_more_better:
            continue
        spread = max(max(row[name] for row in side) / max(min(row[name] for row in side), 1e-9) - 1 for side in sides.values())
        apart = theirs / ours - 1 if is_more_better else ours / theirs - 1
        by = f"{apart:.1%}" if apart < 1 else f"{apart + 1:.1f} times"
        verdict = f"LOST by {by}" if apart > spread else f"behind by {by}, but turns of one engine differ by {spread:.1%}"
        yield f"{cell_name(cell)}: {told}: {ours:,.1f}, vLLM {theirs:,.1f}: {verdict}"


# The program


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, help="a file of rows, in JSON, which is made or gets more")
    parser.add_argument("--table", action="store_true", help="print what the file says, and measure nothing")
    parser.add_argument("--weights", type=pathlib.Path, help="a folder that both load, such as one of weights.py")
    parser.add_argument("--name", default="llama", help="of the model, in rows")
    parser.add_argument("--dtype", choices=VLLM_DTYPES, default="bf16")
    parser.add_argument("--context", type=int, default=CONTEXT, help=f"tokens of prompt and answer; default: {CONTEXT}")
    parser.add_argument("--order", type=lambda text: text.split(","), default=["opara", "vllm", "opara"], help="default: opara,vllm,opara")
    parser.add_argument("--resume", action="store_true", help="leave out cells that the file has")
    parser.add_argument("--deadline", type=float, default=1e9, metavar="SECONDS", help="after which the call ends in order")
    parser.add_argument("--least-seconds", type=float, default=60, help="that must be left for a server to be started; default: 60")
    of_start = f"that a server may take to be ready; default: {START_SECONDS}"
    parser.add_argument("--start-seconds", type=float, default=START_SECONDS, help=of_start)
    parser.add_argument("--label", help="tells settings apart that rows do not name")
    parser.add_argument("--commit", help="of opara-serve")
    parser.add_argument("--logs", type=pathlib.Path, help="a folder for the servers' logs; default: one of its own")
    parser.add_argument("--opara", help="the program opara-serve")
    parser.add_argument("--sequences", type=int, help="of opara-serve; default: the most clients of a cell")
    parser.add_argument("--opara-args", default="", metavar="TEXT", help="more arguments, as in a shell")
    parser.add_argument("--cpu", action="store_true", help="opara-serve on the CPU, to try this program")
    parser.add_argument("--vllm", type=pathlib.Path, help="the folder of vllm_folder.sh")
    parser.add_argument("--python", default=sys.executable, help="with PyTorch, for vLLM; default: the one of this program")
    parser.add_argument("--max-num-seqs", type=int, help="of vLLM; default: its own")
    parser.add_argument("--prefix-caching", action="store_true", help="of vLLM, which is off by default here; opara-serve always has it")
    parser.add_argument("--vllm-args", default="", metavar="TEXT", help="more arguments, as in a shell")
    serving.add_options(parser)
    args = parser.parse_args()
    if args.table:
        return print(table(read_rows(args.output)))
    if unknown := set(args.order) - set(NAMES):
        parser.error(f"--order has {' and '.join(unknown)}, and not opara or vllm")
    needed = {"--weights": args.weights, "--cells": args.cells} | {f"--{engine}": getattr(args, engine) for engine in args.order}
    if missing := [name for name, value in needed.items() if not value]:
        parser.error(f"{', '.join(missing)} is missing")
    if args.cpu and "vllm" in args.order:
        parser.error("vLLM needs a GPU: give --order opara with --cpu")
    # Paths are read by programs in other folders, too.
    args.weights = args.weights.resolve()
    args.vllm = args.vllm and args.vllm.resolve()
    args.opara = args.opara and str(pathlib.Path(args.opara).resolve())
    args.sequences = args.sequences or max(clients for _, counts in args.cells for clients in counts)
    args.logs = args.logs or pathlib.Path(tempfile.mkdtemp(prefix="serving-"))
    args.logs.mkdir(parents=True, exist_ok=True)
    # So that servers are stopped where this program is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    is_over, failed = False, False
    try:
        failed = run(args)
    except TimeIsUp:
        is_over = True
    print(table(read_rows(args.output)))
    if is_over:
        print("The time is up before all cells were measured: the same call with --resume goes on.")
    sys.exit(1 if failed else 3 if is_over else 0)


if __name__ == "__main__":
    main()
