"""Bytes that are no sound HTTP, spoken to a real server over raw sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gristmill.options import Options
from gristmill.serve import wire
from tests.serve.conftest import Running, launch, stop
from tests.serve.fake_engine import FakeEngine

GET = b"GET /version HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"prompt": "ab"}).encode()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    running = launch(FakeEngine(), Options(port=0, max_headers=50, log_access=False))
    yield running
    stop(running)


def talk(port: int, *parts: bytes, pause: float = 0.0, seconds: float = 10.0) -> bytes:
    """Sends parts, says that nothing more comes, and reads to the end."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as sock:
        try:
            for part in parts:
                sock.sendall(part)
                time.sleep(pause)
        except OSError:
            pass  # answered and closed before it was all sent
        return read(sock)


def read(sock: socket.socket) -> bytes:
    data = b""
    try:
        while more := sock.recv(65536):
            data += more
    except (TimeoutError, ConnectionResetError):
        pass
    return data


def parted(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, body


def error_of(answer: bytes) -> tuple[int, dict[str, Any]]:
    status, headers, body = parted(answer)
    assert headers["content-type"] == "application/json"
    assert headers["connection"] == "close"
    assert int(headers["content-length"]) == len(body)
    error = json.loads(body)["error"]
    assert set(error) == {"code", "message", "type", "param"} and error["code"] == status
    assert error["type"] == "invalid_request_error"
    return status, error


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"no http at all\r\n\r\n", 400),
        (b"\r\n\r\n\x00\xff\xfe\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", 505),
        (b"GET /version HTTP/1.1\r\n\r\n", 400),
        (b"GET /version HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET /ver sion HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /\xc3\xa4 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"G\x00T / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (GET + b"a b: c\r\n\r\n", 400),
        (GET + b"a: b\x00c\r\n\r\n", 400),
        (GET + b": empty\r\n\r\n", 400),
        (GET + b"Content-Length: -1\r\n\r\n", 400),
        (GET + b"Content-Length: 1e3\r\n\r\n", 400),
        (GET + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (GET + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (POST + b"Content-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
        (POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (GET + b"a: " + b"b" * 100_000 + b"\r\n\r\n", 431),
        (GET + b"a: b\r\n" * 60 + b"\r\n", 431),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
)
def test_faults_are_told_in_json(server: Running, sent: bytes, status: int) -> None:
    got, error = error_of(talk(server.port, sent))
    assert got == status
    assert error["message"].startswith("The request is not sound: ")
    assert len(error["message"]) < 300
    assert talk(server.port, GET + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "chunk", [b"zz\r\n", b"-1\r\n", b"5\r\nab\r\n\r\n", b"f" * 100 + b"\r\n", b"1 \x00\r\na\r\n"]
)
def test_bad_chunks(server: Running, chunk: bytes) -> None:
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    for parts in ([head + chunk + b"0\r\n\r\n"], [head, chunk, b"0\r\n\r\n"]):
        status, _ = error_of(talk(server.port, *parts, pause=0.02))
        assert status == 400
    assert server.engine.stats().running == 0


def test_a_bad_chunk_after_a_good_one_is_no_request(server: Running) -> None:
    before = len(server.engine.requests)
    good = b"%x\r\n%s\r\n" % (len(BODY), BODY)
    answer = talk(server.port, POST + b"Transfer-Encoding: chunked\r\n\r\n", good, b"x\r\n")
    assert error_of(answer)[0] == 400
    assert len(server.engine.requests) == before


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (b"/version", 200),
        (b"/%76ersion", 200),
        (b"/version?a=%zz&b=%", 200),
        (b"http://other.example/version", 200),
        (b"/../../etc/passwd", 404),
        (b"/%2e%2e/%2e%2e/etc/passwd", 404),
        (b"/v1/models/../../etc/passwd", 404),
        (b"/v1/models/%2e%2e%2fsecret", 404),
        (b"/%00", 404),
        (b"/%ff%fe", 404),
        (b"/%", 404),
        (b"/%zz", 404),
        (b"//version", 404),
        (b"/" + b"a" * 30_000, 404),
        (b"/v1/models/" + b"%41" * 9_000, 404),
        (b"*", 404),
    ],
)
def test_strange_paths(server: Running, path: bytes, status: int) -> None:
    answer = talk(
        server.port, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    got, headers, body = parted(answer)
    assert got == status and headers["content-type"] == "application/json"
    if status == 404:
        assert json.loads(body)["error"]["type"] == "not_found_error"
    assert len(body) < 2000


def test_http_1_0_and_pipelining_and_head_and_options(server: Running) -> None:
    old = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
    status, headers, body = parted(talk(server.port, old))
    assert status == 200 and json.loads(body)["choices"][0]["text"] == "AB"
    assert headers.get("transfer-encoding") is None
    streamed = json.dumps({"prompt": "ab", "stream": True}).encode()
    old = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s"
    status, headers, body = parted(talk(server.port, old % (len(streamed), streamed)))
    assert status == 200 and body.endswith(b"data: [DONE]\n\n")

    posted = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    end = GET + b"Connection: close\r\n\r\n"
    answers = talk(server.port, posted + posted + end)
    assert answers.count(b"HTTP/1.1 200") == 3 and answers.count(b'"AB"') == 2

    head = b"HEAD /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    status, headers, body = parted(talk(server.port, head))
    assert status == 200 and body == b"" and int(headers["content-length"]) > 0
    options = b"OPTIONS /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    status, headers, _ = parted(talk(server.port, options))
    assert status == 405 and "get" in headers["allow"]


def test_slow_heads(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HEAD_SECONDS", 0.3)
    began = time.monotonic()
    status, error = error_of(talk(server.port, b"GET /version HTTP/1.1\r\nHo"))
    assert status == 408 and "did not come" in error["message"]
    assert talk(server.port) == b""  # nothing was asked, nothing is answered
    # A trickle does not buy time.
    answer = talk(server.port, *(b"GET /vers"[i : i + 1] for i in range(9)), pause=0.1)
    assert answer == b"" or error_of(answer)[0] == 408
    # A second head on a kept connection has its time, too.
    answer = talk(server.port, GET + b"\r\n", b"GET /v", pause=0.05)
    assert answer.startswith(b"HTTP/1.1 200") and b"HTTP/1.1 408" in answer
    assert time.monotonic() - began < 5
    # A slow answer is no slow head.
    server.engine.hold.clear()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        close = POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY)
        sock.sendall(close + BODY)
        time.sleep(0.6)
        server.engine.hold.set()
        assert b'"AB"' in read(sock)


def test_requests_smuggled_in_a_body_stay_in_it(server: Running) -> None:
    inner = GET + b"\r\n"
    posted = POST + b"Content-Length: %d\r\n\r\n" % len(inner) + inner
    answers = talk(server.port, posted + GET + b"Connection: close\r\n\r\n")
    assert answers.count(b"HTTP/1.1 ") == 2
    assert answers.startswith(b"HTTP/1.1 400") and b"not valid JSON" in answers


def test_many_idle_connections_leave_the_server_alone(server: Running) -> None:
    socks = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    assert talk(server.port, GET + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200")
    for sock in socks:
        sock.close()
