"""GBNF: what the converter makes of it, against a matcher that works character by character."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from gristmill.engine.grammar import gbnf
from gristmill.engine.grammar.gbnf_lark import gbnf_to_lark
from gristmill.errors import RequestError
from tests.engine.gbnf_oracle import Writer, matches

BYTES = LLTokenizer("byte")
"""One token a byte; 256 and up are special."""

JSON = r"""# a JSON value
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""

GRAMMARS = {
    "json": JSON,
    "sums": 'root ::= (expr "=" ws term "\\n")+\nexpr ::= term ([-+*/] term)*\n'
    'term ::= ident | num | "(" ws expr ")" ws\nident ::= [a-z] [a-z0-9_]* ws\n'
    "num ::= [0-9]+ ws\nws ::= [ \\t\\n]*\n",
    "list": 'root ::= ("- " item)+\nitem ::= [^\\n]+ "\\n"',
    "greedy": 'root ::= [a-z]* "abc"',
    "greedy in a circle": 'root ::= x | "(" root ")"\nx ::= [a-z]* "abc"',
    "followed by itself": 'root ::= x "b" | "(" root ")"\nx ::= [a-z]+',
    "prefixes": 'root ::= ("a" | "ab") "b" root?',
    "repetitions": 'root ::= ("ab"{2,3} | "c"?){1,2} "-" [0-9]{3} "."{2,}',
    "escapes": r'root ::= "\x41\u00e9\U0001F600\n\"\\\t\r" [^a-y] [\]\[x-] [\x00-\x1f] .',
    "lines": "root ::= # first\n  a |\n  (b\n   c?)\n\na ::= \"x\"\nb ::= 'y'\n".replace("'", '"')
    + 'c ::= "z"',
    "nothing": 'root ::= "" | nothing root2?\nnothing ::= ""\nroot2 ::= "q" root2 | "!"',
    "names": 'root ::= fooBar foo-bar? foo_bar\nfooBar ::= "a"\nfoo-bar ::= "b"\nfoo_bar ::= "c"',
}


def compiled(text: str) -> LLMatcher:
    lark = gbnf_to_lark(text, {"<think>": 257}.get)
    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_lark(lark), log_level=0, limits=limits)
    assert not matcher.is_error(), f"{matcher.get_error()}\n{lark}"
    return matcher


def accepts(matcher: LLMatcher, text: str) -> bool:
    matcher = matcher.deep_copy()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def walk(matcher: LLMatcher, rng: random.Random, most: int = 80) -> str | None:
    """Random tokens that the masks allow; None if no end came in time."""
    matcher = matcher.deep_copy()
    out: list[int] = []
    for _ in range(most):
        if matcher.is_stopped() or (matcher.is_accepting() and rng.random() < 0.2):
            return bytes(out).decode()
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        assert not matcher.is_error(), matcher.get_error()
        allowed = [int(i) for i in np.flatnonzero(bits[:256])]
        if not allowed:  # only the end
            return bytes(out).decode()
        plain = [i for i in allowed if 32 <= i < 127] or allowed
        out.append(rng.choice(plain))
        assert matcher.consume_token(out[-1]), matcher.get_error()
    return None


@pytest.mark.parametrize("name", GRAMMARS)
def test_texts_of_the_grammar_are_accepted(name: str) -> None:
    text = GRAMMARS[name]
    matcher, writer = compiled(text), Writer(gbnf.parse(text, {}.get), 1)
    written = [writer.text() for _ in range(40)]
    known = [each for each in written if each is not None and len(each) < 200]
    assert known
    for each in known:
        assert accepts(matcher, each), each


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_the_masks_allow_is_in_the_grammar(name: str) -> None:
    text = GRAMMARS[name]
    matcher, rules, rng = compiled(text), gbnf.parse(text, {}.get), random.Random(2)
    walked = [walk(matcher, rng) for _ in range(25)]
    for each in walked:
        assert each is None or matches(rules, each), each


ATOM = st.sampled_from(['"a"', '"ab"', '"b"', '"ba"', "[ab]", "[b-c]", "x", '""', '"c"'])
MARK = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,2}"])


def _part(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sequence = st.lists(st.tuples(inner, MARK).map("".join), min_size=1, max_size=3).map(" ".join)
    return st.lists(sequence, min_size=1, max_size=2).map(lambda parts: f"({' | '.join(parts)})")


BODY = st.recursive(ATOM, _part, max_leaves=6)


@settings(max_examples=150, deadline=None)
@given(st.lists(BODY, min_size=2, max_size=2), st.text("abc", max_size=6))
def test_any_grammar_without_recursion_is_matched_exactly(bodies: list[str], text: str) -> None:
    grammar = f"root ::= {bodies[0]}\nx ::= {bodies[1].replace('x', '[a-c]')}"
    assert accepts(compiled(grammar), text) == matches(gbnf.parse(grammar, {}.get), text)


@settings(max_examples=150, deadline=None)
@given(st.lists(BODY, min_size=2, max_size=2), st.text("ab()", max_size=8), st.integers(0, 99))
def test_a_recursive_grammar_allows_nothing_else(bodies: list[str], text: str, seed: int) -> None:
    grammar = f'root ::= x | "(" root ")" x\nx ::= {bodies[1].replace("x", "[a-c]")}'
    rules, matcher = gbnf.parse(grammar, {}.get), compiled(grammar)
    if accepts(matcher, text):
        assert matches(rules, text)
    walked = walk(matcher, random.Random(seed), 30)
    assert walked is None or matches(rules, walked), walked


def test_tokens() -> None:
    matcher = compiled('root ::= <think> !<[258]>* <[258]> "a"')
    for ids, right in (
        ([257, 97, 98, 258, 97], True),
        ([257, 258, 97], True),
        ([257, 258, 258, 97], False),
        ([97, 258, 97], False),
    ):
        each = matcher.deep_copy()
        assert (each.try_consume_tokens(ids) == len(ids) and each.is_accepting()) == right, ids


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no rule 'root'"),
        ('start ::= "a"', "no rule 'root'"),
        ("root ::= item", "no rule 'item'"),
        ('root = "a"', "line 1: '::=' is expected"),
        ('root ::= "a', "ends in the middle"),
        ("root ::= [a", "ends in the middle"),
        ("root ::= []", "holds no character"),
        ("root ::= [b-a]", "ends below its start"),
        ('root ::= ("a"', "')' is expected"),
        ('root ::= "a")', "is not expected"),
        ('root ::= "a"{3,2}', "ends below its start"),
        ('root ::= "a"{,2}', "a repetition must be"),
        ('root ::= "a"{99999999}', "may count to 65536"),
        ('root ::= "\\q"', "the escape \\q"),
        ('root ::= "\\uD800"', "is no character"),
        ('root ::= "a"\n\nroot ::= "b"', "line 3: the rule 'root' is there twice"),
        ("root ::= <nope>", "is not a token"),
        ("root ::= " + "(" * 100 + '"a"' + ")" * 100, "nested more than"),
        ("root ::= " + '"a" ' * 50_000, "more than 20000 parts"),
        ("\n".join(f'r{i} ::= "a"' for i in range(1001)), "more than 1000 rules"),
        ('root ::= "a"' + "?" * 1000, "too many marks"),
    ],
)
def test_faults_are_told_with_their_line(text: str, why: str) -> None:
    with pytest.raises(RequestError) as caught:
        gbnf_to_lark(text, {}.get)
    assert why in str(caught.value)
    assert len(str(caught.value)) < 300


def grammar_files() -> list[Path]:
    folder = os.environ.get("GRISTMILL_TEST_GRAMMARS")
    return sorted(Path(folder).glob("*.gbnf")) if folder else []


def test_llama_cpps_grammars() -> None:
    files = grammar_files()
    if not files:
        pytest.skip(
            "set GRISTMILL_TEST_GRAMMARS to llama.cpp's folder of grammars: vendor/llama.cpp/"
            "grammars in `pip download --no-deps --no-binary :all: llama-cpp-python`"
        )
    for path in files:
        text = path.read_text()
        matcher, rules = compiled(text), gbnf.parse(text, {}.get)
        writer, rng = Writer(rules, 3), random.Random(4)
        for each in [writer.text() for _ in range(40)]:
            if each is not None and len(each) < 300:
                assert accepts(matcher, each), (path.name, each)
        for each in [walk(matcher, rng) for _ in range(15)]:
            assert each is None or matches(rules, each), (path.name, each)
