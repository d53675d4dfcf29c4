"""The wire: framing of bodies, keys, loading, disconnects, shutdown, bad JSON."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import httpx
import pytest

from gristmill.types import Request, Sink
from tests.serve.conftest import Start, attach, fake_served
from tests.serve.fake_engine import EOS, FakeEngine

CHAT = {"messages": [{"role": "user", "content": "hello"}]}


def wait_for(true: Any, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def chat(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json={**CHAT, **fields})


def raw(port: int, head: Any, parts: Any, pause: Any = 0.0) -> Any:
    """Sends packets one by one and reads the answer to its end."""
    with socket.create_connection(("127.0.0.1", port), timeout=15) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(head)
        for part in parts:
            time.sleep(pause)
            sock.sendall(part)
        data = b""
        while True:
            more = sock.recv(65536)
            if not more:
                return data
            data += more


HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\n"
)


def test_chunked_in_single_bytes(serve: Start) -> None:
    running = serve()
    body = json.dumps(CHAT).encode()
    parts = [b"1\r\n" + body[i : i + 1] + b"\r\n" for i in range(len(body))]
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    answer = raw(running.port, head, [*parts, b"0\r\n\r\n"])
    assert answer.startswith(b"HTTP/1.1 200") and b'"HELLO"' in answer
    answer = raw(running.port, head, [b"".join(parts), b"0\r\n\r\n"], pause=0.02)
    assert b'"HELLO"' in answer


def test_head_and_body_apart(serve: Start) -> None:
    running = serve()
    body = json.dumps(CHAT).encode()
    head = HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
    assert b'"HELLO"' in raw(running.port, head, [body[:9], body[9:]], pause=0.05)


def test_expect_continue(serve: Start) -> None:
    running = serve()
    body = json.dumps(CHAT).encode()
    head = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
        sock.sendall(head)
        assert sock.recv(100).startswith(b"HTTP/1.1 100")
        sock.sendall(body)
        data = b""
        while more := sock.recv(65536):
            data += more
    assert b"200 OK" in data and b'"HELLO"' in data


def test_content_type_is_not_asked_for(serve: Start) -> None:
    with serve().client() as client:
        got = client.post("/v1/chat/completions", content=json.dumps(CHAT).encode())
        assert got.status_code == 200


def test_body_bound(serve: Start) -> None:
    running = serve(max_body_bytes=1000)
    with running.client() as client:
        big = {"messages": [{"role": "user", "content": "x" * 2000}]}
        got = client.post("/v1/chat/completions", json=big)
        assert got.status_code == 413 and "1000" in got.json()["error"]["message"]
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    parts = [b"190\r\n" + b" " * 400 + b"\r\n"] * 4
    assert raw(running.port, head, parts).startswith(b"HTTP/1.1 413")
    with running.client() as client:
        assert chat(client).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"{}",
        b'{"messages": [{"role":"user","content":"a"}], "temperature": NaN}',
        b'{"messages": [{"role":"user","content":"a"}], "temperature": 1e999}',
        b'{"messages": [{"role":"user","content":"a"}], "seed": ' + b"9" * 5000 + b"}",
        b'{"messages": [{"role":"user","content":"\\ud83d"}]}',
        b'{"messages": [{"role":"user","content":"a"}], "\\udc00": 1}',
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages": ' + b"[" * 150 + b"]" * 150 + b"}",
        json.dumps(CHAT).encode("utf-16"),
    ],
)
def test_bad_json(serve: Start, body: bytes) -> None:
    with serve().client() as client:
        got = client.post("/v1/chat/completions", content=body)
        assert got.status_code == 400
        error = got.json()["error"]
        assert set(error) == {"code", "message", "type", "param"}
        assert error["code"] == 400 and error["type"] == "invalid_request_error"
        assert len(error["message"]) < 400
        for inner in ("Traceback", "sys.", "object has no"):
            assert inner not in error["message"]
        assert chat(client).status_code == 200


def test_errors_of_the_router(serve: Start) -> None:
    with serve().client() as client:
        for method, path, code in (
            ("GET", "/nowhere", 404),
            ("GET", "/v1/chat/completions", 405),
            ("DELETE", "/v1/models", 405),
        ):
            got = client.request(method, path)
            assert got.status_code == code
            assert set(got.json()["error"]) == {"code", "message", "type", "param"}


def test_unexpected_error_is_a_plain_500(serve: Start) -> None:
    running = serve()

    def broken(request: Request, sink: Sink) -> None:
        raise ZeroDivisionError("secret")

    running.engine.submit = broken
    with running.client() as client:
        got = chat(client)
        assert got.status_code == 500
        assert "secret" not in got.text and got.json()["error"]["type"] == "server_error"
        assert client.get("/health").status_code == 200


# ------------------------------------------------------------------ keys


def test_key_covers_everything_but_health(serve: Start) -> None:
    running = serve(api_keys=("first", "second"))
    routes = [
        r.path.replace("{model_id:path}", "fake")
        for r in cast(Any, running.server.config.app).routes
    ]
    assert "/v1/chat/completions" in routes and "/metrics" in routes
    with running.client() as client:
        for path in [*routes, "/nowhere", "//health", "/health/", "/v1", "/"]:
            for method in ("GET", "POST", "OPTIONS", "HEAD", "PUT"):
                got = client.request(method, path)
                if path == "/health":
                    assert got.status_code != 401
                else:
                    assert got.status_code == 401, (method, path)
        assert client.get("/health").json() == {"status": "ok"}
        for headers in (
            {"Authorization": "Bearer first"},
            {"Authorization": "bearer second"},
            {"X-Api-Key": "second"},
        ):
            assert client.get("/v1/models", headers=headers).status_code == 200
        for headers in (
            {"Authorization": "Bearer third"},
            {"Authorization": "Bearer"},
            {"Authorization": "Basic first"},
            {"Authorization": "Bearer first second"},
            {"X-Api-Key": ""},
        ):
            got = client.get("/v1/models", headers=headers)
            assert got.status_code == 401
            assert got.json()["error"]["type"] == "authentication_error"


def test_cors(serve: Start) -> None:
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    with serve(api_keys=("k",), allowed_origins=("https://a.example",)).client() as client:
        got = client.options("/v1/models", headers=preflight)
        assert got.headers["access-control-allow-origin"] == "https://a.example"
        got = client.get("/v1/models", headers={"Origin": "https://a.example"})
        assert got.status_code == 401
        assert got.headers["access-control-allow-origin"] == "https://a.example"
        got = client.get("/v1/models", headers={"Origin": "https://b.example"})
        assert "access-control-allow-origin" not in got.headers
    with serve().client() as client:
        got = client.options("/v1/models", headers=preflight)
        assert "access-control-allow-origin" not in got.headers


# --------------------------------------------------------- life of a server


def test_loading_then_ready(serve: Start) -> None:
    from gristmill.serve.state import Progress

    running = serve(load=False)
    running.state.progress = Progress("packing", 3, 4)
    with running.client() as client:
        got = client.get("/health")
        assert got.status_code == 503 and got.headers["retry-after"] == "1"
        assert got.json()["error"]["message"] == "Loading model"
        assert got.json()["progress"] == {
            "stage": "packing",
            "done": 3,
            "total": 4,
            "fraction": 0.75,
        }
        assert chat(client).status_code == 503
        assert client.get("/v1/models").status_code == 503
        assert client.get("/version").status_code == 200
        assert client.get("/metrics").status_code == 200
        attach(running.state, fake_served(running.engine))
        assert client.get("/health").status_code == 200
        assert chat(client).status_code == 200


def test_overload(serve: Start) -> None:
    running = serve(FakeEngine(max_waiting=0))
    with running.client() as client:
        got = chat(client)
        assert got.status_code == 503 and got.headers["retry-after"] == "3"
        assert got.json()["error"]["type"] == "unavailable_error"


def test_drain_lets_answers_finish(serve: Start) -> None:
    running = serve(FakeEngine(step=0.05), shutdown_timeout=10)
    with ThreadPoolExecutor(2) as pool, running.client() as client:
        pending = pool.submit(chat, client)
        wait_for(lambda: running.engine.stats().running == 1)
        running.call(lambda: running.loop.create_task(running.server.drain()))
        wait_for(lambda: running.state.draining)
        with running.client() as other:
            assert chat(other).status_code == 503
            assert other.get("/health").status_code == 503
        assert pending.result().json()["choices"][0]["message"]["content"] == "HELLO"
    running.thread.join(10)
    assert not running.thread.is_alive()


def test_drain_tells_the_rest(serve: Start) -> None:
    running = serve(shutdown_timeout=0.2)
    with ThreadPoolExecutor(2) as pool, running.client() as one, running.client() as two:
        running.engine.hold.clear()
        whole = pool.submit(chat, one)
        stream = pool.submit(chat, two, stream=True)
        wait_for(lambda: running.engine.stats().running == 2)
        running.call(lambda: running.loop.create_task(running.server.drain()))
        assert whole.result().status_code == 503
        assert stream.result().status_code == 503
        assert running.engine.stats().running == 0
    running.thread.join(10)
    assert not running.thread.is_alive()


# -------------------------------------------------------------- streaming


def events(text: str) -> Any:
    return [line[6:] for line in text.splitlines() if line.startswith("data: ")]


def test_error_in_mid_stream(serve: Start) -> Any:
    def script(request: Request, index: int) -> Any:
        return [*b"hello", *([46] * 100_000), EOS]

    running = serve(FakeEngine(step=0.002, script=script))
    with (
        running.client() as client,
        client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as got,
    ):
        lines = got.iter_lines()
        for line in lines:
            if '"content":"h' in line:
                break
        running.engine.fail("the mill broke")
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    error = json.loads(rest[-2][6:])["error"]
    assert error["code"] == 500 and error["message"] == "the mill broke"


def test_error_before_the_first_token_has_its_status(serve: Start) -> None:
    running = serve()
    running.engine.hold.clear()
    with ThreadPoolExecutor(1) as pool, running.client() as client:
        pending = pool.submit(chat, client, stream=True)
        wait_for(lambda: running.engine.stats().running == 1)
        running.engine.fail("no memory")
        assert pending.result().status_code == 500


def test_keep_alive_comments(serve: Start) -> None:
    running = serve()
    running.state.keep_alive = 0.05
    running.engine.hold.clear()
    with (
        running.client() as client,
        client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as got,
    ):
        lines = got.iter_lines()
        assert [next(lines) for _ in range(3)] == [": keep-alive", "", ": keep-alive"]
        running.engine.hold.set()
        rest = list(lines)
    assert got.headers["content-type"].startswith("text/event-stream")
    assert rest[-2:] == ["data: [DONE]", ""]


def test_continuous_usage(serve: Start) -> None:
    with serve().client() as client:
        got = chat(
            client,
            stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
        )
    chunks = [json.loads(e) for e in events(got.text)[:-1]]
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    assert counts == sorted(counts) and counts[-1] == 6
    assert chunks[-1]["choices"] == []


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_aborts(serve: Start, stream: bool) -> None:
    endless = FakeEngine(step=0.002, script=lambda request, index: [46] * 1_000_000)
    running = serve(endless)
    body = json.dumps({**CHAT, "stream": stream}).encode()
    sock = socket.create_connection(("127.0.0.1", running.port))
    sock.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    wait_for(lambda: endless.stats().running == 1)
    if stream:
        sock.recv(100)
    sock.close()
    wait_for(lambda: endless.stats().running == 0, 2.0)
    wait_for(lambda: not running.state.bridge.tickets)


def test_disconnect_in_the_middle_of_a_request(
    serve: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = serve()
    for part in (b"", b'{"messages": '):
        sock = socket.create_connection(("127.0.0.1", running.port))
        sock.sendall(HEAD + b"Content-Length: 500\r\n\r\n" + part)
        time.sleep(0.05)
        sock.close()
    sock = socket.create_connection(("127.0.0.1", running.port))
    sock.sendall(b"not http at all\r\n\r\n")
    assert b" 400 " in sock.recv(1000)
    sock.close()
    with running.client() as client:
        assert chat(client).status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_disconnect_while_waiting_for_the_first_token(serve: Start) -> None:
    running = serve()
    running.engine.hold.clear()
    body = json.dumps({**CHAT, "stream": True}).encode()
    sock = socket.create_connection(("127.0.0.1", running.port))
    sock.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    wait_for(lambda: running.engine.stats().running == 1)
    sock.close()
    wait_for(lambda: running.engine.stats().running == 0, 2.0)
    wait_for(lambda: not running.state.bridge.tickets)


@pytest.mark.slow  # the same is done over the real engine
def test_crowd_with_random_disconnects(serve: Start) -> Any:
    def script(request: Request, index: int) -> Any:
        return [*b"word " * 20, EOS]

    running = serve(FakeEngine(step=0.002, script=script))
    finished = []

    def one(number: int) -> None:
        dice = random.Random(number)
        leave = dice.random() < 0.5
        with (
            running.client() as client,
            client.stream(
                "POST",
                "/v1/chat/completions",
                json={**CHAT, "stream": dice.random() < 0.7, "n": dice.choice([1, 1, 2])},
            ) as got,
        ):
            if leave:
                for _ in got.iter_raw():
                    if dice.random() < 0.3:
                        return
            else:
                got.read()
                finished.append(got.status_code)

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(one, range(64)))
    assert finished and set(finished) == {200}
    wait_for(lambda: running.engine.stats().running == 0)
    wait_for(lambda: not running.state.bridge.tickets)


def test_same_request_id_twice(serve: Start) -> None:
    with serve().client() as client, ThreadPoolExecutor(4) as pool:
        got = [pool.submit(chat, client, request_id="same") for _ in range(4)]
        assert {each.result().json()["id"] for each in got} == {"chatcmpl-same"}


def test_idle_sleeps(serve: Start) -> None:
    """No timers: the server's thread is not woken when nothing happens."""
    others = threading.active_count()  # what earlier tests' libraries left
    running = serve()
    with running.client() as client:
        chat(client)
    time.sleep(0.3)
    before = time.process_time()
    woken = []
    loop = cast(Any, running.loop)
    real = loop._run_once
    loop._run_once = lambda: (woken.append(1), real())
    time.sleep(1.0)
    assert len(woken) <= 2
    assert time.process_time() - before < 0.2
    assert threading.active_count() - others < 20


def test_date_header(serve: Start) -> None:
    with serve().client() as client:
        headers = client.get("/health").headers
        assert len(headers.get_list("date")) == 1 and headers["date"].endswith("GMT")
        assert "server" not in headers


def test_metrics(serve: Start) -> None:
    with serve().client() as client:
        chat(client)
        chat(client, stream=True, max_tokens=2)
        page = client.get("/metrics").text
    for line in (
        'vllm:num_requests_running{engine="0",model_name="fake"} 0.0',
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="fake"} 1.0',
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="fake"} 1.0',
        'vllm:time_to_first_token_seconds_count{engine="0",model_name="fake"} 2.0',
        'vllm:inter_token_latency_seconds_count{engine="0",model_name="fake"} 6.0',
        'vllm:generation_tokens_total{engine="0",model_name="fake"} 8.0',
        "llamacpp:requests_processing 0.0",
    ):
        assert line in page.splitlines(), line


def test_http_client_closes_cleanly(serve: Start) -> None:
    """A pipelined second request on a kept connection is answered too."""
    with serve().client() as client:
        for _ in range(3):
            assert chat(client).status_code == 200
    assert isinstance(client, httpx.Client)
