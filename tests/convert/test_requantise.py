"""Weights of 16 bits that are quantised while they are loaded."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from gristmill import quant
from gristmill.convert.recipes import recipe_of
from gristmill.convert.requantise import TYPES, fp8_rows, int8_rows, requantiser
from gristmill.convert.write import write_model
from gristmill.engine.loader import load
from gristmill.errors import FormatError, UsageError
from gristmill.files import open_model
from gristmill.models import understand
from gristmill.options import Options
from gristmill.quant.floats import E4M3
from gristmill.types import Checkpoint, RawTensor
from tests.tiny import tiny_llama


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "tiny.gguf"
    tiny_llama(path, encoding="bf16", arch="qwen3", d=256, ff=512)
    return path


def opened(path: Path) -> Checkpoint:
    return understand(open_model(path))


@pytest.mark.parametrize("name", sorted(set(TYPES) - {"fp8", "int8"}))
@pytest.mark.parametrize("kept", [None, "q8_0"])
def test_the_same_bytes_as_a_quantised_file(
    name: str, kept: str | None, source: Path, tmp_path: Path
) -> None:
    write_model(
        opened(source), tmp_path / "q.gguf", recipe_of(name), embedding=kept, output=kept
    )  # fmt: skip
    written = open_model(tmp_path / "q.gguf")
    plain = opened(source)
    change = requantiser(plain, name, embedding=kept, output=kept, threads=2)
    assert change is not None
    seen: set[str] = set()
    for key, tensor in plain.tensors.items():
        made = change(key, tensor)
        if len(tensor.shape) > 1:
            want = written.tensors[key]
            assert (made.encoding, made.shape) == (want.encoding, want.shape)
            assert bytes(made.data) == bytes(want.data)
            seen.add(made.encoding)
        else:
            assert made is tensor
    assert seen and "bf16" not in seen
    assert f"tensors as {recipe_of(name).base}" in change.told()


def test_rows_of_fp8_are_the_nearest_there_are() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((40, 96), dtype=np.float32)
    values[3] *= 1e-20
    values[4] = 0
    values[5, ::2] *= 1e-4  # some of them below the normal numbers
    codes, scale = fp8_rows(values)
    table = E4M3[E4M3 == E4M3]
    scaled = (values / scale).astype(np.float64)
    nearest = np.abs(scaled[:, :, None] - table.astype(np.float64)).min(2)
    assert np.isfinite(E4M3[codes]).all()
    assert (np.abs(scaled - E4M3[codes]) <= nearest * (1 + 1e-6)).all()
    assert np.abs(E4M3[codes[:3]]).max(1).tolist() == [448.0] * 3


def test_rows_of_int8() -> None:
    values = np.random.default_rng(2).standard_normal((9, 64), dtype=np.float32)
    codes, scale = int8_rows(values)
    assert np.abs(codes.view(np.int8)).max(1).tolist() == [127] * 9
    assert (np.abs(codes.view(np.int8) * scale - values) <= scale * 0.5000001).all()


@pytest.mark.parametrize(("name", "bound"), [("fp8", 2**-4), ("int8", 2**-6)])
def test_types_by_row_leave_the_embedding(name: str, bound: float, source: Path) -> None:
    plain = opened(source)
    for embedding in (None, "q8_0"):
        change = requantiser(plain, name, embedding=embedding, output=embedding, threads=2)
        assert change is not None
        changed = 0
        for key, tensor in plain.tensors.items():
            made = change(key, tensor)
            if made.parts:
                want = quant.decode(tensor)
                error = np.abs(quant.decode(made) - want).max(1)
                assert (error <= bound * np.abs(want).max(1)).all()
                changed += 1
            elif key == "token_embd.weight":
                assert made.encoding == (embedding or "bf16")
        assert changed >= 14


@pytest.mark.parametrize("name", ["q4_0", "fp8", "int8"])
def test_loaded_so(name: str, source: Path) -> None:
    options = Options(model=str(source), quantization=name, context=64)
    sizes: list[int] = []
    prints: list[str] = []
    for asked in (None, name):
        checkpoint = opened(source)
        change = requantiser(checkpoint, asked) if asked else None
        loaded = load(checkpoint, options, change=change)
        sizes.append(loaded.plan.facts.weights_bytes)
        prints.append(loaded.plan.facts.quantisation)
        loaded.close()
        del loaded
        gc.collect()
    assert sizes[1] < sizes[0]
    assert prints == ["", f"{name} - -"]


def test_what_cannot_be_quantised(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no --quantization 'awq'; there are q8_0"):
        requantiser(opened(source), "awq")
    with pytest.raises(UsageError, match="There is no encoding 'q9'"):
        requantiser(opened(source), "q4_0", output="q9")
    write_model(opened(source), tmp_path / "q.gguf", recipe_of("q8_0"))
    made = opened(tmp_path / "q.gguf")
    with pytest.raises(UsageError, match=r"q\.gguf is quantised already \(tensor '.+' is q8_0\)"):
        requantiser(made, "q4_0")
    assert requantiser(made, "awq") is None  # vLLM's clients name what there is
    assert requantiser(made, "q8_0") is None
    write_model(opened(source), tmp_path / "m.gguf", recipe_of("q4_1"), embedding="q8_0")
    with pytest.raises(UsageError, match="is q4_1"):  # though some of it is q8_0
        requantiser(opened(tmp_path / "m.gguf"), "q8_0")


@pytest.mark.parametrize("name", ["q4_k", "fp8"])
def test_weights_that_are_none(name: str, source: Path) -> None:
    plain = opened(source)
    change = requantiser(plain, name)
    assert change is not None
    values = np.full((16, 256), 0x3F80, np.uint16)
    values[3, 7] = 0x7FC0
    tensor = RawTensor("blk.0.attn_q.weight", "bf16", (16, 256), values.data.cast("B"))
    with pytest.raises(FormatError, match=r"'blk\.0\.attn_q\.weight'.*not finite"):
        change(tensor.name, tensor)
