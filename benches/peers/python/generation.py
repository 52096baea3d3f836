"""Measures how fast PyTorch writes text: microseconds for each token behind a prompt, with random weights.

    python3 benches/peers/python/generation.py --model qwen2.5-0.5b --dtype float16

compares with

    cargo run --release --features cudnn --example generate -- --random qwen2.5-0.5b --dtype f16 --prompt-tokens 128 \\
        --tokens 128 --ignore-end

Prints a line of JSON for each contestant:

- eager: transformers, a cache that grows
- static: transformers, a static cache, eager
- graph: the same, a CUDA graph of one step
- compile: the same by torch.compile (reduce-overhead)
- plain compile: a decoder of few lines (plain_decoder.py) by torch.compile, as gpt-fast does it

Tokens stay on the device until the last one is written. The median of `--rounds` texts counts.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
import transformers

import places
import plain_decoder

WARM_UPS = 3

# Writes a token into the tensor of the latest ones: (batch, 1).
Step = Callable[[], None]


class Writer:
    """One way of writing: `start` reads the prompts and leaves the first tokens in `token`; `step` replaces them by the next."""

    def __init__(self, start: Callable[[], None], step: Step, token: torch.Tensor):
        self.start, self.step, self.token = start, step, token


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def written(writer: Writer, tokens: int) -> tuple[float, list[int]]:
    """Seconds for each token after the first, and the first text's ids."""
    ids = []
    writer.start()
    ids.append(writer.token.clone())
    synchronize()
    began = time.perf_counter()
    for _ in range(tokens - 1):
        writer.step()
        ids.append(writer.token.clone())
    synchronize()
    seconds = (time.perf_counter() - began) / (tokens - 1)
    return seconds, torch.cat(ids, 1)[0].tolist()


def eager(model, prompts: torch.Tensor, context: int) -> Writer:
    token = torch.zeros(prompts.shape[0], 1, dtype=torch.long, device=prompts.device)
    caches = []

    def forward(ids: torch.Tensor) -> None:
        token.copy_(model(input_ids=ids, past_key_values=caches[-1]).logits[:, -1:].argmax(-1))

    def start() -> None:
        caches[:] = [transformers.DynamicCache(config=model.config)]
        forward(prompts)

    return Writer(start, lambda: forward(token), token)


def static(model, prompts: torch.Tensor, context: int, of_step: Callable[[Step, Step], Step] = lambda step, reset: step) -> Writer:
    """With a static cache. `of_step` makes the step faster, and may run it if it calls the function that resets the cache."""
    token = torch.zeros(prompts.shape[0], 1, dtype=torch.long, device=prompts.device)
    cache = transformers.StaticCache(config=model.config, max_cache_len=context)

    def forward(ids: torch.Tensor) -> None:
        token.copy_(model(input_ids=ids, past_key_values=cache).logits[:, -1:].argmax(-1))

    def start() -> None:
        # Positions are on the device.
        for layer in cache.layers:
            layer.cumulative_length.zero_()
        forward(prompts)

    start()
    return Writer(start, of_step(lambda: forward(token), start), token)


def graph(step: Step, reset: Step) -> Step:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    return captured.replay


def compiled(model, prompts: torch.Tensor, context: int) -> Writer:
    token = torch.zeros(prompts.shape[0], 1, dtype=torch.long, device=prompts.device)
    cache = transformers.StaticCache(config=model.config, max_cache_len=context)

    def next_token(ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, past_key_values=cache).logits[:, -1:].argmax(-1)

    fast = torch.compile(next_token, mode="reduce-overhead", fullgraph=True)

    def start() -> None:
        for layer in cache.layers:
            layer.cumulative_length.zero_()
        token.copy_(next_token(prompts))

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        token.copy_(fast(token))

    start()
    for _ in range(WARM_UPS):
        step()
    return Writer(start, step, token)


def plain(model, prompts: torch.Tensor, context: int) -> Writer:
    decoder = plain_decoder.of(model, prompts.shape[0], context)
    token = torch.zeros(prompts.shape[0], 1, dtype=torch.long, device=prompts.device)
    position = torch.zeros(1, dtype=torch.long, device=prompts.device)

    def next_token(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return decoder(ids, positions)[:, -1:].argmax(-1)

    fast = torch.compile(next_token, mode="reduce-overhead", fullgraph=True)

    def start() -> None:
        token.copy_(next_token(prompts, torch.arange(prompts.shape[1], device=prompts.device)))
        position.fill_(prompts.shape[1])

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        token.copy_(fast(token, position))
        position.add_(1)

    start()
    for _ in range(WARM_UPS):
        step()
    return Writer(start, step, token)


CONTESTANTS = {
    "eager": eager,
    "static": static,
    "graph": lambda *of: static(*of, graph),
    "compile": compiled,
    "plain compile": plain,
}


def load(name: str, dtype: torch.dtype, device: torch.device, seed: int):
    described = dict(json.loads(places.SIZES.read_text())[name])
    config = transformers.AutoConfig.for_model(described.pop("model_type"), **described)
    torch.manual_seed(seed)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-0.5b", choices=json.loads(places.SIZES.read_text()))
    parser.add_argument("--dtype", default="float16", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(CONTESTANTS), choices=CONTESTANTS)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    if args.tokens < 2:
        parser.error("--tokens must be 2 at least: the first token belongs to the prompt")

    device = torch.device("cpu" if args.cpu else "cuda")
    about = {"model": args.model, "dtype": args.dtype, "batch": args.batch, "prompt": args.prompt_tokens, "tokens": args.tokens}
    about |= {"torch": torch.__version__, "transformers": transformers.__version__}
    about["device"] = "cpu" if args.cpu else torch.cuda.get_device_name()
    with torch.inference_mode():
        model = load(args.model, getattr(torch, args.dtype), device, seed=7)
        vocab = model.config.vocab_size
        prompt = torch.tensor([1 + at * 31 % (vocab - 1) for at in range(args.prompt_tokens)], device=device)
        prompts = prompt.expand(args.batch, -1).contiguous()
        expected = None
        for name in args.only:
            try:
                writer = CONTESTANTS[name](model, prompts, args.prompt_tokens + args.tokens)
                rounds = [written(writer, args.tokens) for _ in range(args.rounds)]
            except Exception as error:  # A contestant that fails is a result, too.
                print(json.dumps(about | {"contestant": name, "error": f"{type(error).__name__}: {error}"[:400]}), flush=True)
                continue
            ids = rounds[-1][1]
            expected = expected or ids
            same = next((at for at, (a, b) in enumerate(zip(ids, expected)) if a != b), len(ids))
            seconds = statistics.median(seconds for seconds, _ in rounds)
            line = {"contestant": name, "us_per_token": round(seconds * 1e6, 1), "same_tokens_as_first": same}
            print(json.dumps(about | line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
