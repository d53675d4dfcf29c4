"""What an operator sees of a server: ids, logs, health, metrics, prefixes, its bounds."""

from __future__ import annotations

import io
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gristmill.options import Options
from gristmill.serve import log
from gristmill.serve.protocol import Served
from gristmill.types import Request
from tests.serve.conftest import Start, attach, fake_chat
from tests.serve.fake_engine import CONTEXT, EOS, FakeEngine, FakeTokenizer

CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def lines() -> Iterator[Any]:
    """The log as ``set_up`` would write it: a function that makes one of a format."""
    made: list[logging.Handler] = []
    root = logging.getLogger()
    level = root.level

    def open_log(form: str) -> io.StringIO:
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.addFilter(logging.Filter("gristmill"))  # not the client in this process
        handler.setFormatter(log.JsonLines() if form == "json" else log.TextLines())
        root.addHandler(handler)
        root.setLevel("INFO")
        made.append(handler)
        return stream

    yield open_log
    root.setLevel(level)
    for handler in made:
        root.removeHandler(handler)


def of(stream: io.StringIO, logger: str, count: int = 1) -> list[Any]:
    """The JSON lines of a logger, once there are ``count``."""
    end = time.monotonic() + 5
    while True:
        found = [json.loads(line) for line in stream.getvalue().splitlines()]
        found = [line for line in found if line["logger"] == logger]
        if len(found) >= count:
            return found
        assert time.monotonic() < end, stream.getvalue()
        time.sleep(0.01)


# ------------------------------------------------------------------ ids


def test_a_clients_id_comes_back(serve: Start) -> None:
    with serve().client() as client:
        for path in ("/health", "/nowhere", "/v1/models"):
            got = client.get(path, headers={"X-Request-Id": "abc-1:2/3"})
            assert got.headers.get_list("x-request-id") == ["abc-1:2/3"]
        got = client.post("/v1/chat/completions", json=CHAT, headers={"X-Request-Id": "mine"})
        assert got.headers["x-request-id"] == "mine" and got.json()["id"] == "chatcmpl-mine"
        got = client.post("/v1/chat/completions", json=CHAT)
        made = got.headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{32}", made) and got.json()["id"] == f"chatcmpl-{made}"
        body = {**CHAT, "stream": True, "request_id": "own"}
        got = client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "mine"})
        assert got.headers["x-request-id"] == "mine" and '"chatcmpl-own"' in got.text


@pytest.mark.parametrize("bad", [b"", b"a b", b"x" * 129, b"\xff\xfe", b"a\tb"])
def test_an_unfit_id_is_replaced(serve: Start, bad: bytes) -> None:
    with serve().client() as client:
        got = client.get("/health", headers={b"X-Request-Id": bad})
    assert got.status_code == 200
    assert re.fullmatch("[0-9a-f]{32}", got.headers["x-request-id"])


def test_errors_have_an_id_too(serve: Start) -> None:
    running = serve(api_keys=("k",))
    with running.client() as client:
        got = client.get("/v1/models", headers={"X-Request-Id": "who"})
        assert got.status_code == 401 and got.headers["x-request-id"] == "who"


# ----------------------------------------------------------------- logs


def test_access_log(serve: Start, lines: Any) -> None:
    stream = lines("json")
    with serve().client() as client:
        client.get("/health")
        client.get("/v1/models/fake?key=SECRET", headers={"Authorization": "Bearer SECRET"})
        client.post("/v1/chat/completions?api_key=SECRET", json=CHAT)
        client.get("/no%20where%0A%0aINFO%20forged?SECRET")
        found = of(stream, "gristmill.access", 3)
    assert [(line["method"], line["route"], line["status"]) for line in found] == [
        ("GET", "/v1/models/{model_id}", 200),
        ("POST", "/v1/chat/completions", 200),
        ("GET", "/no%20where%0A%0AINFO%20forged", 404),
    ]
    for line in found:
        assert line["client"].startswith("127.0.0.1:") and line["ms"] >= 0
        assert re.fullmatch("[0-9a-f]{32}", line["id"]) and line["level"] == "info"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    assert found[1]["bytes"] > 100
    assert "SECRET" not in stream.getvalue() and "hello" not in stream.getvalue()


def test_text_lines_are_lines(serve: Start, lines: Any) -> None:
    stream = lines("text")
    with serve().client() as client:
        client.get("/no%0Awhere", headers={"X-Request-Id": 'a="b'})
        time.sleep(0.05)
    (line,) = [each for each in stream.getvalue().splitlines() if "gristmill.access" in each]
    assert line.startswith("INFO gristmill.access: GET /no%0Awhere 404 client=127.0.0.1:")
    assert line.endswith(r'id="a=\"b"')


def test_no_access_log(serve: Start, lines: Any) -> None:
    stream = lines("text")
    with serve(log_access=False).client() as client:
        client.get("/v1/models")
        time.sleep(0.05)
    assert "gristmill.access" not in stream.getvalue()


def test_request_log(serve: Start, lines: Any) -> None:
    stream = lines("json")
    running = serve(log_requests=True)
    with running.client() as client:
        client.post("/v1/chat/completions", json=CHAT, headers={"X-Request-Id": "one"})
        client.post("/v1/completions", json={"prompt": ["ab", "c"], "n": 2, "stream": True})
        first, second = of(stream, "gristmill.requests", 2)
    assert first["id"] == "chatcmpl-one" and first["request"] == "one"
    assert first["model"] == "fake" and first["finish"] == "stop" and not first["stream"]
    assert first["generated_tokens"] == 6 and first["prompt_tokens"] == 6
    assert first["cached_tokens"] == 2 and first["tokens_per_s"] == 60.0
    assert 0 <= first["ttft_ms"] <= first["ms"]
    assert second["answers"] == 4 and second["stream"] and second["prompt_tokens"] == 5
    assert "hello" not in stream.getvalue() and "HELLO" not in stream.getvalue()


def test_request_log_of_who_left(serve: Start, lines: Any) -> None:
    stream = lines("json")
    endless = FakeEngine(step=0.002, script=lambda request, index: [46] * 1_000_000)
    running = serve(endless, log_requests=True)
    body = json.dumps({"prompt": "a", "stream": True}).encode()
    sock = socket.create_connection(("127.0.0.1", running.port))
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
    sock.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    assert sock.recv(100)
    sock.close()
    (line,) = of(stream, "gristmill.requests")
    assert (
        line["finish"] == "abort" and line["tokens_per_s"] is None if "tokens_per_s" in line else 1
    )
    with running.client() as client:
        page = client.get("/metrics").text
    assert value(page, "vllm:request_success_total", finished_reason="abort") == 1


def test_prompts_only_when_asked_for(serve: Start, lines: Any) -> None:
    stream = lines("json")
    with serve(log_requests=True, log_prompts=True).client() as client:
        client.post("/v1/completions", json={"prompt": "a\nb" + "c" * 3000, "max_tokens": 1})
        (line,) = of(stream, "gristmill.requests")
    assert line["prompt"].startswith("<s>a\nbccc") and len(line["prompt"]) <= log.MAX_VALUE + 1


def test_a_traceback_is_one_json_line(lines: Any) -> None:
    stream = lines("json")
    try:
        raise ZeroDivisionError("a\nb")
    except ZeroDivisionError:
        logging.getLogger("gristmill.x").exception("failed: %s", "y")
    (line,) = of(stream, "gristmill.x")
    assert line["message"] == "failed: y" and "ZeroDivisionError" in line["traceback"]


def test_log_file(tmp_path: Any) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        for handler in before:
            root.removeHandler(handler)
        file = tmp_path / "log"
        log.set_up(Options(log_file=str(file), log_format="json"))
        logging.getLogger("gristmill.x").warning("one")
        file.rename(tmp_path / "log.1")  # as logrotate does
        logging.getLogger("gristmill.x").warning("two")
        assert json.loads(file.read_text())["message"] == "two"
        assert json.loads((tmp_path / "log.1").read_text())["message"] == "one"
    finally:
        for handler in root.handlers[:]:
            handler.close()
            root.removeHandler(handler)
        for handler in before:
            root.addHandler(handler)
        root.setLevel(level)


# --------------------------------------------------------------- health


@dataclass(frozen=True)
class Stalled:
    """The stats of an engine whose step does not end."""

    stalled: float
    running: int = 1
    waiting: int = 0


def test_health_tells_of_a_wedged_engine(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    running = serve(health_timeout=5.0)
    with running.client() as client:
        for stalled, status in ((0.0, 200), (4.9, 200), (5.5, 503), (100.0, 503), (0.0, 200)):
            monkeypatch.setattr(running.engine, "stats", lambda s=stalled: Stalled(s))
            got = client.get("/health")
            assert got.status_code == status
            if status == 503:
                assert "no progress" in got.json()["error"]["message"]
                assert got.headers["retry-after"] == "5"
                assert value(client.get("/metrics").text, "gristmill:stalled_seconds") == stalled


# -------------------------------------------------------------- metrics


def value(page: str, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"no {name} {labels}")


HISTOGRAMS = (
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_params_n",
    "vllm:request_params_max_tokens",
)


def test_metrics_parse_and_have_vllms_names_types_and_labels(serve: Start) -> None:
    with serve().client() as client:
        client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 3, "n": 2})
        client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        client.get("/nowhere")
        client.get("/health")
        got = client.get("/metrics")
    assert got.headers["content-type"].startswith("text/plain; version=0.0.4")
    page = got.text
    families = {family.name: family for family in text_string_to_metric_families(page)}
    for name in HISTOGRAMS:
        assert families[name].type == "histogram", name
        assert value(page, f"{name}_count", model_name="fake", engine="0") >= 1
        assert value(page, f"{name}_bucket", model_name="fake", engine="0", le="+Inf") >= 1
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        assert families[name].type == "gauge"
        assert value(page, name, model_name="fake", engine="0") == 0
    assert families["vllm:request_success"].type == "counter"
    success = {
        sample.labels["finished_reason"]: sample.value
        for sample in families["vllm:request_success"].samples
    }
    assert success == {"stop": 1, "length": 2, "abort": 0, "error": 0}
    assert value(page, "vllm:request_params_n_sum") == 3
    assert value(page, "vllm:request_params_max_tokens_sum") == 3
    assert value(page, "http_requests_total", handler="/v1/chat/completions", status="2xx") == 2
    assert value(page, "http_requests_total", handler="none", status="4xx", method="GET") == 1
    assert value(page, "http_request_duration_seconds_count", handler="none") == 1
    assert value(page, "http_response_size_bytes_sum", handler="/v1/chat/completions") > 100
    assert not [line for line in page.splitlines() if 'handler="/health"' in line]
    assert families["llamacpp:requests_processing"].samples[0].labels == {}
    assert value(page, "process_resident_memory_bytes") > 1e6


def test_hostile_methods_and_paths_make_no_labels(serve: Start) -> None:
    with serve().client() as client:
        for number in range(20):
            client.request(f"M{number}", f"/path{number}")
            client.get(f"/v1/models/x{number}")
        page = client.get("/metrics").text
    handlers = set(re.findall(r'handler="([^"]*)"', page))
    assert handlers == {"none", "/v1/models/{model_id}"}
    assert set(re.findall(r'method="([^"]*)"', page)) == {"other", "GET"}


# --------------------------------------------------------------- prefix


def test_root_path(serve: Start) -> None:
    running = serve(root_path="/llm", api_keys=("k",))
    with running.client(headers={"Authorization": "Bearer k"}) as client:
        for path in ("/llm/v1/models", "/v1/models"):
            assert client.get(path).json()["data"][0]["id"] == "fake"
        assert client.get("/llmv1/models").status_code == 404
        assert client.get("/llm/llm/v1/models").status_code == 404
        got = client.post("/llm/v1/messages", json={})
        assert got.status_code == 400 and got.json()["type"] == "error"  # the dialect's own form
    with running.client() as client:
        assert client.get("/llm/health").status_code == 200
        assert client.get("/llm/v1/models").status_code == 401


# --------------------------------------------------------------- bounds


def test_more_answers_than_the_server_holds(serve: Start) -> None:
    running = serve(load=False)
    served = Served(
        ("fake",), running.engine, FakeTokenizer(), fake_chat, CONTEXT, 1, most_answers=3
    )
    running.call(lambda: attach(running.state, served))
    with running.client() as client:
        for body in ({"prompt": ["a"] * 4}, {"prompt": ["a", "b"], "n": 2}):
            got = client.post("/v1/completions", json=body)
            assert got.status_code == 400
            message = got.json()["error"]["message"]
            assert (
                "4 answers" in message and "--max-num-seqs" in message and " 3 at most" in message
            )
        assert client.post("/v1/completions", json={"prompt": ["a"] * 3}).status_code == 200
    assert running.engine.stats().running == 0


def test_a_full_queue_says_when_to_come_again(serve: Start) -> None:
    engine = FakeEngine(max_waiting=1)
    running = serve(engine)
    engine.hold.clear()

    def post() -> None:
        with running.client() as client:
            client.post("/v1/completions", json={"prompt": "a"})

    first = threading.Thread(target=post)
    first.start()
    while not engine.stats().running:
        time.sleep(0.01)
    with running.client() as client:
        got = client.post("/v1/completions", json={"prompt": "b", "stream": True})
        assert got.status_code == 503 and int(got.headers["retry-after"]) >= 1
        assert got.headers["x-request-id"]
    engine.hold.set()
    first.join(10)


def test_a_body_that_trickles_is_given_up(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from gristmill.serve import limits

    monkeypatch.setattr(limits, "IDLE_SECONDS", 0.3)
    monkeypatch.setattr(limits, "TOTAL_SECONDS", 0.6)
    running = serve()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"
    for trickle in (False, True):
        with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
            sock.sendall(head + b"{")
            if trickle:
                for _ in range(12):
                    time.sleep(0.1)
                    try:
                        sock.sendall(b" ")
                    except OSError:
                        break
            assert b"HTTP/1.1 408" in sock.recv(2000)


def test_streams_of_a_script_end(serve: Start) -> None:
    def script(request: Request, index: int) -> list[int]:
        return [*b"ok", EOS]

    with serve(FakeEngine(script=script), ping_interval=float("inf")).client() as client:
        got = client.post("/v1/completions", json={"prompt": "a", "stream": True})
    assert got.text.endswith("data: [DONE]\n\n")
