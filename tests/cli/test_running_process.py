"""The real process: TLS, Unix sockets, SIGHUP, a drain under load, a death in mid-stream."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gristmill.errors import ResourceError, UsageError
from gristmill.options import Tls
from gristmill.serve import listen, tls
from tests.cli.test_serve_process import CHAT, Child

trustme = pytest.importorskip("trustme", reason="certificates: pip install trustme")


def wait_for(true: Callable[[], Any], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


# ------------------------------------------------------------------ TLS


def pair(folder: Path, authority: Any, name: str = "localhost") -> tuple[str, str]:
    certificate = authority.issue_cert(name, "127.0.0.1")
    folder.mkdir(exist_ok=True)
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    key.write_bytes(certificate.private_key_pem.bytes())
    return str(cert), str(key)


def trust(authority: Any) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def serial(port: int, context: ssl.SSLContext) -> Any:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        found = secure.getpeercert()
        assert found
        return found["serialNumber"]


def test_tls_and_a_new_certificate(child: Callable[..., Child], tmp_path: Path) -> None:
    authority = trustme.CA()
    cert, key = pair(tmp_path, authority)
    server = child("--ssl-certfile", cert, "--ssl-keyfile", key)
    wait_for(lambda: server.out)
    assert any(f"https://127.0.0.1:{server.port}" in line for line in server.out)
    context = trust(authority)
    with httpx.Client(base_url=f"https://localhost:{server.port}", verify=context) as client:
        got = client.post("/v1/chat/completions", json=CHAT)
        assert got.json()["choices"][0]["message"]["content"] == "HELLO"
        stream = client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        assert stream.text.endswith("data: [DONE]\n\n")
    before = serial(server.port, context)

    pair(tmp_path, authority)
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: serial(server.port, context) != before)
    after = serial(server.port, context)
    Path(key).write_text("no key")
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: any("stays as it was" in line for line in server.err))
    assert serial(server.port, context) == after

    made = tls.context(Tls(*pair(tmp_path / "other", authority)))
    assert made.minimum_version == ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not plain.recv(1000).startswith(b"HTTP")
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0


def test_certificates_of_clients(child: Callable[..., Child], tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    cert, key = pair(tmp_path, authority)
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.cert_pem.bytes())
    server = child("--ssl-certfile", cert, "--ssl-keyfile", key, "--ssl-ca-certs", str(ca))
    wait_for(lambda: server.out)
    url = f"https://localhost:{server.port}/version"
    for issuer, good in ((authority, True), (other, False), (None, False)):
        context = trust(authority)
        if issuer is not None:
            issuer.issue_cert("client@example.org").configure_cert(context)
        if good:
            assert httpx.get(url, verify=context).status_code == 200
        else:
            with pytest.raises(httpx.TransportError):
                httpx.get(url, verify=context)


def test_pairs_that_cannot_be(child: Callable[..., Child], tmp_path: Path) -> None:
    authority = trustme.CA()
    cert, key = pair(tmp_path / "a", authority)
    _, wrong = pair(tmp_path / "b", authority)
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "rsa", "-aes256", "-passout", "pass:secret", "-in", key, "-out", str(locked)]
        if b"RSA" in Path(key).read_bytes()
        else ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", key, "-out", locked],
        check=True,
        capture_output=True,
    )
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for pair_, said in (
        (Tls(cert, wrong), "do not belong together"),
        (Tls(cert, cert), "cannot be used"),
        (Tls(str(empty), key), "cannot be used"),
        (Tls(str(tmp_path / "none"), key), "cannot be read"),
        (Tls(cert, str(locked)), "--ssl-keyfile-password"),
        (Tls(cert, str(locked), "x"), "does not open"),
        (Tls(cert, key, ca=str(empty)), "--ssl-ca-certs"),
        (Tls(cert, key, ciphers="NONE"), "no cipher"),
    ):
        with pytest.raises(UsageError, match=said):
            tls.context(pair_)
    tls.context(Tls(cert, str(locked), "secret"))
    server = child("--ssl-certfile", cert, "--ssl-keyfile", wrong)
    assert server.wait() == 2
    assert len(server.err) == 1 and "do not belong together" in server.err[0]


# --------------------------------------------------------- Unix sockets


def over(path: Path) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(path))
    return httpx.Client(transport=transport, base_url="http://localhost", timeout=20)


def test_unix_socket(child: Callable[..., Child], tmp_path: Path) -> None:
    path = tmp_path / "mill.sock"
    server = child("--host", f"unix://{path}", "--uds-mode", "600")
    wait_for(lambda: server.out)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with over(path) as client:
        got = client.post("/v1/chat/completions", json=CHAT)
        assert got.json()["choices"][0]["message"]["content"] == "HELLO"
    text = "\n".join(server.out)
    command = text[text.index("curl ") :].strip()
    shown = subprocess.run(["bash", "-c", command + " -s"], check=True, capture_output=True)
    assert json.loads(shown.stdout)["object"] == "chat.completion"

    second = child("--uds", str(path))
    assert second.wait() == 1 and "Another server" in second.err[-1]
    with over(path) as client:
        assert client.get("/health").status_code == 200

    server.process.kill()  # leaves its file behind
    server.wait()
    assert path.exists()
    third = child("--uds", str(path))
    wait_for(lambda: third.out)
    with over(path) as client:
        assert client.get("/health").status_code == 200
    third.process.send_signal(signal.SIGTERM)
    assert third.wait() == 0 and not path.exists() and third.err == []


def test_unix_socket_that_cannot_be(child: Callable[..., Child], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for path in ("file", "no/such/folder", "."):
        with pytest.raises(ResourceError):
            listen.bind_unix(str(tmp_path / path))
    server = child("--uds", str(tmp_path / "file"))
    assert server.wait() == 1 and len(server.err) == 1
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("times", [1, 2])
def test_the_socket_is_removed_however_it_ends(
    child: Callable[..., Child], tmp_path: Path, times: int
) -> None:
    path = tmp_path / "s"
    server = child("--uds", str(path), *(() if times == 2 else ("bug",)), FAKE_STEP="0.01")
    if times == 1:
        assert server.wait() == 1
    else:
        wait_for(lambda: server.out)
        with (
            over(path) as client,
            client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as got,
        ):
            lines = got.iter_lines()  # kept: a dropped iterator closes the connection
            next(lines)
            server.process.send_signal(signal.SIGINT)
            server.says("Ctrl-C again")
            server.process.send_signal(signal.SIGINT)
        assert server.wait() == 130
    assert not path.exists()


# ----------------------------------------------------------------- keys


def test_keys_are_read_again(child: Callable[..., Child], tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n")
    server = child("--api-key", "always", "--api-key-file", str(file)).ready()

    def good(key: str) -> bool:
        headers = {"Authorization": f"Bearer {key}"}
        return server.get("/v1/models", headers=headers).status_code == 200

    assert good("one") and good("always") and not good("two")
    file.write_text("two\n")
    assert not good("two")  # not before it is told
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: good("two"))
    assert good("always") and not good("one")
    for bad in ("", "\n# none\n", "tab\there\n"):
        file.write_text(bad)
        server.process.send_signal(signal.SIGHUP)
        lines = len(server.err)
        wait_for(lambda before=lines: len(server.err) > before)
        assert "stay as they were" in server.err[-1]
        assert good("two") and good("always") and not good("one")
    file.unlink()
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "cannot be read" in server.err[-1])
    assert good("two")
    assert "two" not in "".join(server.err) and "always" not in "".join(server.err)


def test_a_hangup_ends_who_has_nothing_to_read(child: Callable[..., Child]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests under nohup would hand that down
    try:
        server = child().ready()
    finally:
        signal.signal(signal.SIGHUP, before)
    server.process.send_signal(signal.SIGHUP)
    assert server.wait() == -signal.SIGHUP


# ----------------------------------------------------------------- CPUs


def test_bound_to_a_cpu(child: Callable[..., Child]) -> None:
    first = min(os.sched_getaffinity(0))
    server = child("--cpu-range", str(first)).ready()
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        assert os.sched_getaffinity(int(task.name)) == {first}
    other = child("--cpu-mask", "8" + "0" * 200)
    assert other.wait() == 2 and "cannot be used" in other.err[-1]


# ------------------------------------------------------------------ logs


def test_json_lines_alone_on_stderr(child: Callable[..., Child]) -> None:
    flags = ("--log-format", "json", "--enable-log-requests")
    server = child(*flags, quiet=()).ready()
    httpx.post(server.url + "/v1/chat/completions", json=CHAT)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    lines = [json.loads(line) for line in server.err]
    assert [line["logger"] for line in lines] == ["gristmill.requests", "gristmill.access"]
    assert lines[0]["request"] == lines[1]["id"]


def test_log_file(child: Callable[..., Child], tmp_path: Path) -> None:
    file = tmp_path / "log"
    server = child("--log-file", str(file), quiet=()).ready()
    server.get("/version")
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0 and server.err == []
    assert "GET /version 200" in file.read_text()
    server = child("--log-file", str(tmp_path / "no" / "folder"))
    assert server.wait() == 1 and "cannot be written" in server.err[-1]


# --------------------------------------------------------------- the end


def test_a_drain_under_load(child: Callable[..., Child]) -> None:
    """SIGTERM with many streams: all end whole, nobody new is let in, in bounded time."""
    server = child("--shutdown-timeout", "20", FAKE_STEP="0.01", FAKE_TOKENS="150").ready()
    endings: list[str] = []
    begun = threading.Barrier(9)

    def one() -> None:
        body = {**CHAT, "stream": True}
        url = server.url + "/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=30) as got:
            lines = got.iter_lines()
            next(lines)
            begun.wait(20)
            said = [line for line in lines if line]
            chunk = json.loads(said[-2][6:])
            endings.append(chunk["choices"][0]["finish_reason"] + said[-1])

    clients = [threading.Thread(target=one) for _ in range(8)]
    for client in clients:
        client.start()
    begun.wait(20)
    server.process.send_signal(signal.SIGTERM)
    server.says("Ctrl-C again")
    assert server.get("/health").status_code == 503
    refused = httpx.post(server.url + "/v1/chat/completions", json=CHAT)
    assert refused.status_code == 503 and refused.headers["retry-after"]
    for client in clients:
        client.join(30)
    assert server.wait() == 0
    assert endings == ["lengthdata: [DONE]"] * 8


def test_a_death_in_mid_stream(child: Callable[..., Child], tmp_path: Path) -> None:
    """kill -9: clients see a stream that breaks, not one that ends; the next start is clean."""
    server = child(FAKE_STEP="0.01").ready()
    body = {**CHAT, "stream": True}
    seen: list[str] = []
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", server.url + "/v1/chat/completions", json=body, timeout=10) as got,
    ):
        for line in got.iter_lines():
            seen.append(line)
            if len(seen) == 6:
                server.process.kill()
    assert "data: [DONE]" not in seen
    assert server.wait() == -signal.SIGKILL
    again = child(port=server.port).ready()  # the same port, at once
    assert httpx.post(again.url + "/v1/chat/completions", json=CHAT).status_code == 200
    again.process.send_signal(signal.SIGTERM)
    assert again.wait() == 0 and again.err == []


def test_help_is_in_groups_and_names_what_a_person_types() -> None:
    got = subprocess.run(
        [sys.executable, "-m", "gristmill", "serve", "--help"],
        check=True,
        capture_output=True,
        text=True,
    )
    for group in ("Model:", "Network:", "TLS:", "Engine:", "Requests:", "Logs:", "More:"):
        assert f"\n{group}\n" in got.stdout
    flags = [line.split("  ")[1] for line in got.stdout.splitlines() if line.startswith("  -")]
    assert len(flags) > 60 and not [flag for flag in flags if "_" in flag]
