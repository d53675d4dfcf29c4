"""The modules of ``tests/golden/quant``: as each format's library writes and decodes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.quant import decode
from gristmill.types import Checkpoint, RawTensor

GOLDEN = Path(__file__).parents[1] / "golden" / "quant"
FAMILIES = ("fp8", "awq", "gptq", "compressed", "mlx", "bitsandbytes", "fp4", "hqq", "exl3")
MANTISSA = {"f32": 23, "f16": 10, "bf16": 7}


@dataclass(frozen=True)
class Case:
    """A module "m" in a folder with ``config``; ``want``: every ``step``-th row, decoded."""

    name: str
    config: dict[str, Any]
    tensors: dict[str, RawTensor]
    want: npt.NDArray[np.float32]
    want_type: str
    step: int
    ulps: float

    @property
    def checkpoint(self) -> Checkpoint:
        return folder(self.tensors)


def folder(tensors: dict[str, RawTensor], **metadata: object) -> Checkpoint:
    """A checkpoint with these tensors alone."""
    return Checkpoint(
        Path("folder"), "hf", metadata, tensors, close=lambda: None, release=lambda _: None
    )


def cases(family: str) -> list[Case]:
    """The cases of a family's file."""
    found: list[Case] = []
    with np.load(GOLDEN / f"{family}.npz") as data:
        for case in json.loads(data["meta"].tobytes())["cases"]:
            tensors: dict[str, RawTensor] = {}
            for key, (encoding, shape) in case["tensors"].items():
                name = f"m{key}" if key.startswith("_") else f"m.{key}"
                raw = data[f"{case['name']}|{key}"].tobytes()
                tensors[name] = RawTensor(name, encoding, tuple(shape), memoryview(raw))
            want = tensors.pop("m.want")
            config = case["config"]
            whole = config if "quantization" in config else {"quantization_config": config}
            rows = decode(want)
            args = (rows, want.encoding, case["step"], case["ulps"])
            found.append(Case(case["name"], whole, tensors, *args))
    return found


def ulps(got: npt.NDArray[np.float32], case: Case) -> float:
    """The largest difference, in units of the last place of ``want``'s type (of the largest
    value in the row where ``case.ulps`` is negative)."""
    want = case.want.astype(np.float64)
    size = np.abs(want)
    if case.ulps < 0:
        size = np.broadcast_to(size.max(axis=1, keepdims=True), size.shape)
    unit = np.exp2(np.floor(np.log2(np.maximum(size, 2.0**-14))) - MANTISSA[case.want_type])
    return float((np.abs(got.astype(np.float64) - want) / unit).max())
