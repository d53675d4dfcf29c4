"""llama.cpp's collection of chat templates: the format found, and chats with tools written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.errors import RequestError
from gristmill.text import tools
from gristmill.text.chat import Chat
from gristmill.text.messages import normalize
from gristmill.text.tokenizer import Tokenizer
from gristmill.text.tools.adapt import Abilities, abilities, adapt
from tests.text.vocabularies import bpe

TOKENIZER = Tokenizer.from_gguf(bpe(["h e"]))
CASES = {
    # the file → the format of its tool calls; None where this version knows none
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "apriel",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed_oss",
    "Cohere2MoE": "cohere",
    "CohereForAI-c4ai-command-r-plus-tool_use": "command_r_plus",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere",
    "GLM-4.6": "glm45",
    "GLM-4.7-Flash": "glm47",
    "GigaChat3-10B-A1.8B": "gigachat3",
    "GigaChat3.1-10B-A1.8B": "gigachat3",
    "HuggingFaceTB-SmolLM3-3B": None,  # an edition without tools
    "Kimi-K2-Instruct": "kimi_k2",
    "Kimi-K2-Thinking": "kimi_k2",
    "Kimi-K3": "kimi_k3",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "lfm2",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "minimax_m1",
    "MiniMax-M2": "minimax_m2",
    "MiniMax-M3": "minimax_m3",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral_named",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3_coder",
    "NVIDIA-Nemotron-Nano-v2": "nemotron",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3_coder",
    "Qwen3.5-4B": "qwen3_coder",
    "Reka-Edge": "hermes",
    "Spark2.5": "glm45",
    "StepFun3.5-Flash": "qwen3_coder",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek_v3",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek_v3",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v31",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v32",
    "deepseek-ai-DeepSeek-V4": "deepseek_v4",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek_v4",
    "fireworks-ai-llama-3-firefunction-v2": "firefunction",
    "google-gemma-2-2b-it": None,
    "google-gemma-4-31B-it": "gemma4",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "glm45",
    "llama-cpp-deepseek-r1": "deepseek_v3",
    "llama-cpp-rwkv-world": None,
    "meetkai-functionary-medium-v3.1": "functionary_v3_1",
    "meetkai-functionary-medium-v3.2": None,
    "meta-llama-Llama-3.1-8B-Instruct": "llama3_json",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3_json",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3_json",
    "microsoft-Phi-3.5-mini-instruct": None,
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral_named",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "moonshotai-Kimi-K2": "kimi_k2",
    "muse-glimmer": None,
    "openai-gpt-oss-120b": "harmony",
    "openbmb-MiniCPM5-1B": "minicpm5",
    "poolside-Laguna-S-2.1": "glm45",
    "poolside-Laguna-XS-2.1": "glm45",
    "poolside-Laguna-XS.2": "glm45",
    "tencent-Hy3": "hy_v3",
    "unsloth-Apriel-1.5": "apriel",
    "unsloth-mistral-Devstral-Small-2507": "mistral_named",
    "upstage-Solar-Open-100B": "solar_open",
}
MUTATING = {"Kimi-K2-Instruct", "Kimi-K2-Thinking"}
"""These call ``list.append``, which the sandbox (as transformers' own) does not let them."""

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds_things",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "left"},
                "b": {"type": "string", "description": "right"},
            },
            "required": ["a"],
        },
    },
}


def call(number: int, value: str) -> dict[str, Any]:
    arguments = f'{{"a": {number}, "b": "{value}"}}'
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "add", "arguments": arguments},
    }


def history(calls: int) -> list[dict[str, Any]]:
    made = [call(i, f"wert_{i}") for i in range(calls)]
    results = [
        {"role": "tool", "tool_call_id": f"call_{i}", "content": f"result_{i}"}
        for i in range(calls)
    ]
    return [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": None, "tool_calls": made},
        *results,
    ]


Source = Callable[[str], str]


@pytest.fixture
def source(llamacpp: Path) -> Source:
    """A template's text by its name."""
    return lambda name: (llamacpp / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_the_format_is_found(source: Source, name: str) -> None:
    assert tools.detect(source(name)) == CASES[name]


def test_no_template_is_forgotten(llamacpp: Path) -> None:
    there = {path.stem for path in (llamacpp / "templates").glob("*.jinja")}
    assert there - set(CASES) == set()


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_calls_and_results_are_written(source: Source, name: str, calls: int) -> None:
    text = source(name)
    render = Chat(TOKENIZER, text).text
    able = abilities(render, text)
    form = tools.find(CASES[name] or "json")
    messages, given = adapt(normalize(history(calls)), [TOOL], able, form)
    if name in MUTATING:
        with pytest.raises(RequestError, match="append"):
            render(messages, given)
        return
    prompt = render(messages, given or None)
    assert "adds_things" in prompt
    places = [prompt.index(f"wert_{i}") for i in range(calls)]
    assert places == sorted(places)
    for i in range(calls):
        assert f"result_{i}" in prompt
    assert "None" not in prompt.split("question")[-1]


def test_what_templates_can_write(source: Source) -> None:
    def able(name: str) -> Abilities:
        text = source(name)
        return abilities(Chat(TOKENIZER, text).text, text)

    assert able("Qwen-Qwen3-0.6B") == Abilities()
    assert able("mistralai-Mistral-Nemo-Instruct-2407") == Abilities(nine=True)
    assert able("meta-llama-Llama-3.2-3B-Instruct") == Abilities(several=False)
    assert able("deepseek-ai-DeepSeek-V3.1") == Abilities(tools=False)
    assert able("google-gemma-2-2b-it") == Abilities(False, False, False, False, False)
