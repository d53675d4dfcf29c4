"""Which matrices of a Hugging Face folder are quantised, and how: composite tensors.

``combine`` reads the folder's ``quantization_config`` (or what stands for it) and puts the parts
of each quantised module together under ``<module>.weight``. What is left out of the quantisation
(ignore lists, a head apart) has a plain ``weight`` and stays as it is; so the lists need not be
read. Nothing later asks what a part means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from gristmill.errors import UnsupportedError
from gristmill.models.huggingface import quantised_codes, quantised_floats
from gristmill.models.huggingface.modules import Modules
from gristmill.models.huggingface.settings import Settings
from gristmill.quant import composite_of
from gristmill.types import Checkpoint, RawTensor

_READERS = {
    "fp8": quantised_floats.fp8,
    "fbgemm_fp8": quantised_floats.fp8,
    "modelopt": quantised_floats.modelopt,
    "mxfp4": quantised_floats.mxfp4,
    "awq": quantised_codes.awq,
    "gptq": quantised_codes.gptq,
    "compressed-tensors": quantised_codes.compressed,
    "mlx": quantised_codes.mlx,
    "bitsandbytes": quantised_codes.bitsandbytes,
    "hqq": quantised_codes.hqq,
    "exl3": quantised_codes.exl3,
}
METHODS = tuple(sorted(_READERS))
"""Every ``quant_method`` that is read."""


def combine(config: Settings, checkpoint: Checkpoint) -> Mapping[str, RawTensor]:
    """The tensors by the file's names, with a composite for each quantised matrix.

    Raises UnsupportedError for a method or setting that is not read, FormatError for parts that
    are missing or do not fit together.
    """
    method, settings = announced(config, checkpoint)
    if settings is None:
        return checkpoint.tensors
    reader = _READERS.get(method)
    if reader is None:
        raise UnsupportedError(
            f"{settings.where}: quant_method {method!r:.60} is not read; read are "
            f"{', '.join(METHODS)}."
        )
    modules = Modules(checkpoint.tensors)
    reader(modules, settings)
    for tensor in modules.made:
        family = composite_of(tensor)
        assert family is not None
        family.verify(tensor)
    return modules.tensors


def announced(config: Settings, checkpoint: Checkpoint) -> tuple[str, Settings | None]:
    """The method and its settings, from each of the places where tools write them."""
    for key in ("quantization_config", "compression_config"):
        for holder in (config, config.section("text_config")):
            if holder.has(key) and holder.section(key).has("quant_method"):
                return _method(holder.section(key))
    for key in ("quantization", "quantization_config"):
        if config.has(key) and config.section(key).has("bits"):
            return "mlx", config.section(key)  # mlx writes both, with no method named
    files = {
        "hf.quantize_config": ("quantize_config.json", "gptq"),
        "hf.quantization_config": ("quantization_config.json", "exl3"),
        "hf.hf_quant_config": ("hf_quant_config.json", "modelopt"),
    }
    for key, (name, method) in files.items():
        found = checkpoint.metadata.get(key)
        if isinstance(found, Mapping):
            settings = Settings(cast("Mapping[str, object]", found), name)
            return (_method(settings)[0] if settings.has("quant_method") else method), settings
    if config.has("quantization_config"):
        return "", config.section("quantization_config")
    return "", None


def _method(settings: Settings) -> tuple[str, Settings]:
    method = settings.text("quant_method", "").lower()
    return method.replace("compressed_tensors", "compressed-tensors"), settings
