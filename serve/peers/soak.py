"""Has many clients ask a server of /v1/completions at random for some time, and checks each answer against the one that the same prompt
gets while nobody else asks.

    soak.py http://127.0.0.1:8000 --model NAME --vocab 128256 --clients 256 --seconds 600

Prompts are token ids, of which some share their beginning, and requests are greedy: an answer has to be the beginning of its prompt's
longest one, token by token. Clients join and leave, hang up in the middle of a stream, ask for several answers at once, read slowly,
ask for more than the context holds, and wait in between. At the end the server may hold no text and no page, and no more memory of the first
GPU than when the check began, which must be the server's alone. Memory is not compared where there is no `nvidia-smi`. It needs Python's own
library alone. Status 1: something is not as it has to be.
"""
import argparse
import asyncio
import collections
import json
import random
import re
import subprocess
import sys
import time
import urllib.parse

# Of texts, their longest answers in tokens.
PROMPTS, LONGEST = 96, 256
# Bytes of GPU memory that may come and go beside the server.
SLACK = 64 << 20


def prompts(vocab, context, seed):
    """Prompts of 1 token to half of the context, five of six behind one of a few common beginnings."""
    random_of = random.Random(seed)
    ids = range(min(1000, vocab // 4), vocab * 98 // 100)
    most = max(1, min(context // 2, context - LONGEST - 8))
    common = [random_of.choices(ids, k=min(most, length)) for length in (64, 200, 333)]
    of = []
    for number in range(PROMPTS):
        begun = common[number % 3] if number % 3 < 2 or number % 2 else []
        own = int(2 ** random_of.uniform(0, max(1, most - len(begun)).bit_length()))
        of.append((begun + random_of.choices(ids, k=max(1, own)))[:most])
    return of


class Reply:
    """One request over a connection of its own: its status, and what comes."""

    def __init__(self, place):
        self.place = place

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection(*self.place)
        return self

    async def __aexit__(self, *_):
        self.writer.close()

    async def ask(self, method, path, body=None):
        data = json.dumps(body).encode() if body is not None else b""
        head = f"{method} {path} HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)
        await self.writer.drain()
        head = await self.reader.readuntil(b"\r\n\r\n")
        self.is_chunked = b"transfer-encoding: chunked" in head.lower()
        return int(head.split()[1])

    async def parts(self):
        """Of the body, as they come."""
        while True:
            if not self.is_chunked:
                if not (part := await self.reader.read(1 << 16)):
                    return
                yield part
                continue
            size = int((await self.reader.readline()).split(b";")[0] or b"0", 16)
            part = await self.reader.readexactly(size + 2)
            if not size:
                return
            yield part[:-2]

    async def body(self):
        return b"".join([part async for part in self.parts()])

    async def events(self):
        rest = b""
        async for part in self.parts():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.startswith(b"data: ") and line != b"data: [DONE]":
                    yield json.loads(line[6:])


class Soak:
    def __init__(self, place, model, prompts, context):
        self.place, self.model, self.prompts, self.context = place, model, prompts, context
        self.longest, self.wrong, self.counts = {}, [], collections.Counter()

    def fail(self, reason):
        self.wrong.append(reason)
        if len(self.wrong) < 20:
            print("WRONG", reason, flush=True)

    async def metrics(self):
        async with Reply(self.place) as reply:
            assert await reply.ask("GET", "/metrics") == 200
            text = (await reply.body()).decode()
        return {name: float(value) for name, value in re.findall(r"^(opara_text_[^ ]+) ([^ \n]+)$", text, re.MULTILINE)}

    def request(self, number, tokens, **others):
        return {"model": self.model, "prompt": self.prompts[number], "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True} | others

    async def alone(self):
        """The longest answer of each prompt, one after the other."""
        for number in range(len(self.prompts)):
            async with Reply(self.place) as reply:
                status = await reply.ask("POST", "/v1/completions", self.request(number, LONGEST))
                body = json.loads(await reply.body())
                assert status == 200, body
                self.longest[number] = body["choices"][0]["token_ids"]
                assert len(self.longest[number]) == LONGEST, body["usage"]

    def check(self, number, got, tokens, what):
        both = zip(got, self.longest[number])
        if (at := next((at for at, (own, other) in enumerate(both) if own != other), None)) is not None:
            expected = self.longest[number]
            self.fail(f"prompt {number} of {len(self.prompts[number])}, {what}: token {at} is {got[at]}, alone {expected[at]}")
        if len(got) > LONGEST or tokens is not None and len(got) != tokens:
            self.fail(f"prompt {number}, {what}: {len(got)} tokens of {tokens}")

    async def once(self, random_of):
        number, tokens = random_of.randrange(len(self.prompts)), int(2 ** random_of.uniform(0, LONGEST.bit_length() - 1))
        kind = random_of.choices(["whole", "streamed", "left", "several", "slow", "too long"], [20, 40, 15, 15, 5, 5])[0]
        self.counts[kind] += 1
        async with Reply(self.place) as reply:
            if kind == "too long":
                status = await reply.ask("POST", "/v1/completions", self.request(number, self.context + 1))
                if status != 400:
                    self.fail(f"{self.context + 1} tokens are not refused: status {status}")
            elif kind == "whole":
                status = await reply.ask("POST", "/v1/completions", self.request(number, tokens))
                body = json.loads(await reply.body())
                if status != 200:
                    return self.fail(f"status {status}: {body}")
                self.check(number, body["choices"][0]["token_ids"], tokens, kind)
            else:
                several = random_of.randint(2, 3) if kind == "several" else 1
                body = self.request(number, tokens, stream=True, n=several)
                if (status := await reply.ask("POST", "/v1/completions", body)) != 200:
                    return self.fail(f"status {status}: {(await reply.body())[:200]}")
                most, got = random_of.randint(1, tokens) if kind == "left" else tokens, [[] for _ in range(several)]
                async for event in reply.events():
                    if "error" in event:
                        return self.fail(f"prompt {number}, {kind}: {event['error']}")
                    for choice in event["choices"]:
                        got[choice["index"]] += choice.get("token_ids") or []
                    if kind == "slow":
                        await asyncio.sleep(random_of.uniform(0, 0.1))
                    if kind == "left" and len(got[0]) >= most:
                        break
                for text in got:
                    self.check(number, text, None if kind == "left" else tokens, kind)

    async def client(self, seed, end):
        random_of = random.Random(seed)
        await asyncio.sleep(random_of.uniform(0, 3))
        while time.monotonic() < end and len(self.wrong) < 100:
            try:
                await asyncio.wait_for(self.once(random_of), 120)
            except (OSError, asyncio.IncompleteReadError, ValueError, LookupError, asyncio.TimeoutError) as error:
                self.fail(f"{type(error).__name__}: {error}")
            if random_of.random() < 0.1:
                await asyncio.sleep(random_of.expovariate(1))

    async def idle(self):
        """Waits until the server writes nothing any more, and returns its metrics."""
        for _ in range(300):
            of = await self.metrics()
            if not any(value for name, value in of.items() if name.startswith("opara_text_sequences")):
                break
            await asyncio.sleep(0.1)
        return of


def gpu_memory():
    try:
        told = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, check=True)
        return int(told.stdout.split()[0]) << 20
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return None


async def run(args):
    url = urllib.parse.urlsplit(args.url)
    soak = Soak((url.hostname, url.port or 80), args.model, prompts(args.vocab, args.context, args.seed), args.context)
    begun = time.monotonic()
    await soak.alone()
    print(f"{len(soak.prompts)} prompts of {sum(map(len, soak.prompts))} tokens alone: {time.monotonic() - begun:.0f} s", flush=True)
    # What a first crowd leaves in caches and pools stays there.
    await asyncio.gather(*(soak.client(-1 - seed, time.monotonic() + 4) for seed in range(args.clients)))
    before, memory = await soak.idle(), gpu_memory()
    begun = time.monotonic()
    await asyncio.gather(*(soak.client(seed, begun + args.seconds) for seed in range(args.clients)))
    took = time.monotonic() - begun
    after, memory_after = await soak.idle(), gpu_memory()
    written = sum(after[name] - before[name] for name in after if 'kind="written"' in name)
    print(f"{took:.0f} s, {written / took:.0f} tokens/s, requests {dict(soak.counts)}")
    gauges = [name for name in after if name.startswith(("opara_text_sequences", "opara_text_pages", "opara_text_slots"))]
    for name in gauges:
        print(f"{name} {before[name]:.0f} then {after[name]:.0f}")
    held = [name for name in gauges if 'state="held"' in name or "sequences" in name]
    assert len(held) >= 3, f"the server's metrics lack {gauges}"
    for name in held:
        if after[name]:
            soak.fail(f"{name} is {after[name]:.0f} with no request")
    if memory is not None:
        print(f"GPU memory {memory >> 20} MiB then {memory_after >> 20} MiB")
        if memory_after > memory + SLACK:
            soak.fail("GPU memory grew")
    print(f"{len(soak.wrong)} wrong")
    return 1 if soak.wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--vocab", type=int, required=True, help="size of the model's vocabulary")
    parser.add_argument("--context", type=int, default=1024, help="the server's context in tokens")
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    sys.exit(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
