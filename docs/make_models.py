"""Writes docs/models.md from the tables of architectures: ``python docs/make_models.py``.

An architecture that is served must have a line in KNOWN, and either files among the golden ones
of ``tests/golden/models/families`` or a line in ELSEWHERE that says how it is tested.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from gristmill.models import ARCHITECTURES
from gristmill.models.huggingface import MODEL_TYPES

PAGE = Path(__file__).with_name("models.md")
GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "models" / "families"

KNOWN: dict[str, str] = {
    "arcee": "Arcee AFM",
    "chatglm": "GLM-4 9B Chat, GLM-Edge",
    "cohere2": "Command R7B, Command A",
    "command-r": "Command R, Command R+, Aya",
    "ernie4_5": "ERNIE 4.5 0.3B",
    "exaone": "EXAONE 3 and 3.5",
    "exaone4": "EXAONE 4 1.2B and 32B",
    "gemma": "Gemma 1, CodeGemma",
    "gemma2": "Gemma 2",
    "gemma3": "Gemma 3 (text)",
    "gemma4": "Gemma 4 E2B, E4B, 31B (text)",
    "glm4": "GLM-4 0414, GLM-4.1V (text)",
    "gpt-oss": "gpt-oss 20B and 120B",
    "granite": "Granite 3, Granite 4 without Mamba",
    "granitehybrid": "Granite 4 H: 350M to 32B-A9B",
    "granitemoe": "Granite 3 MoE, Granite 4 MoE without Mamba",
    "hunyuan-dense": "Hunyuan 0.5B to 7B",
    "jais2": "Jais 2",
    "lfm2": "LFM2, LFM2.5 230M to 2.6B",
    "llama": "Llama 1 to 3.3, Mistral 7B, Mixtral, Ministral 8B, SmolLM2, MiniCPM 5, Falcon 3, "
    "InternLM 3, Yi, DeepSeek-R1 distills of Llama",
    "minicpm": "MiniCPM 1 and 2",
    "mistral3": "Ministral 3, Mistral Small 3.1 and later (text)",
    "nemotron": "Nemotron 4, Minitron",
    "olmo2": "OLMo 2, OLMo 3",
    "olmoe": "OLMoE",
    "phi2": "Phi-1, Phi-1.5, Phi-2",
    "phi3": "Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini",
    "qwen2": "Qwen2, Qwen2.5, DeepSeek-R1 distills of Qwen",
    "qwen2moe": "Qwen1.5 MoE, Qwen2 57B-A14B",
    "qwen2vl": "Qwen2-VL, Qwen2.5-VL (text)",
    "qwen3": "Qwen3",
    "qwen3moe": "Qwen3 30B-A3B, Qwen3 235B-A22B, Qwen3 Coder",
    "qwen35": "Qwen3.5 0.8B to 27B (text)",
    "qwen35moe": "Qwen3.5 35B-A3B to 397B-A17B (text)",
    "qwen3next": "Qwen3-Next 80B-A3B, Qwen3-Coder-Next",
    "qwen3vl": "Qwen3-VL (text)",
    "seed_oss": "Seed-OSS 36B",
    "smollm3": "SmolLM3",
    "stablelm": "StableLM 3B, StableLM 2",
    "starcoder2": "StarCoder 2",
}
"""What people call the models of an architecture."""

REAL: dict[str, str] = {
    "gemma3": "Gemma 3 270M",
    "llama": "SmolLM2 135M",
    "qwen2": "Qwen2.5 Coder 0.5B",
}
"""Real weights that are compared with llama.cpp (docs/agreement.md)."""

ELSEWHERE: dict[str, str] = {}
"""How an architecture without files in GOLDEN is tested."""

HEAD = """\
# Models

Made by `docs/make_models.py` from the tables of the code; a test says when it is out of date.

An architecture is what a GGUF file's `general.architecture` or a folder's `model_type` in
`config.json` says. Anything that was trained from one of these models runs as it does. Of models
that also see or hear, the text part is served, and the rest of their files is left alone.

What "tested" says:

- *folder*: a tiny model with random weights, saved by `transformers` in float32, gives the logits
  that `transformers` computes in float64, to within 1e-4 of the largest (5e-6 on the reference
  back end, but for gated delta nets, which `transformers` computes in float32): a prompt at once,
  in pieces, token by token, and several sequences together.
  (MiniCPM's are computed by Granite's code, whose arithmetic it is.)
- *GGUF*: the same model through llama.cpp's own converter gives the same logits, and llama.cpp
  itself the same greedy tokens (but for tiny models that it takes for something else: EXAONE 4's
  windows and Command R's norms of heads, which it looks for in 64 layers only, ERNIE's biases,
  Phi-3's window; and for windows that its converter leaves out).
- *real*: real weights agree with llama.cpp ([agreement.md](agreement.md)).

"""

TAIL = """
Context beyond what a model was trained for is scaled as its file says: linear, YaRN, LongRoPE
(whose table is chosen by the context that is served), Llama 3's factors, Hunyuan's alpha,
Gemma 4's proportional rotation.

Of a mixture of experts each expert's packed weights are read once a step, however many of the
step's tokens chose it. All experts are packed into memory; a mixture that does not fit there is not
served.

What cannot be served is refused at the start with one sentence: an unknown architecture or
RoPE scaling, settings that contradict the tensors, a missing tensor, and a tensor that the
architecture has no use for, because then the answers would be wrong.

[How to add an architecture](add-an-architecture.md).
"""


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(_rows()) + "\n" + TAIL


def _rows() -> Iterator[str]:
    types: dict[str, list[str]] = {}
    for kind, architecture in sorted(MODEL_TYPES.items()):
        types.setdefault(architecture, []).append(f"`{kind}`")
    tested = _tested()
    yield "| architecture | `model_type` | models | tested |"
    yield "|---|---|---|---|"
    for name in sorted(ARCHITECTURES):
        if name not in KNOWN:
            raise SystemExit(f"{name!r} has no line in KNOWN.")
        ways = [*tested.get(name, ()), *([f"real: {REAL[name]}"] if name in REAL else [])]
        ways += [ELSEWHERE[name]] if name in ELSEWHERE else []
        if not ways:
            raise SystemExit(f"{name!r} has neither golden files nor a line in ELSEWHERE.")
        kinds = " ".join(types.get(name, ()))
        yield f"| `{name}` | {kinds} | {KNOWN[name]} | {', '.join(ways)} |"


def _tested() -> dict[str, list[str]]:
    """By architecture: the kinds of files that golden logits are kept for."""
    ways: dict[str, list[str]] = {}
    for path in sorted(GOLDEN.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        own = ways.setdefault(MODEL_TYPES[data["config"]["model_type"]], ["folder"])
        if data["gguf"] is not None and "GGUF" not in own:
            own.append("GGUF")
        if data["gguf"] is not None:
            named = ways.setdefault(data["gguf"]["metadata"]["general.architecture"], [])
            named += [] if "GGUF" in named else ["GGUF"]
    return ways


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
