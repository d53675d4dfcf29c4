"""Tools in chats, by OpenAI's client: a real server and renderer, an engine that says a text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import openai
import pytest

from gristmill.engine.grammar.compiler import Grammars
from gristmill.options import Options
from gristmill.serve.chat import chat_renderer
from gristmill.serve.chat_request import chat_input, parse_chat
from gristmill.serve.protocol import Served
from gristmill.text.tokenizer import Tokenizer
from gristmill.types import Request
from tests.serve.conftest import attach
from tests.serve.fake_engine import CONTEXT, EOS, FakeEngine, FakeTokenizer
from tests.text.vocabularies import CONTROL, USER, bpe

SPECIAL = {"<|im_end|>": CONTROL, "<tool_call>": CONTROL, "</tool_call>": USER, "<think>": CONTROL}
TOKENIZER = Tokenizer.from_gguf(bpe(["h e"], SPECIAL, add_bos_token=False))
HERMES = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<tool_call>{% endif %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ '\n' }}{% endfor %}{% if think %}<think>{% endif %}"
)
PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"


def tool(name: str, **properties: Any) -> Any:
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("add", a={"type": "integer"}, b={"type": "integer"}), tool("now")]
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "zwölf"}}\n</tool_call>'
NOW = '<tool_call>{"name": "now"}</tool_call>'
ASK: Any = [{"role": "user", "content": "What is it?"}]


class Saying:
    """A server whose model says ``text``, and a client."""

    def __init__(self, serve: Callable[..., Any], template: str = HERMES, **options: Any) -> None:
        self.text = ""
        self.engine = FakeEngine(script=self._script)
        self.running = serve(self.engine, load=False)
        chosen = Options(chat_template=template, **options)
        chat = chat_renderer({}, TOKENIZER, chosen)
        tokenizer = FakeTokenizer()
        served = Served(("fake",), self.engine, tokenizer, chat, CONTEXT, 1_700_000_000)
        self.running.call(lambda: attach(self.running.state, served))
        self.client = openai.OpenAI(base_url=self.running.url + "/v1", api_key="x", max_retries=0)

    def _script(self, _request: Request, _index: int) -> list[int]:
        return [*self.text.encode(), EOS]

    def whole(self, text: str, **more: Any) -> Any:
        self.text = text
        more = {"messages": ASK, "tools": TOOLS, "model": "fake", **more}
        return self.client.chat.completions.create(**more).choices[0]

    def streamed(self, text: str, **more: Any) -> Any:
        """The answer put together from its chunks, in the form of the whole one."""
        self.text = text
        more = {"messages": ASK, "tools": TOOLS, "model": "fake", **more}
        made = Joined()
        for chunk in self.client.chat.completions.create(stream=True, **more):
            made.add(chunk.choices[0])
        return made


class Joined:
    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self.calls: list[list[str]] = []
        self.finish_reason: str | None = None

    def add(self, choice: Any) -> None:
        assert self.finish_reason is None
        self.finish_reason = choice.finish_reason
        self.content += choice.delta.content or ""
        self.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or []:
            if call.id is not None:
                assert call.index == len(self.calls) and call.type == "function"
                self.calls.append([call.function.name, ""])
            assert call.index == len(self.calls) - 1
            self.calls[-1][1] += call.function.arguments


def calls(choice: Any) -> list[list[str]]:
    found = choice.message.tool_calls or []
    assert len({call.id for call in found}) == len(found)
    assert all(call.type == "function" for call in found)
    return [[call.function.name, call.function.arguments] for call in found]


@pytest.fixture
def saying(serve: Callable[..., Any]) -> Saying:
    return Saying(serve)


def both(saying: Saying, text: str, **more: Any) -> Any:
    """The whole answer, after the stream was found to be the same."""
    whole, streamed = saying.whole(text, **more), saying.streamed(text, **more)
    assert streamed.content == (whole.message.content or "")
    assert streamed.calls == calls(whole)
    assert streamed.reasoning == (getattr(whole.message, "reasoning_content", None) or "")
    assert streamed.finish_reason == whole.finish_reason
    return whole


def test_calls_whole_and_streamed(saying: Saying) -> None:
    whole = both(saying, f"{ADD}\n{NOW}")
    assert calls(whole) == [["add", '{"a": 1, "b": "zwölf"}'], ["now", "{}"]]
    assert whole.message.content is None
    assert whole.finish_reason == "tool_calls"


def test_text_and_a_call(saying: Saying) -> None:
    whole = both(saying, f"Let me see.\n{ADD}")
    assert whole.message.content == "Let me see."
    assert [name for name, _ in calls(whole)] == ["add"]


def test_a_call_quoted_in_a_thought_is_no_call(saying: Saying) -> None:
    thought = f"<think>I could say {NOW}, perhaps</think>Plain answer"
    template = {"chat_template_kwargs": {"think": True}}
    saying_thoughts = thought.removeprefix("<think>")
    for text, more in ((thought, {}), (saying_thoughts, {"extra_body": template})):
        whole = both(saying, text, **more)
        assert whole.message.content == "Plain answer"
        assert whole.message.tool_calls is None
        assert whole.message.reasoning_content == f"I could say {NOW}, perhaps"
        assert whole.finish_reason == "stop"
    whole = both(saying, f"<think>Yes.</think>\n\n{NOW}")
    assert calls(whole) == [["now", "{}"]]
    assert whole.message.reasoning_content == "Yes."


def test_malformed_calls_stay_content(saying: Saying) -> None:
    for text in ("<tool_call>{name: add}</tool_call>", '{"name": "sub", "arguments": {}}'):
        whole = both(saying, text)
        assert whole.message.content == text
        assert whole.message.tool_calls is None
        assert whole.finish_reason == "stop"


def test_a_call_cut_off_by_length(saying: Saying) -> None:
    whole = both(saying, ADD, max_tokens=len('<tool_call>\n{"name": "add", "arguments": {"a": 1, '))
    assert whole.finish_reason == "length"
    assert calls(whole) == [["add", '{"a": 1, ']]


def test_without_tools_or_with_none_nothing_is_parsed(saying: Saying) -> None:
    for more in ({"tools": openai.NOT_GIVEN}, {"tool_choice": "none"}):
        whole = both(saying, ADD, **more)
        assert whole.message.content == ADD
        assert whole.message.tool_calls is None


def test_one_call_where_several_are_not_wanted(saying: Saying) -> None:
    whole = both(saying, f"{ADD}{NOW}", parallel_tool_calls=False)
    assert [name for name, _ in calls(whole)] == ["add"]


def test_several_answers_have_their_own_calls(saying: Saying) -> None:
    saying.text = ADD
    answer: Any = saying.client.chat.completions.create(
        model="fake", messages=ASK, tools=TOOLS, n=2
    )
    first, second = answer.choices
    assert calls(first) == calls(second)
    assert first.message.tool_calls[0].id != second.message.tool_calls[0].id


def test_the_parser_named_by_flag(serve: Callable[..., Any]) -> None:
    llama = Saying(serve, tool_call_parser="llama3_json")
    whole = both(llama, '{"name": "now", "parameters": {}}')
    assert calls(whole) == [["now", "{}"]]
    none = Saying(serve, tool_call_parser="none")
    assert both(none, ADD).message.content == ADD
    with pytest.raises(openai.BadRequestError, match="--tool-call-parser none"):
        none.whole(ADD, tool_choice="required")


def test_marks_that_are_special_tokens_are_shown(saying: Saying) -> None:
    saying.whole(ADD)
    saying.whole(ADD, tool_choice="none")
    shown = [request.sampling.shown_tokens for request in saying.engine.requests]
    think, call = (TOKENIZER.token_id(text) for text in ("<think>", "<tool_call>"))
    assert set(shown[0]) == {think, call}
    assert set(shown[1]) == {think}


ARRAY = {"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tools": [{"type": "web_search"}]}, "type 'function'"),
        ({"tools": [{"type": "function"}]}, "function' must be an object"),
        ({"tools": [tool("")]}, "1 to 128 letters"),
        ({"tools": [tool("a b")]}, "1 to 128 letters"),
        ({"tools": [tool("x" * 129)]}, "1 to 128 letters"),
        ({"tools": [tool("a"), tool("a")]}, "of a tool before it"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]}, "schema"),
        ({"tools": [ARRAY]}, "schema of an object"),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": 1}}]}, "strict"),
        ({"tools": [{"type": "function", "function": {"name": "a", "description": 1}}]}, "string"),
        ({"tools": ["a"]}, "list of objects"),
        ({"tool_choice": "always"}, "'tool_choice' must be"),
        ({"tool_choice": 1}, "'tool_choice' must be"),
        ({"tool_choice": {"type": "function"}}, "as an object must be"),
        ({"tool_choice": {"type": "function", "function": {"name": "sub"}}}, "'sub'; the"),
        ({"tool_choice": "required", "tools": []}, "needs 'tools'"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "'mode'"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}},
            "list of 'tools'",
        ),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"parallel_tool_calls": "no"}, "true or false"),
    ],
)  # fmt: skip
def test_what_is_no_tool_or_choice_is_refused(
    saying: Saying, fields: dict[str, Any], says: str
) -> None:
    body = {"messages": ASK, "tools": TOOLS, **fields}
    with saying.running.client() as client:
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_forced_calls_come_with_a_grammar() -> None:
    prompt = chat_renderer({}, TOKENIZER, Options(chat_template=HERMES))

    def grammar(choice: Any, **more: Any) -> str:
        body: Any = {"messages": ASK, "tools": TOOLS, "tool_choice": choice, **more}
        made = prompt(chat_input(parse_chat(body), CONTEXT)).constraint
        if made is None:
            return ""
        assert made.kind == "lark"
        return made.text

    assert grammar("auto") == grammar("none") == ""
    required = grammar("required")
    assert r"\"add\"" in required and r"\"now\"" in required and ")*" in required
    assert f"<[{TOKENIZER.token_id('<tool_call>')}]>" in required  # a special token
    assert '"</tool_call>"' in required  # one that text may spell
    assert ")*" not in grammar("required", parallel_tool_calls=False)
    named = grammar({"type": "function", "function": {"name": "now"}})
    assert r"\"add\"" not in named and r"\"now\"" in named
    entry = {"type": "function", "function": {"name": "now"}}
    some = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [entry]}}
    assert grammar(some) == grammar({"type": "function", "function": {"name": "now"}})


def test_a_forced_mark_that_is_a_special_token_is_that_token() -> None:
    """The real compiler: with it no text passes for the mark, and only the token begins a call."""
    prompt = chat_renderer({}, TOKENIZER, Options(chat_template=HERMES))
    vocabulary = TOKENIZER.vocab_size
    end = TOKENIZER.token_id("<|im_end|>")
    assert end is not None
    grammars = Grammars(TOKENIZER, vocabulary, frozenset({end}))
    body: Any = {"messages": ASK, "tools": TOOLS, "tool_choice": "required"}
    made = prompt(chat_input(parse_chat(body), CONTEXT)).constraint
    assert made is not None
    matcher = grammars.compile(made).result(30)
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    allowed = {i for i, bit in enumerate(bits[:vocabulary]) if bit}
    assert allowed == {TOKENIZER.token_id("<tool_call>"), TOKENIZER.token_id("Ċ")}
    grammars.close()


def test_allowed_tools_are_the_ones_the_model_sees(saying: Saying) -> None:
    entry = {"type": "function", "function": {"name": "now"}}
    some: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [entry]}}
    saying.whole(NOW, tool_choice=some)
    assert '"name": "now"' in prompt_of(saying)
    assert '"name": "add"' not in prompt_of(saying)


HISTORY: Any = [
    {"role": "user", "content": "1 + 2?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "3"},
]


def prompt_of(saying: Saying) -> str:
    return TOKENIZER.decode(list(saying.engine.requests[-1].prompt))


def test_a_template_without_tools_is_told_of_them_in_the_system_message(
    serve: Callable[..., Any],
) -> None:
    saying = Saying(serve, PLAIN)
    whole = both(saying, NOW, messages=[{"role": "system", "content": "Be kind."}, *HISTORY])
    assert calls(whole) == [["now", "{}"]]
    prompt = prompt_of(saying)
    assert prompt.startswith("[system] Be kind.\n\nYou can call these functions")
    assert json.dumps(TOOLS[0]["function"]["parameters"]) in prompt
    assert '[assistant] <tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}' in prompt
    assert "[tool] 3" in prompt
    assert both(saying, '{"name": "now", "arguments": {}}').message.content is None


def test_the_client_s_own_answer_comes_back(saying: Saying) -> None:
    """An answer with calls can be sent back as it came, and its result with it."""
    whole = saying.whole(ADD)
    messages = [*ASK, whole.message.model_dump(), {
        "role": "tool", "tool_call_id": whole.message.tool_calls[0].id, "content": "3",
    }]  # fmt: skip
    saying.whole("Three.", messages=messages)
    prompt = prompt_of(saying)
    assert '<tool_call>{"name": "add", "arguments": {"a": 1, "b": "zwölf"}}</tool_call>' in prompt
    assert "None" not in prompt and "null" not in prompt
