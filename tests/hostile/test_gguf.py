"""GGUF files that lie: only ever a typed error, quickly, and without a large allocation."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.errors import FormatError, GristmillError, SourceError, UnsupportedError
from gristmill.files import gguf_head, open_gguf, open_model
from tests.files import raw
from tests.files.raw import Raw, array, key, small, tensor, text

pytestmark = pytest.mark.timeout(60)
BIG = (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def attempt(path: Path, data: bytes) -> GristmillError | None:
    """Open the bytes; the typed error, or None if they are sound. Anything else escapes."""
    path.write_bytes(data)
    tracemalloc.start()
    try:
        found = open_model(path)
        for got in found.tensors.values():
            assert got.data.nbytes <= len(data)
            bytes(got.data)
        found.close()
    except (FormatError, UnsupportedError) as error:
        return error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4_000_000 + 40 * len(data)
    return None


def refused(path: Path, data: bytes, says: str) -> None:
    error = attempt(path, data)
    assert error is not None, "accepted"
    assert says in str(error), str(error)
    assert "\n" not in str(error)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.gguf"


def test_the_small_file_is_sound(path: Path) -> None:
    assert attempt(path, small().build()) is None


def test_cut_at_every_byte(path: Path) -> None:
    whole = small().build()
    for size in range(len(whole)):
        refused(path, whole[:size], str(path))


@pytest.mark.parametrize(
    ("magic", "says"),
    [
        (b"ggml", "not a model file"),
        (b"GGUX", "not a model file"),
        (b"FUGG", "big-endian"),
        (b"tjgg", "before GGUF"),
        (b"PK\x03\x04", "safetensors"),
        (b"\x80\x02\x8a\x0a", "safetensors"),
        (b"<!DO", "not a model file"),
    ],
)
def test_other_magics(path: Path, magic: bytes, says: str) -> None:
    refused(path, magic + small().build()[4:], says)


def test_one_byte_files(path: Path) -> None:
    for byte in range(256):
        assert attempt(path, bytes([byte])) is not None


@pytest.mark.parametrize(
    ("version", "says"),
    [(0, "version 0"), (1, "version 1"), (4, "version 4"), (3 << 24, "big-endian")],
)
def test_other_versions(path: Path, version: int, says: str) -> None:
    file = small()
    file.version = version
    refused(path, file.build(), says)


@pytest.mark.parametrize("count", [3, 1000, *BIG])
def test_lying_counts(path: Path, count: int) -> None:
    for attribute in ("key_count", "tensor_count"):
        file = small()
        setattr(file, attribute, count + 4)  # more than there are
        if count + 4 < 2**64:
            assert attempt(path, file.build()) is not None


LYING: list[Callable[[int], bytes]] = [
    lambda n: key("k", raw.STRING, struct.pack("<Q", n)),
    lambda n: struct.pack("<Q", n) + b"key",
    lambda n: key("k", raw.ARRAY, array(raw.STRING, n, text("x"))),
    lambda n: key("k", raw.ARRAY, array(raw.U8, n, b"x")),
    lambda n: key("k", raw.ARRAY, array(raw.F64, n, b"x")),
    lambda n: key("k", raw.ARRAY, array(raw.ARRAY, n, array(raw.U8, 0, b""))),
    lambda n: key("k", raw.ARRAY, array(raw.STRING, 1, struct.pack("<Q", n))),
]


@pytest.mark.parametrize("size", [200, *BIG])
@pytest.mark.parametrize("entry", LYING)
def test_lying_sizes_in_metadata(path: Path, size: int, entry: Callable[[int], bytes]) -> None:
    refused(path, Raw(keys=[entry(size)]).build(), "damaged")


@pytest.mark.parametrize("size", BIG)
def test_lying_tensor_sizes(path: Path, size: int) -> None:
    data = bytes(64)
    for dims in ((size,), (size, size), (size, size, size, size), (size, 0), (1, size, 0, size)):
        error = attempt(path, Raw(tensors=[tensor("t", dims, 0, 0)], data=data).build())
        assert error is not None or 0 in dims
        if error is None:  # an empty tensor whose other sizes numpy can still hold
            assert np.prod([max(d, 1) for d in dims], dtype=object) < 2**63
    aligned = size // 32 * 32
    refused(
        path, Raw(tensors=[tensor("t", (1,), 0, aligned)], data=data).build(), "cut short or dam"
    )


def test_bounds_that_no_small_file_reaches(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_head, "MAX_ITEMS", 3)
    monkeypatch.setattr(gguf_head, "MAX_KEYS", 2)
    monkeypatch.setattr(gguf_head, "MAX_HEAD_BYTES", 200)
    three = key("k", raw.ARRAY, array(raw.STRING, 3, text("a") * 3))
    one = key("l", raw.ARRAY, array(raw.STRING, 1, text("a")))
    byte = key("m", raw.U8, b"1")
    assert attempt(path, Raw(keys=[three, byte]).build()) is None
    refused(path, Raw(keys=[three, one]).build(), "more than 3 strings")
    refused(path, Raw(keys=[three, byte, byte]).build(), "claims 3 metadata entries")
    refused(path, Raw(keys=[key("k", raw.STRING, text("a" * 200))]).build(), "no head may be")
    lists = [array(raw.STRING, 1, text("a" * 200)), array(raw.U16, 100, bytes(200))]
    for values in lists:
        refused(path, Raw(keys=[key("k", raw.ARRAY, values)]).build(), "no head may be")
    refused(path, Raw(keys=[key("k", raw.ARRAY, array(raw.ARRAY, 4, lists[0] * 4))]).build(),
            "more than")  # fmt: skip


def nested(depth: int) -> bytes:
    payload = array(raw.U8, 1, b"\x07")
    for _ in range(depth - 1):
        payload = array(raw.ARRAY, 1, payload)
    return key("k", raw.ARRAY, payload)


def test_nesting_is_bounded(path: Path) -> None:
    assert attempt(path, Raw(keys=[nested(4)]).build()) is None
    for depth in (5, 6, 1000, 100_000):
        refused(path, Raw(keys=[nested(depth)]).build(), "nests arrays")


def two_tensors(first: int, second: int) -> bytes:
    entries = [tensor("a", (8,), 0, first), tensor("b", (8,), 0, second)]
    return Raw(tensors=entries, data=bytes(128)).build()


WRONG: list[tuple[bytes, str]] = [
    (two_tensors(0, 0), "overlap"),
    (Raw(tensors=[tensor("a", (9,), 0, 0), tensor("b", (8,), 0, 32)], data=bytes(64)).build(),
     "overlap"),
    (two_tensors(0, 40), "multiple of the alignment"),
    (two_tensors(0, 128), "cut short or damaged"),
    (Raw(tensors=[tensor("a", (8,), 0, 0), tensor("a", (8,), 0, 32)], data=bytes(64)).build(),
     "appears twice"),
    (Raw(keys=[key("k", raw.U8, b"1"), key("k", raw.U8, b"1")]).build(), "appears twice"),
    (Raw(keys=[key("k", 13, b"")]).build(), "unknown value type 13"),
    (Raw(keys=[key("k", raw.ARRAY, array(2**32 - 1, 0, b""))]).build(), "unknown value type"),
    (Raw(keys=[key(b"\xff", raw.U8, b"1")]).build(), "not UTF-8"),
    (Raw(keys=[key("k" * 65_536, raw.U8, b"1")]).build(), "at most 65535"),
    (Raw(tensors=[tensor(b"\xc3", (1,), 0, 0)], data=bytes(64)).build(), "not UTF-8"),
    (Raw(tensors=[tensor("n" * 1025, (1,), 0, 0)], data=bytes(64)).build(), "at most 1024"),
    (Raw(tensors=[tensor("t", (1,) * 5, 0, 0)], data=bytes(64)).build(), "at most 4"),
    (Raw(tensors=[tensor("t", (33,), 8, 0)], data=bytes(99)).build(), "q8_0 cannot store"),
    (Raw(tensors=[tensor("t", (), 8, 0)], data=bytes(99)).build(), "q8_0 cannot store"),
    (Raw(tensors=[tensor("t", (32,), 4, 0)], data=bytes(99)).build(), "withdrawn"),
    (Raw(tensors=[tensor("t", (32,), 999, 0)], data=bytes(99)).build(), "unknown type 999"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "says"), WRONG)
def test_inconsistent_files(path: Path, data: bytes, says: str) -> None:
    refused(path, data, says)


@pytest.mark.parametrize("value", [0, 1, 4, 31, 33, 2**32 - 1])
def test_alignments_that_are_none(path: Path, value: int) -> None:
    entry = key("general.alignment", raw.U32, struct.pack("<I", value))
    refused(path, Raw(keys=[entry]).build(), "general.alignment")


def test_alignment_beyond_the_file_and_of_a_wrong_type(path: Path) -> None:
    entry = key("general.alignment", raw.U32, struct.pack("<I", 2**31))
    file = Raw(keys=[entry], tensors=[tensor("t", (1,), 0, 0)], data=bytes(64))
    refused(path, file.build(), "cut short")
    for kind, payload in ((raw.STRING, text("32")), (raw.BOOL, b"\x01"), (raw.F32, bytes(4))):
        refused(path, Raw(keys=[key("general.alignment", kind, payload)]).build(), "not a uint32")


# ------------------------------------------------------------------ splits


def part(number: int, count: int, total: int = 2, name: str = "") -> bytes:
    keys = [
        key("split.no", raw.U16, struct.pack("<H", number)),
        key("split.count", raw.U16, struct.pack("<H", count)),
        key("split.tensors.count", raw.I32, struct.pack("<i", total)),
    ]
    entry = tensor(name or f"t{number}", (8,), 0, 0)
    return Raw(keys=keys, tensors=[entry], data=bytes(32)).build()


def test_splits_that_contradict_themselves(tmp_path: Path) -> None:
    def model(*files: bytes) -> Path:
        for number, data in enumerate(files):
            (tmp_path / f"m-{number + 1:05d}-of-{len(files):05d}.gguf").write_bytes(data)
        return tmp_path / f"m-00001-of-{len(files):05d}.gguf"

    assert len(open_gguf(model(part(0, 2), part(1, 2))).tensors) == 2
    for files, says in (
        ((part(0, 2), part(0, 2)), "split.no"),
        ((part(1, 2), part(0, 2)), "split.no"),
        ((part(0, 2), part(1, 3)), "one of 2 parts"),
        ((part(0, 2), Raw().build()), "one of 2 parts"),
        ((part(0, 3), part(1, 3)), "must be named"),
        ((part(0, 65535), part(1, 65535)), "must be named"),
        ((part(0, 2, total=3), part(1, 2)), "3 tensors"),
        ((part(0, 2, total=-1), part(1, 2)), "split.tensors.count"),
        ((part(0, 2, name="t"), part(1, 2, name="t")), "appears twice"),
    ):
        with pytest.raises(FormatError, match=says.replace(".", r"\.")):
            open_gguf(model(*files))


def test_a_split_that_leads_back_to_itself(tmp_path: Path) -> None:
    first = tmp_path / "m-00001-of-00002.gguf"
    first.write_bytes(part(0, 2))
    second = tmp_path / "m-00002-of-00002.gguf"
    second.symlink_to(first)
    with pytest.raises(FormatError, match=r"split\.no"):
        open_gguf(first)
    second.unlink()
    second.symlink_to(second)
    with pytest.raises(SourceError):
        open_gguf(first)


# ------------------------------------------------------- what is no file


def test_what_is_no_readable_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    folder = tmp_path / "folder"
    folder.mkdir()
    loop = tmp_path / "loop.gguf"
    loop.symlink_to(loop)
    for opener in (open_model, open_gguf):
        for path in (tmp_path / "none", pipe, folder, loop, Path("a\0b"), Path("/dev/zero")):
            with pytest.raises(SourceError):
                opener(path)
        with pytest.raises(FormatError, match="empty"):
            empty = tmp_path / "empty.gguf"
            empty.touch()
            opener(empty)


def test_folders_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SourceError, match="no safetensors"):
        open_model(tmp_path)
    (tmp_path / "x.gguf").touch()
    with pytest.raises(SourceError, match=r"x\.gguf"):
        open_model(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(path: Path) -> None:
    path.write_bytes(small().build())
    path.chmod(0)
    for opener in (open_model, open_gguf):
        with pytest.raises(SourceError, match="cannot be read"):
            opener(path)


def test_permission_error_is_typed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_args: object, **_more: object) -> int:
        raise PermissionError(13, "Permission denied")

    path.write_bytes(small().build())
    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(SourceError, match="Permission denied"):
        open_gguf(path)


# ------------------------------------------------------------------ fuzzing

FUZZ = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WHOLE = small().build()


@FUZZ
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=8))
def test_changed_bytes(path: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for at, value in changes:
        data[at] = value
    attempt(path, bytes(data))


@FUZZ
@given(
    st.integers(4, len(WHOLE) - 8),
    st.sampled_from([0, 1, 2, 9, 31, 32, 255, 2**16, 2**24, *BIG]),
    st.booleans(),
)
def test_changed_words(path: Path, at: int, value: int, wide: bool) -> None:
    word = struct.pack("<Q", value) if wide else struct.pack("<I", value % 2**32)
    attempt(path, WHOLE[:at] + word + WHOLE[at + len(word) :])


@FUZZ
@given(st.binary(max_size=400), st.integers(0, 5), st.integers(0, 5))
def test_random_tails(path: Path, tail: bytes, tensors: int, keys: int) -> None:
    attempt(path, b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + tail)


@FUZZ
@given(st.integers(0, len(WHOLE)), st.integers(0, len(WHOLE)), st.binary(max_size=40))
def test_spliced(path: Path, start: int, end: int, middle: bytes) -> None:
    attempt(path, WHOLE[:start] + middle + WHOLE[end:])
