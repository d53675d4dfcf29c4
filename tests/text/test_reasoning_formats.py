"""Every format of reasoning: found from its template, split alike however the text is cut."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.text import reasoning
from gristmill.text.messages import normalize
from gristmill.text.reasoning import switch
from gristmill.text.template import ChatTemplate

TEMPLATES = {
    "Apertus-8B-Instruct": None,
    "Apriel-1.6-15b-Thinker-fixed": "apriel",
    "Bielik-11B-v3.0-Instruct": "think",
    "ByteDance-Seed-OSS": "seed_oss",
    "Cohere2MoE": "cohere",
    "CohereForAI-c4ai-command-r-plus-tool_use": None,
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere",
    "GLM-4.6": "think",
    "GLM-4.7-Flash": "think",
    "GigaChat3-10B-A1.8B": None,
    "GigaChat3.1-10B-A1.8B": None,
    "HuggingFaceTB-SmolLM3-3B": "think",
    "Kimi-K2-Instruct": None,
    "Kimi-K2-Thinking": "kimi_k2",
    "Kimi-K3": "kimi_k3",
    "LFM2-8B-A1B": None,
    "LFM2.5-8B-A1B": "think",
    "LFM2.5-Instruct": "think",
    "MiMo-VL": None,
    "MiniMax-M1": None,
    "MiniMax-M2": "think",
    "MiniMax-M3": "minimax_m3",
    "Mistral-Small-3.2-24B-Instruct-2506": None,
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "think",
    "NVIDIA-Nemotron-Nano-v2": "think",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": None,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": None,
    "Qwen-QwQ-32B": "think",
    "Qwen-Qwen2.5-7B-Instruct": None,
    "Qwen-Qwen3-0.6B": "think",
    "Qwen3-Coder": None,
    "Qwen3.5-4B": "think",
    "Reka-Edge": "think",
    "Spark2.5": "think",
    "StepFun3.5-Flash": "think",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "think",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "think",
    "deepseek-ai-DeepSeek-V3.1": "think",
    "deepseek-ai-DeepSeek-V3.2": "think",
    "deepseek-ai-DeepSeek-V4": "think",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "think",
    "fireworks-ai-llama-3-firefunction-v2": None,
    "google-gemma-2-2b-it": None,
    "google-gemma-4-31B-it": "gemma4",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": None,
    "ibm-granite-granite-4.1": None,
    "inclusionai-ling-3.0-flash": "think",
    "llama-cpp-deepseek-r1": "think",
    "llama-cpp-rwkv-world": "think",
    "meetkai-functionary-medium-v3.1": None,
    "meetkai-functionary-medium-v3.2": None,
    "meta-llama-Llama-3.1-8B-Instruct": None,
    "meta-llama-Llama-3.2-3B-Instruct": None,
    "meta-llama-Llama-3.3-70B-Instruct": None,
    "microsoft-Phi-3.5-mini-instruct": None,
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": None,
    "moonshotai-Kimi-K2": None,
    "muse-glimmer": None,
    "openai-gpt-oss-120b": "harmony",
    "openbmb-MiniCPM5-1B": "think",
    "poolside-Laguna-S-2.1": "think",
    "poolside-Laguna-XS-2.1": "think",
    "poolside-Laguna-XS.2": "think",
    "tencent-Hy3": "hy_v3",
    "unsloth-Apriel-1.5": "apriel",
    "unsloth-mistral-Devstral-Small-2507": None,
    "upstage-Solar-Open-100B": "solar_open",
}
"""llama.cpp's templates and the format that each speaks."""

HARMONY = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>"
CASES: list[tuple[str, str, str, str, str]] = [
    # format, end of the prompt, answer, its reasoning, its content
    ("seed_oss", "", "<seed:think>hm\n</seed:think>\nHi", "hm", "Hi"),
    ("seed_oss", "<seed:think>\n…\n</seed:think>\n", "Hi", "", "Hi"),
    ("mistral", "", "[THINK]hm[/THINK]Hi [THINK]", "hm", "Hi [THINK]"),
    ("mistral", "", "Hi", "", "Hi"),
    ("granite", "", "<think>hm</think><response>Hi\n</response>\n", "hm", "Hi"),
    ("granite", "", "<think>hm</think>Hi", "hm", "Hi"),
    ("granite", "", "<response>Hi</response>", "", "<response>Hi</response>"),
    ("granite", "", "Here is my thought process: hm Here is my response: Hi", "hm", "Hi"),
    ("granite", "", "Here's my thought process:\nhm\n\nHere's my response:\nHi", "hm", "Hi"),
    ("hunyuan_a13b", "", "<think>\nhm\n</think>\n<answer>\nHi\n</answer>", "hm", "Hi"),
    ("hy_v3", "<think:opensource>", "hm</think:opensource>Hi", "hm", "Hi"),
    ("gemma4", "", "<|channel>thought\nhm\n<channel|>Hi", "hm", "Hi"),
    ("gemma4", "", "<|channel>thought\n<channel|>Hi", "", "Hi"),
    ("gemma4", "<|channel>thought\n<channel|>", "Hi", "", "Hi"),
    ("cohere", "", "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Hi<|END_RESPONSE|>",
     "hm", "Hi"),
    ("cohere", "<|START_THINKING|>", "hm<|END_THINKING|><|START_TEXT|>Hi<|END_TEXT|>", "hm", "Hi"),
    ("cohere", "", "<|START_RESPONSE|>Hi<|END_RESPONSE|>", "", "Hi"),
    ("cohere", "<|START_THINKING|>", "hm<|START_ACTION|>[]", "hm", "<|START_ACTION|>[]"),
    ("apriel", "", "Here are my reasoning steps:\nhm\n[BEGIN FINAL RESPONSE]\nHi\n"
     "[END FINAL RESPONSE]\n", "hm", "Hi"),
    ("apriel", "Here are my reasoning steps:\n", "hm\n[BEGIN FINAL RESPONSE] Hi", "hm", "Hi"),
    ("minimax_m3", "<mm:think>", "hm</mm:think>Hi", "hm", "Hi"),
    ("solar_open", "", "<|think|>hm<|end|><|begin|>assistant<|content|>Hi", "hm", "Hi"),
    ("solar_open", "", "<|content|>Hi<|end|>", "", "Hi"),
    ("kimi_k2", "", "<think>hm</think>Hi", "hm", "Hi"),
    ("kimi_k2", "", "<think>hm<|tool_calls_section_begin|>x", "hm",
     "<|tool_calls_section_begin|>x"),
    ("kimi_k3", "<|open|>think<|sep|>",
     "hm<|close|>think<|sep|><|open|>response<|sep|>Hi<|close|>response<|sep|>", "hm", "Hi"),
    ("kimi_k3", "<|open|>response<|sep|>", "Hi<|close|>response<|sep|>", "", "Hi"),
    ("harmony", "<|start|>assistant", f"{HARMONY}Hi", "hm", "Hi"),
    ("harmony", "<|start|>assistant<|channel|>final<|message|>", "Hi", "", "Hi"),
    ("harmony", "<|start|>assistant", "<|channel|>analysis<|message|>one<|end|><|start|>assistant"
     "<|channel|>analysis<|message|>two<|end|><|start|>assistant<|channel|>commentary<|message|>"
     "Wait.<|end|><|start|>assistant<|channel|>final<|message|>Hi", "one\n\ntwo", "Wait.\n\nHi"),
    ("harmony", "<|start|>assistant", "Hi there <b>", "", "Hi there <b>"),
    ("harmony", "", "<|channel|>ana", "", ""),
    ("harmony", "<|start|>assistant",
     '<|channel|>analysis<|message|>hm<|end|><|start|>assistant{"a": 1}', "hm", '{"a": 1}'),
]  # fmt: skip


def run(name: str, prompt: str, pieces: list[str]) -> tuple[str, str]:
    parser = reasoning.parser(name, prompt)
    parts = [parser.push(piece) for piece in pieces] + [parser.flush()]
    return "".join(p.reasoning for p in parts), "".join(p.content for p in parts)


@pytest.mark.parametrize(("name", "prompt", "text", "thought", "content"), CASES)
def test_examples_at_every_cut(
    name: str, prompt: str, text: str, thought: str, content: str
) -> None:
    assert run(name, prompt, [text]) == (thought, content)
    assert run(name, prompt, list(text)) == (thought, content)
    for cut in range(len(text)):
        assert run(name, prompt, [text[:cut], text[cut:]]) == (thought, content), cut
        begun = run(name, prompt, [text[:cut]])
        assert run(name, prompt, list(text[:cut])) == begun, cut


@pytest.mark.parametrize("name", ["think", "mistral", "gemma4"])
def test_short_texts_at_all_cuts(name: str) -> None:
    """Exhaustive: every partition of a short answer."""
    opening, closing = reasoning.marks(name)
    text = f"{opening} a{closing}\nb"
    middle = range(1, len(text))
    whole = run(name, "", [text])
    for size in range(5):
        for cuts in itertools.combinations(middle, size):
            edges = [0, *cuts, len(text)]
            pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
            assert run(name, "", pieces) == whole


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_text_however_cut(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted({case[0] for case in CASES} | {"think"})))
    words = [*reasoning.find(name).marks, "a", " ", "\n", "<", "<|", "[", "Here", "to=x", "{}"]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=12)))
    prompt = data.draw(st.sampled_from(["", reasoning.marks(name)[0], "<|start|>assistant"]))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    whole = run(name, prompt, [text])
    assert run(name, prompt, pieces) == whole
    assert run(name, prompt, list(text)) == whole


def test_detection(llamacpp: Path) -> None:
    found = {
        path.stem: reasoning.detect(path.read_text("utf-8"))
        for path in sorted((llamacpp / "templates").glob("*.jinja"))
    }
    assert {name: found[name] for name in found if name in TEMPLATES} == {
        name: form for name, form in TEMPLATES.items() if name in found
    }


def test_names() -> None:
    for name in (
        "deepseek_r1", "deepseek-r1", "qwen3", "mistral", "granite", "openai_gptoss", "gemma4",
        "glm45", "seed_oss", "hunyuan_a13b", "kimi_k2", "minimax_m2", "ernie45", "olmo3", "step3",
    ):  # fmt: skip
        opening, closing = reasoning.marks(name)
        assert opening and closing
    with pytest.raises(UsageError, match="harmony"):
        reasoning.find("nonsense")


def test_marks_are_what_the_parser_looks_for() -> None:
    for name in reasoning.NAMES:
        opening, closing = reasoning.marks(name)
        thought, content = run(name, "", [f"{opening}hm{closing}Hi"])
        assert (thought, content) == ("hm", "Hi"), name
        assert reasoning.find(name).opened(f"prompt{opening}")
        assert not reasoning.find(name).opened(f"prompt{opening}x{closing}")


def test_legacy_has_the_reasoning_in_both_places() -> None:
    text = "<think>\nhm\n</think>\n\nHi"
    for pieces in ([text], list(text)):
        parser = reasoning.Inline(reasoning.parser("think"))
        parts = [*(parser.push(piece) for piece in pieces), parser.flush()]
        assert "".join(p.reasoning for p in parts) == "hm"
        assert "".join(p.content for p in parts) == "<think>hm</think>Hi"
    parser = reasoning.Inline(reasoning.parser("think"))
    assert parser.push("<think>never").content == "<think>never"
    assert parser.flush().content == "</think>"


# ------------------------------------------------------------------ switches

SWITCHES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("{% if enable_thinking %}", {"reasoning_effort": "none"}, {"enable_thinking": False}),
    ("{% if thinking %}", {"enable_thinking": True}, {"thinking": True}),
    ("{% if thinking_mode == 'x' %}", {"reasoning_effort": "high"}, {"thinking_mode": "enabled"}),
    ("{% if thinking_budget == 0 %}", {"reasoning_effort": "none"}, {"thinking_budget": 0}),
    ("{{ reasoning_effort }}<|channel|>", {"reasoning_effort": "none"},
     {"reasoning_effort": "low"}),
    ("{{ reasoning_effort }}<|channel|>", {"reasoning_effort": "max"},
     {"reasoning_effort": "high"}),
    ("{% if reasoning_effort not in ['high', 'low', 'no_think'] %}",
     {"reasoning_effort": "medium"}, {"reasoning_effort": "high"}),
    ("{% if reasoning_effort not in ['high', 'low', 'no_think'] %}",
     {"enable_thinking": False}, {"reasoning_effort": "no_think"}),
    ("{% if thinking_effort not in ['low', 'high', 'max'] %}",
     {"reasoning_effort": "xhigh"}, {"thinking_effort": "max"}),
    ("{% if enable_thinking %}", {"enable_thinking": True, "reasoning_effort": "none"},
     {"enable_thinking": True}),
    ("{% if enable_thinking %}", {"other": 1}, {"other": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("source", "given_", "expected"), SWITCHES)
def test_an_effort_in_the_template_s_words(
    source: str, given_: dict[str, Any], expected: dict[str, Any]
) -> None:
    made = switch.variables(source, given_)
    assert {key: made.get(key) for key in expected} == expected
    assert "enable_thinking" not in made or made["enable_thinking"] is not None


def test_a_request_s_switch_beats_the_server_s() -> None:
    asked = switch.merged({"enable_thinking": False, "a": 1}, {"reasoning_effort": "high"})
    assert asked == {"a": 1, "reasoning_effort": "high"}


UNSWITCHED = {
    "Apriel-1.6-15b-Thinker-fixed", "Kimi-K2-Thinking", "LFM2.5-8B-A1B", "LFM2.5-Instruct",
    "MiniMax-M2", "NVIDIA-Nemotron-Nano-v2", "StepFun3.5-Flash", "llama-cpp-deepseek-r1",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "mistralai-Ministral-3-14B-Reasoning-2512",
    "unsloth-Apriel-1.5",
}  # fmt: skip
"""Templates of reasoning models that have no switch at all."""


def test_every_template_with_a_switch_obeys_it(llamacpp: Path) -> None:
    chat = [{"role": "user", "content": "Hello"}]
    for path in sorted((llamacpp / "templates").glob("*.jinja")):
        source = path.read_text("utf-8")
        name = reasoning.detect(source)
        if name is None or path.stem in UNSWITCHED:
            continue
        template = ChatTemplate(source, "<s>", "</s>")
        prompts = {
            effort: template.render(
                chat, None, True, **switch.variables(source, {"reasoning_effort": effort})
            )
            for effort in switch.EFFORTS
        }
        form = reasoning.find(name)
        assert prompts["none"] != prompts["high"], path.stem
        assert not form.opened(prompts["none"]), path.stem


def test_reasoning_is_given_to_templates_under_all_its_names() -> None:
    for name in ("reasoning_content", "reasoning", "thinking"):
        (message,) = normalize([{"role": "assistant", "content": "Hi", name: "hm"}])
        assert {message[key] for key in ("reasoning_content", "reasoning", "thinking")} == {"hm"}


def test_gpt_oss_is_not_given_a_thought_and_a_text_beside_calls(llamacpp: Path) -> None:
    source = (llamacpp / "templates" / "openai-gpt-oss-120b.jinja").read_text("utf-8")
    call = {"type": "function", "id": "c1", "function": {"name": "f", "arguments": {}}}
    said = {"role": "assistant", "content": "Wait.", "reasoning": "hm", "tool_calls": [call]}
    user = {"role": "user", "content": "Hello"}
    template = ChatTemplate(source, "<s>", "</s>")
    assert "Wait." in template.render([user, said], None, True)
    shown = template.render([user, {**said, "content": None}], None, True)
    assert "<|channel|>analysis<|message|>hm<|end|>" in shown


def test_the_page_names_every_format() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reasoning.md").read_text("utf-8")
    assert [name for name in reasoning.NAMES if f"`{name}`" not in page] == []
    assert [effort for effort in switch.EFFORTS if f"`{effort}`" not in page] == []
