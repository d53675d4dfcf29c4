"""Saved prefixes: what is written is read; what is damaged, cut or another's is refused."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.backends.ops import BLOCK_TOKENS
from gristmill.errors import FormatError, ResourceError
from gristmill.kv import snapshot
from gristmill.kv.snapshot import Snapshot

PRINT = bytes(range(32))
SIZES = (24, 7)


def sample(blocks: int = 3) -> Snapshot:
    tokens = array("i", range(blocks * BLOCK_TOKENS))
    first = tuple(os.urandom(SIZES[0]) for _ in range(blocks))
    return Snapshot(tokens, (first, (os.urandom(SIZES[1]),)))


def read(path: Path, fingerprint: bytes = PRINT, most: int = 1000) -> Snapshot:
    return snapshot.load(path, fingerprint, SIZES, most)


@settings(max_examples=20, deadline=None)
@given(blocks=st.integers(1, 5))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, blocks: int) -> None:
    path = tmp_path_factory.mktemp("slot") / "a.bin"
    made = sample(blocks)
    size = snapshot.save(path, made, PRINT)
    got = read(path)
    assert (got.tokens, got.blocks, got.size) == (made.tokens, made.blocks, size)
    assert size == path.stat().st_size
    assert [each.name for each in path.parent.iterdir()] == ["a.bin"]


def test_every_cut_and_every_changed_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    snapshot.save(path, sample(1), PRINT)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError):
            read(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(FormatError):
        read(path)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x81]) + whole[at + 1 :])
        with pytest.raises(FormatError):
            read(path)


def test_another_model_and_a_longer_context_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    snapshot.save(path, sample(2), PRINT)
    with pytest.raises(FormatError, match="another model"):
        read(path, bytes(32))
    with pytest.raises(FormatError):
        read(path, most=BLOCK_TOKENS)
    with pytest.raises(FormatError, match="another model"):
        snapshot.load(path, PRINT, SIZES[:1], 1000)
    with pytest.raises(FormatError):
        snapshot.load(path, PRINT, (SIZES[0], SIZES[1] + 1), 1000)


def test_only_plain_files(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    snapshot.save(path, sample(), PRINT)
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "none", "."):
        with pytest.raises(FormatError):
            read(tmp_path / name)


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ResourceError):
        snapshot.save(tmp_path / "gone" / "a.bin", sample(), PRINT)
    (tmp_path / "taken").mkdir()
    with pytest.raises(ResourceError):
        snapshot.save(tmp_path / "taken", sample(), PRINT)
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]
