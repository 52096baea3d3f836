"""The unmodified client `openai` against a running server: completions and chat completions.

    texts.py http://127.0.0.1:8000 MODEL EXPECTED.json

EXPECTED.json is what the example `texts` prints: requests, and what a generator in process wrote for each.
"""
import asyncio
import json
import random
import re
import sys
import unittest
import urllib.request

import openai

URL, MODEL, EXPECTED = sys.argv[1:4]
with open(EXPECTED) as file:
    TEXTS = json.load(file)
PARAMETERS = ("temperature", "top_p", "seed", "max_tokens")


def of(text):
    return {"model": MODEL, **{name: text[name] for name in PARAMETERS}}


def user(text):
    return [{"role": "user", "content": text["prompt"]}]


def running():
    """Texts that the server writes now."""
    told = urllib.request.urlopen(f"{URL}/metrics").read().decode()
    return int(re.search(rf'opara_text_sequences{{model="{MODEL}",state="running"}} (\d+)', told)[1])


class Texts(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=f"{URL}/v1", api_key="any", max_retries=0)

    def tearDown(self):
        self.client.close()

    def test_models(self):
        self.assertIn(MODEL, [model.id for model in self.client.models.list()])

    def test_completions(self):
        for text in TEXTS:
            answer = self.client.completions.create(prompt=text["prompt"], **of(text))
            self.assertEqual(answer.choices[0].text, text["text"])
            self.assertEqual(answer.choices[0].finish_reason, "length" if text["tokens"] == text["max_tokens"] else "stop")
            self.assertEqual(answer.usage.completion_tokens, text["tokens"])
            self.assertEqual(answer.usage.prompt_tokens, len(text["prompt"].encode()))

    def test_streams(self):
        for text in TEXTS:
            options = {"stream": True, "stream_options": {"include_usage": True}}
            chunks = list(self.client.completions.create(prompt=text["prompt"], **of(text), **options))
            pieces = [choice.text for chunk in chunks for choice in chunk.choices]
            self.assertEqual("".join(pieces), text["text"])
            self.assertEqual(chunks[-1].usage.completion_tokens, text["tokens"])

    def test_chat(self):
        for text in TEXTS:
            answer = self.client.chat.completions.create(messages=user(text), **of(text))
            self.assertEqual(answer.choices[0].message.content, text["chat"])
            self.assertEqual(answer.usage.completion_tokens, text["chat_tokens"])
            chunks = list(self.client.chat.completions.create(messages=user(text), stream=True, **of(text)))
            self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
            self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks), text["chat"])
            self.assertIn(chunks[-1].choices[0].finish_reason, ("stop", "length"))

    def test_extensions_and_stop_strings(self):
        text = next(text for text in TEXTS if text["temperature"] == 0 and len(text["text"]) > 8)
        extra = {"top_k": 1, "min_p": 0.0, "repetition_penalty": 1.0}
        # The most likely token alone is the one that temperature 0 takes.
        answer = self.client.completions.create(prompt=text["prompt"], **{**of(text), "temperature": 1}, extra_body=extra)
        self.assertEqual(answer.choices[0].text, text["text"])
        stop = text["text"][5:7]
        for stream in (False, True):
            answer = self.client.completions.create(prompt=text["prompt"], stop=[stop], stream=stream, **of(text))
            told = "".join(chunk.choices[0].text for chunk in answer) if stream else answer.choices[0].text
            self.assertEqual(told, text["text"].split(stop)[0])

    def test_fifty_at_a_time(self):
        """They join and leave one batch; some go away in the middle."""

        async def ask(client, index):
            text = TEXTS[index % len(TEXTS)]
            draw = random.Random(index)
            if draw.random() < 0.5:
                answer = await client.chat.completions.create(messages=user(text), **of(text))
                return self.assertEqual(answer.choices[0].message.content, text["chat"])
            stream = await client.completions.create(prompt=text["prompt"], stream=True, **of(text))
            leaves, told = draw.random() < 0.3, ""
            async for chunk in stream:
                told += chunk.choices[0].text
                if leaves:
                    break
            await stream.close()
            self.assertTrue(text["text"].startswith(told))
            if not leaves:
                self.assertEqual(told, text["text"])

        async def ask_all():
            async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="any", max_retries=0) as client:
                await asyncio.gather(*(ask(client, index) for index in range(50)))

        asyncio.run(ask_all())

    def test_a_client_that_goes(self):
        stream = self.client.completions.create(model=MODEL, prompt="on", max_tokens=900, temperature=1, stream=True)
        next(iter(stream))
        stream.close()
        # Each look takes the server some time.
        self.assertTrue(any(running() == 0 for _ in range(10_000)))
        text = TEXTS[0]
        answer = self.client.completions.create(prompt=text["prompt"], **of(text))
        self.assertEqual(answer.choices[0].text, text["text"])

    def test_refusals(self):
        ask = self.client.completions.create
        with self.assertRaises(openai.NotFoundError):
            ask(model="other", prompt="a")
        for wrong in ({"n": 0}, {"logprobs": 21}, {"temperature": 3}, {"max_tokens": 0}, {"stop": ""}, {"prompt": []}, {"suffix": "b"}):
            with self.assertRaises(openai.BadRequestError, msg=str(wrong)):
                ask(**{"model": MODEL, "prompt": "a", **wrong})
        with self.assertRaises(openai.BadRequestError) as caught:
            ask(model=MODEL, prompt="a" * 2_000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError):
            self.client.chat.completions.create(model=MODEL, messages=[])
        with self.assertRaises(openai.BadRequestError):
            self.client.embeddings.create(model=MODEL, input="a")


unittest.main(argv=sys.argv[:1], verbosity=1)
