"""``<think>reasoning</think>answer``: DeepSeek R1, Qwen 3, SmolLM 3, GLM and many more."""

from __future__ import annotations

from gristmill.text.reasoning.tags import Tags, tagged


def _detect(source: str) -> bool:
    return "</think>" in source or "<think>" in source


FORMAT = tagged(
    "think",
    _detect,
    Tags(thoughts=(("<think>", ("</think>",)),)),
    aliases=(
        "deepseek_r1", "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "qwen3",
        "glm45", "glm47", "smollm3", "minicpm5", "minimax_m2", "minimax_m2_append_think",
        "nemotron_v3", "nano_v3", "poolside_v1", "olmo3", "step3", "step3p5", "holo2",
        "exaone4", "phi4", "lfm2", "mimo",
    ),
)  # fmt: skip
