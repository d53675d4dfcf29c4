"""``gristmill serve`` with a fake engine behind it: everything else is the real process."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from gristmill.cli import loading, main, ready
from gristmill.errors import EngineError, SourceError
from gristmill.serve.protocol import Served
from gristmill.types import Request, Sink
from tests.serve.conftest import fake_chat
from tests.serve.fake_engine import CONTEXT, FakeEngine, FakeTokenizer


def load_model(options: Any, backend: Any, report: Any, on_failure: Any) -> Any:
    """Does as the model's name says."""
    report("packing", 1, 4)
    time.sleep(float(os.environ.get("FAKE_LOAD_SECONDS", "0")))
    if options.model == "missing":
        raise SourceError("There is no model 'missing'.")
    if options.model == "bug":
        raise KeyError("a bug")
    step = float(os.environ.get("FAKE_STEP", "0"))
    count = int(os.environ.get("FAKE_TOKENS", str(10**6)))
    script = (lambda request, index: [46] * count) if step else None
    engine = FakeEngine(step, script) if script else FakeEngine()
    if options.model == "breaks":

        def fail() -> None:
            time.sleep(0.5)
            error = EngineError("The mill\nbroke.")
            engine.fail(str(error))
            on_failure(error)

        original = engine.submit

        def submit(request: Request, sink: Sink) -> None:
            original(request, sink)
            threading.Thread(target=fail, daemon=True).start()

        engine.submit = submit
    if options.model == "hangs":

        def hang(request: Request, sink: Sink) -> None:
            on_failure(EngineError("A step has made no progress."))
            time.sleep(60)  # the event loop hangs too

        engine.submit = hang
    facts = SimpleNamespace(
        name="Fake", architecture="llama", weights_bytes=10**8, backend="fake", threads=2
    )
    plan = SimpleNamespace(
        facts=facts,
        kv_tokens=10_000,
        kv_bytes=10**9,
        kv_dtype="f16",
        context=CONTEXT,
        max_running=8,
        notes=(),
    )
    served = Served(
        options.served_names or ("fake",),
        engine,
        FakeTokenizer(),
        fake_chat,
        CONTEXT,
        int(time.time()),
        {"encoding": "Q4_1", "size": 98_000_000},
    )
    return SimpleNamespace(plan=plan, close=engine.close), served


loading.load_model = load_model

if os.environ.get("FAKE_SLOW_START"):

    def slowly(_options: Any) -> None:
        print("starting slowly", file=sys.stderr, flush=True)
        time.sleep(float(os.environ["FAKE_SLOW_START"]))

    ready.warn_if_open = slowly
main()
