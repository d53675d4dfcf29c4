"""Every dense family as a Hugging Face folder against ``transformers`` in float64."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gristmill.backends.ops import Backend
from gristmill.files import open_model
from gristmill.models import Model, build, understand
from gristmill.types import Checkpoint

from .runner import KV_DTYPE, Runner, error, tolerance

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from .export import random_model  # noqa: E402
from .shapes import COMMON, CONFIGS, auto, disguise  # noqa: E402

TOKENS = 60


@dataclass
class Case:
    """A folder, as it was understood, and what transformers computes of two sequences."""

    name: str
    checkpoint: Checkpoint
    model: Model
    ids: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float64]


@pytest.fixture(scope="module", params=CONFIGS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Each family, saved and run by transformers once."""
    path: Path = tmp_path_factory.mktemp("model")
    random_model(deepcopy(CONFIGS[request.param])).float().save_pretrained(path)
    oracle = auto(CONFIGS[request.param]).from_pretrained(
        path, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    ids = np.random.default_rng(3).integers(0, COMMON["vocab_size"], (2, TOKENS))
    with torch.no_grad():
        logits = oracle(torch.from_numpy(ids)).logits.numpy()
    disguise(request.param, path)
    checkpoint = understand(open_model(path))
    return Case(request.param, checkpoint, build(checkpoint, context=TOKENS), ids, logits)


@pytest.mark.parametrize("sizes", [(60,), (1, 7, 33, 19), (9, *[1] * 51)], ids=len)
def test_logits(case: Case, backend: Backend, backend_name: str, sizes: tuple[int, ...]) -> None:
    """A prompt at once, in pieces, and token by token; two sequences in every step."""
    runner = Runner(backend, case.model, case.checkpoint, KV_DTYPE[backend_name])
    done, got = 0, list[npt.NDArray[np.float32]]()
    for size in sizes:
        spans = {s: case.ids[s, done : done + size].tolist() for s in (0, 1)}
        got.append(np.stack(runner.step(spans)))
        done += size
    assert done == TOKENS
    assert error(np.concatenate(got, 1), case.logits) < tolerance(case.name, backend_name)
