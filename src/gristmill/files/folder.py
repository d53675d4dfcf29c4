"""Model folders as Hugging Face has them: config.json, safetensors (in shards or not), texts.

Nothing of a folder is run: ``auto_map`` names Python files, which are never read, and pickles
are refused. What the JSON files say is kept as it is, under ``hf.*`` names, for the rooms above
to understand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from gristmill.errors import FormatError, SourceError, UnsupportedError
from gristmill.files.mapped import Span, closer, releaser
from gristmill.files.safetensors import Shard, open_shard
from gristmill.types import Checkpoint, RawTensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_JSON = 64 << 20
MAX_TEMPLATE = 4 << 20
MAX_SHARDS = 4096

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_TEXTS = {
    "hf.config": "config.json",
    "hf.generation_config": "generation_config.json",
    "hf.tokenizer_config": "tokenizer_config.json",
    "hf.special_tokens_map": "special_tokens_map.json",
    "hf.quantize_config": "quantize_config.json",  # AutoGPTQ and AutoAWQ of old
    "hf.quantization_config": "quantization_config.json",  # EXL3
    "hf.hf_quant_config": "hf_quant_config.json",  # ModelOpt
}


def is_folder(path: Path) -> bool:
    """Whether a directory looks like a model folder: one of GGUF files may have a config too."""
    if not (path / "config.json").is_file():
        return False
    return any(path.glob("*.safetensors")) or not any(path.glob("*.gguf"))


def open_folder(path: Path) -> Checkpoint:
    """Map all shards of a model folder, and read its JSON files; tensors under their own names.

    Raises ``SourceError`` for what is missing or cannot be read, ``FormatError`` for what is
    damaged or disagrees, ``UnsupportedError`` for a folder of pickles.
    """
    metadata = _texts(path)
    shards = [open_shard(file) for file in _shard_files(path)]
    tensors: dict[str, RawTensor] = {}
    spans: dict[str, Span] = {}
    for shard in shards:
        for name, tensor in shard.tensors.items():
            if name in tensors:
                raise FormatError(f"{path}: the tensor {name!r:.100} is in two of its files.")
            tensors[name] = tensor
            spans[name] = shard.spans[name]
    _check_index(path, shards)
    metadata["hf.file_metadata"] = {k: v for shard in shards for k, v in shard.metadata.items()}
    release = releaser(spans)
    return Checkpoint(
        path=path,
        format="hf",
        metadata=metadata,
        tensors=tensors,
        close=closer([shard.buffer for shard in shards], tensors.values()),
        release=lambda tensor: release(tensor.name),
    )


# ------------------------------------------------------------------- texts


def read_json(path: Path) -> dict[str, object]:
    """A JSON object in a file of the folder. Raises SourceError, FormatError."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise FormatError(f"{path} has more than {MAX_JSON >> 20} MiB, too much for its kind.")
        value: object = json.loads(path.read_bytes())
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not sound JSON: {str(error)[:120]}.") from error
    if not isinstance(value, dict):
        raise FormatError(f"{path} does not hold a JSON object.")
    return cast("dict[str, object]", value)


def _texts(path: Path) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for key, name in _TEXTS.items():
        if (path / name).is_file():
            metadata[key] = read_json(path / name)
    if "hf.config" not in metadata:
        raise SourceError(f"{path} has no config.json, which says what kind of model it is.")
    templates = _templates(path, metadata)
    if templates:
        metadata["hf.chat_templates"] = templates
    return metadata


def _templates(path: Path, metadata: Mapping[str, object]) -> dict[str, str]:
    """Chat templates by name ("default", "tool_use", …), from each of the places they may be.

    A file of its own wins over tokenizer_config.json, as in ``transformers``.
    """
    found: dict[str, str] = {}
    config = cast("Mapping[str, object]", metadata.get("hf.tokenizer_config") or {})
    _collect(config.get("chat_template"), found)
    if (path / "chat_template.json").is_file():
        _collect(read_json(path / "chat_template.json").get("chat_template"), found)
    if (path / "chat_template.jinja").is_file():
        found["default"] = _template(path / "chat_template.jinja")
    more = path / "additional_chat_templates"
    if more.is_dir():
        for file in sorted(more.glob("*.jinja")):
            found[file.stem] = _template(file)
    return found


def _collect(value: object, found: dict[str, str]) -> None:
    """A text, or a list of {"name", "template"}."""
    if isinstance(value, str):
        found["default"] = value
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            if isinstance(item, dict):
                entry = cast("dict[str, object]", item)
                name, template = entry.get("name"), entry.get("template")
                if isinstance(name, str) and isinstance(template, str):
                    found[name] = template


def _template(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_TEMPLATE:
            raise FormatError(f"{path} has more than {MAX_TEMPLATE >> 20} MiB.")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not UTF-8 (byte {error.start}).") from error


# ------------------------------------------------------------------ shards


def _shard_files(path: Path) -> list[Path]:
    """The safetensors files of the model: those of the index, or the one there is."""
    if (path / INDEX).is_file():
        names = sorted(set(_weight_map(path).values()))
        if len(names) > MAX_SHARDS:
            raise FormatError(f"{path / INDEX} names {len(names)} files; {MAX_SHARDS} are allowed.")
        missing = [name for name in names if not (path / name).is_file()]
        if missing:
            raise SourceError(
                f"{path} is incomplete: {missing[0]} is missing, one of {len(names)} files that "
                f"{INDEX} names."
            )
        return [path / name for name in names]
    if (path / SINGLE).is_file():
        return [path / SINGLE]
    found = sorted(file for file in path.glob("*.safetensors") if file.is_file())
    if len(found) == 1:
        return found
    if found:
        raise SourceError(
            f"{path} has {len(found)} safetensors files, but no {INDEX} says which belong together."
        )
    pickles = [file.name for pattern in _PICKLES for file in path.glob(pattern)]
    if pickles:
        raise UnsupportedError(
            f"{path} holds its weights as torch pickles ({pickles[0]}), which can run code when "
            "they are opened and are always refused; use the same model as safetensors."
        )
    raise SourceError(f"{path} has a config.json but no safetensors file.")


def _weight_map(path: Path) -> dict[str, str]:
    """Tensor name → file name, each a plain name."""
    table = read_json(path / INDEX).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise FormatError(f"{path / INDEX} has no 'weight_map' of tensors and their files.")
    found: dict[str, str] = {}
    for tensor, file in cast("dict[str, object]", table).items():
        if (
            not isinstance(file, str)
            or not file.endswith(".safetensors")
            or file != Path(file).name
            or "\0" in file
        ):
            raise FormatError(
                f"{path / INDEX}: {tensor!r:.100} lies in {file!r:.100}; a .safetensors file "
                "of the same folder is allowed."
            )
        found[tensor] = file
    return found


def _check_index(path: Path, shards: list[Shard]) -> None:
    """Every tensor of the index is in the file that the index names."""
    if not (path / INDEX).is_file():
        return
    held = {shard.path.name: shard.tensors for shard in shards}
    for tensor, file in _weight_map(path).items():
        if tensor not in held[file]:
            raise FormatError(
                f"{path / INDEX} says that {tensor!r:.100} lies in {file}, but it does not."
            )
