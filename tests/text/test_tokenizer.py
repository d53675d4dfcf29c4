"""Tokenizers: special tokens, spaces, ends, hostile metadata; merging against a naive oracle."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import FormatError, GristmillError, RequestError, UnsupportedError
from gristmill.files.gguf import open_gguf
from gristmill.text.pretokenizers import NAMES
from gristmill.text.tokenizer import Tokenizer
from gristmill.text.vocab import TokenType
from tests.text.vocabularies import CONTROL, NORMAL, UNUSED, USER, bpe, sentencepiece

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ġwor l", "Ġworl d"]
SPECIAL = {
    "<|im_start|>": CONTROL,
    "<|im_end|>": CONTROL,
    "<think>": USER,
    "</think>": USER,
}
SPM = {
    "\u2581": -1.0, "a": -2.0, "b": -3.0, "G": -3.5, "x": -4.0, "e": -5.0, "d": -6.0, "aa": -7.0,
    "ab": -8.0, "ba": -8.0, "\u2581a": -9.0, "\u2581G": -9.5, "aab": -10.0, "\u2581ab": -11.0,
    "<s": -1.0, "<": -1.0, "s": -1.0, ">": -1.0, "s>": -1.0,
    "\u2581\u2581": -12.0, "b\u2581": -13.0,
}  # fmt: skip


def encode(tokenizer: Tokenizer, text: str, add: bool = False, parse: bool = True) -> list[str]:
    ids = tokenizer.encode(text, add_special=add, parse_special=parse)
    return [tokenizer.token_text(i) for i in ids]


def test_bpe_words_and_special_tokens() -> None:
    tokenizer = Tokenizer.from_gguf(bpe(MERGES, SPECIAL))
    assert encode(tokenizer, "hello world") == ["hello", "Ġworld"]
    assert encode(tokenizer, "hello<|im_end|> world") == [
        "hello",
        "<|im_end|>",
        "Ġworld",
    ]
    plain = encode(tokenizer, "<|im_end|>", parse=False)
    assert "<|im_end|>" not in plain and "".join(plain) == "<|im_end|>"
    # user-defined tokens are part of the spelling, asked for or not
    assert encode(tokenizer, "<think>hello", parse=False) == ["<think>", "hello"]


def test_control_tokens_never_come_out_of_plain_text() -> None:
    """Not even where merges, whole words or scores would make one."""
    whole = bpe([*MERGES, "< s", "<s >"], {"word": CONTROL}, pre="llama-bpe")
    types = whole["tokenizer.ggml.token_type"]
    tokens = whole["tokenizer.ggml.tokens"]
    assert isinstance(types, list) and isinstance(tokens, list)
    types[tokens.index("<s>")] = CONTROL
    tokenizer = Tokenizer.from_gguf(whole)
    assert encode(tokenizer, "<s>", parse=False) == ["<s", ">"]
    assert encode(tokenizer, "word", parse=False) == ["w", "or", "d"]
    assert encode(tokenizer, "<s>word") == ["<s>", "word"]
    spm = Tokenizer.from_gguf(sentencepiece(SPM))
    assert "<s>" not in encode(spm, "<s>", parse=False)
    assert encode(spm, "<s>") == ["<s>"]
    assert encode(spm, "<0x41>", parse=False)[0] != "<0x41>"


def test_longest_special_token_wins() -> None:
    special = {"<a>": CONTROL, "<a>b": CONTROL, "<": USER}
    tokenizer = Tokenizer.from_gguf(bpe(MERGES, special))
    assert encode(tokenizer, "<a>b<a><") == ["<a>b", "<a>", "<"]


@pytest.mark.parametrize(
    ("text", "prefix", "expected"),
    [
        ("<s>G", True, ["<s>", "\u2581G"]),
        ("<s> G", True, ["<s>", "\u2581", "\u2581G"]),
        ("</s>G", True, ["</s>", "\u2581G"]),
        ("<s>G", False, ["<s>", "G"]),
        ("<s> G", False, ["<s>", "\u2581G"]),
        ("G</s> G", False, ["G", "</s>", "\u2581G"]),
        ("", True, []),
    ],
)
def test_space_after_special_tokens(text: str, prefix: bool, expected: list[str]) -> None:
    """BC-09, with and without the prefix space."""
    tokenizer = Tokenizer.from_gguf(sentencepiece(SPM, add_space_prefix=prefix))
    assert encode(tokenizer, text) == expected


def test_first_space_of_a_text() -> None:
    """BC-09: encode's own space is taken off again, a continuation keeps its real one."""
    spm = Tokenizer.from_gguf(sentencepiece(SPM))
    ids = [spm.token_id(t) or 0 for t in ("\u2581", "\u2581a", "b", "\u2581ab")]
    assert spm.decode(ids) == " ab ab"
    assert spm.decode(ids, continuation=True) == "  ab ab"
    level = Tokenizer.from_gguf(bpe(MERGES))
    assert level.decode(level.encode(" world", add_special=False, parse_special=False)) == " world"


def test_begin_and_end_tokens() -> None:
    spm = sentencepiece(SPM, add_bos_token=True, add_eos_token=True)
    assert encode(Tokenizer.from_gguf(spm), "a", add=True) == ["<s>", "\u2581a", "</s>"]
    assert encode(Tokenizer.from_gguf(sentencepiece(SPM)), "a", add=True) == [
        "<s>",
        "\u2581a",
    ]
    none = Tokenizer.from_gguf(sentencepiece(SPM, add_bos_token=False))
    assert encode(none, "", add=True) == []
    llama3 = Tokenizer.from_gguf(bpe(MERGES, {"<b>": CONTROL}, pre="llama-bpe", bos_token_id=265))
    assert llama3.add_bos and encode(llama3, "he", add=True) == ["<b>", "he"]


def test_every_end_is_an_end() -> None:
    """BC-11: metadata ids and known texts together; ``</s>`` only where it is control."""
    special = {
        "<|im_end|>": CONTROL,
        "<|eot_id|>": NORMAL,
        "<e>": CONTROL,
        "</s>": NORMAL,
    }
    tokenizer = Tokenizer.from_gguf(bpe(MERGES, special, eos_token_id=267, eom_token_id=3))
    ends = {tokenizer.token_text(i) for i in tokenizer.eos_ids}
    assert ends == {"<|im_end|>", "<|eot_id|>", "<e>", tokenizer.token_text(3)}
    assert tokenizer.token_type(tokenizer.token_id("<|eot_id|>") or 0) == TokenType.CONTROL
    harmony: dict[str, int] = dict.fromkeys(
        ("<|end|>", "<|return|>", "<|call|>", "<|channel|>"), CONTROL
    )
    tokenizer = Tokenizer.from_gguf(bpe(MERGES, harmony, eos_token_id=266))
    assert {tokenizer.token_text(i) for i in tokenizer.eos_ids} == {
        "<|return|>",
        "<|call|>",
    }
    assert not tokenizer.hidden(tokenizer.token_id("<|channel|>") or 0)


def test_special_tokens_hidden_on_request() -> None:
    tokenizer = Tokenizer.from_gguf(bpe(MERGES, SPECIAL | {"[PAD]": UNUSED}))
    ids = tokenizer.encode("<|im_start|>hello<think>", add_special=False, parse_special=True)
    ids.append(tokenizer.token_id("[PAD]") or 0)
    assert tokenizer.decode(ids) == "<|im_start|>hello<think>[PAD]"
    assert tokenizer.decode(ids, skip_special=True) == "hello<think>"


def test_pieces_are_bytes() -> None:
    """BC-17: each token's own bytes, also of a part of a character."""
    tokenizer = Tokenizer.from_gguf(bpe(MERGES))
    text = "héllo 😀 世界"
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    assert b"".join(map(tokenizer.piece, ids)) == text.encode()
    assert all(tokenizer.piece(b) == bytes([b]) for b in range(256))
    assert tokenizer.piece(10**6) == b"" and tokenizer.piece(-1) == b""
    spm = Tokenizer.from_gguf(sentencepiece(SPM))
    ids = spm.encode("é", add_special=False, parse_special=False)
    assert b"".join(map(spm.piece, ids)) == " é".encode()


def test_lone_surrogates_become_replacement_characters() -> None:
    tokenizer = Tokenizer.from_gguf(bpe(MERGES))
    ids = tokenizer.encode("a\ud800b\ud83d\ude00c\udfff", add_special=False, parse_special=True)
    assert tokenizer.decode(ids) == "a\ufffdb😀c\ufffd"


def test_ids_beyond_the_vocabulary() -> None:
    tokenizer = Tokenizer.from_gguf(bpe(MERGES))
    for bad in (-1, tokenizer.vocab_size, 1 << 40):
        with pytest.raises(RequestError, match="not in the vocabulary"):
            tokenizer.decode([1, bad])


def test_tokens_that_are_no_utf8() -> None:
    """Vocabularies hold broken texts (as lone surrogates); they must not break the rest."""
    special: dict[str, int] = {"\udcff\udcfe": NORMAL}
    tokenizer = Tokenizer.from_gguf(bpe(MERGES, special))
    assert encode(tokenizer, "hello") == ["hello"]
    assert tokenizer.piece(tokenizer.token_id("\udcff\udcfe") or 0) == b"\xff\xfe"


# ------------------------------------------------------------ merging, naively


def naive_spm(pieces: dict[str, float], text: str) -> list[str]:
    """SentencePiece's BPE as its definition reads: look at all pairs, join the best, again."""
    parts = list(text.replace(" ", "\u2581"))
    while True:
        pairs = [(-pieces[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts))
                 if a + b in pieces]  # fmt: skip
        if not pairs:
            break
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    out: list[str] = []
    for part in parts:
        out += [part] if part in pieces else [f"<0x{b:02X}>" for b in part.encode()]
    return out


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab G<>sxé\u2581", max_size=60))
def test_spm_equals_naive(text: str) -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece(SPM, add_space_prefix=False))
    assert encode(tokenizer, text, parse=False) == naive_spm(SPM, text)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.text(alphabet="abcd ", min_size=30, max_size=90))
def test_spm_equals_naive_on_random_vocabularies(seed: int, text: str) -> None:
    rng = random.Random(seed)
    pieces = dict.fromkeys("abc\u2581", -100.0)
    for _ in range(40):
        left, right = rng.choice(list(pieces)), rng.choice(list(pieces))
        if len(left + right) <= 8:
            pieces[left + right] = float(-rng.randrange(20))
    tokenizer = Tokenizer.from_gguf(sentencepiece(pieces, add_space_prefix=False))
    assert encode(tokenizer, text, parse=False) == naive_spm(pieces, text)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.text(alphabet="abcd \n", max_size=100))
def test_gemma4_merges_equal_naive(seed: int, text: str) -> None:
    rng = random.Random(seed)
    made = list("abcd\u2581\n")
    merges: list[str] = []
    for _ in range(40):
        left, right = rng.choice(made), rng.choice(made)
        if f"{left} {right}" not in merges and len(left + right) <= 8 and "\n" not in left + right:
            merges.append(f"{left} {right}")
            made.append(left + right)
    made = list(dict.fromkeys([*made, "\n\n"]))
    tokenizer = Tokenizer.from_gguf(
        {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.tokens": made,
         "tokenizer.ggml.merges": merges or ["x y"]}
    )  # fmt: skip
    ranks = {m: i for i, m in enumerate(merges)}
    want: list[str] = []
    for line in text.replace(" ", "\u2581").replace("\n", "\0\n\0").split("\0"):
        parts = list(line)
        while True:
            pairs = [f"{a} {b}" for a, b in itertools.pairwise(parts)]
            found = [(ranks[pair], i) for i, pair in enumerate(pairs) if pair in ranks]
            if not found:
                break
            i = min(found)[1]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        want += parts
    got = encode(tokenizer, text)
    assert "".join(got) == "".join(want)
    assert [t for t in got if "\n" not in t] == [t for t in want if t != "\n"]


# ------------------------------------------------------- the other schemes


def test_wordpiece() -> None:
    texts = [
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "\u2581un",
        "\u2581aff",
        "able",
        "aff",
        "\u2581,",
        "\u2581a",
    ]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [CONTROL] * 3 + [NORMAL] * 6,
        "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.seperator_token_id": 2,
    }  # fmt: skip
    tokenizer = Tokenizer.from_gguf(metadata)
    got = encode(tokenizer, "UNAffable, Ä zzz", add=True)
    assert got == ["[CLS]", "\u2581un", "aff", "able", "\u2581,", "\u2581a", "[UNK]", "[SEP]"]
    assert encode(tokenizer, "[SEP]", parse=False) != ["[SEP]"]
    assert tokenizer.decode([3, 6, 5, 8]) == "unaffable a"


def test_unigram(llamacpp: Path) -> None:
    """XLM-R's vocabulary: ids that its publishers document for these texts."""
    checkpoint = open_gguf(llamacpp / "ggml-vocab-nomic-bert-moe.gguf")
    tokenizer = Tokenizer.from_gguf(checkpoint.metadata)
    ids = tokenizer.encode("Hello world", add_special=True, parse_special=False)
    assert ids == [0, 35378, 8999, 2]
    assert encode(tokenizer, "</s>", parse=False) != ["</s>"]
    mask = encode(tokenizer, "Hello <mask> world")
    assert mask == ["\u2581Hello", "<mask>", "\u2581world"]


# ------------------------------------------------------------------ segments


def test_segments_parse_only_what_is_trusted() -> None:
    tokenizer = Tokenizer.from_gguf(bpe(MERGES, SPECIAL))
    segments = [
        ("<|im_start|>he", True),
        ("llo<|im_end|></think>", False),
        (" world<|im_end|>", True),
    ]
    ids = tokenizer.encode_segments(segments, add_special=False)
    texts = [tokenizer.token_text(i) for i in ids]
    assert texts[0] == "<|im_start|>" and texts[1] == "hello" and texts[-1] == "<|im_end|>"
    assert sum(t in SPECIAL for t in texts) == 2
    assert tokenizer.decode(ids) == "".join(text for text, _ in segments)


# ------------------------------------------------------------------- hostile


@pytest.mark.parametrize(
    "changed",
    [
        {"model": None}, {"model": 7}, {"tokens": None}, {"tokens": []}, {"tokens": 5},
        {"tokens": ["a", 3]}, {"merges": None}, {"merges": [1]}, {"token_type": [1]},
        {"token_type": "x"}, {"token_type": [[1], [2]]}, {"scores": ["a"] * 265},
        {"bos_token_id": "x"}, {"add_bos_token": 3}, {"pre": 4},
    ],
)  # fmt: skip
def test_damaged_metadata(changed: dict[str, Any]) -> None:
    metadata = bpe(MERGES)
    for key, value in changed.items():
        metadata.pop(f"tokenizer.ggml.{key}", None)
        if value is not None:
            metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(FormatError):
        Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize(("key", "value"), [("model", "rwkv"), ("pre", "no-such-rule")])
def test_unknown_kinds_list_the_known(key: str, value: str) -> None:
    with pytest.raises(UnsupportedError, match=r"(gpt2|llama-bpe).*"):
        Tokenizer.from_gguf(bpe(MERGES) | {f"tokenizer.ggml.{key}": value})


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_metadata_never_crashes(data: st.DataObject) -> None:
    value = st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5),
        st.lists(st.one_of(st.text(max_size=3), st.integers(-9, 9)), max_size=5),
        st.just(np.array([1, 2, 3])),
    )  # fmt: skip
    metadata = data.draw(st.sampled_from([bpe(MERGES, SPECIAL), sentencepiece(SPM)]))
    more = ["tokenizer.ggml.bos_token_id", "tokenizer.ggml.add_space_prefix"]
    key = data.draw(st.sampled_from([*sorted(metadata), *more]))
    changed = dict(metadata) | {key: data.draw(value)}
    try:
        tokenizer = Tokenizer.from_gguf(changed)
        tokenizer.decode(tokenizer.encode("hello <s>", add_special=True, parse_special=True))
    except GristmillError as error:
        assert str(error)


@pytest.mark.parametrize("name", [n for n in NAMES if NAMES[n].kind == "bytes"])
def test_every_pre_tokenizer_keeps_all_text(name: str) -> None:
    """Whatever a rule cuts, nothing is lost (over byte-level vocabularies, which spell all)."""
    tokenizer = Tokenizer.from_gguf(bpe(MERGES, pre=name))
    text = "It's 12345 o'clock,  Ünïcode\n\n\tשלום 世界! ٣٤٥ e\u0301 <x> don'T  \n"
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    assert tokenizer.decode(ids) == text


# --------------------------------------------------------------------- speed


@pytest.mark.parametrize("make", [lambda: bpe(MERGES, SPECIAL), lambda: sentencepiece(SPM)])
@pytest.mark.parametrize("unit", ["a", " ", "ab ", "<|im_", "é", "\n", "1"])
def test_time_is_linear(make: Any, unit: str) -> None:
    """Ten times the text takes about ten times as long, not a hundred."""
    tokenizer = Tokenizer.from_gguf(make())

    def seconds(length: int) -> float:
        text = unit * (length // len(unit))
        start = time.thread_time() if len(text) < 1 << 14 else time.process_time()
        tokenizer.encode(text, add_special=False, parse_special=True)
        end = time.thread_time() if len(text) < 1 << 14 else time.process_time()
        return end - start

    seconds(100)
    small, large = min(seconds(15_000) for _ in range(3)), seconds(150_000)
    assert large < 40 * small + 0.1


def test_lower_bound() -> None:
    tokenizer = Tokenizer.from_gguf(bpe(MERGES, SPECIAL))
    for text in ("", "a", "<|im_start|>" * 50, "hello world " * 99):
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        assert tokenizer.at_least(text) <= len(ids)


def test_real_vocabularies_load_fast(models: Path) -> None:
    """Start-up promises: 0.25 s for SmolLM2, 1 s for Gemma's 262k (processor time)."""
    for name, limit in (
        ("smollm2-135m-q4_1.gguf", 0.25),
        ("gemma3-270m-q4_k_m.gguf", 1.0),
    ):
        checkpoint = open_gguf(models / name)
        start = time.process_time()
        tokenizer = Tokenizer.from_gguf(checkpoint.metadata)
        tokenizer.encode("Hello", add_special=True, parse_special=True)
        assert time.process_time() - start < limit
        checkpoint.close()
