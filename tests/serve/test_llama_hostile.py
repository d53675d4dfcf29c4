"""Odd values in every field of llama-server's and vLLM's routes: answers or 4xx, never a 500."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.llama_harness import tiny_server
from tests.serve.test_real_engine import Real

FIELDS = [
    *("prompt", "n_predict", "max_tokens", "n_cmpl", "n", "n_keep", "n_discard", "n_indent"),
    *("n_cache_reuse", "stream", "stop", "cache_prompt", "id_slot", "return_tokens", "samplers"),
    *("post_sampling_probs", "n_probs", "logprobs", "timings_per_token", "return_progress"),
    *("response_fields", "t_max_predict_ms", "lora", "grammar", "json_schema", "logit_bias"),
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n"),
    *("presence_penalty", "frequency_penalty", "dry_multiplier", "dry_sequence_breakers"),
    *("mirostat", "mirostat_tau", "xtc_probability", "dynatemp_range", "seed", "min_keep"),
    *("ignore_eos", "sse_ping_interval", "model", "add_special_tokens", "input_prefix"),
    *("input_suffix", "input_extra", "content", "tokens", "messages", "tools", "filename"),
    *("chat_template", "chat_template_kwargs", "with_pieces", "return_token_strs", "request_id"),
]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 5, 0.5, -0.5, 1e300, -1e300, 2**31, 2**63, -(2**63), 10**400),
    *("", "a", "x" * 300, "\0", "é🙂", [], [0], [1, "a"], [[1, 2], [3]], ["a", "b"], [None], [[]]),
    *({}, {"a": 1}, {"type": "object"}, {"prompt_string": "x"}, [{"text": "a"}], {"1": -100}),
    *([[1, False]], [["a", 1.5]], [[1, 2, 3]], ["temperature", "top_k"], "kpt", "tiny", "root ::="),
    [{"role": "user", "content": "x"}],
]
PATHS = [
    *("/completion", "/infill", "/apply-template", "/v1/chat/completions/input_tokens"),
    *("/tokenize", "/detokenize", "/invocations", "/props", "/lora-adapters", "/embedding"),
    *("/slots/0?action=save", "/slots/0?action=restore", "/slots/1?action=erase", "/slots/x"),
    *("/v1/load_lora_adapter", "/reset_prefix_cache", "/score", "/v1/embeddings", "/pooling"),
    "/rerank",
]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    directory = tmp_path_factory.mktemp("hostile")
    saves = directory / "saves"
    saves.mkdir()
    with tiny_server(directory, slot_save_path=str(saves), dev_mode=True, props=True) as running:
        yield running


def test_no_value_is_a_500(real: Real) -> None:
    dice = random.Random(7)
    seen: set[int] = set()
    with real.client() as http:
        for turn in range(600):
            body: dict[str, Any] = {"prompt": "the mill", "n_predict": 3}
            for field in dice.sample(FIELDS, dice.choice([1, 1, 2, 4])):
                body[field] = dice.choice(VALUES)
            if body.get("n_predict") in (None, True) or not isinstance(body["n_predict"], int):
                body["max_tokens"] = 3
            path = PATHS[turn % len(PATHS)] if turn % 2 else "/completion"
            got = http.post(path, json=body)
            assert got.status_code < 500 or got.status_code == 501, (path, body, got.text)
            assert got.status_code < 400 or got.json()["error"]["message"]
            seen.add(got.status_code)
        assert {200, 400, 404} <= seen
        assert http.get("/health").status_code == 200
        for raw in (b"", b"[]", b"{", b"null", b"\xff", b'{"prompt": NaN}'):
            for path in PATHS:
                got = http.post(path, content=raw)
                assert got.status_code < 500 or got.status_code == 501, (path, raw, got.text)
    stats = real.engine.stats()
    assert sum(group.used for group in stats.kv) == 0 and not real.state.bridge.tickets
