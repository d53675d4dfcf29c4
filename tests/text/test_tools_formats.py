"""Tool calls that are not JSON: what is a call, what stays content, and that no cut matters."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.text import tools
from gristmill.text.tools import Tool, Wanted, literal, typed

from .test_tools_json import Result, joined

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "n": {"type": "integer"},
        "x": {"type": ["number", "null"]},
        "on": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "integer"}},
        "map": {"type": "object", "properties": {"k": {"type": "string"}}},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city"],
}
TOOLS = [Tool("go", "goes", PARAMETERS), Tool("now")]
GO = {
    "city": 'Köln "a"\nb', "n": 2, "x": -1.5, "on": True, "list": [1, 2], "map": {"k": "v"},
    "unit": "C",
}  # fmt: skip
DSML = "｜DSML｜"
N = "]<]minimax[>["
B, C, S = "<|open|>", "<|close|>", "<|sep|>"
K3_TYPES = ("string", "number", "number", "boolean", "array", "object", "string")


def _tags(before: str, end: str, value_end: str, line: str, gap: str = "") -> str:
    """All arguments as tags; values as a template writes them, Python's words among them."""
    texts = {key: value if isinstance(value, str) else str(value) for key, value in GO.items()}
    return gap.join(f"{before}{k}{end}{line}{v}{line}{value_end}" for k, v in texts.items())


HY = ":opensource"
GEMMA_GO = (
    'call:go{city:<|"|>Köln "a"\nb<|"|>,n:2,x:-1.5,on:true,list:[1,2],map:{k:<|"|>v<|"|>},'
    'unit:<|"|>C<|"|>}'
)
PYTHON_GO = "go(city='Köln \"a\"\\nb', n=2, x=-1.5, on=True, list=[1, 2], map={'k': 'v'}, unit='C')"
_XML = _tags("<parameter=", ">", "</parameter>", "")
_NAMED = _tags('<parameter name="', '">', "</parameter>", "", "\n")
_GLM = _tags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", "", "\n")
_LINES = _tags("<parameter=", ">", "</parameter>", "\n", "\n")
TWO = {
    "qwen3_coder": f"<tool_call>\n<function=go>\n{_LINES}\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "seed_oss": f"<seed:tool_call>\n<function=go>\n{_XML}\n</function>\n</seed:tool_call>"
    "<seed:tool_call><function=now></function></seed:tool_call>",
    "minimax_m2": f'<minimax:tool_call>\n<invoke name="go">\n{_NAMED}\n</invoke>\n'
    '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    "deepseek_v32": f'<{DSML}function_calls>\n<{DSML}invoke name="go">\n'
    + _NAMED.replace("parameter", f"{DSML}parameter")
    .replace("city\"", 'city" string="true"').replace("unit\"", 'unit" string="true"')
    .replace("n\">2", 'n" string="false">2')
    + f'</{DSML}invoke>\n<{DSML}invoke name="now"></{DSML}invoke></{DSML}function_calls>',
    "minicpm5": '<function name="go">'
    + _tags('<param name="', '">', "</param>", "").replace(
        'Köln "a"\nb', '<![CDATA[Köln "a"\nb]]>')
    + '</function>\n<function name="now"></function>',
    "glm45": f"<tool_call>go\n{_GLM}\n</tool_call>\n<tool_call>now\n</tool_call>",
    "glm47": f"<tool_call>go{_GLM}</tool_call><tool_call>now</tool_call>",
    "hy_v3": f"<tool_calls{HY}>\n<tool_call{HY}>go<tool_sep{HY}>\n"
    + _GLM.replace("arg_key", f"arg_key{HY}").replace("arg_value", f"arg_value{HY}")
    + f"</tool_call{HY}>\n<tool_call{HY}>now<tool_sep{HY}></tool_call{HY}>\n</tool_calls{HY}>",
    "gemma4": f"<|tool_call>{GEMMA_GO}<tool_call|><|tool_call>call:now{{}}<tool_call|>",
    "functiongemma": "<start_function_call>" + GEMMA_GO.replace('<|"|>', "<escape>")
    + "<end_function_call><start_function_call>call:now{}<end_function_call>",
    "pythonic": f"[{PYTHON_GO}, now()]",
    "llama4_pythonic": f"<|python_start|>[{PYTHON_GO}, now()]<|python_end|>",
    "lfm2": f"<|tool_call_start|>[{PYTHON_GO}, now()]<|tool_call_end|>",
    "olmo3": f"<function_calls>\n{PYTHON_GO}\nnow()\n</function_calls>",
    "gemma3": f"```tool_code\n{PYTHON_GO}\nnow()\n```",
    "granite": f'<|tool_call|>[{{"name": "go", "arguments": {json.dumps(GO)}}}, '
    '{"name": "now", "arguments": {}}]',
    "phi4_mini_json": f'<|tool_call|>[{{"name": "go", "arguments": {json.dumps(GO)}}}, '
    '{"name": "now", "arguments": {}}]<|/tool_call|>',
    "functionary_v3_1": f"<function=go>{json.dumps(GO)}</function><function=now>{{}}</function>",
    "solar_open": "<|tool_calls|><|tool_call:begin|>c1<|tool_call:name|>go<|tool_call:args|>"
    f"{json.dumps(GO)}<|tool_call:end|><|tool_call:begin|>c2<|tool_call:name|>now"
    "<|tool_call:args|>{}<|tool_call:end|><|calls|>",
    "apertus": f'<|tools_prefix|>[{{"go": {json.dumps(GO)}}}, {{"now": {{}}}}]<|tools_suffix|>',
    "minimax_m3": f'{N}<tool_call>\n{N}<invoke name="go">{N}<city>Köln "a"\nb{N}</city>{N}<n>2'
    f"{N}</n>{N}<x>-1.5{N}</x>{N}<on>true{N}</on>{N}<list>{N}<item>1{N}</item>{N}<item>2{N}</item>"
    f"{N}</list>{N}<map>{N}<k>v{N}</k>{N}</map>{N}<unit>C{N}</unit>{N}</invoke>\n"
    f'{N}<invoke name="now">{N}</invoke>\n{N}</tool_call>',
    "kimi_k3": f'{B}tools{S}{B}call tool="go" index="1"{S}'
    + "".join(
        f'{B}argument key="{k}" type="{t}"{S}'
        f"{v if isinstance(v, str) else json.dumps(v)}{C}argument{S}"
        for (k, v), t in zip(GO.items(), K3_TYPES, strict=True)
    )
    + f'{C}call{S}{B}call tool="now" index="2"{S}{C}call{S}{C}tools{S}',
    "gigachat3": f'<|function_call|>{{"name": "go", "arguments": {json.dumps(GO)}}}'
    '<|function_call|>{"name": "now", "arguments": {}}',
}  # fmt: skip
BARE = {"pythonic"}


def read(name: str, parts: list[str]) -> Result:
    parser = tools.parser(name, TOOLS)
    return joined([*(parser.push(part) for part in parts), parser.flush()])


def told(result: Result) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in result.calls]


@pytest.mark.parametrize("name", TWO)
def test_two_calls_with_their_types(name: str) -> None:
    whole = read(name, [TWO[name]])
    assert told(whole) == [("go", GO), ("now", {})]
    assert whole.content == ""
    assert read(name, list(TWO[name])) == whole


@pytest.mark.parametrize("name", sorted(set(TWO) - BARE))
def test_content_before_and_after(name: str) -> None:
    whole = read(name, [f"Let me see.\n\n{TWO[name]}\nDone. "])
    assert told(whole) == [("go", GO), ("now", {})]
    assert whole.content == "Let me see.\nDone. "


@pytest.mark.parametrize("name", TWO)
def test_every_cut_and_every_beginning(name: str) -> None:
    text = f" {TWO[name]} x"
    whole = read(name, [text])
    for cut in range(len(text)):
        assert read(name, [text[:cut], text[cut:]]) == whole, cut
        begun = read(name, [text[:cut]])
        if cut % 7 == 0:
            assert read(name, list(text[:cut])) == begun, cut
        if not begun.calls:
            assert begun.content == text[:cut]


PIECES = st.sampled_from(
    [*dict.fromkeys([*(mark for name in TWO for mark in tools.find(name).marks),
     "<function=", "</function>", "<parameter=", "</parameter>", '<invoke name="', '">', ">",
     "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", '<param name="', "</param>",
     "<![CDATA[", "]]>", "call:go{", "go(", "go", "city", "n", "=", ":", ",", "(", ")", "[", "]",
     "{", "}", "'", '"', "\\", "\n", " ", "1", "True", "é", "<", "/", "x1f\\u00e9"]),
     *TWO.values()]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(sorted(TWO)), parts=st.lists(PIECES, max_size=12), data=st.data())
def test_any_text_however_cut(name: str, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    whole = read(name, [text])
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    split = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    assert read(name, split) == whole
    assert read(name, list(text)) == whole
    if not whole.calls:
        assert whole.content == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "<tool_call>what</tool_call>"),
        ("qwen3_coder", '<tool_call>\n{"name": "go"}\n</tool_call>'),
        ("qwen3_coder", "<function=>"),
        ("glm45", "<tool_call>go and do it</tool_call>"),
        ("glm45", '<tool_call>{"name": "go"}</tool_call>'),
        ("minicpm5", '<function name="go'),
        ("minicpm5", "<function> is a word"),
        ("gemma4", "<|tool_call>go{}<tool_call|>"),
        ("gemma4", "<|tool_call>call:go"),
        ("pythonic", "[unknown(a=1)]"),
        ("pythonic", "[go, now]"),
        ("pythonic", "Say [go(city='x')]"),
        ("lfm2", "<|tool_call_start|>go<|tool_call_end|>"),
        ("olmo3", "<function_calls>\n\n</function_calls>"),
        ("kimi_k2", "<|tool_call_begin|>functions.f:0"),
        ("phi4_mini_json", "<|tool_call|>[]<|/tool_call|>"),
    ],
)
def test_what_is_no_call_stays_content(name: str, text: str) -> None:
    assert read(name, [text]) == read(name, list(text)) == Result(text, [])


def test_strings_come_before_the_call_is_complete() -> None:
    for name, text in {
        "qwen3_coder": "<tool_call>\n<function=go>\n<parameter=city>\none two",
        "glm45": "<tool_call>go\n<arg_key>city</arg_key>\n<arg_value>one two",
        "pythonic": "[go(city='one two",
        "gemma4": '<|tool_call>call:go{city:<|"|>one two',
    }.items():
        parser = tools.parser(name, TOOLS)
        pieces = [parser.push(char) for char in text]
        made = "".join(delta.arguments for piece in pieces for delta in piece.calls)
        assert made == '{"city": "one two', name


def test_a_fault_after_the_beginning_ends_the_arguments() -> None:
    text = "<tool_call><function=go><parameter=n>1</parameter> oops </function></tool_call>"
    whole = read("qwen3_coder", [text])
    assert told(whole) == [("go", {"n": 1})]
    assert whole.content == "oops </function></tool_call>"


def test_positions_are_the_schema_s_order() -> None:
    assert told(read("pythonic", ["[go('Bonn', 3, on=False)]"])) == [
        ("go", {"city": "Bonn", "n": 3, "on": False})
    ]


def test_kimi_keeps_the_model_s_id() -> None:
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.go:4"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    )
    assert tools.parser("kimi_k2", TOOLS).push(text).calls[0].id == "functions.go:4"


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "1", "1"),
        ({"type": "integer"}, " 1\n", 1),
        ({"type": "integer"}, "one", "one"),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "true", True),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "none of it", "none of it"),
        ({"type": ["string", "integer"]}, "12", 12),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "['a']", ["a"]),
        ({"anyOf": [{"type": "string"}, {}]}, "3", 3),
        ({"type": "object"}, "{'a': None}", {"a": None}),
        ({"type": "array"}, '["a", "b"]', ["a", "b"]),
        ({"type": "array"}, "[oops", "[oops"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": "x"}, "x", "x"),
        ({"anyOf": [{"const": "x"}, {"enum": ["1", "y"]}]}, "1", "1"),  # BC-33
        ({"anyOf": [{"const": "x"}, {"enum": [1, None]}]}, "null", None),
        ({"anyOf": [{"const": "x"}, {"enum": [1, None]}]}, "x", "x"),
        ({"oneOf": [{"enum": [True, 2.5]}, {"const": "x"}]}, "2.5", 2.5),
        ({}, "plain", "plain"),
        ({}, "NaN", "NaN"),
        ({}, '"quoted"', '"quoted"'),
        ({"type": "array"}, "[" * 300, "[" * 300),
    ],
)
def test_a_schema_types_a_text(schema: dict[str, Any], text: str, value: Any) -> None:
    made = typed.as_json(text, typed.kinds(schema))
    assert json.loads(made) == value and type(json.loads(made)) is type(value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner)
    | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_python_s_own_literals_are_read(value: Any) -> None:
    made = literal.parse(repr(value), literal.PYTHON)
    assert made is not None
    assert json.loads(made) == json.loads(json.dumps(value))


@pytest.mark.parametrize(
    "text", ["__import__('os')", "a", "1+1", "[1", "{1: 2}", "'a' 'b'", "f()", "0x10", "1j", "b'a'"]
)
def test_nothing_else_of_python_is_read(text: str) -> None:
    assert literal.parse(text, literal.PYTHON) is None


# ------------------------------------------------------------------- grammars


def accepts(grammar: str, text: str) -> bool:
    """Whether llguidance finds the text to agree with the grammar, as a whole."""
    llguidance = pytest.importorskip("llguidance")
    compiled = llguidance.LLMatcher.grammar_from_lark(grammar)
    assert llguidance.LLMatcher.validate_grammar(compiled) == ""
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), compiled)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


FORCED = {
    "qwen3_coder": "<tool_call>\n<function=go>\n<parameter=city>\nBonn <b>\n</parameter>\n"
    "<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>",
    "seed_oss": "<seed:tool_call>\n<function=go>\n<parameter=city>Bonn</parameter>\n"
    "<parameter=n>2</parameter>\n</function>\n</seed:tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="go">\n<parameter name="city">Bonn'
    "</parameter>\n</invoke>\n</minimax:tool_call>",
    "deepseek_v32": f'<{DSML}function_calls>\n<{DSML}invoke name="go">\n<{DSML}parameter '
    f'name="city" string="true">Bonn</{DSML}parameter>\n<{DSML}parameter name="n" '
    f'string="false">2</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}function_calls>',
    "minicpm5": '<function name="go"><param name="city">Bonn</param><param name="n">2</param>'
    "</function>",
    "glm45": "<tool_call>go\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n</tool_call>",
    "glm47": "<tool_call>go<arg_key>city</arg_key><arg_value>Bonn</arg_value></tool_call>",
    "hy_v3": f"<tool_calls{HY}>\n<tool_call{HY}>go<tool_sep{HY}>\n<arg_key{HY}>city"
    f"</arg_key{HY}>\n<arg_value{HY}>Bonn</arg_value{HY}>\n</tool_call{HY}>\n</tool_calls{HY}>",
    "gemma4": '<|tool_call>call:go{city:<|"|>Bonn<|"|>,n:2,map:{k:<|"|>v<|"|>}}<tool_call|>',
    "functiongemma": "<start_function_call>call:go{city:<escape>Bonn<escape>}<end_function_call>",
    "pythonic": '[go(city="Bonn", n=2), now()]',
    "lfm2": '<|tool_call_start|>[go(city="Bonn")]<|tool_call_end|>',
    "olmo3": '<function_calls>\ngo(city="Bonn")\nnow()\n</function_calls>',
    "granite": '<|tool_call|>[{"name": "go", "arguments": {"city": "Bonn"}}]',
    "apertus": '<|tools_prefix|>[{"go": {"city": "Bonn"}}]<|tools_suffix|>',
    "minimax_m3": f'{N}<tool_call>\n{N}<invoke name="go">{N}<city>Bonn{N}</city>{N}<n>2{N}</n>'
    f"{N}<list>{N}<item>1{N}</item>{N}</list>{N}</invoke>\n{N}</tool_call>",
    "kimi_k3": f'{B}tools{S}{B}call tool="go" index="1"{S}{B}argument key="city" type="string"{S}'
    f'Bonn{C}argument{S}{B}argument key="n" type="number"{S}2{C}argument{S}{C}call{S}{C}tools{S}',
    "harmony": '<|channel|>commentary to=functions.go <|constrain|>json<|message|>{"city": "Bonn"}',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.go:0"
    '<|tool_call_argument_begin|>{"city": "Bonn"}<|tool_call_end|><|tool_calls_section_end|>',
}


@pytest.mark.parametrize("name", FORCED)
def test_a_forced_call_is_what_the_parser_reads(name: str) -> None:
    """llguidance is the oracle: it takes the text that the model's template writes."""
    grammar = "start: calls\n" + tools.find(name).grammar(Wanted(TOOLS))
    text = FORCED[name]
    assert accepts(grammar, text)
    parser = tools.parser(name, TOOLS)
    calls = [*parser.push(text).calls, *parser.flush().calls]
    assert calls[0].name == "go"
    assert not accepts(grammar, "Hello")
    assert not accepts(grammar, "")
    assert not accepts(grammar, text.replace("city", "town"))


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "pythonic", "lfm2", "gemma4"])
def test_definitions_are_found(name: str) -> None:
    place = {"type": "object", "properties": {"town": {"type": "string"}}}
    parameters = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/place"}, "s": {"$ref": "#/$defs/text"}},
        "required": ["at", "s"],
        "$defs": {"place": place, "text": {"type": "string"}},
    }
    tool = Tool("go", "", parameters)
    assert typed.kinds(typed.argument(tool, "at")) == {"object"}
    assert typed.kinds(typed.argument(tool, "s")) == {"string"}
    text = {
        "qwen3_coder": '<tool_call>\n<function=go>\n<parameter=at>\n{"town": "Bonn"}\n'
        "</parameter>\n<parameter=s>\n1\n</parameter>\n</function>\n</tool_call>",
        "glm45": '<tool_call>go\n<arg_key>at</arg_key>\n<arg_value>{"town": "Bonn"}</arg_value>\n'
        "<arg_key>s</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        "pythonic": '[go(at={"town": "Bonn"}, s="1")]',
        "lfm2": '<|tool_call_start|>[go(at={"town": "Bonn"}, s="1")]<|tool_call_end|>',
        "gemma4": '<|tool_call>call:go{at:{town:<|"|>Bonn<|"|>},s:<|"|>1<|"|>}<tool_call|>',
    }[name]
    form = tools.find(name)
    assert accepts("start: calls\n" + form.grammar(Wanted([tool])), text)
    parser = form.parser([tool], "")
    assert told(joined([parser.push(text), parser.flush()])) == [
        ("go", {"at": {"town": "Bonn"}, "s": "1"})
    ]


def test_a_choice_is_kept_to() -> None:
    tool = Tool("go", "", {"type": "object", "properties": {"unit": {"type": "string",
                "enum": ["C", "F"]}}, "required": ["unit"]})  # fmt: skip
    for name in sorted(set(FORCED) & {"qwen3_coder", "gemma4", "pythonic", "granite"}):
        grammar = "start: calls\n" + tools.find(name).grammar(Wanted([tool]))
        text = {
            "qwen3_coder": "<tool_call>\n<function=go>\n<parameter=unit>\n%s\n</parameter>\n"
            "</function>\n</tool_call>",
            "gemma4": '<|tool_call>call:go{unit:<|"|>%s<|"|>}<tool_call|>',
            "pythonic": '[go(unit="%s")]',
            "granite": '<|tool_call|>[{"name": "go", "arguments": {"unit": "%s"}}]',
        }[name]
        assert accepts(grammar, text % "C"), name
        assert not accepts(grammar, text % "K"), name


_KIND = {"anyOf": [{"const": "decision"}, {"enum": ["fact", "idea"]}]}


FORCED_KIND = {
    "qwen3_coder": ("<tool_call>\n<function=go>\n<parameter=kind>\n",
                    "\n</parameter>\n</function>\n</tool_call>"),
    "seed_oss": ("<seed:tool_call>\n<function=go>\n<parameter=kind>",
                 "</parameter>\n</function>\n</seed:tool_call>"),
    "minimax_m2": ('<minimax:tool_call>\n<invoke name="go">\n<parameter name="kind">',
                   "</parameter>\n</invoke>\n</minimax:tool_call>"),
    "minicpm5": ('<function name="go"><param name="kind">', "</param></function>"),
    "glm45": ("<tool_call>go\n<arg_key>kind</arg_key>\n<arg_value>",
              "</arg_value>\n</tool_call>"),
    "minimax_m3": (f'{N}<tool_call>\n{N}<invoke name="go">{N}<kind>',
                   f"{N}</kind>{N}</invoke>\n{N}</tool_call>"),
    "gemma4": ("<|tool_call>call:go{kind:", "}<tool_call|>"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORCED_KIND)
@pytest.mark.parametrize(
    ("schema", "values", "others"),
    [
        (_KIND, ["decision", "idea"], ["other", '"decision"']),
        ({"oneOf": [_KIND, {"type": "null"}]}, ["decision", None], ["other"]),
        ({"enum": ["auto", 5, True, None, 2.5]}, ["auto", 5, True, None, 2.5], ["6", "no"]),
        ({"type": "string", "enum": ["auto", 5]}, ["auto"], ["no"]),
        ({"type": ["string", "null"]}, ["any text", None], []),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, ["any text", 7], []),
    ],
)
def test_what_is_forced_has_no_quotes_of_its_own(
    name: str, schema: dict[str, Any], values: list[Any], others: list[str]
) -> None:
    """BC-33: a text written as a tag's content is the value; what is no text keeps its type."""
    tool = Tool("go", "", {"type": "object", "properties": {"kind": schema}, "required": ["kind"]})
    form = tools.find(name)
    grammar = "start: calls\n" + form.grammar(Wanted([tool]))
    before, after = FORCED_KIND[name]
    for value in values:
        shown = value if isinstance(value, str) else json.dumps(value)
        if name == "gemma4" and isinstance(value, str):
            shown = f'<|"|>{value}<|"|>'
        assert accepts(grammar, before + shown + after), value
        parser = form.parser([tool], "")
        made = told(joined([parser.push(before + shown + after), parser.flush()]))
        assert made == [("go", {"kind": value})] and type(made[0][1]["kind"]) is type(value)
    for other in others:
        assert not accepts(grammar, before + other + after), other


def test_a_tag_that_says_json_may_hold_a_text() -> None:
    """A value of several kinds is JSON where the tag says so, its texts in quotes."""
    schema = {"type": "object", "properties": {"kind": {"enum": ["auto", 5, None]}},
              "required": ["kind"]}  # fmt: skip
    tool = Tool("go", "", schema)
    form = tools.find("deepseek_v32")
    grammar = "start: calls\n" + form.grammar(Wanted([tool]))
    for value in ("auto", 5, None):
        text = (
            f'<{DSML}function_calls>\n<{DSML}invoke name="go">\n<{DSML}parameter name="kind" '
            f'string="false">{json.dumps(value)}</{DSML}parameter>\n</{DSML}invoke>\n'
            f"</{DSML}function_calls>"
        )
        assert accepts(grammar, text)
        parser = form.parser([tool], "")
        assert told(joined([parser.push(text), parser.flush()])) == [("go", {"kind": value})]


@pytest.mark.parametrize("name", sorted({*FORCED, "llama4_pythonic", "solar_open"}))
def test_marks_may_be_tokens(name: str) -> None:
    llguidance = pytest.importorskip("llguidance")
    marks: list[str] = []

    def token(mark: str) -> str:
        marks.append(mark)
        return f"<[{200 + len(set(marks))}]>"

    made = tools.find(name)
    grammar = "start: calls\n" + made.grammar(Wanted(TOOLS, mark=token))
    compiled = llguidance.LLMatcher.grammar_from_lark(grammar)
    assert llguidance.LLMatcher.validate_grammar(compiled) == ""
    assert set(marks) <= set(made.marks)
