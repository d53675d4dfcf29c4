"""Each architecture against committed logits of transformers: runs everywhere, needs no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gristmill.backends.ops import Backend
from gristmill.models import build

from .golden import TINY, tiny
from .runner import KV_DTYPE, TOLERANCE, Runner, error


@pytest.mark.parametrize("sizes", [(45,), (1, 13, 5, 26), (7, *[1] * 38)], ids=len)
@pytest.mark.parametrize("name", TINY)
def test_logits(
    name: str, sizes: tuple[int, ...], tmp_path: Path, backend: Backend, backend_name: str
) -> None:
    golden = tiny(name, tmp_path)
    assert sum(sizes) == len(golden.ids)
    model = build(golden.checkpoint)
    runner = Runner(backend, model, golden.checkpoint, KV_DTYPE[backend_name])
    got = [
        runner.step({0: golden.ids[end - size : end]})[0]
        for size, end in zip(sizes, np.cumsum(sizes).tolist(), strict=True)
    ]
    assert error(np.concatenate(got), golden.logits) < TOLERANCE[backend_name]
