"""Quantised modules that do not fit together: one clear sentence, and never another exception."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gristmill.errors import FormatError, GristmillError, UnsupportedError
from gristmill.models.huggingface.quantised import combine
from gristmill.models.huggingface.settings import Settings
from gristmill.quant import ENCODINGS, decode
from gristmill.types import RawTensor
from tests.quant.golden import FAMILIES, Case, cases, folder, ulps

ALL = {f"{family}-{case.name}": case for family in FAMILIES for case in cases(family)}
SOME = [
    *("fp8-block-f32", "fp8-channel", "awq-gemm-32", "awq-gemv-64", "gptq-v1-3-32-order"),
    *("compressed-pack-3-32-asym", "compressed-int8-channel-f32", "compressed-nvfp4"),
    *("compressed-mxfp4", "mlx-affine-3-64", "mlx-nvfp4", "bitsandbytes-nf4-double-64"),
    *("bitsandbytes-int8", "fp4-modelopt", "fp4-gpt-oss", "hqq-3-axis0-f32", "exl3-3-mul1"),
]
OPTIONAL = ("g_idx", "input_scale", "weight_format", "mul1", "mcg", "weight_zero_point")
BESIDE = ("packing", "unpack_view_dtype", "compute_dtype", "offload_meta", "channel_wise")
MARKS = ("view_as_float", "quant_scale", "quant_zero")
UNREAD = (
    *OPTIONAL,
    *BESIDE,
    *MARKS,
    "optimize",
    "round_zero",
    "encoded_state_dict",
    "stores_quant_config",
)


def tried(config: Mapping[str, Any], tensors: dict[str, RawTensor]) -> list[RawTensor]:
    """Everything that is put together and decoded; raises what that raises."""
    found = combine(Settings(config, "config.json"), folder(tensors))
    for tensor in found.values():
        if tensor.parts:
            decode(tensor)
    return [tensor for tensor in found.values() if tensor.parts]


def raw(name: str, encoding: str, array: np.ndarray) -> RawTensor:
    data = np.ascontiguousarray(array)
    return RawTensor(name, encoding, data.shape, memoryview(data.tobytes()))


def one(part: str, encoding: str, value: float) -> RawTensor:
    """A tensor of the module with one number."""
    dtype = {"f32": np.float32, "u8": np.uint8, "i32": np.int32}[encoding]
    return raw(f"m.{part}", encoding, np.array([value], dtype))


def mutants(tensor: RawTensor) -> list[RawTensor]:
    """The tensor in sound forms that a file can have, none of them fitting."""
    unit = max(1, tensor.data.nbytes // max(1, tensor.elements))
    shapes = {(), (0,), (1,), (0, 0), tensor.shape[::-1], (*tensor.shape, 1), (tensor.elements,)}
    for axis, size in enumerate(tensor.shape):
        for other in (size - 1, size + 1, 2 * size, 0):
            if other >= 0:
                shapes.add((*tensor.shape[:axis], other, *tensor.shape[axis + 1 :]))
    shapes.discard(tensor.shape)
    out: list[RawTensor] = []
    for shape in sorted(shapes):
        size = int(np.prod(shape)) * unit
        data = (tensor.data.tobytes() * 4 + bytes(64))[:size]
        if len(data) == size:
            out.append(replace(tensor, shape=shape, data=memoryview(data)))
    for name in ("f32", "f16", "bf16", "u8", "i8", "i32", "u32", "i64", "f8_e4m3"):
        if ENCODINGS[name].block_bytes == unit and name != tensor.encoding:
            out.append(replace(tensor, encoding=name))
    return out


@pytest.mark.parametrize("name", SOME)
def test_any_part_of_another_shape_or_type(name: str) -> None:
    """Refused, or (where a shape says the same in other words) decoded: no other exception."""
    case, refused = ALL[name], 0
    for key, tensor in case.tensors.items():
        for mutant in mutants(tensor):
            try:
                tried(case.config, {**case.tensors, key: mutant})
            except GristmillError as error:
                refused += 1
                assert "m" in str(error) and str(error).endswith(".")
    assert refused > 10


@pytest.mark.parametrize("name", SOME)
def test_a_missing_part(name: str) -> None:
    case: Case = ALL[name]
    for key in case.tensors:
        if key.removeprefix("m.") in UNREAD:
            continue
        left = {k: t for k, t in case.tensors.items() if k != key}
        try:
            made = tried(case.config, left)
        except GristmillError as error:
            assert "'m" in str(error) or "config" in str(error)
        else:
            assert not made, f"{key} is missing, and nobody noticed"


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scales_that_are_no_numbers(name: str, value: float) -> None:
    case, seen = ALL[name], False
    for key, tensor in case.tensors.items():
        if tensor.encoding not in ("f32", "f16") or key.endswith("input_scale"):
            continue
        seen = True
        array = np.frombuffer(tensor.data, "<f4" if tensor.encoding == "f32" else "<f2").copy()
        array.reshape(-1)[: array.size if "map" in key else 1] = value
        bad = replace(tensor, data=memoryview(array.tobytes()))
        with pytest.raises(FormatError, match=r"'m\.\S+' in .* that are no numbers"):
            tried(case.config, {**case.tensors, key: bad})
    assert seen or "mxfp4" in name or name in ("mlx-nvfp4", "mlx-affine-3-64", "fp4-gpt-oss")


def test_bytes_that_are_nan_in_eight_bit_scales() -> None:
    for name, key, byte in (
        ("fp4-modelopt", "m.weight_scale", 0x7F),
        ("compressed-mxfp4", "m.weight_scale", 255),
        ("fp4-gpt-oss", "m_scales", 255),
    ):
        tensors = dict(ALL[name].tensors)
        data = bytearray(tensors[key].data)
        data[5] = byte
        tensors[key] = replace(tensors[key], data=memoryview(data))
        with pytest.raises(FormatError, match=r"'m\.weight' in .* no numbers"):
            tried(ALL[name].config, tensors)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda g: np.where(g == 1, 3, g), "goes from 0 to 3, but there are 3 groups"),
        (lambda g: np.where(g == 1, -1, g), "goes from -1 to 2"),
        (lambda g: np.maximum(g, 1), "does not have 32 inputs in each group"),
        (lambda g: g[:-1], "g_idx are i32 of shape"),
    ],
)
def test_groups_out_of_range(change: Any, says: str) -> None:
    case = ALL["gptq-v1-4-32-order"]
    index = np.frombuffer(case.tensors["m.g_idx"].data, "<i4")
    bad = raw("m.g_idx", "i32", change(index).astype(np.int32))
    with pytest.raises(FormatError, match=f"'m.weight' in gptq.*{says}"):
        tried(case.config, {**case.tensors, "m.g_idx": bad})


def test_groups_that_were_never_written() -> None:
    """A g_idx of zeros is that of a tool that had none."""
    case = ALL["gptq-v1-4-32"]
    zeros = raw("m.g_idx", "i32", np.zeros(96, np.int32))
    (made,) = tried(case.config, {**case.tensors, "m.g_idx": zeros})
    (plain,) = tried(case.config, case.tensors)
    assert np.array_equal(decode(made), decode(plain))


@pytest.mark.parametrize("name", ["awq-gemm-32", "awq-gemv-64", "gptq-v1-4-32", "mlx-affine-4-64"])
@pytest.mark.parametrize("size", [0, -5, 1, 33, 1 << 40, "32", 2.5, None, True])
def test_groups_of_odd_sizes(name: str, size: object) -> None:
    case = ALL[name]
    key = "quantization" if "quantization" in case.config else "quantization_config"
    config = {key: {**case.config[key], "group_size": size}}
    if size is None and "mlx" in name:
        size = config[key]["group_size"] = 0  # none at all is MLX's 64
    with pytest.raises((FormatError, UnsupportedError)):
        tried(config, case.tensors)


@pytest.mark.parametrize(
    ("name", "change", "error", "says"),
    [
        ("fp8-tensor", {"quant_method": "quark"}, UnsupportedError, "quant_method 'quark'"),
        ("fp8-tensor", {"quant_method": None}, UnsupportedError, "quant_method ''"),
        ("fp8-block-f32", {"weight_block_size": [0, 128]}, FormatError, "weight_block_size"),
        ("fp8-block-f32", {"weight_block_size": [64, 128]}, FormatError, "its scales are f32"),
        ("fp8-block-f32", {"weight_block_size": None}, FormatError, "its scales are f32"),
        ("awq-gemm-32", {"version": "marlin"}, UnsupportedError, "version 'marlin'"),
        ("awq-gemm-32", {"bits": 3}, UnsupportedError, "bits 3"),
        ("gptq-v1-4-32", {"bits": 5}, UnsupportedError, "bits 5"),
        ("gptq-v1-4-32", {"bits": None}, FormatError, "no 'bits'"),
        ("gptq-v1-4-32", {"bits": 8}, FormatError, "m.weight"),
        ("gptq-v1-4-32", {"checkpoint_format": "marlin"}, UnsupportedError, "'marlin'"),
        ("compressed-nvfp4", {"format": "marlin-24"}, UnsupportedError, "'marlin-24'"),
        ("compressed-nvfp4", {"sparsity_config": {"format": "x"}}, UnsupportedError, "sparsity"),
        (
            "compressed-nvfp4",
            {"transform_config": {"config_groups": {"R1": {}}}},
            UnsupportedError,
            "transform_config",
        ),
        ("compressed-pack-4-32-sym", {"config_groups": {}}, FormatError, "none of the config's"),
        ("mlx-mxfp4", {"mode": "mxfp6"}, UnsupportedError, "mode 'mxfp6'"),
        ("mlx-affine-4-64", {"bits": 7}, UnsupportedError, "bits 7"),
        ("mlx-affine-4-64", {"m": {"group_size": 64, "bits": 5}}, FormatError, "m.weight"),
        ("fp4-modelopt", {"quant_algo": "W4A8_AWQ"}, UnsupportedError, "quant_algo 'W4A8_AWQ'"),
        ("fp4-modelopt", {"group_size": 32}, UnsupportedError, "groups of 16"),
    ],
)
def test_settings_that_are_not_read(
    name: str, change: dict[str, Any], error: type[Exception], says: str
) -> None:
    case = ALL[name]
    key = "quantization" if "quantization" in case.config else "quantization_config"
    with pytest.raises(error, match=says):
        tried({key: {**case.config[key], **change}}, case.tensors)


@pytest.mark.parametrize(
    ("name", "more", "error", "says"),
    [
        ("fp4-modelopt", one("pre_quant_scale", "f32", 1), UnsupportedError, "pre_quant_scale"),
        ("hqq-4-axis1-f32", one("quant_scale", "u8", 1), UnsupportedError, "quant_scale"),
        ("hqq-4-axis1-f32", one("group_size", "i32", 0), FormatError, "its group is 0"),
        ("hqq-4-axis1-f32", one("nbits", "i32", 5), FormatError, "5 bits"),
        ("hqq-4-axis1-f32", one("axis", "i32", 2), FormatError, "axis is 2"),
        ("exl3-3-mul1", one("mul1", "i32", 5), UnsupportedError, "multiplier"),
        ("bitsandbytes-int8", one("weight_format", "u8", 2), UnsupportedError, "tiled"),
        ("gptq-v1-4-32", one("weight", "f32", 1), FormatError, "twice"),
    ],
)
def test_tensors_that_are_not_read(
    name: str, more: RawTensor, error: type[Exception], says: str
) -> None:
    case = ALL[name]
    with pytest.raises(error, match=says):
        tried(case.config, {**case.tensors, more.name: more})


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (b"not json", "does not hold a JSON object"),
        (b"[1]", "does not hold a JSON object"),
        (b"{}", "'blocksize'"),
        (b'{"blocksize": 0, "shape": [9, 64]}', "blocksize is 0"),
        (b'{"blocksize": 64, "shape": [9, 65]}', "codes are u8"),
        (b'{"blocksize": 64, "shape": [576]}', "no matrix"),
        (b'{"blocksize": 64, "shape": [1e30, 1]}', "no matrix"),
        (b'{"blocksize": 64, "shape": [-9, -64]}', "no matrix"),
    ],
)
def test_a_state_that_cannot_be(state: bytes, says: str) -> None:
    case = ALL["bitsandbytes-nf4-double-64"]
    key = "m.weight.quant_state.bitsandbytes__nf4"
    if state.startswith(b'{"'):
        more = {"nested_blocksize": 256, "nested_offset": 1.0}
        state = json.dumps({**json.loads(state), **more}).encode()
    bad = raw(key, "u8", np.frombuffer(state, np.uint8))
    with pytest.raises(FormatError, match=says):
        tried(case.config, {**case.tensors, key: bad})


def test_what_is_left_out_stays_as_it_is() -> None:
    """Mixed folders: plain weights beside quantised ones, whatever the config's lists say."""
    for name in ("fp8-block-f32", "awq-gemm-32", "compressed-pack-4-32-sym", "mlx-affine-4-64"):
        head = raw("lm_head.weight", "bf16", np.zeros((4, 8), np.uint16))
        bias = raw("m.bias", "f16", np.zeros(4, np.float16))
        more = {"lm_head.weight": head, "m.bias": bias}
        case = ALL[name]
        found = combine(Settings(case.config, "c"), folder({**case.tensors, **more}))
        assert set(found) == {"m.weight", "lm_head.weight", "m.bias"}
        assert found["lm_head.weight"] is head


def test_settings_in_files_of_their_own() -> None:
    for key, name, config in (
        ("hf.quantize_config", "gptq-v2-3-32", {"bits": 3, "checkpoint_format": "gptq_v2"}),
        ("hf.quantization_config", "exl3-3-mul1", {"quant_method": "exl3"}),
        ("hf.hf_quant_config", "fp4-modelopt", {"quantization": {"quant_algo": "NVFP4"}}),
    ):
        case = ALL[name]
        said = {"group_size": 32, **config} if "bits" in config else config
        found = combine(Settings({}, "config.json"), folder(case.tensors, **{key: said}))
        assert ulps(decode(found["m.weight"])[:: case.step], case) <= abs(case.ulps)


def test_nothing_announced() -> None:
    case = ALL["awq-gemm-32"]
    checkpoint = folder(case.tensors)
    assert combine(Settings({}, "config.json"), checkpoint) is checkpoint.tensors
