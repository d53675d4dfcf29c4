"""Several models in one process: the real one, with tiny models."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from gristmill.cli.hosting import ModelOpener
from gristmill.engine.engine import Engine
from gristmill.options import NamedModel, Options
from gristmill.serve.host import Model
from gristmill.types import Delta, Request, SamplingParams
from tests.cli.test_serve_process import Child
from tests.tiny import tiny_llama

REAL = ("-m", "gristmill")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three models that answer differently."""
    folder = tmp_path_factory.mktemp("models")
    made = {name: folder / f"{name}.gguf" for name in ("one", "two", "three")}
    for seed, path in enumerate(made.values()):
        tiny_llama(path, encoding="q8_0", seed=seed)
    return made


@pytest.fixture
def child() -> Iterator[Any]:
    made: list[Child] = []

    def start(*flags: str, **more: Any) -> Child:
        made.append(Child(*flags, program=REAL, **more))
        return made[-1].ready()

    yield start
    for each in made:
        end(each)


def end(server: Child) -> None:
    server.process.kill()
    server.wait()
    for pipe in (server.process.stdout, server.process.stderr):
        assert pipe is not None
        pipe.close()


def ask(server: Child, model: str | None, **more: Any) -> httpx.Response:
    """A short greedy chat."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0,
        "max_tokens": 6,
        **more,
    }
    if model is not None:
        body["model"] = model
    return httpx.post(server.url + "/v1/chat/completions", json=body, timeout=30)


def text(got: httpx.Response) -> str:
    assert got.status_code == 200, got.text
    return got.json()["choices"][0]["message"]["content"]


def stages(server: Child) -> dict[str, str]:
    listed = server.get("/v1/models").json()["data"]
    return {each["root"]: each["status"]["value"] for each in listed}


def test_each_by_its_name(child: Callable[..., Child], files: dict[str, Path]) -> None:
    server = child(
        str(files["one"]),
        *("-m", f"second={files['two']}", "-m", str(files["three"])),
        *("--model-memory", "200M", "--keep-alive", "300ms"),
    )
    assert stages(server) == {"one": "loaded", "second": "unloaded", "three": "unloaded"}
    block = "\n".join(server.out)
    assert "second, three: loaded when a request names them" in block and "210 MB" in block
    first = text(ask(server, None))
    assert text(ask(server, "one")) == first
    with ThreadPoolExecutor(6) as pool:
        asked = ["second", "three", "second", "one", "three:latest", "second"]
        got = list(pool.map(lambda name: text(ask(server, name)), asked))
    assert got[3] == first and got[0] == got[2] == got[5] and got[1] == got[4]
    assert len({first, got[0], got[1]}) == 3, "three models, three answers"
    page = server.get("/metrics").text
    for name in ("one", "second"):
        assert (
            f'vllm:request_success_total{{engine="0",finished_reason="length",model_name="{name}"}}'
            in page
        )
    assert ask(server, "two").status_code == 404
    latest = time.monotonic() + 10
    while "loaded" in [stages(server)[name] for name in ("second", "three")]:
        assert time.monotonic() < latest
        time.sleep(0.05)
    assert stages(server)["one"] == "loaded"
    assert text(ask(server, "three")) == got[1]
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0


def test_what_cannot_be_loaded(
    child: Callable[..., Child], files: dict[str, Path], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 16)
    server = child(str(files["one"]), "-m", str(bad), "-m", str(files["two"]))
    got = ask(server, "bad")
    assert got.status_code == 500
    assert got.json()["error"]["message"].startswith("The model 'bad' could not be loaded: ")
    assert text(ask(server, "two")) and text(ask(server, "one"))
    assert server.process.poll() is None


def test_a_file_that_is_not_there(files: dict[str, Path]) -> None:
    server = Child(str(files["one"]), "-m", "/no/such/file.gguf", program=REAL)
    assert server.wait() == 1
    assert len(server.err) == 1 and "/no/such/file.gguf" in server.err[0]
    end(server)


def test_the_store(child: Callable[..., Child], tmp_path: Path) -> None:
    from gristmill.files.store import Store

    store = Store(tmp_path)
    server = child("--all-models", GRISTMILL_HOME=str(tmp_path))
    assert stages(server) == {} and "none in the store yet" in "\n".join(server.out)
    assert ask(server, None).status_code == 404
    folder = store.prepare("pypi:tiny")
    tiny_llama(folder / "tiny-7.gguf", encoding="q8_0", seed=7)
    store.record("pypi:tiny", "pypi:tiny", ["tiny-7.gguf"], "a test")
    assert stages(server) == {"tiny-7": "unloaded"}
    said = text(ask(server, "pypi:tiny"))
    assert text(ask(server, None)) == said == text(ask(server, "tiny-7"))
    assert stages(server) == {"tiny-7": "loaded"}


def finished(engine: Any, prompt: int) -> None:
    """Has the engine answer a long prompt, so that it takes memory for it."""
    done = threading.Event()

    def sink(delta: Delta) -> None:
        if delta.finish is not None:
            done.set()

    request = Request("r", tuple(i % 200 + 3 for i in range(prompt)), SamplingParams(max_tokens=4))
    engine.submit(request, sink)
    assert done.wait(60)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_an_unloaded_model_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    tiny_llama(path, d=256, ff=1024, layers=8, kv_heads=4)
    size = path.stat().st_size
    assert size > 30 << 20
    options = Options(more_models=(NamedModel("x"),))
    opener = ModelOpener(options, "cpu", lambda error: None)

    def once() -> tuple[int, weakref.ref[Engine]]:
        opened = opener.load(Model(str(path), ("large",)), 1 << 30, lambda *_: None)
        assert isinstance(opened.served.engine, Engine)
        ref = weakref.ref(opened.served.engine)
        finished(opened.served.engine, 400)
        loaded, close = resident(), opened.close
        del opened
        close()
        return loaded, ref

    once()  # what is imported and grown once is not the model's
    threads = {thread.name for thread in threading.enumerate()}
    before = resident()
    for _ in range(2):
        loaded, ref = once()
        assert loaded > before + size, "weights and cache were there"
        assert ref() is None, gc.get_referrers(ref())
    assert resident() < before + size // 4
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert {thread.name for thread in threading.enumerate()} == threads
