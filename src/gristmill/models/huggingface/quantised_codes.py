"""Quantised modules whose values are codes: AWQ, GPTQ, compressed-tensors, MLX and others."""

from __future__ import annotations

import json
import struct
from typing import cast

from gristmill.errors import FormatError, UnsupportedError
from gristmill.models.huggingface.modules import UNUSED, Modules, matrix
from gristmill.models.huggingface.quantised_floats import FP8, block_sizes, put_fp8
from gristmill.models.huggingface.settings import Settings
from gristmill.quant.exl3 import MULTIPLIERS
from gristmill.types import RawTensor

_MOST_STATE = 1 << 16


def _group(settings: Settings, key: str = "group_size") -> int:
    """Input features of a group; 0 is all of them, which tools write as −1 or null."""
    if settings.values.get(key) in (-1, None):
        return 0
    size = settings.integer(key)
    if size == 0:
        raise FormatError(f"{settings.where}: {key!r} is 0; a group has at least one input.")
    return size


def _one_of(settings: Settings, key: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise UnsupportedError(
            f"{settings.where}: {key} {value!r:.60} is not read; read are "
            f"{', '.join(map(str, allowed))}."
        )


# --------------------------------------------------------------- AWQ, GPTQ


def awq(modules: Modules, settings: Settings) -> None:
    """AutoAWQ's gemm and gemv (exllama's is gemm's), four bits."""
    version = (settings.text("version", "") or settings.text("format", "gemm")).lower()
    _one_of(settings, "version", version, ("gemm", "gemv", "exllama"))
    _one_of(settings, "bits", settings.integer("bits", settings.integer("w_bit", 4)), (4,))
    group = _group(settings, "q_group_size" if settings.has("q_group_size") else "group_size")
    for module in modules.having("qweight"):
        codes = modules.take(module, "qweight")
        first, second = matrix(codes)
        gemv = version == "gemv"
        n, k = (first, 8 * second) if gemv else (8 * second, first)
        parts = {
            "codes": codes,
            "zeros": modules.take(module, "qzeros"),
            "scales": modules.take(module, "scales"),
        }
        encoding = "awq_gemv" if gemv else "awq_gemm"
        modules.put(module, encoding, (n, k), parts, {"group": group or k})


def gptq(modules: Modules, settings: Settings) -> None:
    """GPTQ in its two formats. Settings of single modules (``dynamic``) show in the shapes."""
    form = settings.text("checkpoint_format", "") or settings.text("format", "gptq")
    _one_of(settings, "checkpoint_format", form, ("gptq", "gptq_v2"))
    _one_of(settings, "pack_dtype", settings.text("pack_dtype", "int32"), ("int32",))
    bits, group = settings.integer("bits"), _group(settings)
    _one_of(settings, "bits", bits, (2, 3, 4, 8))
    for module in modules.having("qweight"):
        parts = {
            "codes": modules.take(module, "qweight"),
            "zeros": modules.take(module, "qzeros"),
            "scales": modules.take(module, "scales"),
        }
        words, n = matrix(parts["codes"])
        if modules.see(module, "g_idx") is not None:
            parts["g_idx"] = modules.take(module, "g_idx")
        own_bits, k = bits, words * 32 // bits
        own_group = group or k
        if settings.has("dynamic") and "g_idx" in parts and parts["g_idx"].elements:
            k = parts["g_idx"].elements
            own_bits = words * 32 // k
            own_group = -(-k // max(matrix(parts["scales"])[0], 1))
        modules.put(
            module,
            "gptq",
            (n, k),
            parts,
            {"bits": own_bits, "group": min(own_group, k), "zero_plus_one": form == "gptq"},
        )


# ------------------------------------------------------ compressed-tensors

_CT_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
    "dense",
)


def compressed(modules: Modules, settings: Settings) -> None:
    """compressed-tensors: which of its formats a module has shows in its tensors."""
    groups = _ct_groups(settings)
    for module in modules.having("weight_packed"):
        codes = modules.take(module, "weight_packed")
        if codes.encoding == "u8":
            _put_ct_fp4(modules, module, codes)
        else:
            _put_ct_pack(modules, module, codes, groups)
    blocks = next(filter(None, (block_sizes(g, "block_structure") for g in groups)), None)
    for module in modules.having("weight"):
        found = modules.see(module, "weight")
        if found is None or len(found.shape) != 2:
            continue
        if found.encoding in FP8:
            put_fp8(modules, module, blocks)
        elif found.encoding == "i8":
            _put_ct_int8(modules, module, groups)


def _ct_groups(settings: Settings) -> list[Settings]:
    """The weights' settings of each config group, the formats checked."""
    _one_of(settings, "format", settings.text("format", "dense"), _CT_FORMATS)
    sparse = settings.section("sparsity_config").text("format", "dense")
    _one_of(settings, "sparsity_config format", sparse, ("dense",))
    if settings.section("transform_config").section("config_groups").values:
        raise UnsupportedError(f"{settings.where}: transforms (transform_config) are not read.")
    found: list[Settings] = []
    groups = settings.section("config_groups")
    for name in groups.values:
        group = groups.section(name)
        _one_of(group, "format", group.text("format", "dense"), _CT_FORMATS)
        found.append(group.section("weights"))
    return found


def _put_ct_fp4(modules: Modules, module: str, codes: RawTensor) -> None:
    n, half = matrix(codes)
    parts = {"codes": codes, "scales": modules.take(module, "weight_scale")}
    nvidia = modules.see(module, "weight_global_scale") is not None
    if nvidia:
        parts["global"] = modules.take(module, "weight_global_scale")
    modules.drop(module, *UNUSED)
    encoding = "nvfp4_hf" if nvidia else "mxfp4_hf"
    modules.put(module, encoding, (n, 2 * half), parts, {"divide": True} if nvidia else {})


def _ct_parts(modules: Modules, module: str, codes: RawTensor) -> dict[str, RawTensor]:
    parts = {"codes": codes, "scales": modules.take(module, "weight_scale")}
    for role, name in (("zeros", "weight_zero_point"), ("g_idx", "weight_g_idx")):
        if modules.see(module, name) is not None:
            parts[role] = modules.take(module, name)
    modules.drop(module, *UNUSED)
    return parts


def _ct_group(parts: dict[str, RawTensor], groups: list[Settings], k: int, module: str) -> int:
    """Input features of a group: one of the config's that gives as many scales as there are."""
    shape = parts["scales"].shape
    count = shape[1] if len(shape) == 2 else 1
    if count == 1:
        return k
    for group in groups:
        size = _group(group)
        if size and -(-k // size) == count:
            return size
    raise FormatError(
        f"The module '{module}' has {count} scales in a row of {k}, which none of the config's "
        "group sizes gives."
    )


def _put_ct_pack(modules: Modules, module: str, codes: RawTensor, groups: list[Settings]) -> None:
    n, width = matrix(codes)
    k = _ct_inputs(modules.take(module, "weight_shape"), n)
    asked = [group.integer("num_bits", 8) for group in groups]
    fitting = [bits for bits in asked if -(-k * bits // 32) == width]
    if not fitting:
        raise FormatError(
            f"The module '{module}' has {width} words in a row of {k}, which none of the config's "
            "bits gives."
        )
    parts = _ct_parts(modules, module, codes)
    sizes = {"bits": fitting[0], "group": _ct_group(parts, groups, k, module)}
    modules.put(module, "ct_pack", (n, k), parts, sizes)


def _ct_inputs(shape: RawTensor, n: int) -> int:
    """K, from the tensor ``weight_shape``."""
    if shape.encoding not in ("i64", "i32") or shape.shape != (2,):
        raise FormatError(f"Tensor '{shape.name}' must be two whole numbers.")
    rows, inputs = _whole(shape)
    if rows != n or not 0 < inputs < 1 << 31:
        raise FormatError(f"Tensor '{shape.name}' is {[rows, inputs]}, but there are {n} rows.")
    return inputs


def _put_ct_int8(modules: Modules, module: str, groups: list[Settings]) -> None:
    parts = _ct_parts(modules, module, modules.take(module, "weight"))
    parts.pop("g_idx", None)
    n, k = matrix(parts["codes"])
    group = _ct_group(parts, groups, k, module)
    modules.put(module, "ct_int8", (n, k), parts, {"group": group})


# --------------------------------------------------------------------- MLX


def mlx(modules: Modules, settings: Settings) -> None:
    """MLX: ``bits``, ``group_size`` and ``mode``, and other ones for single paths."""
    for module in modules.having("scales"):
        found = modules.see(module, "weight")
        if found is None or found.encoding != "u32":
            continue
        own = settings.values.get(module)
        used = settings.section(module) if isinstance(own, dict) else settings
        mode = used.text("mode", settings.text("mode", "affine"))
        _one_of(used, "mode", mode, ("affine", "mxfp4", "mxfp8", "nvfp4"))
        _put_mlx(modules, module, used, mode)
    for module in modules.having("weight"):
        left = modules.see(module, "weight")
        if left is not None and left.encoding == "u32":
            raise FormatError(f"The quantised module '{module}' has no tensor 'scales'.")


def _put_mlx(modules: Modules, module: str, settings: Settings, mode: str) -> None:
    codes, scales = modules.take(module, "weight"), modules.take(module, "scales")
    n, width = matrix(codes)
    parts = {"codes": codes, "scales": scales}
    if mode != "affine":
        k = width * (4 if mode == "mxfp8" else 8)
        encoding = {"mxfp4": "mxfp4_hf", "mxfp8": "fp8", "nvfp4": "nvfp4_hf"}[mode]
        sizes = {"block_rows": 1, "block_columns": 32} if mode == "mxfp8" else {}
        modules.put(module, encoding, (n, k), parts, sizes)
        return
    parts["lows"] = modules.take(module, "biases")
    bits, group = settings.integer("bits"), settings.integer("group_size", 64)
    _one_of(settings, "bits", bits, (2, 3, 4, 5, 6, 8))
    modules.put(module, "mlx", (n, width * 32 // bits), parts, {"bits": bits, "group": group})


# ------------------------------------------------------------ bitsandbytes


def bitsandbytes(modules: Modules, settings: Settings) -> None:
    """Four bits with a state in JSON beside them, eight with ``SCB``."""
    del settings
    for kind in ("nf4", "fp4"):
        state = f"weight.quant_state.bitsandbytes__{kind}"
        for module in modules.having(state):
            _put_bnb(modules, module, kind, modules.take(module, state))
    for module in modules.having("SCB"):
        codes, scales = modules.take(module, "weight"), modules.take(module, "SCB")
        _check_row_order(modules.see(module, "weight_format"), module)
        modules.drop(module, "weight_format")
        modules.put(module, "bnb_int8", matrix(codes), {"codes": codes, "scales": scales}, {})
    for module in modules.having("weight"):
        found = modules.see(module, "weight")
        if found is not None and found.encoding in ("u8", "i8"):
            raise FormatError(
                f"The quantised module '{module}' has neither a quant_state nor a tensor 'SCB'."
            )


def _check_row_order(tensor: RawTensor | None, module: str) -> None:
    if tensor is not None and any(bytes(tensor.data)):
        raise UnsupportedError(f"The module '{module}' has its rows tiled (weight_format).")


def _put_bnb(modules: Modules, module: str, kind: str, state: RawTensor) -> None:
    said = _bnb_state(state)
    packed = modules.take(module, "weight")  # may be stored under another type of the same bytes
    parts = {
        "codes": RawTensor(packed.name, "u8", (packed.data.nbytes,), packed.data),
        "absmax": modules.take(module, "weight.absmax"),
        "table": modules.take(module, "weight.quant_map"),
    }
    settings: dict[str, int | float | str | bool] = {"blocksize": said.integer("blocksize")}
    if modules.see(module, "weight.nested_absmax") is not None:
        parts["nested_absmax"] = modules.take(module, "weight.nested_absmax")
        parts["nested_table"] = modules.take(module, "weight.nested_quant_map")
        settings["nested_blocksize"] = said.integer("nested_blocksize")
        settings["nested_offset"] = said.number("nested_offset")
    shape = [int(size) for size in said.numbers("shape")]
    if len(shape) != 2 or not all(0 < size < 1 << 31 for size in shape):
        raise FormatError(f"{said.where}: the shape {shape!r:.60} is no matrix's.")
    modules.put(module, f"bnb_{kind}", (shape[0], shape[1]), parts, settings)


def _bnb_state(tensor: RawTensor) -> Settings:
    value: object = None
    if tensor.encoding == "u8" and tensor.data.nbytes <= _MOST_STATE:
        try:
            value = json.loads(bytes(tensor.data))
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise FormatError(f"Tensor '{tensor.name}' does not hold a JSON object.")
    return Settings(cast("dict[str, object]", value), f"tensor '{tensor.name}'")


# --------------------------------------------------------------- HQQ, EXL3


def hqq(modules: Modules, settings: Settings) -> None:
    """HQQ: a module's settings lie beside its codes, as tensors of one number."""
    del settings
    extras = (
        *("packing", "unpack_view_dtype", "view_as_float", "quant_scale", "quant_zero"),
        *("compute_dtype", "offload_meta", "encoded_state_dict", "stores_quant_config"),
        *("channel_wise", "optimize", "round_zero"),
    )
    for module in modules.having("W_q"):
        parts = {
            "codes": modules.take(module, "W_q"),
            "scales": modules.take(module, "scale"),
            "zeros": modules.take(module, "zero"),
        }
        for name in ("view_as_float", "quant_scale", "quant_zero"):
            if modules.see(module, name) is not None and _numbers(modules, module, name) != [0]:
                raise UnsupportedError(f"The module '{module}' has {name}, which is not read.")
        shape = _numbers(modules, module, "shape")
        sizes = {name: _numbers(modules, module, name) for name in ("nbits", "group_size", "axis")}
        if len(shape) != 2 or any(len(size) != 1 for size in sizes.values()) or min(shape) < 1:
            raise FormatError(
                f"The quantised module '{module}' does not say its shape or settings."
            )
        modules.drop(module, *extras)
        modules.put(
            module,
            "hqq",
            (shape[0], shape[1]),
            parts,
            {"bits": sizes["nbits"][0], "group": sizes["group_size"][0], "axis": sizes["axis"][0]},
        )


_WHOLE = {"i64": "q", "i32": "i", "u8": "B"}
"""Encodings of whole numbers, as ``struct`` calls them."""


def _whole(tensor: RawTensor) -> list[int]:
    """The numbers of a small tensor of one of these encodings."""
    return list(struct.unpack(f"<{tensor.elements}{_WHOLE[tensor.encoding]}", tensor.data))


def _numbers(modules: Modules, module: str, name: str) -> list[int]:
    """A few whole numbers, taken out."""
    found = modules.take(module, name)
    if found.encoding not in _WHOLE or found.elements > 8:
        raise FormatError(f"Tensor '{found.name}' is {found.encoding}; whole numbers are wanted.")
    return _whole(found)


def exl3(modules: Modules, settings: Settings) -> None:
    """EXL3: a marker beside the trellis names its codebook."""
    del settings
    for module in modules.having("trellis"):
        trellis = modules.take(module, "trellis")
        if len(trellis.shape) != 3:
            raise FormatError(f"Tensor '{trellis.name}' has the shape {list(trellis.shape)}.")
        parts = {"trellis": trellis}
        for role in ("su", "sv"):
            old = modules.see(module, f"{role}h") is None
            parts[role if old else f"{role}h"] = modules.take(module, role if old else f"{role}h")
        markers = [name for name in MULTIPLIERS if modules.see(module, name) is not None]
        for name in markers:
            _check_marker(modules.take(module, name), MULTIPLIERS[name])
        shape = (16 * trellis.shape[1], 16 * trellis.shape[0])
        codebook = markers[0] if markers else "default"
        modules.put(module, "exl3", shape, parts, {"codebook": codebook})


def _check_marker(tensor: RawTensor, standard: int) -> None:
    raw = bytes(tensor.data)
    if tensor.encoding in ("i32", "u32", "i64") and int.from_bytes(raw[:4], "little") != standard:
        raise UnsupportedError(
            f"Tensor '{tensor.name}' names another multiplier than EXL3's {standard:#x}."
        )
