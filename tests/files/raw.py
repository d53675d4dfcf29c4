"""GGUF files byte by byte: what no sane writer would write."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
Text = str | bytes


def text(value: Text) -> bytes:
    """A GGUF string."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: Text, kind: int, payload: bytes) -> bytes:
    """A metadata entry."""
    return text(name) + struct.pack("<I", kind) + payload


def array(kind: int, count: int, payload: bytes) -> bytes:
    """The payload of an array, whose count may lie."""
    return struct.pack("<IQ", kind, count) + payload


def tensor(name: Text, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    """A line of the tensor directory. ``dims`` in the file's order: fastest axis first."""
    sizes = struct.pack(f"<{len(dims)}Q", *dims)
    return text(name) + struct.pack("<I", len(dims)) + sizes + struct.pack("<IQ", kind, offset)


@dataclass
class Raw:
    """A GGUF file in pieces; counts default to the truth."""

    keys: list[bytes] = field(default_factory=list[bytes])
    tensors: list[bytes] = field(default_factory=list[bytes])
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    key_count: int | None = None
    tensor_count: int | None = None
    alignment: int = 32

    def build(self) -> bytes:
        """The file's bytes."""
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        keys = len(self.keys) if self.key_count is None else self.key_count
        head = self.magic + struct.pack("<IQQ", self.version, tensors, keys)
        head += b"".join(self.keys) + b"".join(self.tensors)
        return head + bytes(-len(head) % self.alignment) + self.data


def small() -> Raw:
    """A sound file with one of everything that the reader branches on."""
    return Raw(
        keys=[
            key("general.architecture", STRING, text("llama")),
            key("n", U32, struct.pack("<I", 7)),
            key("words", ARRAY, array(STRING, 2, text("a") + text(b"\xff\xc3"))),
            key("numbers", ARRAY, array(I16, 3, struct.pack("<3h", -1, 2, 3))),
            key("nested", ARRAY, array(ARRAY, 1, array(BOOL, 2, b"\x01\x00"))),
        ],
        tensors=[tensor("a", (32, 2), 8, 0), tensor("b", (3,), 0, 96)],
        data=bytes(range(68)) + bytes(28) + bytes(12),
    )
