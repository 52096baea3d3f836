"""Writes data/templates.json: chat templates' idioms, and what jinja2 makes of them in the environment that transformers gives them.

Usage: python3 templates.py      (needs jinja2)

Each case is a template, the names that it sees, and its text or `null` where jinja2 refuses it.
"""

import json
from datetime import datetime
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime(2024, 7, 6, 5, 4, 3)


class Generation(jinja2.ext.Extension):
    """`{% generation %}` as transformers reads it: a call block, which has names of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = NOW.strftime
    return made


CHAT = {
    "messages": [
        {"role": "system", "content": "You are helpful. "},
        {"role": "user", "content": "hi <there> & 'you', \"é\""},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nan answer"},
        {"role": "user", "content": "a\nb\tc \\ \u2028 \u4e16\u754c"},
    ],
    "tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "The weather's state <now> & \"later\".",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Zürich, say", "enum": ["Zürich", "Oslo"]},
                "days": {"type": "integer", "default": 3}, "exact": {"type": "boolean", "default": False},
                "units": {"type": ["string", "null"], "default": None}, "factor": {"type": "number", "default": 1.5},
                "items": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
        },
    },
}
CALLS = {
    **CHAT,
    "tools": [TOOL],
    "documents": [{"title": "One", "text": "First."}, {"title": "Two", "text": "Second."}],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is Oslo?"},
        {"role": "assistant", "content": None, "reasoning_content": "A tool.\n", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo", "days": 2, "exact": True}}},
            {"id": "call_2", "type": "function", "function": {"name": "get_weather", "arguments": {}}}]},
        {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "{\"degrees\": -3.5}"},
        {"role": "tool", "tool_call_id": "call_2", "name": "get_weather", "content": "rain"},
        {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "Zürich?"}]},
    ],
    "enable_thinking": False, "reasoning_effort": "low",
}
PLAIN = {**{k: v for k, v in CHAT.items() if k != "bos_token"}, "add_generation_prompt": False}


def main():
    folder = Path(__file__).parent
    cases, made = [], environment()
    source = {}
    exec((folder / "idioms.py").read_text(), source)
    for names, group in [("chat", source["CHAT"]), ("calls", source["CALLS"]), ("plain", source["PLAIN"])]:
        given = {"chat": CHAT, "calls": CALLS, "plain": PLAIN}[names]
        for template in group:
            try:
                text = made.from_string(template).render(**given)
            except Exception as error:
                print(f"refused: {template!r}: {error}")
                text = None
            cases.append({"names": names, "template": template, "text": text})
    names = {"chat": CHAT, "calls": CALLS, "plain": PLAIN}
    told = json.dumps({"names": names, "cases": cases}, ensure_ascii=False, indent=1)
    (folder.parent / "data" / "templates.json").write_text(told + "\n")


if __name__ == "__main__":
    main()
