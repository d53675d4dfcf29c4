"""Guides, thinking budgets and compiled constraints, on a vocabulary of bytes."""

from __future__ import annotations

import random
import re
import threading
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.engine.grammar import Grammars, Guide
from gristmill.engine.grammar.compiler import KEPT
from gristmill.errors import RequestError
from gristmill.types import Constraint, SamplingParams, Thinking
from tests.engine.spelled import Bytes, allowed, walk

THINK, CLOSE = 258, 259
EOS = Bytes.EOS
Kind = Literal["json_schema", "json_object", "regex", "lark", "gbnf", "choice", "structural_tag"]


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(Bytes(), 300, frozenset({EOS}))


def guide(
    grammars: Grammars, constraint: Constraint | None = None, thinking: Thinking | None = None
) -> Guide:
    recipe = grammars.recipe(SamplingParams(constraint=constraint, thinking=thinking))
    assert recipe is not None
    return recipe.guide()


def say(walker: Guide, text: str | list[int]) -> bool:
    """Go along with a text; every token of it must be allowed."""
    ids = (
        Bytes().encode(text, add_special=False, parse_special=True)
        if isinstance(text, str)
        else text
    )
    done = False
    for token in ids:
        assert token in allowed(walker, 300), token
        done = walker.accept(token)
    return done


@pytest.mark.parametrize(
    ("kind", "text", "pattern"),
    [
        ("regex", "[a-c]{2,3}-[0-9]+", "[a-c]{2,3}-[0-9]+"),
        ("regex", "^a|b$", "a|b"),
        ("choice", '["yes", "no", "not at all"]', "yes|no|not at all"),
        ("choice", '["a\\"b/\\\\", "é😀"]', 'a"b/\\\\|é😀'),
        ("lark", 'start: "x" start "y" | "-"', "x*-y*"),
        ("lark", '%llguidance {}\nstart: /[ab]/ "!"', "[ab]!"),
        ("gbnf", 'root ::= "x" root "y" | "-"', "x*-y*"),
        ("json_object", "", r"(?s)\{.*\}"),
        ("structural_tag", '{"format":{"type":"const_string","value":"hi"}}', "hi"),
    ],
)
def test_kinds(grammars: Grammars, kind: Kind, text: str, pattern: str) -> None:
    rng = random.Random(3)
    walked = [walk(guide(grammars, Constraint(kind, text)), rng) for _ in range(12)]
    texts = [Bytes().text(ids) for ids in walked if ids is not None]
    assert texts
    for each in texts:
        assert re.fullmatch(pattern, each), each


def test_an_end_that_must_come_is_told_with_the_last_token(grammars: Grammars) -> None:
    walker = guide(grammars, Constraint("choice", '["ab", "abc"]'))
    assert not say(walker, "ab")
    assert set(allowed(walker, 300)) == {ord("c"), EOS}
    assert say(walker, "c")


def test_an_end_that_may_come(grammars: Grammars) -> None:
    walker = guide(grammars, Constraint("regex", "(ab)*"))
    assert set(allowed(walker, 300)) == {ord("a"), EOS}
    say(walker, "ab")
    assert say(walker, [EOS])


def test_no_control_token_matches_a_text(grammars: Grammars) -> None:
    walker = guide(grammars, Constraint("regex", "(.|\n)*"))
    ids = allowed(walker, 300)
    assert 257 not in ids
    assert {THINK, CLOSE, 260, 261, EOS, 0} <= set(ids)
    assert max(ids) < Bytes.vocab_size, "nothing beyond the vocabulary, which is padded"


def test_answers_have_guides_of_their_own(grammars: Grammars) -> None:
    recipe = grammars.recipe(SamplingParams(constraint=Constraint("choice", '["ab", "cd"]')))
    assert recipe is not None
    one, two = recipe.guide(), recipe.guide()
    assert not say(one, "a")
    assert not say(two, "c")
    assert allowed(one, 300) == [ord("b")]
    assert say(two, "d")
    assert say(one, "b")


# ------------------------------------------------------------------ thinking

INSIDE = Thinking("<think>", "</think>", inside=True)
ANSWER = Constraint("choice", '["yes", "no"]')


def bounded(inside: bool, budget: int | None) -> Thinking:
    return Thinking("<think>", "</think>", inside, budget)


def test_a_constraint_waits_for_the_end_of_the_thought(grammars: Grammars) -> None:
    walker = guide(grammars, ANSWER, INSIDE)
    say(walker, "hm, no")
    assert EOS not in allowed(walker, 300), "an answer must follow"
    say(walker, [CLOSE])
    assert allowed(walker, 300) == [ord("n"), ord("y")]
    assert say(walker, "no")


def test_a_mark_may_be_spelled_in_any_way(grammars: Grammars) -> None:
    walker = guide(grammars, ANSWER, INSIDE)
    say(walker, list(b"a</thi</think>"))
    assert say(walker, "yes")


@settings(max_examples=60, deadline=None)
@given(st.text("</think>a ", max_size=12), st.integers(0, 8))
def test_budgets(thought: str, budget: int) -> None:
    grammars = Grammars(Bytes(), 300, frozenset({EOS}))
    walker = guide(grammars, None, bounded(True, budget))
    said = 0
    for token in thought.replace("</think>", "").encode():
        walker.prepare()
        if walker.mask is not None:
            break
        walker.accept(token)
        said += 1
    assert said <= budget
    if said < budget:
        return
    assert allowed(walker, 300) == [CLOSE]
    walker.accept(CLOSE)
    assert CLOSE not in allowed(walker, 300), "the answer does not end its thought again"
    assert EOS in allowed(walker, 300)


def test_a_budget_of_nothing_closes_at_once(grammars: Grammars) -> None:
    walker = guide(grammars, ANSWER, bounded(True, 0))
    assert allowed(walker, 300) == [CLOSE]
    assert not walker.accept(CLOSE)
    assert say(walker, "yes")


def test_a_thought_that_ends_by_itself_is_not_ended_again(grammars: Grammars) -> None:
    walker = guide(grammars, None, bounded(True, 3))
    say(walker, [97, CLOSE])
    for _ in range(10):
        walker.prepare()
        assert walker.mask is None
        assert not walker.bans
        walker.accept(97)


def test_a_model_may_choose_to_think(grammars: Grammars) -> None:
    for thinks in (False, True):
        walker = guide(grammars, ANSWER, bounded(False, 4))
        assert set(allowed(walker, 300)) == {THINK, ord("n"), ord("y")}
        if thinks:
            say(walker, [THINK])
            assert EOS not in allowed(walker, 300)
            say(walker, "abcd")
            assert allowed(walker, 300) == [CLOSE]
            walker.accept(CLOSE)
            assert THINK not in allowed(walker, 300)
        assert say(walker, "no")


def test_a_budget_alone_lets_an_answer_without_thought_be(grammars: Grammars) -> None:
    walker = guide(grammars, None, bounded(False, 2))
    for token in b"<thin but no thought":
        walker.prepare()
        assert walker.mask is None
        assert not walker.accept(token)
    walker = guide(grammars, None, bounded(False, 2))
    say(walker, [10, THINK, 97, 97])
    assert allowed(walker, 300) == [CLOSE]


def test_forced_marks_of_several_tokens(grammars: Grammars) -> None:
    channels = Thinking("<ctl>a:", "<ctl>b:", False, 3, forced="\n<ctl>b:")
    walker = guide(grammars, ANSWER, channels)
    assert set(allowed(walker, 300)) == {257, ord("n"), ord("y")}
    walker.accept(257)
    for token in b"a:":
        assert allowed(walker, 300) == [token]
        walker.accept(token)
    say(walker, "xyz")
    for token in (10, 257, ord("b"), ord(":")):
        assert allowed(walker, 300) == [token]
        walker.accept(token)
    assert say(walker, "no")


def test_after_ids(grammars: Grammars) -> None:
    walker = guide(grammars, Constraint("choice", '["yes"]', after=(CLOSE,)))
    say(walker, "anything")
    say(walker, [CLOSE])
    assert say(walker, "yes")


def test_what_comes_with_the_mark_belongs_to_the_answer(grammars: Grammars) -> None:
    class Glued(Bytes):
        MARKS = (*Bytes.MARKS[:4], "k>ye", "k>\n")
        vocab_size = 262

    glued = Grammars(Glued(), 300, frozenset({EOS}))
    walker = guide(glued, ANSWER, INSIDE)
    say(walker, [*b"hm</thin", 260])
    assert allowed(walker, 300) == [ord("s")]
    walker = guide(glued, ANSWER, INSIDE)
    say(walker, [*b"hm</thin", 261])
    assert allowed(walker, 300) == [ord("n"), ord("y")]


# ------------------------------------------------------------------ compiling


DOUBLED = "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(40))


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("regex", "(?=a)b", "look-around"),
        ("regex", "[", "unclosed"),
        ("regex", r"\bfoo", "lookaround"),
        ("lark", "start: a", "a"),
        ("lark", "nothing", "."),
        ("lark", "start: a0\n" + "\n".join(f'a{i}: "b"' for i in range(1001)), "1002 definitions"),
        ("lark", "start: " + "(" * 20_000, "parentheses"),
        ("lark", "start: A0\n" + DOUBLED + 'A40: "a"', "characters long"),
        ("gbnf", "root ::= ", "."),
        ("gbnf", "root ::= x", "no rule 'x'"),
        ("choice", "[]", "at least one"),
        ("choice", "{}", "at least one"),
        ("choice", '["a", ""]', "not empty"),
        ("choice", '["a", 1]', "not empty"),
        ("structural_tag", "{}", "structures"),
        ("structural_tag", '{"format":{"type":"nope"}}', "nope"),
        ("structural_tag", '{"format":' + '{"type":"sequence","elements":[' * 40, "no JSON"),
        ("regex", "a" * ((1 << 20) + 1), "characters"),
    ],
)
def test_faults(grammars: Grammars, kind: Kind, text: str, why: str) -> None:
    if (kind, text) == ("gbnf", "root ::= "):
        assert say(guide(grammars, Constraint(kind, text)), [EOS]), "the empty text"
        return
    with pytest.raises(RequestError) as caught:
        grammars.compile(Constraint(kind, text)).result()
    assert why in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_without_an_end_nothing_can_be_held() -> None:
    with pytest.raises(RequestError, match="no end-of-sequence"):
        Grammars(Bytes(), 300, frozenset()).compile(ANSWER).result()


def test_compiled_ones_are_kept_and_the_oldest_go() -> None:
    grammars = Grammars(Bytes(), 300, frozenset({EOS}))
    first = grammars.compile(Constraint("regex", "a0")).result()
    assert grammars.compile(Constraint("regex", "a0")).result() is first
    for i in range(1, KEPT + 1):
        grammars.compile(Constraint("regex", f"a{i}")).result()
    assert grammars.compile(Constraint("regex", "a0")).result() is not first


def test_many_threads_ask_for_one(grammars: Grammars) -> None:
    found: list[object] = []
    constraint = Constraint("regex", "once|only")
    ask = [
        threading.Thread(target=lambda: found.append(grammars.compile(constraint).result()))
        for _ in range(8)
    ]
    for thread in ask:
        thread.start()
    for thread in ask:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_structural_tags(grammars: Grammars) -> None:
    tag = (
        '{"structures":[{"begin":"<f=x>","end":"</f>","schema":{"type":"integer"}},'
        '{"begin":"<f=y>","end":"</f>","schema":{"enum":["q"]}}],"triggers":["<f="]}'
    )
    walker = guide(grammars, Constraint("structural_tag", tag))
    say(walker, "free <text> <f=")
    assert set(allowed(walker, 300)) == {ord("x"), ord("y")}
    say(walker, 'y>"q"</f> and more <f=x>12</f>')
    assert EOS in allowed(walker, 300)
    say(walker, "<f=x>1")
    assert EOS not in allowed(walker, 300)
