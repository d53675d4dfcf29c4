"""Makes ``tokens.json``: ids that llama.cpp gives, and the part of the vocabulary they need.

    pip install xllamacpp gguf      (made with xllamacpp 2026.10.11549)
    python make_tokens.py FOLDER    (a folder with the model files named below)

For each model: texts with llama.cpp's ids (plain, and with special tokens parsed), and a slice
of its vocabulary that is enough to encode them, so that the test needs no model file. A merge
is in the slice if any text contains what it makes. No text has ``</s>``: llama.cpp reads it as
a control token in every vocabulary, also where (Qwen) it is a word like any other.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import xllamacpp  # pyright: ignore[reportMissingImports]  # not in .venv: see above

MODELS = (
    "smollm2-135m-q4_1.gguf",
    "qwen2.5-coder-0.5b-q4_k_m.gguf",
    "gemma3-270m-q4_k_m.gguf",
)
TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces   three\n\n\nlines\r\nend \n \t\ttabs",
    "It's we'll I'VE they'd he'S 'tis 1 12 123 1234567890 3.14159",
    "El niño comió piñas en la montaña; ¿cuántas? ¡Muchísimas!",
    "机器学习是人工智能的一个分支。我们今天去公园吧！",
    "Эй, мир! مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก",
    "😀 👩‍👩‍👧‍👦 🇨🇭 e\u0301 \u200b zero",
    "def f(x: int) -> str:\n    return f'{x!r}' if x > 0 else None  # done\n",
    "<|im_start|>user\nHi<|im_end|>\n<start_of_turn>model\n<|endoftext|><eos>",
    "a<|im_end|> b <|im_end|>c<end_of_turn>  d",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \u2581under \u00a0nbsp \ufffd \U00100001",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!!!!!!!!!!======----____",
]


def ask(address: str, text: str, parse: bool) -> list[int]:
    body = json.dumps({"content": text, "add_special": False, "parse_special": parse}).encode()
    request = urllib.request.Request(
        address + "/tokenize", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["tokens"]


def vocabulary(path: Path) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, field in gguf.GGUFReader(path).fields.items():
        if not key.startswith("tokenizer.ggml."):
            continue
        if field.types[-1] == gguf.GGUFValueType.STRING and len(field.types) > 1:
            out[key] = [bytes(field.parts[i]).decode() for i in field.data]
        elif len(field.types) > 1:
            out[key] = [field.parts[i][0].item() for i in field.data]
        else:
            out[key] = field.contents()
    return out


def sliced(full: dict[str, Any], used: set[int], spelled: list[str]) -> dict[str, Any]:
    """The tokens and merges that these texts can touch; other places in the list are left out."""
    everything = "\0".join(spelled)
    tokens, types = full["tokenizer.ggml.tokens"], full["tokenizer.ggml.token_type"]
    scores = full.get("tokenizer.ggml.scores")
    keep = [
        i
        for i, text in enumerate(tokens)
        if i in used or text in everything or (types[i] != 1 and "unused" not in text)
    ]
    out = {k: v for k, v in full.items() if not isinstance(v, list)}
    out["size"] = len(tokens)
    out["tokens"] = {i: [tokens[i], types[i], scores[i] if scores else 0] for i in keep}
    merges = full.get("tokenizer.ggml.merges", [])
    out["merges"] = [m for m in merges if m.replace(" ", "") in everything]
    return out


def spell(text: str, model: str) -> str:
    """How the vocabulary writes a text."""
    if model == "llama":
        return text.replace(" ", "\u2581")
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(256, 512))
    table = {b: chr(b) if b in set(shown) else chr(next(hidden)) for b in range(256)}
    return "".join(table[b] for b in text.encode())


def main() -> None:
    out: dict[str, Any] = {
        "made_with": f"xllamacpp {version('xllamacpp')}",
        "models": {},
    }
    for name in MODELS:
        path = Path(sys.argv[1]) / name
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel = 256, 1
        server = xllamacpp.Server(params)
        cases: list[list[Any]] = [
            [text, ask(server.listening_address, text, False),
             ask(server.listening_address, text, True)]
            for text in TEXTS
        ]  # fmt: skip
        full = vocabulary(path)
        used = {i for case in cases for ids in case[1:] for i in ids}
        spelled = [spell(t, full["tokenizer.ggml.model"]) for t in TEXTS]
        out["models"][name] = {
            "cases": cases,
            "vocabulary": sliced(full, used, spelled),
        }
        del server
    text = json.dumps(out, ensure_ascii=True, separators=(",", ":"))
    Path(__file__).with_name("tokens.json").write_text(text + "\n")


main()
