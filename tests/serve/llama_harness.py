"""A server over the real engine on a tiny random model, with everything of llama-server's on."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gristmill.cli.loading import serve_as
from gristmill.engine.loader import load
from gristmill.files import open_model
from gristmill.files.describe import describe
from gristmill.options import Options
from tests.serve.conftest import start_server
from tests.serve.test_real_engine import TEMPLATE, Real
from tests.tiny import tiny_llama


@contextmanager
def tiny_server(directory: Path, trained: int = 512, **options: Any) -> Generator[Real]:
    """``options`` are the server's; the model, of ``trained`` tokens, lies in ``directory``."""
    path = directory / "tiny.gguf"
    if not path.exists():
        tiny_llama(path, encoding="f32", arch="llama", context=trained)
    chosen = Options(
        model=str(path),
        port=0,
        chat_template=options.pop("chat_template", TEMPLATE),
        kv_bytes=options.pop("kv_bytes", 64 << 20),
        **options,
    )
    checkpoint = open_model(path)
    loaded = load(checkpoint, chosen, backend="reference")
    served = serve_as(chosen, loaded, describe(checkpoint), path)
    harness = start_server(chosen, served)
    try:
        yield Real(**vars(harness), engine=loaded.engine, served=served, tokenizer=loaded.tokenizer)
    finally:
        harness.stop()
        loaded.close()
