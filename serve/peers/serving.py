"""Measures a server of /v1/completions: clients that each send their next request when the last one has ended, and read streams.

    serving.py http://127.0.0.1:8000 --model NAME --vocab 128256 --cells 128/128:1,64 --cells sharegpt:64
    serving.py --check

It is the same client for every engine, and needs Python's own library alone. Prompts are random tokens, each its own, so that no cache
of prefixes helps. Requests are greedy and ignore ends of texts: a reply that does not have exactly as many tokens as were asked for
fails the cell.

Clients are spread over processes, which note times and bytes and read them when the cell has ended, so that the client is not what is
measured. `client_busy` of a row is the share of the time that the busiest of them was at work; `--check` prints how many tokens/s they
can take, from a server that has nothing to compute.
"""
import argparse
import array
import asyncio
import contextlib
import gc
import itertools
import json
import math
import multiprocessing
import os
import random
import re
import socket
import time
import urllib.parse
from statistics import NormalDist

# Means of ShareGPT's prompts and answers, the widths of their logarithms, and where they are cut.
SHAREGPT = ((217, 1.2), (200, 1.1), 1024)
# Clients of one process, beyond which another one is started.
CLIENTS_OF_A_PROCESS = 32
# Above this share of the time of its process, the client may be what is measured.
BUSY = 0.7

fork = multiprocessing.get_context("fork")


class Failed(Exception):
    """A cell without numbers."""


# What is asked


def capped_mean(mu, sigma, cap):
    """The mean of a log-normal number that is cut at `cap`."""
    normal = NormalDist()
    below = math.exp(mu + sigma**2 / 2) * normal.cdf((math.log(cap) - mu - sigma**2) / sigma)
    return below + cap * (1 - normal.cdf((math.log(cap) - mu) / sigma))


def sharegpt_lengths(mean, sigma, cap, count, random_of):
    """Lengths at equal steps of the distribution, shuffled: their mean does not depend on luck."""
    low, high = 0.0, math.log(cap)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if capped_mean(middle, sigma, cap) < mean else (low, middle)
    of = NormalDist(low, sigma)
    lengths = [round(min(cap, max(4, math.exp(of.inv_cdf((step + 0.5) / count))))) for step in range(count)]
    random_of.shuffle(lengths)
    return lengths


def lengths(workload, count, random_of):
    """Tokens of each prompt, and of its answer."""
    if workload == "sharegpt":
        (*prompt, cap), (*answer, _) = (*SHAREGPT[0], SHAREGPT[2]), (*SHAREGPT[1], SHAREGPT[2])
        return list(zip(*(sharegpt_lengths(*of, cap, count, random_of) for of in (prompt, answer))))
    return [tuple(map(int, workload.split("/")))] * count


def requests(cell, count, phase):
    """Bodies with the lengths of prompt and answer. Those of a phase, and of another number of clients, share no prompt."""
    seed = f"{cell['seed']} {cell['workload']} {cell['clients']} {phase}"
    random_of = random.Random(seed)
    # Special tokens are at one end of a vocabulary or the other.
    ids = range(min(1000, cell["vocab"] // 4), cell["vocab"] * 98 // 100)
    shared = random.Random(cell["seed"]).choices(ids, k=cell["shared_prefix"])
    of = []
    for prompt, answer in lengths(cell["workload"], count, random_of):
        tokens = (shared + random_of.choices(ids, k=prompt))[:prompt]
        body = {
            "model": cell["model"], "prompt": tokens, "max_tokens": answer, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True},
        }
        of.append((json.dumps(body, separators=(",", ":")).encode(), prompt, answer))
    return of


# One connection


def send_at_once(transport):
    """Not only once the other end has confirmed what was sent before."""
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Connection(asyncio.Protocol):
    """HTTP/1.1, one request after another. Of a reply it keeps the parts of its body, each with the time at which it had come."""

    def __init__(self):
        self.is_open, self.rest, self.waiting = True, b"", None

    def connection_made(self, transport):
        self.transport = transport
        send_at_once(transport)

    def ask(self, head, body):
        self.waiting = asyncio.get_running_loop().create_future()
        self.status, self.parts, self.rest = None, [], b""
        self.begun = time.perf_counter()
        self.transport.write(head % len(body) + body)
        return self.waiting

    def data_received(self, data):
        now = time.perf_counter()
        rest, at = self.rest + data if self.rest else data, 0
        if self.status is None:
            end = rest.find(b"\r\n\r\n")
            if end < 0:
                self.rest = rest
                return
            self.read_head(rest[:end].decode("latin-1"))
            at = end + 4
        while not self.is_chunked or self.waiting:
            if not self.is_chunked:
                if len(rest) - at >= self.length:
                    self.parts.append((now, rest[at:]))
                    self.end(None)
                    return
                break
            line = rest.find(b"\r\n", at)
            if line < 0:
                break
            size = int(rest[at:line].split(b";")[0], 16)
            begins, ends = line + 2, line + 2 + size
            if len(rest) < ends + 2:
                break
            at = ends + 2
            if size == 0:
                self.end(None)
                break
            self.parts.append((now, rest[begins:ends]))
        self.rest = rest[at:]

    def read_head(self, head):
        first, *lines = head.split("\r\n")
        fields = {name.strip().lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        self.status = int(first.split()[1])
        self.is_chunked = fields.get("transfer-encoding", "").lower() == "chunked"
        self.length = int(fields.get("content-length", 0))

    def end(self, failure):
        waiting, self.waiting = self.waiting, None
        if waiting and not waiting.done():
            waiting.set_exception(failure) if failure else waiting.set_result(None)

    def connection_lost(self, error):
        self.is_open = False
        self.end(ConnectionError(f"the connection was closed within a reply: {error}"))


class Client:
    """Sends requests over one connection, which is made again where the server closed it between two of them."""

    def __init__(self, host, port):
        self.address, self.connection = (host, port), None
        self.head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        ).encode()

    async def ask(self, body):
        for is_last in (False, True):
            is_fresh = self.connection is None or not self.connection.is_open
            if is_fresh:
                _, self.connection = await asyncio.get_running_loop().create_connection(Connection, *self.address)
            try:
                await self.connection.ask(self.head, body)
                break
            except ConnectionError:
                # A server may close a connection just when a request is sent.
                if is_fresh or is_last or self.connection.status is not None:
                    raise
        of = self.connection
        return of.begun, of.status, of.parts


# What came


def read_reply(number, asked, begun, status, parts):
    """Times of one reply: until its first text, to the last one, and between parts with text; and numbers of tokens."""
    name = f"reply {number} (a prompt of {asked[1]} tokens)"
    if status != 200:
        raise Failed(f"{name}: status {status}: {b''.join(part for _, part in parts)[:500].decode(errors='replace')}")
    times, usage, finish, rest = array.array("d"), None, None, b""
    for now, part in parts:
        *events, rest = (rest + part).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            data = event.removeprefix(b"data:").strip()
            if not event.startswith(b"data:") or data == b"[DONE]":
                continue
            told = json.loads(data)
            if "error" in told:
                raise Failed(f"{name}: {told['error']}")
            usage = told.get("usage") or usage
            for choice in told["choices"]:
                finish = choice["finish_reason"] or finish
                if choice["text"]:
                    times.append(now)
    if usage is None:
        raise Failed(f"{name}: no numbers of tokens came")
    if (usage["prompt_tokens"], usage["completion_tokens"]) != asked[1:]:
        raise Failed(f"{name}: {usage['completion_tokens']} tokens for {usage['prompt_tokens']}, not {asked[2]} ({finish})")
    if not times:
        raise Failed(f"{name}: no text came")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return begun, times, asked[2], cached


async def work(cell, port, count, of, taken):
    """The closed loop of some clients: each takes the next request of all that there are."""

    async def client():
        of_server = Client(cell["host"], port)
        replies = []
        while True:
            with taken.get_lock():
                number = taken.value
                taken.value += 1
            if number >= len(of):
                break
            replies.append((number, *await of_server.ask(of[number][0])))
        if of_server.connection:
            of_server.connection.transport.close()
        return replies

    return [reply for replies in await asyncio.gather(*(client() for _ in range(count))) for reply in replies]


def process(pipe, cell, port, count, phases):
    """One process of clients. It says that it is ready before each phase, and begins with the others."""
    try:
        gc.disable()
        for of, taken in phases:
            pipe.send("ready")
            pipe.recv()
            begun, used = time.perf_counter(), time.process_time()
            replies = asyncio.run(work(cell, port, count, of, taken))
            busy = (time.process_time() - used) / (time.perf_counter() - begun)
            pipe.send((busy, [read_reply(number, of[number], *reply) for number, *reply in replies]))
    except (Failed, OSError, ValueError, KeyError) as failure:
        with contextlib.suppress(OSError):
            pipe.send(Failed(str(failure) or repr(failure)))


# A cell


def percentile(values, share):
    """Of sorted values, between the two nearest."""
    at = (len(values) - 1) * share
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def row_of(cell, replies, busy):
    firsts = sorted(times[0] - begun for begun, times, _, _ in replies)
    between = sorted(later - time for _, times, _, _ in replies for time, later in itertools.pairwise(times)) or [0.0]
    each = sorted((times[-1] - times[0]) / (tokens - 1) for _, times, tokens, _ in replies if tokens > 1) or [0.0]
    tokens = sum(tokens for _, _, tokens, _ in replies)
    seconds = max(times[-1] for _, times, _, _ in replies) - min(begun for begun, _, _, _ in replies)
    row = {"workload": cell["workload"], "clients": cell["clients"], "tok_s": round(tokens / seconds, 1)}
    for name, values in (("ttft", firsts), ("itl", between), ("tpot", each)):
        for share in (50, 99):
            row[f"{name}_p{share}_ms"] = round(1000 * percentile(values, share / 100), 3)
    return row | {
        "requests": len(replies),
        "tokens": tokens,
        "seconds": round(seconds, 3),
        # More than one where the server sent several tokens at once: then `tpot`, of whole replies, is the fairer one.
        "tokens_per_part": round(tokens / sum(len(times) for _, times, _, _ in replies), 3),
        "cached_tokens": sum(cached for _, _, _, cached in replies),
        "client_busy": round(busy, 2),
    }


def processes_of(clients):
    return max(1, min(math.ceil(clients / CLIENTS_OF_A_PROCESS), (os.cpu_count() or 1) // 2, clients))


def measure(
    host, ports, model, vocab, workload, clients,
    count=None, warmup=None, seed=0, shared_prefix=0, processes=None, timeout=300,
):
    """The numbers of one cell: of `count` requests (at least 32, and 4 for each client) after `warmup` others (one for each client)."""
    cell = {
        "host": host, "model": model, "vocab": vocab, "workload": workload, "clients": clients, "seed": seed,
        "shared_prefix": shared_prefix,
    }
    count, warmup = count or max(4 * clients, 32), clients if warmup is None else warmup
    processes = processes or processes_of(clients)
    wanted = [(phase, number) for phase, number in (("warm-up", warmup), ("measured", count)) if number]
    phases = [(requests(cell, number, phase), fork.Value("q", 0)) for phase, number in wanted]
    ends, others = time.monotonic() + timeout, []
    try:
        for index in range(processes):
            mine, its = fork.Pipe()
            share = len(range(index, clients, processes))
            other = fork.Process(target=process, args=(its, cell, ports[index % len(ports)], share, phases), daemon=True)
            other.start()
            its.close()
            others.append((other, mine))
        for _ in phases:
            for _, pipe in others:
                receive(pipe, ends, timeout)
            for _, pipe in others:
                pipe.send("go")
            answers = [receive(pipe, ends, timeout) for _, pipe in others]
    finally:
        for other, _ in others:
            other.kill()
            other.join()
    return row_of(cell, [reply for _, replies in answers for reply in replies], max(busy for busy, _ in answers))


def receive(pipe, ends, timeout):
    if not pipe.poll(max(0, ends - time.monotonic())):
        raise Failed(f"the cell did not end within {timeout:.0f} s")
    try:
        said = pipe.recv()
    except EOFError:
        raise Failed("a process of clients ended") from None
    if isinstance(said, Failed):
        raise said
    return said


# A server that has nothing to compute


class Null(asyncio.Protocol):
    """Answers each request with as many parts as it asks for, one for each connection in turn, as an engine's steps do."""

    def __init__(self, writing):
        self.writing, self.rest = writing, b""

    def connection_made(self, transport):
        self.transport = transport
        send_at_once(transport)

    def connection_lost(self, error):
        self.writing.discard(self)

    def data_received(self, data):
        self.rest += data
        head, found, body = self.rest.partition(b"\r\n\r\n")
        if found and len(body) >= int(re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)[1]):
            asked, self.rest = json.loads(body), b""
            self.prompt, self.tokens, self.left = len(asked["prompt"]), asked["max_tokens"], asked["max_tokens"]
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            self.writing.add(self)

    @staticmethod
    def chunk(choices, usage):
        told = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1, "model": "null"}
        told |= {"choices": choices, "usage": usage}
        data = b"data: " + json.dumps(told).encode() + b"\n\n"
        return b"%x\r\n%b\r\n" % (len(data), data)

    def end(self):
        usage = {"prompt_tokens": self.prompt, "completion_tokens": self.tokens}
        self.transport.write(self.chunk([], usage) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        self.writing.discard(self)


async def answer(listening):
    writing = set()
    await asyncio.get_running_loop().create_server(lambda: Null(writing), sock=listening)
    part = Null.chunk([{"text": " word", "index": 0, "logprobs": None, "finish_reason": None}], None)
    while True:
        for connection in list(writing):
            connection.transport.write(part)
            connection.left -= 1
            if connection.left == 0:
                connection.end()
        await asyncio.sleep(0 if writing else 0.0001)


@contextlib.contextmanager
def null_servers(count):
    """Their ports."""
    others, ports = [], []
    try:
        for _ in range(count):
            listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
            ports.append(listening.getsockname()[1])
            others.append(fork.Process(target=lambda listening=listening: asyncio.run(answer(listening)), daemon=True))
            others[-1].start()
            listening.close()
        yield ports
    finally:
        for other in others:
            other.kill()
            other.join()


def check(args):
    """How fast the client itself is. A null server shares the cores with it, so that the limit is rather higher."""
    for workload, counts in args.cells or [("128/128", [1, 32, 256])]:
        for clients in counts:
            with null_servers(args.processes or processes_of(clients)) as ports:
                row = measure("127.0.0.1", ports, "null", 128256, workload, clients, **options(args))
            of = f"{workload:>9}, {clients:>4} clients in {len(ports)} processes"
            print(f"{of}: the client takes {row['tok_s']:>9,.0f} tokens/s, busy {row['client_busy']:.2f}", flush=True)


# The program


def cells(text):
    """`128/128:1,8` is a workload and numbers of clients."""
    found = re.fullmatch(r"(sharegpt|[1-9]\d*/[1-9]\d*):([1-9]\d*(?:,[1-9]\d*)*)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not WORKLOAD:CLIENTS,.. with sharegpt or PROMPT/ANSWER in tokens as its workload")
    return found[1], [int(clients) for clients in found[2].split(",")]


def add_options(parser):
    of_cells = "128/128:1,8 or sharegpt:64; may be repeated"
    parser.add_argument("--cells", type=cells, action="append", metavar="WORKLOAD:CLIENTS,..", help=of_cells)
    parser.add_argument("--requests", type=int, dest="count", help="of a cell; default: 4 for each client, at least 32")
    parser.add_argument("--warmup", type=int, help="requests before them; default: one for each client")
    parser.add_argument("--shared-prefix", type=int, default=0, metavar="TOKENS", help="with which all prompts begin")
    parser.add_argument("--seed", type=int, default=0)
    of_processes = f"of clients; default: one for {CLIENTS_OF_A_PROCESS} of them, up to half of the cores"
    parser.add_argument("--processes", type=int, help=of_processes)
    parser.add_argument("--timeout", type=float, default=300, help="seconds of a cell, warm-up included")


def options(args):
    return {name: getattr(args, name) for name in ("count", "warmup", "shared_prefix", "seed", "processes", "timeout")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--check", action="store_true", help="measure the client itself")
    parser.add_argument("--model")
    parser.add_argument("--vocab", type=int)
    add_options(parser)
    args = parser.parse_args()
    if args.check:
        return check(args)
    if not (args.url and args.model and args.vocab and args.cells):
        parser.error("a URL, --model, --vocab and --cells are needed, or --check")
    url = urllib.parse.urlsplit(args.url)
    for workload, counts in args.cells:
        for clients in counts:
            row = measure(url.hostname, [url.port or 80], args.model, args.vocab, workload, clients, **options(args))
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        raise SystemExit(f"failed: {failure}") from None
