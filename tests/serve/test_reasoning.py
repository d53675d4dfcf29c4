"""Reasoning in chats: where it goes, how it is switched, and gpt-oss's channels end to end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from gristmill.options import Options
from gristmill.serve.chat import chat_renderer
from gristmill.serve.chat_request import chat_input, parse_chat
from gristmill.text.tokenizer import Tokenizer
from tests.serve.fake_engine import CONTEXT
from tests.serve.test_tools import ASK, TOOLS, Saying
from tests.text.vocabularies import bpe

THINK = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% endfor %}Reasoning: {{ reasoning_effort }}<|start|>assistant"
)
SAID = "<think>\nhm\n</think>\n\nHi"
CHANNELS = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
TOKENIZER = Tokenizer.from_gguf(bpe(["h e"], {}, add_bos_token=False))


@pytest.mark.parametrize(
    ("form", "reasoning", "content"),
    [
        ("auto", "hm", "Hi"),
        ("deepseek", "hm", "Hi"),
        ("none", "", SAID),
        ("deepseek-legacy", "hm", "<think>hm</think>Hi"),
    ],
)
def test_formats_by_flag_and_by_field(
    serve: Callable[..., Any], form: str, reasoning: str, content: str
) -> None:
    by_flag = Saying(serve, THINK, reasoning_format=form)
    by_field = Saying(serve, THINK)
    over = Saying(serve, THINK, reasoning_format="none")
    for saying, more in ((by_flag, {}), (by_field, {"reasoning_format": form}),
                         (over, {"reasoning_format": form})):  # fmt: skip
        message = saying.whole(SAID, extra_body=more).message
        assert (getattr(message, "reasoning", ""), message.content) == (reasoning, content)
        joined = saying.streamed(SAID, extra_body=more)
        assert (joined.reasoning, joined.content) == (reasoning, content)


def test_reasoning_can_be_left_out(serve: Callable[..., Any]) -> None:
    saying = Saying(serve, THINK)
    message = saying.whole(SAID, extra_body={"include_reasoning": False}).message
    assert not hasattr(message, "reasoning") and message.content == "Hi"


def test_an_unknown_effort_is_refused(serve: Callable[..., Any]) -> None:
    saying = Saying(serve, THINK)
    with pytest.raises(openai.BadRequestError, match="reasoning_effort"):
        saying.whole("Hi", reasoning_effort="utmost")


def prompt(template: str, body: dict[str, Any], **options: Any) -> str:
    made = chat_renderer({}, TOKENIZER, Options(chat_template=template, **options))
    fields = parse_chat({"messages": ASK, "model": "fake", **body})
    return made(chat_input(fields, CONTEXT)).text


def test_efforts_and_switches_reach_the_template() -> None:
    off = "<think></think>"
    assert not prompt(THINK, {}).endswith(off)
    assert prompt(THINK, {"reasoning_effort": "none"}).endswith(off)
    assert not prompt(THINK, {"reasoning_effort": "low"}).endswith(off)
    kwargs = {"chat_template_kwargs": {"enable_thinking": False}}
    assert prompt(THINK, kwargs).endswith(off)
    fixed = '{"enable_thinking": false}'
    assert prompt(THINK, {}, template_variables=fixed).endswith(off)
    high = {"reasoning_effort": "high"}
    assert not prompt(THINK, high, template_variables=fixed).endswith(off)
    assert "Reasoning: low" in prompt(HARMONY, {"reasoning_effort": "minimal"})
    assert "Reasoning: high" in prompt(HARMONY, high)


def test_gpt_oss_thinks_answers_and_calls(serve: Callable[..., Any]) -> None:
    saying = Saying(serve, HARMONY)
    final = f"{CHANNELS}<|channel|>final<|message|>Hi"
    call = (
        f"{CHANNELS}<|channel|>commentary to=functions.add <|constrain|>json<|message|>"
        '{"a": 1, "b": 2}'
    )
    for tools in ([], TOOLS):
        more: dict[str, Any] = {"tools": tools} if tools else {"tools": openai.omit}
        choice = saying.whole(final, **more)
        assert (choice.message.reasoning, choice.message.content) == ("hm", "Hi")
        assert choice.finish_reason == "stop"
    choice = saying.whole(call)
    assert choice.finish_reason == "tool_calls"
    assert choice.message.reasoning == "hm"
    function = choice.message.tool_calls[0].function
    assert (function.name, function.arguments) == ("add", '{"a": 1, "b": 2}')
    joined = saying.streamed(call)
    assert joined.reasoning == "hm" and joined.content == ""
    assert [each[-1] for each in joined.calls] == [function.arguments]
    kept = saying.whole(call, extra_body={"reasoning_format": "none"}).message
    assert kept.content == "<think>hm</think>" and not hasattr(kept, "reasoning")


def test_what_ends_gpt_oss_s_reasoning_depends_on_tools() -> None:
    made = chat_renderer({}, TOKENIZER, Options(chat_template=HARMONY))
    fields = parse_chat({"messages": ASK, "tools": TOOLS, "tool_choice": "required"})
    thinking = made(chat_input(fields, CONTEXT)).thinking
    assert thinking is not None
    assert thinking.closing == "<|end|><|start|>assistant"
    plain = made(chat_input(parse_chat({"messages": ASK}), CONTEXT)).thinking
    assert plain is not None and plain.closing.endswith("<|channel|>final<|message|>")
