"""Unmodified clients against a running server of `chatter.py`'s model: openai, langchain-openai and litellm, and what Open WebUI
sends.

    chats.py http://127.0.0.1:8000 MODEL
"""
import json
import os
import sys
import unittest
import urllib.request
from typing import Literal

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOG="ERROR")

import openai
from pydantic import BaseModel, ConfigDict, Field

URL, MODEL = sys.argv[1:3]
HI = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'


class Weather(BaseModel):
    """The weather of a city."""

    # A model of random weights would add fields for ever.
    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)


TOOL = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": Weather.model_json_schema()}}


def only(text):
    """Has the model write this text and no other."""
    return {"structured_outputs": {"choice": [text]}}


def post(path, body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


class OpenAI(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=f"{URL}/v1", api_key="any", max_retries=0)

    def tearDown(self):
        self.client.close()

    def chat(self, **fields):
        return self.client.chat.completions.create(**{"model": MODEL, "messages": HI, "max_tokens": 200, "seed": 1, **fields})

    def test_several_texts(self):
        whole = self.client.completions.create(model=MODEL, prompt=["a", "b"], n=2, seed=3, max_tokens=9)
        self.assertEqual([choice.index for choice in whole.choices], [0, 1, 2, 3])
        self.assertEqual(whole.usage.prompt_tokens, 2)
        texts = [""] * 4
        for chunk in self.client.completions.create(model=MODEL, prompt=["a", "b"], n=2, seed=3, max_tokens=9, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        self.assertEqual(texts, [choice.text for choice in whole.choices])
        self.assertEqual(len(self.chat(n=3, max_tokens=5).choices), 3)

    def test_likelihoods(self):
        told = self.chat(logprobs=True, top_logprobs=4, max_tokens=6).choices[0].logprobs.content
        self.assertEqual([len(token.top_logprobs) for token in told], [4] * len(told))
        chunks = list(self.chat(logprobs=True, top_logprobs=4, max_tokens=6, stream=True))
        streamed = [token for chunk in chunks for choice in chunk.choices if choice.logprobs for token in choice.logprobs.content]
        self.assertEqual(streamed, told)
        text = self.client.completions.create(model=MODEL, prompt="ab", logprobs=2, max_tokens=6, echo=False).choices[0]
        self.assertEqual(len(text.logprobs.tokens), len(text.logprobs.token_logprobs))

    def test_draws(self):
        biased = self.chat(logit_bias={"65": 100}, max_tokens=5, presence_penalty=0.1, frequency_penalty=0.1)
        self.assertEqual(biased.choices[0].message.content, "AAAAA")
        extra = {"ignore_eos": True, "min_tokens": 5, "stop_token_ids": [66], "repetition_penalty": 1.1, "top_k": 40,
                 "return_token_ids": True}
        self.assertEqual(len(self.chat(max_tokens=5, extra_body=extra).choices[0].token_ids), 5)

    def test_json(self):
        format = {"type": "json_schema", "json_schema": {"name": "w", "strict": True, "schema": Weather.model_json_schema()}}
        Weather.model_validate_json(self.chat(response_format=format).choices[0].message.content)
        parsed = self.client.chat.completions.parse(model=MODEL, messages=HI, response_format=Weather, seed=2, max_tokens=200)
        self.assertIsInstance(parsed.choices[0].message.parsed, Weather)
        self.assertTrue(self.chat(response_format={"type": "json_object"}).choices[0].message.content.startswith("{"))

    def test_calls(self):
        one = {"type": "function", "function": {"name": "weather"}}
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [one]}}
        for choice in ("required", one, allowed):
            answer = self.chat(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False).choices[0]
            self.assertEqual((answer.finish_reason, len(answer.message.tool_calls)), ("tool_calls", 1))
            call = answer.message.tool_calls[0]
            Weather.model_validate_json(call.function.arguments)
        # With its result the call is a part of the next prompt.
        turns = HI + [answer.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        self.assertTrue(self.chat(messages=turns, tools=[TOOL], max_tokens=4).usage.completion_tokens)
        with self.client.chat.completions.stream(
            model=MODEL, messages=HI, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, seed=4, max_tokens=200
        ) as stream:
            final = stream.get_final_completion().choices[0]
        Weather.model_validate_json(final.message.tool_calls[0].function.arguments)

    def test_calls_by_itself(self):
        answer = self.chat(tools=[TOOL], extra_body=only("So.\n" + CALL)).choices[0]
        self.assertEqual((answer.message.content, answer.finish_reason), ("So.", "tool_calls"))
        self.assertEqual(json.loads(answer.message.tool_calls[0].function.arguments), {"city": "Oslo", "days": 2})

    def test_reasoning(self):
        thought = only("<think>\nhm\n</think>\n\nyes")
        message = self.chat(extra_body=thought).choices[0].message
        self.assertEqual((message.content, message.reasoning_content), ("yes", "hm"))
        deltas = [choice.delta for chunk in self.chat(extra_body=thought, stream=True) for choice in chunk.choices]
        self.assertEqual("".join(delta.content or "" for delta in deltas), "yes")
        self.assertEqual("".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas), "hm")

    def test_responses(self):
        tool = {"type": "function", **TOOL["function"], "strict": True}
        ask = {"model": MODEL, "input": "hi", "max_output_tokens": 200}
        answer = self.client.responses.create(**ask, instructions="Be brief.", extra_body=only("yes"))
        self.assertEqual((answer.output_text, answer.status, answer.usage.output_tokens), ("yes", "completed", 3))
        called = self.client.responses.create(**ask, tools=[tool], tool_choice="required", parallel_tool_calls=False)
        call = called.output[0]
        Weather.model_validate_json(call.arguments)
        other = {"type": "function", "name": "other", "parameters": {"type": "object"}}
        allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
        narrowed = self.client.responses.create(**ask, tools=[other, tool], tool_choice=allowed, parallel_tool_calls=False)
        self.assertEqual(narrowed.output[0].name, "weather")
        # With its result the call is a part of the next request.
        turns = HI + called.output + [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
        self.assertEqual(self.client.responses.create(**{**ask, "input": turns}, tools=[tool], extra_body=only("rain")).output_text, "rain")
        parsed = self.client.responses.parse(**ask, text_format=Weather, extra_body={"seed": 2})
        self.assertIsInstance(parsed.output_parsed, Weather)
        with self.client.responses.stream(**ask, tools=[tool], extra_body=only("<think>\nhm\n</think>\n\nSo.\n" + CALL)) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        self.assertEqual([item.type for item in final.output], ["reasoning", "message", "function_call"])
        self.assertEqual((final.output_text, final.output[0].content[0].text), ("So.", "hm"))
        self.assertIn("response.function_call_arguments.done", kinds)
        with self.assertRaises(openai.BadRequestError):
            self.client.responses.create(**ask, previous_response_id="resp_1")

    def test_refusals(self):
        for wrong in ({"n": 0}, {"top_logprobs": 3}, {"logit_bias": {"9999": 1}}, {"tools": [TOOL], "tool_choice": "other"},
                      {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, {"modalities": ["audio"]}):
            with self.assertRaises(openai.BadRequestError, msg=str(wrong)):
                self.chat(**wrong)

    def test_tokens(self):
        told = json.loads(post("/tokenize", {"model": MODEL, "prompt": "hi"}))
        self.assertEqual((told["tokens"], told["count"], told["max_model_len"]), ([104, 105], 2, 4096))
        chat = json.loads(post("/tokenize", {"model": MODEL, "messages": HI}))["tokens"]
        text = json.loads(post("/detokenize", {"model": MODEL, "tokens": chat}))["prompt"]
        self.assertEqual(text, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")

    def test_gauges(self):
        told = urllib.request.urlopen(f"{URL}/metrics").read().decode()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            self.assertRegex(told, rf'(?m)^vllm:{name}{{model_name="{MODEL}"}} \d')


class LangChain(unittest.TestCase):
    def model(self, **fields):
        from langchain_openai import ChatOpenAI

        return ChatOpenAI(base_url=f"{URL}/v1", api_key="any", model=MODEL, max_retries=0, max_tokens=200, **{"seed": 1, **fields})

    def test_texts(self):
        from langchain_core.messages import HumanMessage

        answer = self.model(temperature=0).invoke("hi")
        self.assertGreater(answer.usage_metadata["output_tokens"], 0)
        pieces = [piece.content for piece in self.model(temperature=0, stream_usage=True).stream("hi")]
        self.assertEqual("".join(pieces), answer.content)
        self.assertEqual(len(self.model(n=2).generate([[HumanMessage("hi")]]).generations[0]), 2)
        self.assertIn("content", self.model(logprobs=True, top_logprobs=2).invoke("hi").response_metadata["logprobs"])

    def test_tools(self):
        bound = self.model().bind_tools([Weather], tool_choice="any", parallel_tool_calls=False)
        self.assertEqual(bound.invoke("hi").tool_calls[0]["name"], "Weather")
        merged = None
        for piece in bound.stream("hi"):
            merged = piece if merged is None else merged + piece
        Weather.model_validate(merged.tool_calls[0]["args"])

    def test_responses(self):
        # Its parameters have no seed.
        model = self.model(use_responses_api=True, seed=None)
        self.assertGreater(model.invoke("hi").usage_metadata["output_tokens"], 0)
        bound = model.bind_tools([Weather], tool_choice="any", parallel_tool_calls=False)
        self.assertEqual(bound.invoke("hi").tool_calls[0]["name"], "Weather")
        merged = None
        for piece in bound.stream("hi"):
            merged = piece if merged is None else merged + piece
        Weather.model_validate(merged.tool_calls[0]["args"])

    def test_structures(self):
        for method in ("json_schema", "function_calling"):
            self.assertIsInstance(self.model().with_structured_output(Weather, method=method).invoke("hi"), Weather)


class LiteLLM(unittest.TestCase):
    def complete(self, provider, **fields):
        import litellm

        litellm.suppress_debug_info = True
        given = {"api_base": f"{URL}/v1", "api_key": "any", "messages": HI, "max_tokens": 500, "seed": 1, "num_retries": 0}
        return litellm.completion(model=f"{provider}/{MODEL}", **{**given, **fields})

    def test_both_providers(self):
        for provider in ("openai", "hosted_vllm"):
            answer = self.complete(provider, temperature=0)
            self.assertGreater(answer.usage.completion_tokens, 0)
            pieces = [chunk.choices[0].delta.content or "" for chunk in self.complete(provider, temperature=0, stream=True)]
            self.assertEqual("".join(pieces), answer.choices[0].message.content or "")
            # LiteLLM leaves out that there are no further fields: an object ends as soon as it may.
            bias = {"logit_bias": {"125": 100}}
            call = self.complete(provider, tools=[TOOL], tool_choice="required", **bias).choices[0].message.tool_calls[0]
            Weather.model_validate_json(call.function.arguments)
            format = {"type": "json_schema", "json_schema": {"name": "w", "schema": Weather.model_json_schema()}}
            Weather.model_validate_json(self.complete(provider, response_format=format, **bias).choices[0].message.content)
            thought = self.complete(provider, extra_body=only("<think>\nhm\n</think>\n\nyes")).choices[0].message
            self.assertEqual((thought.content, thought.reasoning_content), ("yes", "hm"))


class OpenWebUI(unittest.TestCase):
    """What its backend sends: `routers/openai.py` and `utils/payload.py`."""

    def test_models(self):
        told = json.loads(urllib.request.urlopen(f"{URL}/v1/models").read())
        self.assertIn(MODEL, [model["id"] for model in told["data"]])

    def test_a_chat(self):
        body = {"stream": True, "model": MODEL, "messages": [{"role": "system", "content": "Be brief."}, *HI],
                "stream_options": {"include_usage": True}, "temperature": 0.8, "top_p": 0.9, "min_p": 0.05, "max_tokens": 20,
                "frequency_penalty": 0.1, "presence_penalty": 0.1, "seed": 1, "stop": ["###"], "logit_bias": {"65": -5},
                "tools": [TOOL]}
        lines = [line for line in post("/v1/chat/completions", body).split("\n\n") if line]
        self.assertEqual(lines[-1], "data: [DONE]")
        self.assertGreater(json.loads(lines[-2].removeprefix("data: "))["usage"]["completion_tokens"], 0)

    def test_a_title(self):
        body = {"model": MODEL, "messages": HI, "stream": False, "max_completion_tokens": 20}
        self.assertIn("content", json.loads(post("/v1/chat/completions", body))["choices"][0]["message"])


unittest.main(argv=sys.argv[:1], verbosity=1)
