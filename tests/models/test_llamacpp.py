"""Tiny models of every family, as its converter writes them, in llama.cpp itself.

Needs a Python with ``xllamacpp``, named by ``GRISTMILL_PEER_PYTHON``, and the ``gguf`` package.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.models import build
from gristmill.quant import decode
from gristmill.types import Checkpoint

from .recipes import NAMES, golden
from .runner import Runner, error, open_backend

gguf = pytest.importorskip("gguf")
PYTHON = os.environ.get("GRISTMILL_PEER_PYTHON", "")
SCRIPT = Path(__file__).parent.parent / "golden" / "models" / "llamacpp_greedy.py"
CONTEXT = 8192
"""What the script gives llama.cpp; it decides which of LongRoPE's tables is used."""

OTHERWISE = {
    "cohere": "llama.cpp norms heads only in models of 64 layers",
    "ernie4_5": "llama.cpp reads no biases of it",
    "exaone4": "llama.cpp's slides only in models of 64 layers",
    "phi3-window": "llama.cpp leaves its window out",
    "qwen3_5": "llama.cpp has keys and values of one width",
}
"""Tiny models that llama.cpp takes for something else."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="GRISTMILL_PEER_PYTHON names no Python with xllamacpp"),
]


def write(checkpoint: Checkpoint, path: Path, vocab: int) -> None:
    """A GGUF file without a vocabulary."""
    writer = gguf.GGUFWriter(path, checkpoint.metadata["general.architecture"])
    for key, value in checkpoint.metadata.items():
        if key != "general.architecture" and not key.endswith(".vocab_size"):
            add(writer, key, value)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("none")
    for name, tensor in checkpoint.tensors.items():
        writer.add_tensor(name, np.array(decode(tensor)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer: Any, key: str, value: object) -> None:
    """A value, in the type that GGUF has for it."""
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_float32(key, value)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_tokens(name: str, tmp_path: Path) -> None:
    made = golden(name)
    if made.gguf is None:
        pytest.skip("llama.cpp's converter does not know this architecture")
    if name in OTHERWISE:
        pytest.skip(OTHERWISE[name])
    path = tmp_path / "m.gguf"
    write(made.gguf, path, made.logits.shape[1])
    ids = ",".join(str(i) for i in made.ids)
    command = [PYTHON, SCRIPT, path, ids]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    answer: dict[str, Any] = json.loads(run.stdout)
    model = build(made.gguf, CONTEXT)
    with_backend = open_backend("cpu")
    try:
        runner = Runner(with_backend, model, made.gguf, "f32")
        (got,) = runner.step({0: [*made.ids, *answer["tokens"][:-1]]})
    finally:
        with_backend.close()
    rows = got[len(made.ids) - 1 :]
    assert error(rows[0], np.array(answer["logits"])) < 2e-3
    assert rows.argmax(-1).tolist() == answer["tokens"]
