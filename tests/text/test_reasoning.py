"""``<think>``: any cut of an answer splits alike."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.text import reasoning


def run(pieces: list[str], prompt: str = "") -> tuple[str, str]:
    parser = reasoning.parser("think", prompt)
    parts = [parser.push(piece) for piece in pieces] + [parser.flush()]
    return "".join(p.reasoning for p in parts), "".join(p.content for p in parts)


@pytest.mark.parametrize(
    ("text", "prompt", "expected"),
    [
        ("<think>\nhm\n</think>\n\nHi", "", ("hm", "Hi")),
        ("\n <think>hm</think>Hi ", "", ("hm", "Hi ")),
        ("Hi <think>x</think>", "", ("", "Hi <think>x</think>")),
        ("hm</think>\nHi", "<|assistant|><think>\n", ("hm", "Hi")),
        ("<think>hm</think>Hi", "<think>\n", ("hm", "Hi")),
        ("<think>a <think> b</think>c</think>", "", ("a <think> b", "c</think>")),
        ("<think>never ends \n", "", ("never ends", "")),
        ("<think>a</thin", "", ("a</thin", "")),
        ("<thi", "", ("", "<thi")),
        ("", "", ("", "")),
        ("  plain ", "", ("", "  plain ")),
        ("<think></think>", "", ("", "")),
        ("answer", "<think>\n\n</think>\n\n", ("", "answer")),
        ("</think>answer", "<think>", ("", "answer")),
    ],
)
def test_examples(text: str, prompt: str, expected: tuple[str, str]) -> None:
    assert run([text], prompt) == expected
    assert run(list(text), prompt) == expected


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.sampled_from(["<think>", "</think>", "a", " ", "\n", "<", "</", "th", "<t"]),
             max_size=10),
    st.lists(st.integers(0, 99), max_size=6),
    st.sampled_from(["", "<think>\n"]),
)  # fmt: skip
def test_any_cut_splits_alike(parts: list[str], cuts: list[int], prompt: str) -> None:
    text = "".join(parts)
    edges = [0, *sorted(c % (len(text) + 1) for c in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert run(pieces, prompt) == run([text], prompt)


def test_detection() -> None:
    assert reasoning.detect("{% if '</think>' in content %}") == "think"
    assert reasoning.detect("{{ messages }}") is None
    with pytest.raises(UsageError, match="think"):
        reasoning.parser("no-such")
