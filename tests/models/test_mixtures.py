"""Every mixture of experts as a Hugging Face folder against ``transformers`` in float64."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gristmill.backends.ops import Backend
from gristmill.files import open_model
from gristmill.models import Model, build, understand
from gristmill.types import Checkpoint

from .runner import KV_DTYPE, TOLERANCE, Runner, error

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from .export import random_model  # noqa: E402

TOKENS = 60
COMMON: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MANY = {"num_experts": 6, "num_experts_per_tok": 3}
FOUR = {"num_local_experts": 4, "num_experts_per_tok": 2}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}
GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.3,
    "logits_scaling": 5.0,
}
CONFIGS: dict[str, Any] = {
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **COMMON, **MANY, head_dim=8, moe_intermediate_size=12, norm_topk_prob=True
    ),
    "qwen3_moe-raw": transformers.Qwen3MoeConfig(
        **COMMON, **MANY, head_dim=8, moe_intermediate_size=7, norm_topk_prob=False
    ),
    "qwen2_moe": transformers.Qwen2MoeConfig(
        **COMMON, **MANY, moe_intermediate_size=12, shared_expert_intermediate_size=16
    ),
    "mixtral": transformers.MixtralConfig(**COMMON, **FOUR),
    "olmoe": transformers.OlmoeConfig(**COMMON, **MANY),
    "gpt_oss": transformers.GptOssConfig(
        **COMMON, **FOUR, head_dim=8, sliding_window=9, rope_parameters=YARN, swiglu_limit=1.5
    ),
    "granitemoe": transformers.GraniteMoeConfig(**COMMON, **FOUR, **GRANITE),
    "granitemoeshared": transformers.GraniteMoeSharedConfig(
        **COMMON, **FOUR, **GRANITE, shared_intermediate_size=24
    ),
}


@dataclass
class Case:
    """A folder, as it was understood, and what transformers computes of two sequences."""

    checkpoint: Checkpoint
    model: Model
    ids: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float64]


@pytest.fixture(scope="module", params=CONFIGS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Each family, saved and run by transformers once."""
    path: Path = tmp_path_factory.mktemp("model")
    random_model(deepcopy(CONFIGS[request.param])).float().save_pretrained(path)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    ids = np.random.default_rng(3).integers(0, COMMON["vocab_size"], (2, TOKENS))
    with torch.no_grad():
        logits = oracle(torch.from_numpy(ids)).logits.numpy()
    checkpoint = understand(open_model(path))
    return Case(checkpoint, build(checkpoint, context=TOKENS), ids, logits)


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
    assert error(np.concatenate(got, 1), case.logits) < TOLERANCE[backend_name]
