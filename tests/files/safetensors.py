"""Safetensors files made byte by byte, sound ones and others."""

from __future__ import annotations

import json
from typing import Any


def head(entries: dict[str, Any], data: bytes, size: int | None = None) -> bytes:
    """A file with this head, its length told as ``size``."""
    text = json.dumps(entries).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def shard(**tensors: tuple[str, list[int], bytes]) -> bytes:
    """A sound file of tensors (dtype, shape, bytes)."""
    entries: dict[str, Any] = {}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    return head(entries, data)


def index(**files: str) -> bytes:
    """model.safetensors.index.json of tensors and their files."""
    return json.dumps({"metadata": {}, "weight_map": files}).encode()
