"""Tool calls in JSON: what is a call, what stays content, and that the cuts do not matter."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.text import tools
from gristmill.text.tools import Tool, Wanted
from gristmill.types import Piece

TOOLS = [
    Tool("f", "does f", {"type": "object", "properties": {"a": {"type": "integer"}}}),
    Tool("get_weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}}),
]
DS = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
DS_CLOSE = "<｜tool▁calls▁end｜>"
OBJECT = '{"name": "f", "arguments": {"a": 1}}'
OTHER = '{"name": "get_weather", "arguments": {"city": "Köln"}}'
BOTH = [("f", '{"a": 1}'), ("get_weather", '{"city": "Köln"}')]

TWO = {
    "hermes": f"<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>\n{OTHER}\n</tool_call>",
    "json": f"```json\n[{OBJECT},\n {OTHER}]\n```",
    "mistral": f"[TOOL_CALLS][{OBJECT}, {OTHER}]",
    "mistral_named": '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]get_weather[CALL_ID]abcdefgh1[ARGS]'
    '{"city": "Köln"}',
    "llama3_json": f"<|python_tag|>{OBJECT.replace('arguments', 'parameters')}; {OTHER}",
    "deepseek_v31": f'{DS[0]}{DS[1]}f{DS[2]}{{"a": 1}}{DS[3]}{DS[1]}get_weather{DS[2]}'
    f'{{"city": "Köln"}}{DS[3]}{DS_CLOSE}',
    "deepseek_v3": f'{DS[0]}{DS[1]}function{DS[2]}f\n```json\n{{"a": 1}}\n```{DS[3]}\n{DS[1]}'
    f'function{DS[2]}get_weather\n```json\n{{"city": "Köln"}}\n```{DS[3]}{DS_CLOSE}',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
    '<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_call_begin|>functions.'
    'get_weather:1<|tool_call_argument_begin|>{"city": "Köln"}<|tool_call_end|>'
    "<|tool_calls_section_end|>",
    "nemotron": f"<TOOLCALL>[{OBJECT}, {OTHER}]</TOOLCALL>",
    "minimax_m1": f"<tool_calls>\n{OBJECT}\n{OTHER}\n</tool_calls>",
    "apriel": f"<tool_calls>[{OBJECT}, {OTHER}]</tool_calls>",
    "firefunction": f"functools[{OBJECT}, {OTHER}]",
    "command_r_plus": f"Action:\n```json\n[{OBJECT.replace('name', 'tool_name')}, {OTHER}]\n```",
    "cohere": f"<|START_ACTION|>[{OBJECT.replace('name', 'tool_name')}, {OTHER}]<|END_ACTION|>",
}


@dataclass
class Result:
    content: str
    calls: list[tuple[str, str]]


def read(name: str, parts: list[str]) -> Result:
    """What a parser makes of the parts, joined; the deltas' own rules are checked on the way."""
    parser = tools.parser(name, TOOLS)
    pieces = [parser.push(part) for part in parts]
    pieces.append(parser.flush())
    return joined(pieces)


def joined(pieces: list[Piece]) -> Result:
    calls: list[list[str]] = []
    ids: set[str] = set()
    for piece in pieces:
        for delta in piece.calls:
            if delta.index == len(calls):
                assert delta.id and delta.name and delta.id not in ids
                ids.add(delta.id)
                calls.append([delta.name, ""])
            else:
                assert delta.id is None and delta.name is None
                assert delta.index == len(calls) - 1
            calls[delta.index][1] += delta.arguments
    content = "".join(piece.content for piece in pieces)
    assert not any(piece.reasoning for piece in pieces)
    return Result(content, [(name, arguments) for name, arguments in calls])


@pytest.mark.parametrize("name", TWO)
def test_two_calls_whole_and_letter_by_letter(name: str) -> None:
    text = TWO[name]
    for shown, content in ((text, ""), (f"{text}\n", ""), (f"\n{text}", "")):
        whole = read(name, [shown])
        assert whole == Result(content, BOTH)
        assert read(name, list(shown)) == whole


@pytest.mark.parametrize("name", sorted(set(TWO) - {"json"}))
def test_content_before_and_after(name: str) -> None:
    whole = read(name, [f"Let me see.\n\n{TWO[name]}\nDone. "])
    assert whole.calls == BOTH or name == "llama3_json"
    assert whole.content == "Let me see.\nDone. "


@pytest.mark.parametrize("name", TWO)
def test_every_cut_in_two(name: str) -> None:
    text = f" {TWO[name]} x"
    whole = read(name, [text])
    for cut in range(len(text)):
        assert read(name, [text[:cut], text[cut:]]) == whole, cut


@pytest.mark.parametrize("name", TWO)
def test_cut_off_anywhere_is_the_same_whole_or_streamed(name: str) -> None:
    text = TWO[name]
    for cut in range(len(text)):
        whole = read(name, [text[:cut]])
        assert read(name, list(text[:cut])) == whole
        if not whole.calls:
            assert whole.content == text[:cut]


PIECES = st.sampled_from(
    [
        *(mark for name in TWO for mark in tools.find(name).marks), *TWO.values(), OBJECT, OTHER,
        "{", "}", "[", "]", '"', ":", ",", "\\", "\n", " ", "f", "name", "arguments", "a", "1",
        '{"name": "f", ', '"arguments": ', '{"a": ', "```json\n", "functions.f:0", "null", "\x01",
        "```", "é",
    ]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(TWO)), parts=st.lists(PIECES, max_size=12), data=st.data())
def test_any_text_however_cut(name: str, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    whole = read(name, [text])
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    ends = [0, *cuts, len(text)]
    split = [text[a:b] for a, b in itertools.pairwise(ends)]
    assert read(name, split) == whole
    assert read(name, list(text)) == whole
    if not whole.calls:
        assert whole.content == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(set(TWO))),
    arguments=st.dictionaries(st.text(), JSON, max_size=4),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
)
def test_arguments_come_through_as_they_are(
    name: str, arguments: dict[str, object], ascii_only: bool, indent: int | None
) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_only, indent=indent)
    text = TWO[name].replace('{"a": 1}', written)
    result = read(name, list(text))
    assert result == Result("", [("f", written), BOTH[1]])
    assert json.loads(result.calls[0][1]) == arguments


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('{"a": "x\ny\t"}', '{"a": "x\\ny\\t"}'),
        (r'{"a": "\d+"}', r'{"a": "\\d+"}'),
        (r'{"a": "it\'s"}', '{"a": "it\'s"}'),
        (r'{"a": "\u12"}', r'{"a": "\\u12"}'),
        ('{"a": True, "b": None,}', '{"a": true, "b": null}'),
        ('{"a": [1, 2,]}', '{"a": [1, 2]}'),
        ("null", "{}"),
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        ('""', "{}"),
    ],
)
def test_slips_are_put_right(written: str, told: str) -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    assert read("hermes", [text]) == read("hermes", list(text)) == Result("", [("f", told)])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>what</tool_call>",
        '<tool_call>{"name": "f"',
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": 1}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "no object"}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "a\\nb", "arguments": {}}</tool_call>',
        "<tool_call>{name: f}</tool_call>",
        "<tool_call>" + '{"x": ' + "[" * 500,
        ' {"name": "unknown", "arguments": {}} ',
        '{"name": "f"}',
        '{"city": "Bonn"}',
        "[1, 2]",
        "```json\n{}\n```",
        "<tool_call",
        " \n",
    ],
)
def test_what_is_no_call_stays_content(text: str) -> None:
    assert read("hermes", [text]) == read("hermes", list(text)) == Result(text, [])


def test_a_fault_after_the_beginning_keeps_what_was_told() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": 1, "b": oops}}</tool_call> and more'
    whole = read("hermes", [text])
    assert whole.calls == [("f", '{"a": 1, "b": ')]
    assert whole.content == "}}</tool_call> and more"


def test_a_missing_brace_is_no_fault() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call> yes'
    assert read("hermes", [text]) == Result("yes", [("f", '{"a": 1}')])


def test_a_call_after_a_broken_one_is_found() -> None:
    text = f"<tool_call>oh <tool_call>{OBJECT}</tool_call>"
    assert read("hermes", [text]) == Result("<tool_call>oh", BOTH[:1])


def test_arguments_come_before_the_call_is_complete() -> None:
    parser = tools.parser("hermes", TOOLS)
    pieces = [parser.push(c) for c in '<tool_call>{"name": "f", "arguments": {"a": "one two']
    told = "".join(delta.arguments for piece in pieces for delta in piece.calls)
    assert told == '{"a": "one two'


def test_an_answer_in_json_is_not_held_back() -> None:
    parser = tools.parser("hermes", TOOLS)
    told = "".join(parser.push(c).content for c in '{"answer": [1, 2, 3')
    assert told == '{"answer": [1, 2, 3'


def test_openai_s_own_form_and_arguments_first() -> None:
    inner = '{"arguments": {"a": 1}, "name": "f"}'
    text = f'<tool_call>{{"id": "x", "type": "function", "function": {inner}}}</tool_call>'
    assert read("hermes", [text]) == Result("", [("f", '{"a": 1}')])


def test_mistral_s_ids_have_nine_letters_and_the_model_s_are_kept() -> None:
    for text in (TWO["mistral"], TWO["mistral_named"]):
        parser = tools.parser("mistral", TOOLS)
        piece = parser.push(text)
        ids = [delta.id for delta in (*piece.calls, *parser.flush().calls) if delta.id]
        assert len(ids) == 2 and all(len(each) == 9 and each.isalnum() for each in ids)
    assert ids[1] == "abcdefgh1"


def test_an_id_given_twice_is_given_once() -> None:
    one = '{"name": "f", "arguments": {}, "id": "abcdefgh1"}'
    piece = tools.parser("mistral", TOOLS).push(f"[TOOL_CALLS][{one}, {one}]")
    assert len({delta.id for delta in piece.calls}) == 2


def test_every_name_is_one_format_s() -> None:
    found = [name for each in tools.FORMATS for name in (each.name, *each.aliases)]
    assert sorted(found) == sorted(set(found))
    assert set(found) == set(tools.names())


def test_names() -> None:
    for name in ("hermes", "mistral", "llama3_json", "deepseek_v3", "kimi_k2", "deepseek-v3"):
        assert tools.find(name)
    with pytest.raises(UsageError, match="formats are"):
        tools.find("nonsense")


def accepts(grammar: str, text: str) -> bool:
    """Whether llguidance finds the text to agree with the grammar, as a whole."""
    compiled = llguidance.LLMatcher.grammar_from_lark(grammar)
    assert llguidance.LLMatcher.validate_grammar(compiled) == ""
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), compiled)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


ONE = {
    "hermes": f"<tool_call>\n{OBJECT}\n</tool_call>",
    "json": f"<tool_call>\n{OBJECT}\n</tool_call>",
    "mistral": f"[TOOL_CALLS][{OBJECT}]",
    "mistral_named": '[TOOL_CALLS]f[ARGS]{"a": 1}',
    "llama3_json": OBJECT.replace("arguments", "parameters"),
    "deepseek_v31": f'{DS[0]}{DS[1]}f{DS[2]}{{"a": 1}}{DS[3]}{DS_CLOSE}',
    "deepseek_v3": f'{DS[0]}{DS[1]}function{DS[2]}f\n```json\n{{"a": 1}}\n```{DS[3]}{DS_CLOSE}',
    "nemotron": f"<TOOLCALL>[{OBJECT}]</TOOLCALL>",
    "minimax_m1": f"<tool_calls>\n{OBJECT}\n</tool_calls>",
    "apriel": f"<tool_calls>[{OBJECT}]</tool_calls>",
    "firefunction": f"functools[{OBJECT}]",
    "cohere": '<|START_ACTION|>[{"tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>',
    "command_r_plus": 'Action:\n```json\n[{"tool_name": "f", "parameters": {"a": 1}}]```',
}


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("parallel", [True, False])
def test_a_forced_call_is_what_the_parser_reads(name: str, parallel: bool) -> None:
    """llguidance is the oracle: it takes a call as the models write it, and nothing else."""
    wanted = Wanted(TOOLS, parallel)
    grammar = "start: calls\n" + tools.find(name).grammar(wanted)
    text = ONE[name]
    assert read(name, [text]) == Result("", BOTH[:1])
    assert accepts(grammar, text)
    assert accepts(grammar, text.replace("1", "-20"))
    for wrong in ("", "Hello", text[:-1], text.replace("1", '"x"'), text.replace("f", "g")):
        assert not accepts(grammar, wrong), wrong


@pytest.mark.parametrize("name", sorted(set(ONE) & set(TWO) - {"json"}))
def test_two_forced_calls_where_they_may_be_several(name: str) -> None:
    text = TWO[name].replace("<|python_tag|>", "").replace("[CALL_ID]abcdefgh1", "")
    text = text.replace("]\n```", "]```")
    if name in ("cohere", "command_r_plus", "llama3_json"):
        text = text.replace("arguments", "parameters").replace('{"name"', '{"tool_name"')
    if name == "llama3_json":
        text = text.replace("tool_name", "name")
    form = tools.find(name)
    assert accepts("start: calls\n" + form.grammar(Wanted(TOOLS)), text)
    assert not accepts("start: calls\n" + form.grammar(Wanted(TOOLS, parallel=False)), text)


def test_a_schema_with_references_and_what_cannot_be_enforced() -> None:
    point = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    schema = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/point"}, "n": {"type": "string", "format": "odd"}},
        "required": ["at"],
        "$defs": {"point": point},
    }
    grammar = "start: calls\n" + tools.find("hermes").grammar(Wanted([Tool("go", "", schema)]))
    text = '<tool_call>\n{"name": "go", "arguments": %s}\n</tool_call>'
    assert accepts(grammar, text % '{"at": {"x": 1.5}}')
    assert not accepts(grammar, text % '{"at": {"y": 1.5}}')
    assert not accepts(grammar, text % '{"at": {"x": 1}, "more": 1}')
    assert not accepts(grammar, text % '{"at":   \n\n\n {"x": 1}}')


def test_hundreds_of_tools_compile() -> None:
    many = [Tool(f"tool_{i}", "", {"properties": {"q": {"type": "string"}}}) for i in range(300)]
    grammar = "start: calls\n" + tools.find("hermes").grammar(Wanted(many))
    assert accepts(
        grammar, '<tool_call>\n{"name": "tool_299", "arguments": {"q": "x"}}\n</tool_call>'
    )
