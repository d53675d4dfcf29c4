"""Each family's bits: whatever the chunks, the company, the threads, fused or node by node."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.backends.cpu.backend import CpuBackend
from gristmill.models import build

from .recipes import NAMES, golden
from .runner import Runner


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits(name: str) -> None:
    made = golden(name)
    model = build(made.hf, context=len(made.ids))
    other = made.ids[::-1]
    alone, crowd = CpuBackend(1), CpuBackend(2)
    try:
        (want,) = Runner(alone, model, made.hf, "f32").step({0: made.ids})
        eager = Runner(crowd, model, made.hf, "f32", seed=1)
        eager.program = crowd.compile(
            lambda ops: model.forward(ops, eager.weights), eager.memory, eager=True
        )
        fused = Runner(crowd, model, made.hf, "f32", seed=2)
        for runner, sizes in ((eager, (45,)), (fused, (1, 13, 5, 26))):
            got: list[np.ndarray] = []
            done = 0
            for size in sizes:
                spans = {7: other[done : done + size], 0: made.ids[done : done + size]}
                got.append(runner.step(spans)[1])
                done += size
            assert np.concatenate(got).tobytes() == want.tobytes()
        last = Runner(crowd, model, made.hf, "f32", seed=3)
        last.step({0: made.ids[:13], 7: other[:20]}, all_rows=False)
        (row,) = last.step({0: made.ids[13:]}, all_rows=False)
        assert row.tobytes() == want[-1:].tobytes()
    finally:
        alone.close()
        crowd.close()
