"""Safetensors files and folders of them against their own library, and all that can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import FormatError, GristmillError, SourceError, UnsupportedError
from gristmill.files import open_model
from gristmill.files.folder import open_folder
from gristmill.files.safetensors import open_shard
from gristmill.quant import decode
from tests.files.safetensors import head, index, shard

ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def test_as_its_own_library_reads_it(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(0)
    arrays = {
        "wide": rng.normal(size=(3, 5)).astype(np.float32),
        "half": rng.normal(size=(7,)).astype(np.float16),
        "bytes": rng.integers(0, 255, (2, 2, 2)).astype(np.uint8),
        "words": rng.integers(-9, 9, (4, 1)).astype(np.int32),
        "scalar": np.array(2.5, np.float64),
        "empty": np.zeros((0, 4), np.float32),
    }
    path = tmp_path / "m.safetensors"
    library.save_file(arrays, path, metadata={"format": "np"})
    found = open_shard(path)
    assert found.metadata == {"format": "np"}
    assert found.tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        tensor = found.tensors[name]
        assert tensor.shape == array.shape
        assert np.array_equal(decode(tensor), array.astype(np.float32))


def entry(**changes: Any) -> dict[str, Any]:
    return {"t": {**ENTRY, **changes}}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"abc", "head would have"),
        (head({}, b"", 1), "1 bytes"),
        (head({}, b"", 1 << 60), "are allowed"),
        (head(entry(), bytes(8), 5000), "cut short"),
        (b"\x04" + bytes(7) + b"{nop", "not sound JSON"),
        (b"\x02" + bytes(7) + b"[]", "not a JSON object"),
        (b"\x04" + bytes(7) + b"\xff\xfe{}", "not sound JSON"),
        ((100_000).to_bytes(8, "little") + b"[" * 100_000, "not sound JSON"),
        (head(entry(), bytes(7)), "ends at byte 8"),
        (head(entry(), bytes(9)), "1 bytes at its end"),
        (head(entry(shape=[3]), bytes(8)), "takes 12 bytes"),
        (head(entry(shape=[-1]), bytes(8)), "lacks a sound"),
        (head(entry(shape=[1 << 50, 1 << 50]), bytes(8)), "lacks a sound"),
        (head(entry(shape=[True]), bytes(8)), "lacks a sound"),
        (head(entry(data_offsets=[8, 0]), bytes(8)), "lies at"),
        (head(entry(data_offsets=[0]), bytes(8)), "lies at"),
        (head(entry(dtype=3), bytes(8)), "lacks a sound"),
        (head({"t": 1}, b""), "lacks a sound"),
        (head({"t": ENTRY, "u": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12)), "overlap"),
        (head({"t": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12)), "4 bytes before"),
        (head({"__metadata__": 3}, b""), "__metadata__"),
    ],
)
def test_damaged(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=says) as caught:
        open_shard(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_twice(tmp_path: Path) -> None:
    text = b'{"t":%s,"t":%s}' % ((json.dumps(ENTRY).encode(),) * 2)
    (tmp_path / "m").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(FormatError, match="twice"):
        open_shard(tmp_path / "m")


def test_an_element_type_that_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(head(entry(dtype="C64"), bytes(8)))
    with pytest.raises(UnsupportedError, match="'C64'"):
        open_shard(tmp_path / "m")


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_damage_is_an_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sound = bytearray(shard(a=("F32", [2, 3], bytes(24)), b=("I8", [5], bytes(5))))
    for _ in range(data.draw(st.integers(1, 4))):
        sound[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damage") / "m.safetensors"
    path.write_bytes(bytes(sound[: data.draw(st.integers(0, len(sound)))]))
    try:
        found = open_shard(path)
    except GristmillError:
        return
    for tensor in found.tensors.values():
        decode(tensor)


# ----------------------------------------------------------------- folders


def folder(path: Path, **files: bytes | str) -> Path:
    path.mkdir()
    for name, content in {"config__json": "{}", **files}.items():
        (path / name.replace("__", ".")).write_bytes(
            content if isinstance(content, bytes) else content.encode()
        )
    return path


ONE = shard(a=("F32", [2], bytes(8)))
TWO = shard(b=("F32", [2], bytes(8)))
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def in_two(path: Path, listed: bytes) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / FIRST).write_bytes(ONE)
    (path / SECOND).write_bytes(TWO)
    (path / "model.safetensors.index.json").write_bytes(listed)
    return path


def test_shards_of_an_index(tmp_path: Path) -> None:
    path = in_two(tmp_path / "m", index(a=FIRST, b=SECOND))
    for way in (path, path / "config.json", path / SECOND):
        assert set(open_model(way).tensors) == {"a", "b"}


@pytest.mark.parametrize(
    ("listed", "error", "says"),
    [
        (index(a=FIRST, b="model-00003-of-00003.safetensors"), SourceError, "is missing"),
        (index(a=FIRST, b="../m/" + SECOND), FormatError, "same folder"),
        (index(a=FIRST, b="/etc/passwd"), FormatError, "same folder"),
        (index(a=FIRST, b=FIRST), FormatError, "but it does not"),
        (b"{}", FormatError, "weight_map"),
        (b"[]", FormatError, "JSON object"),
        (b"{", FormatError, "not sound JSON"),
    ],
)
def test_an_index_that_is_wrong(
    tmp_path: Path, listed: bytes, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        open_model(in_two(tmp_path / "m", listed))


def test_a_half_downloaded_shard(tmp_path: Path) -> None:
    path = in_two(tmp_path / "m", index(a=FIRST, b=SECOND))
    (path / SECOND).write_bytes(TWO[:-3])
    with pytest.raises(FormatError, match=SECOND):
        open_model(path)


def test_a_folder_of_pickles(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="safetensors"):
        open_model(folder(tmp_path / "m", pytorch_model__bin=b"\x80\x02"))


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no safetensors file"):
        open_model(folder(tmp_path / "m"))


def test_templates_from_every_place(tmp_path: Path) -> None:
    def read(path: Path) -> object:
        return open_folder(path).metadata.get("hf.chat_templates")

    weights = {"model__safetensors": ONE}
    named = json.dumps(
        {
            "chat_template": [
                {"name": "tool_use", "template": "T"},
                {"name": "default", "template": "D"},
            ]
        }
    )
    assert read(folder(tmp_path / "none", **weights)) is None
    plain = json.dumps({"chat_template": "old"})
    assert read(folder(tmp_path / "old", **weights, tokenizer_config__json=plain)) == {
        "default": "old"
    }
    path = folder(tmp_path / "all", **weights, tokenizer_config__json=named)
    assert read(path) == {"tool_use": "T", "default": "D"}
    (path / "chat_template.jinja").write_text("new")
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "rag.jinja").write_text("R")
    assert read(path) == {"tool_use": "T", "default": "new", "rag": "R"}
