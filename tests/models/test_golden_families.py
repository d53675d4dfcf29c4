"""Each family as a folder and as llama.cpp's converter writes it, against transformers' logits.

Needs neither torch nor transformers: see ``recipes.py``.
"""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.backends.ops import Backend
from gristmill.models import build

from .recipes import NAMES, golden
from .runner import KV_DTYPE, Runner, error, tolerance


@pytest.mark.parametrize("sizes", [(45,), (1, 13, 5, 26)], ids=len)
@pytest.mark.parametrize("kind", ["hf", "gguf"])
@pytest.mark.parametrize("name", NAMES)
def test_logits(
    name: str, kind: str, sizes: tuple[int, ...], backend: Backend, backend_name: str
) -> None:
    made = golden(name)
    checkpoint = made.hf if kind == "hf" else made.gguf
    if checkpoint is None:
        pytest.skip("llama.cpp's converter does not know this architecture")
    assert sum(sizes) == len(made.ids)
    model = build(checkpoint, context=len(made.ids))
    runner = Runner(backend, model, checkpoint, KV_DTYPE[backend_name])
    got = [
        runner.step({0: made.ids[end - size : end]})[0]
        for size, end in zip(sizes, np.cumsum(sizes).tolist(), strict=True)
    ]
    assert error(np.concatenate(got)[made.rows], made.logits) < tolerance(name, backend_name)
