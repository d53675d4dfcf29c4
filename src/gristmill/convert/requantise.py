"""Quantising while loading: tensors of 16 or 32 bits, encoded one at a time as they are packed.

The types of ``recipes``, by the same habits, and two by row: fp8 (e4m3) and int8, which leave the
embedding and the head as they are, as vLLM does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from gristmill import quant
from gristmill.convert.recipes import Choice, Shape, recipe_of
from gristmill.convert.write import shape_of
from gristmill.errors import FormatError, UsageError
from gristmill.quant.fit import FITS, fit
from gristmill.types import Checkpoint, RawTensor

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
_PLAIN = frozenset({"f32", "f16", "bf16"})
_CHUNK = 1 << 20
"""Weights encoded at a time by one thread."""
_LARGEST = np.float32(448)
"""Of e4m3."""

ByRow = Callable[[F32], tuple[U8, F32]]


def fp8_rows(values: F32) -> tuple[U8, F32]:
    """Rows (n, K) as e4m3 codes and a scale for each row, the largest weight being 448.

    A float32 2⁻¹²⁰ as large has e4m3's exponent, subnormals and all, 20 bits further up.
    """
    scale = np.maximum(np.abs(values).max(axis=1, keepdims=True), np.float32(1e-30)) / _LARGEST
    small = np.clip(values / scale, -_LARGEST, _LARGEST) * np.float32(2.0**-120)
    bits = small.view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    rounded = (magnitude + np.uint32(0x7FFFF) + (magnitude >> 20 & np.uint32(1))) >> 20
    return (rounded | bits >> 24 & np.uint32(0x80)).astype(np.uint8), scale


def int8_rows(values: F32) -> tuple[U8, F32]:
    """Rows (n, K) as signed bytes and a scale for each row, the largest weight being 127."""
    scale = np.maximum(np.abs(values).max(axis=1, keepdims=True), np.float32(1e-30)) / 127
    return np.rint(values / scale).astype(np.int8).view(np.uint8), scale.astype(np.float32)


BY_ROW: dict[str, tuple[ByRow, str, str, str]] = {
    "fp8": (fp8_rows, "fp8", "f8_e4m3", "f32"),
    "int8": (int8_rows, "ct_int8", "i8", "f32"),
}
"""Type → how rows become it, its composite, and what its codes and scales are."""


@dataclass
class Requantiser:
    """Encodes a model's tensors; the loader asks for one after the other."""

    choice: Choice | None
    """None: by rows."""
    by_row: str
    embedding: str | None
    output: str | None
    tied: bool
    threads: int
    seconds: float = 0.0
    bytes: int = 0
    """Of the source, encoded so far."""
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def __call__(self, name: str, tensor: RawTensor) -> RawTensor:
        """The tensor called ``name`` in its new encoding; itself, if it keeps the one it has."""
        if tensor.encoding not in _PLAIN or len(tensor.shape) < 2:
            return tensor
        encoding = self._encoding(name, tensor)
        if encoding == tensor.encoding or (encoding in _PLAIN and self.choice is not None):
            return tensor
        began = time.monotonic()
        made = self._rows(tensor) if encoding in BY_ROW else self._blocks(tensor, encoding)
        self.seconds += time.monotonic() - began
        self.bytes += tensor.nbytes
        self.counts[encoding] = self.counts.get(encoding, 0) + 1
        return made

    def told(self) -> str:
        """One line for the log."""
        counts = ", ".join(f"{count} tensors as {name}" for name, count in self.counts.items())
        speed = self.bytes / 1e6 / max(self.seconds, 1e-9)
        return f"quantised while loading: {counts or 'nothing'}; {speed:.0f} MB of source a second"

    def _encoding(self, name: str, tensor: RawTensor) -> str:
        if self.choice is not None:
            return self.choice.encoding(name, tensor.shape)
        if name in ("output.weight", "token_embd.weight"):
            head = name == "output.weight" or self.tied
            return (self.output if head else self.embedding) or tensor.encoding
        # What recipes leave as it is, small or sensitive, is left here too.
        kept = Choice(recipe_of("Q8_0"), Shape(layers=1)).encoding(name, tensor.shape) != "q8_0"
        if kept or tensor.shape[-1] % 32:
            return tensor.encoding
        return self.by_row if len(tensor.shape) == 2 else "q8_0"

    def _chunks(self, tensor: RawTensor) -> tuple[RawTensor, list[tuple[int, int]]]:
        """The tensor as a matrix, and the rows of each chunk."""
        k = tensor.shape[-1]
        flat = replace(tensor, shape=(math.prod(tensor.shape[:-1]), k))
        step = max(1, _CHUNK // k)
        n = flat.shape[0]
        return flat, [(start, min(start + step, n)) for start in range(0, n, step)]

    def _each(self, work: Callable[[int, int], None], chunks: list[tuple[int, int]]) -> None:
        with ThreadPoolExecutor(self.threads) as pool:
            for done in [pool.submit(work, *chunk) for chunk in chunks]:
                done.result()

    def _blocks(self, tensor: RawTensor, encoding: str) -> RawTensor:
        flat, chunks = self._chunks(tensor)
        block, size, _ = FITS[encoding]
        out = np.empty((flat.shape[0], flat.shape[1] // block * size), np.uint8)

        def work(start: int, stop: int) -> None:
            out[start:stop] = fit(encoding, quant.decode(quant.rows(flat, start, stop)))

        try:
            self._each(work, chunks)
        except FormatError as error:
            raise FormatError(f"Tensor '{tensor.name}': {error}") from error
        return replace(tensor, encoding=encoding, data=out.reshape(-1).data)

    def _rows(self, tensor: RawTensor) -> RawTensor:
        how, composite, codes_are, scales_are = BY_ROW[self.by_row]
        flat, chunks = self._chunks(tensor)
        n, k = flat.shape
        codes, scales = np.empty((n, k), np.uint8), np.empty((n, 1), np.float32)

        def work(start: int, stop: int) -> None:
            values = quant.decode(quant.rows(flat, start, stop))
            if not np.isfinite(values).all():
                raise FormatError(
                    f"Tensor '{tensor.name}' has weights that are not finite numbers."
                )
            codes[start:stop], scales[start:stop] = how(values)

        self._each(work, chunks)
        parts = {
            "codes": RawTensor("codes", codes_are, (n, k), codes.reshape(-1).data),
            "scales": RawTensor("scales", scales_are, (n, 1), scales.reshape(-1).data.cast("B")),
        }
        settings: dict[str, int | float | str | bool] = {"block_rows": 1, "block_columns": 0}
        if self.by_row == "int8":
            settings = {"group": k}
        return replace(tensor, encoding=composite, data=memoryview(b""), parts=parts,
                       settings=settings)  # fmt: skip


TYPES = (
    *("q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "iq4_nl", "iq4_xs", "mxfp4"),
    *BY_ROW,
)
"""What can be asked for; of K-quants the recipe ending in _M."""


def requantiser(
    checkpoint: Checkpoint,
    asked: str,
    *,
    embedding: str | None = None,
    output: str | None = None,
    threads: int = 1,
) -> Requantiser | None:
    """What encodes the tensors of an understood checkpoint as ``asked``.

    None for a model that is quantised already, if most of it is what is asked for, or ``asked``
    is another's name for a method: vLLM's clients say what there is. Raises UsageError for an
    unknown type, and for a model that is quantised otherwise.
    """
    name = asked.lower()
    for other in (embedding, output):
        if other is not None and other not in FITS:
            raise UsageError(f"There is no encoding '{other}'; {', '.join(FITS)} are written.")
    found = _quantised(checkpoint)
    if found is not None and (name not in TYPES or name == found.encoding):
        return None
    if name not in TYPES:
        raise UsageError(f"There is no --quantization {asked!r}; there are {', '.join(TYPES)}.")
    if found is not None:
        raise UsageError(
            f"--quantization {name} takes weights of 16 or 32 bits, but {checkpoint.path.name} is "
            f"quantised already (tensor '{found.name}' is {found.encoding})."
        )
    shape = shape_of(checkpoint)
    choice = None
    if name not in BY_ROW:
        choice = Choice(recipe_of(name), shape, False, embedding, output)
    return Requantiser(choice, name, embedding, output, shape.tied, threads)


def _quantised(checkpoint: Checkpoint) -> RawTensor | None:
    """A matrix in the encoding that most weights are in, of those that are no plain numbers."""
    sizes: dict[str, int] = {}
    found: dict[str, RawTensor] = {}
    for tensor in checkpoint.tensors.values():
        if len(tensor.shape) > 1 and tensor.encoding not in _PLAIN:
            sizes[tensor.encoding] = sizes.get(tensor.encoding, 0) + tensor.elements
            found.setdefault(tensor.encoding, tensor)
    return found[max(sizes, key=sizes.__getitem__)] if sizes else None
