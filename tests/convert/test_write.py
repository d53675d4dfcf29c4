"""Whole files: tensors as llama.cpp's converter makes them, metadata, tokenizer, atomic output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import pre_tokenizers

from gristmill.cli.main import cli
from gristmill.convert.importance import read_importance
from gristmill.convert.recipes import RECIPES, Choice, Shape, recipe_of
from gristmill.convert.tensors import FROM_FOLDERS, tensors_of
from gristmill.convert.write import write_model
from gristmill.errors import FormatError, UnsupportedError, UsageError
from gristmill.files import open_model
from gristmill.files.gguf_write import Kept, Planned, write_gguf
from gristmill.models import build, understand
from gristmill.quant import decode
from gristmill.text import Tokenizer as Ours
from tests.convert.folders import folder_of, tokenizer_of
from tests.models.golden import TINY, tiny
from tests.models.recipes import NAMES, golden

OTHERWISE = {
    "exaone": "llama.cpp's converter calls it llama and pairs the rows; GGUF has exaone too",
    "glm4v": "llama.cpp's converter deals the rows for images' positions",
}


@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_those_of_llama_cpps_converter(name: str) -> None:
    made = golden(name)
    if made.gguf is None:
        pytest.skip("llama.cpp's converter does not know this architecture")
    if name in OTHERWISE:
        pytest.skip(OTHERWISE[name])
    try:
        ours = {one.name: one for one in tensors_of(made.hf)}
    except UnsupportedError as error:
        assert "cannot be written as GGUF" in str(error)
        assert made.hf.metadata["general.architecture"] not in FROM_FOLDERS
        pytest.skip(str(error))
    assert set(ours) == set(made.gguf.tensors)
    for key, tensor in made.gguf.tensors.items():
        one = ours[key]
        got = np.concatenate([decode(piece).reshape(-1) for piece in one.pieces()])
        np.testing.assert_array_equal(got + np.float32(one.plus), decode(tensor).reshape(-1))
        assert one.shape == tensor.shape


# ------------------------------------------------------------------ folders


@pytest.mark.parametrize("kind", ["bytes", "spaces"])
@pytest.mark.parametrize("name", ["llama3", "gemma2", "qwen3_moe"])
def test_a_folder_and_its_file_are_the_same_model(name: str, kind: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", name, tokenizer_of(kind))
    target = tmp_path / "model.gguf"
    source = understand(open_model(folder))
    write_model(source, target, recipe_of("f32"))
    made = open_model(target)
    build(made)
    here, there = Ours.of(source), Ours.of(made)
    for text in ("Hello world 123 naïve\n 🚀 x", "ab a  b", ""):
        ids = here.encode(text, add_special=True, parse_special=True)
        assert ids == there.encode(text, add_special=True, parse_special=True)
        assert here.decode(ids) == there.decode(ids)
    assert here.eos == there.eos and here.eos_ids <= there.eos_ids
    assert made.metadata["tokenizer.chat_template"] == "{{ messages[0].content }}"
    of_source = {one.name: one for one in tensors_of(source)}
    assert set(of_source) == set(made.tensors)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.gguf"]


def test_words_cut_by_a_rule_without_a_name_are_refused(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bytes")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("e", "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    folder = folder_of(tmp_path / "model", "llama3", tokenizer)
    with pytest.raises(UnsupportedError, match="no name"):
        write_model(open_model(folder), tmp_path / "x.gguf", recipe_of("f32"))
    assert not (tmp_path / "x.gguf").exists()


# -------------------------------------------------------------------- files


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K_M", "IQ4_XS", "MXFP4", "BF16"])
@pytest.mark.parametrize("name", TINY[:1])
def test_quantised_files_are_sound(name: str, kind: str, tmp_path: Path) -> None:
    source = tiny(name, tmp_path)
    target = tmp_path / "made.gguf"
    written = write_model(source.checkpoint, target, recipe_of(kind))
    made = open_model(target)
    build(made)
    assert written.bytes == target.stat().st_size
    assert made.metadata["general.file_type"] == RECIPES[kind].file_type
    for key, tensor in source.checkpoint.tensors.items():
        want, got = decode(tensor), decode(made.tensors[key])
        assert np.linalg.norm(got - want) < 0.15 * np.linalg.norm(want) + 1e-9, key


def test_metadata_keeps_its_types(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    numbers = np.array([1, -2], "<i8")
    head: dict[str, object] = {
        "general.architecture": "x",
        "a": True,
        "b": -5,
        "c": 2**40,
        "d": 0.5,
        "e": ["x", "y\udcff"],
        "f": [1, 2],
        "g": [True, False],
        "h": numbers,
        "i": Kept(b"\x00\x00\x00\x00\x07"),
    }
    write_gguf(path, head, [Planned("t", "f32", (2, 3), lambda: [bytes(12), bytes(12)])])
    made = open_model(path)
    for key, value in head.items():
        got = made.metadata[key]
        if isinstance(value, Kept):
            assert got == 7
        elif isinstance(value, str | bool | int | float):
            assert got == value and type(got) is type(value)
        else:
            assert list(got) == list(value)  # type: ignore[call-overload]
    assert made.tensors["t"].shape == (2, 3)


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fails() -> Any:
        yield bytes(12)
        raise FormatError("damaged")

    path = tmp_path / "a.gguf"
    path.write_bytes(b"before")
    with pytest.raises(FormatError):
        write_gguf(path, {}, [Planned("t", "f32", (2, 3), fails)])
    assert path.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1


# ------------------------------------------------------------------ recipes


@pytest.mark.parametrize(
    ("kind", "name", "shape", "encoding"),
    [
        ("Q4_K_M", "blk.0.attn_v.weight", (512, 1024), "q6_k"),
        ("Q4_K_M", "blk.6.attn_v.weight", (512, 1024), "q4_k"),
        ("Q4_K_M", "blk.5.ffn_down.weight", (512, 1024), "q6_k"),
        ("Q4_K_M", "token_embd.weight", (512, 1024), "q6_k"),
        ("Q4_K_M", "blk.0.attn_v.weight", (512, 576), "q8_0"),
        ("Q4_K_M", "blk.0.attn_q.weight", (512, 576), "q5_0"),
        ("Q4_K_S", "blk.0.ffn_down.weight", (512, 1024), "q5_k"),
        ("Q8_0", "token_embd.weight", (512, 1024), "q8_0"),
        ("Q4_0", "blk.0.attn_q.weight", (512, 100), "f16"),
        ("Q4_0", "blk.0.attn_norm.weight", (512,), "f32"),
        ("Q4_0", "blk.0.ffn_gate_inp.weight", (8, 512), "f32"),
        ("BF16", "blk.0.attn_q.weight", (512, 100), "bf16"),
        ("MXFP4", "token_embd.weight", (512, 1024), "q8_0"),
    ],
)
def test_recipes(kind: str, name: str, shape: tuple[int, ...], encoding: str) -> None:
    assert Choice(recipe_of(kind), Shape(layers=24)).encoding(name, shape) == encoding


def test_head_and_embedding_as_asked() -> None:
    choice = Choice(recipe_of("q4_0"), Shape(4, tied=False), embedding="q8_0", output="f16")
    assert choice.encoding("token_embd.weight", (64, 64)) == "q8_0"
    assert choice.encoding("output.weight", (64, 64)) == "f16"
    with pytest.raises(UsageError, match="Q4_K_M"):
        recipe_of("q9")


# -------------------------------------------------------------- importance


def _old(entries: dict[str, list[float]], calls: int = 2) -> bytes:
    out = len(entries).to_bytes(4, "little")
    for name, numbers in entries.items():
        out += len(name).to_bytes(4, "little") + name.encode()
        out += calls.to_bytes(4, "little") + len(numbers).to_bytes(4, "little")
        out += np.array(numbers, "<f4").tobytes()
    return out


def test_importance_files(tmp_path: Path) -> None:
    old, new = tmp_path / "a.dat", tmp_path / "b.gguf"
    old.write_bytes(_old({"blk.0.ffn_up.weight": [2.0, 4.0]}))
    sums, counts = np.array([[2.0, 4.0]], "<f4"), np.array([2.0], "<f4")
    planned = [
        Planned("blk.0.ffn_up.weight.in_sum2", "f32", (1, 2), lambda: [sums.tobytes()]),
        Planned("blk.0.ffn_up.weight.counts", "f32", (1, 1), lambda: [counts.tobytes()]),
    ]
    write_gguf(new, {"general.type": "imatrix"}, planned)
    for path in (old, new):
        assert read_importance(path)["blk.0.ffn_up.weight"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("cut", [0, 3, 8, 30])
def test_damaged_importance(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "a.dat"
    path.write_bytes(_old({"blk.0.ffn_up.weight": [2.0, 4.0]})[:cut])
    with pytest.raises(FormatError):
        read_importance(path)


# ----------------------------------------------------------------- commands


def test_commands(tmp_path: Path) -> None:
    tiny(TINY[0], tmp_path)
    source, target = str(tmp_path / f"{TINY[0]}.gguf"), str(tmp_path / "made.gguf")
    run = CliRunner().invoke(cli, ["quantize", source, target, "q8_0", "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["type"] == "Q8_0"
    run = CliRunner().invoke(cli, ["convert", target, str(tmp_path / "b.gguf"), "--outtype", "f16"])
    assert run.exit_code == 0 and "bits a weight" in run.stdout
    for wrong in (["quantize", source, source, "q8_0"], ["quantize", source, target, "q9"]):
        run = CliRunner().invoke(cli, wrong)
        assert run.exit_code == 2 and "gristmill: error" in run.stderr
