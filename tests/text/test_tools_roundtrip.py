"""What a template writes for an assistant's tool calls, its format's parser reads back.

Each of llama.cpp's templates renders a chat whose last turn calls tools. That turn, cut out of
the prompt, is fed to the parsers found from the template: the same calls must come out.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gristmill.errors import RequestError
from gristmill.text import reasoning, tools
from gristmill.text.reasoning import switch
from gristmill.text.template import ChatTemplate
from gristmill.text.tools import Tool
from gristmill.text.tools.compose import Both
from gristmill.types import Piece

SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object", "required": ["city"],
        "properties": {"city": {"type": "string", "description": "a place"},
                       "days": {"type": "integer", "description": "how many"}},
    },
    "add": {
        "type": "object", "required": ["a"],
        "properties": {"a": {"type": "number", "description": "a"},
                       "b": {"type": "array", "items": {"type": "integer"}, "description": "b"},
                       "c": {"type": "object", "properties": {"k": {"type": "string"}},
                             "description": "c"},
                       "d": {"type": "boolean", "description": "d"}},
    },
}  # fmt: skip
OFFERED = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
TOOLS = [Tool(name, name, schema) for name, schema in SCHEMAS.items()]
WANTED: list[tuple[str, dict[str, Any]]] = [
    ("get_weather", {"city": 'Zürich "x" <b> & co', "days": 2}),
    ("add", {"a": 1.5, "b": [1, 2], "c": {"k": "v"}, "d": True}),
]
USER = {"role": "user", "content": "Hello"}

# Templates that write no calls of an assistant, whatever the chat holds.
SILENT = {
    "HuggingFaceTB-SmolLM3-3B", "LFM2-8B-A1B", "LFM2.5-Instruct", "google-gemma-2-2b-it",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct",
    "CohereForAI-c4ai-command-r-plus-tool_use", "fireworks-ai-llama-3-firefunction-v2",
    "llama-cpp-deepseek-r1",
    # They change lists, which the sandbox refuses as that of transformers does.
    "Kimi-K2-Instruct", "Kimi-K2-Thinking",
}  # fmt: skip
# Formats of few models, which have no parser here: their calls stay in the content.
UNREAD = {"muse-glimmer", "meetkai-functionary-medium-v3.2"}
# Templates that write only the first of several calls, or refuse several.
SINGLE = {
    "GigaChat3-10B-A1.8B", "GigaChat3.1-10B-A1.8B", "openai-gpt-oss-120b",
    "meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
}  # fmt: skip


def stems() -> list[str]:
    folder = os.environ.get("GRISTMILL_LLAMACPP_MODELS", "")
    found = sorted(path.stem for path in Path(folder or "/nonexistent").glob("templates/*.jinja"))
    return found or ["none found"]


def turn(template: ChatTemplate, count: int, thought: str) -> tuple[str, str]:
    """The prompt, and what the template writes after it for the assistant's turn."""
    calls = [
        {"id": f"call0000{i}", "type": "function", "function": {"name": name, "arguments": values}}
        for i, (name, values) in enumerate(WANTED[:count])
    ]
    said: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls}
    if thought:
        said["reasoning_content"] = thought
    prompt = whole = ""
    for ask in ({"enable_thinking": True}, {}, {"enable_thinking": False}):
        asked = switch.variables(template.source, ask)
        whole = template.render([USER, said], OFFERED, False, **asked)
        prompt = template.render([USER], OFFERED, True, **asked)
        if whole.startswith(prompt):
            return prompt, whole[len(prompt) :]
        prompt = template.render([USER], OFFERED, False, **asked)
    same = sum(
        1
        for _ in itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(whole, prompt, strict=False)
        )
    )
    return whole[:same], whole[same:]


def read(source: str, prompt: str, pieces: list[str]) -> list[Piece]:
    form = tools.find(tools.detect(source) or "json")
    parser = form.parser(TOOLS, prompt)
    name = reasoning.detect(source)
    if name is not None and not form.reasons:
        parser = Both(reasoning.parser(name, prompt), parser)
    return [*(parser.push(piece) for piece in pieces), parser.flush()]


def joined(pieces: list[Piece]) -> tuple[str, list[tuple[str, Any]]]:
    calls: list[list[str]] = []
    for delta in (delta for piece in pieces for delta in piece.calls):
        if delta.index == len(calls):
            calls.append([delta.name or "", ""])
        calls[delta.index][1] += delta.arguments
    thought = "".join(piece.reasoning for piece in pieces)
    return thought, [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("stem", stems())
def test_calls_come_back(llamacpp: Path, stem: str, count: int) -> None:
    if stem in SILENT or stem in UNREAD:
        pytest.skip("this template writes no calls, or in a format that is left as it is")
    source = (llamacpp / "templates" / f"{stem}.jinja").read_text("utf-8")
    try:
        prompt, text = turn(ChatTemplate(source, "<s>", "</s>"), count, "")
    except RequestError as error:
        assert stem in SINGLE and count > 1, error
        return
    pieces = read(source, prompt, [text])
    assert joined(pieces)[1] == WANTED[: 1 if stem in SINGLE else count]
    content = "".join(piece.content for piece in pieces)
    assert "get_weather" not in content and "Zürich" not in content
    cut = read(source, prompt, list(text))
    assert joined(cut) == joined(pieces)
    assert "".join(piece.content for piece in cut) == content


@pytest.mark.parametrize("stem", stems())
def test_a_thought_before_calls_comes_back(llamacpp: Path, stem: str) -> None:
    source = (llamacpp / "templates" / f"{stem}.jinja").read_text("utf-8")
    if reasoning.detect(source) is None or stem in SILENT | UNREAD:
        pytest.skip("no reasoning, or no calls")
    prompt, text = turn(ChatTemplate(source, "<s>", "</s>"), 1, "I wonder.")
    if "I wonder." not in text:
        pytest.skip("this template leaves the reasoning out")
    if reasoning.detect(source) == "apriel" and "my reasoning steps" not in prompt + text:
        pytest.skip("this template leaves out the mark before the reasoning")
    thought, calls = joined(read(source, prompt, [text]))
    if reasoning.find(reasoning.detect(source) or "").open in text or (
        reasoning.find(reasoning.detect(source) or "").opened(prompt)
    ):
        assert (thought, calls) == ("I wonder.", WANTED[:1])
    else:
        assert calls == WANTED[:1]
