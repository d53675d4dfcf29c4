"""Incremental detokenising: however the ids are cut, the text is that of all of them."""

from __future__ import annotations

import itertools
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.text.detokenizer import Detokenizer
from gristmill.text.tokenizer import Tokenizer
from tests.text.vocabularies import CONTROL, USER, bpe, sentencepiece

BPE = Tokenizer.from_gguf(bpe(["h e", "Ġ w"], {"<|im_end|>": CONTROL, "<think>": USER}))
SPM = Tokenizer.from_gguf(sentencepiece({"\u2581": -1.0, "\u2581a": -2.0, "a": -3.0, "é": -4.0}))


def cut(items: list[int], cuts: list[int]) -> list[list[int]]:
    edges = [0, *sorted(c % (len(items) + 1) for c in cuts), len(items)]
    return [items[a:b] for a, b in itertools.pairwise(edges)]


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from([BPE, SPM]),
    st.lists(st.integers(0, 270), max_size=40),
    st.lists(st.integers(0, 99), max_size=8),
    st.booleans(),
    st.booleans(),
)
def test_any_cut_gives_the_whole_text(
    tokenizer: Tokenizer, ids: list[int], cuts: list[int], skip: bool, continuation: bool
) -> None:
    """Random ids are mostly broken UTF-8: U+FFFD must come out as for the whole."""
    ids = [i % tokenizer.vocab_size for i in ids]
    detokenizer = Detokenizer(tokenizer, skip, continuation=continuation)
    text = "".join(detokenizer.push(part) for part in cut(ids, cuts)) + detokenizer.flush()
    assert text == tokenizer.decode(ids, skip, continuation=continuation)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_valid_text_comes_in_whole_characters(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    detokenizer = Detokenizer(BPE)
    pieces = [
        detokenizer.push([i]) for i in BPE.encode(text, add_special=False, parse_special=False)
    ]
    assert "".join(pieces) == text
    assert "\ufffd" in text or all("\ufffd" not in piece for piece in pieces)
    assert detokenizer.flush() == ""


def test_unfinished_character_is_held_back() -> None:
    detokenizer = Detokenizer(BPE)
    assert [detokenizer.push([b]) for b in "😀".encode()] == ["", "", "", "😀"]
    detokenizer.push([0xF0])
    assert detokenizer.flush() == "\ufffd"


def test_first_space_of_an_answer_stays() -> None:
    """BC-09: an answer goes on from its prompt."""
    ids = SPM.encode("a a", add_special=False, parse_special=False)
    answer, alone = Detokenizer(SPM), Detokenizer(SPM, continuation=False)
    assert "".join(answer.push([i]) for i in ids) == " a a"
    assert "".join(alone.push([i]) for i in ids) == "a a"


def test_ids_beyond_the_vocabulary_are_nothing() -> None:
    detokenizer = Detokenizer(BPE)
    assert detokenizer.push([104, 10**9, 105]) == BPE.decode([104, 105])


def test_fast_enough_for_the_engine_thread() -> None:
    ids = BPE.encode("hello wörld " * 500, add_special=False, parse_special=False)
    detokenizer = Detokenizer(BPE)
    start = time.thread_time()
    for i in ids:
        detokenizer.push((i,))
    assert (time.thread_time() - start) / len(ids) < 20e-6


def test_shown_special_tokens_are_shown_and_no_others() -> None:
    tokenizer = Tokenizer.from_gguf(bpe(["h e"], {"[CALL]": CONTROL, "<|im_end|>": CONTROL}))
    call, end = tokenizer.token_id("[CALL]"), tokenizer.token_id("<|im_end|>")
    assert call is not None and end is not None
    detokenizer = Detokenizer(tokenizer, True, (call,))
    letter = tokenizer.encode("a", add_special=False, parse_special=False)
    assert detokenizer.push([end, *letter, call]) == "a[CALL]"
