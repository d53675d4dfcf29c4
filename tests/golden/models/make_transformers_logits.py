"""Write tiny random models with the logits that ``transformers`` computes for them.

    PYTHONPATH=src python -m tests.golden.models.make_transformers_logits

Made with transformers 5.24.0 and torch 2.13.0 (float64). Each NAME.npz beside this script has
``gguf`` uint8, the bytes of a float32 GGUF file exported as llama.cpp does it
(``tests/models/export.py``); ``ids`` int32 [T]; ``logits`` float32 [T, vocab].
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.models.export import export, random_model

TOKENS = 45

COMMON: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}


def gemma3(layers: int, window: int) -> transformers.Gemma3TextConfig:
    """One key head for four query heads of 8 features."""
    values = dict(COMMON)
    values.update(head_dim=8, query_pre_attn_scalar=8, num_key_value_heads=1)
    values.update(num_hidden_layers=layers, sliding_window=window)
    return transformers.Gemma3TextConfig(**values)


CONFIGS = {
    "tiny-llama": transformers.LlamaConfig(
        **COMMON,
        attention_bias=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        head_dim=6,
    ),
    "tiny-qwen2": transformers.Qwen2Config(**COMMON),
    "tiny-qwen3": transformers.Qwen3Config(**COMMON, head_dim=10, tie_word_embeddings=True),
    "tiny-gemma3": gemma3(layers=6, window=9),
    "tiny-gemma3-window": gemma3(layers=1, window=8),
}


def main() -> None:
    """Write every file."""
    for seed, (name, config) in enumerate(CONFIGS.items()):
        model = random_model(config, seed)
        ids = np.random.default_rng(seed).integers(0, COMMON["vocab_size"], TOKENS)
        with torch.no_grad():
            logits = model(torch.from_numpy(ids)[None]).logits[0].float().numpy()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "m.gguf"
            export(model, path)
            gguf = np.frombuffer(path.read_bytes(), np.uint8)
        out = Path(__file__).with_name(f"{name}.npz")
        np.savez_compressed(out, gguf=gguf, ids=ids.astype(np.int32), logits=logits)


if __name__ == "__main__":
    main()
