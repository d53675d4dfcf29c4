"""A local HTTP server that serves files, with ranges, and fails on demand.

It also speaks the routes of the Hugging Face hub that are used here:
``/api/models/<repo>`` and ``/<repo>/resolve/<revision>/<file>``, which redirects as the hub
does for large files.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Site:
    """What the server holds and how it misbehaves."""

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Path → content."""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    """Hub repository → its files."""
    cuts: list[int] = field(default_factory=list[int])
    """Per answer with a body: close the connection after so many bytes."""
    statuses: list[int] = field(default_factory=list[int])
    """Per request: answer with this status instead."""
    ranges: bool = True
    validators: bool = True
    sizes: bool = True
    etag: str = '"v1"'
    wrong_sha: bool = False
    extra_headers: dict[str, str] = field(default_factory=dict[str, str])
    requests: list[tuple[str, dict[str, str]]] = field(
        default_factory=list[tuple[str, dict[str, str]]]
    )
    url: str = ""

    def bodies(self) -> list[dict[str, str]]:
        """The headers of the requests for file contents."""
        return [h for p, h in self.requests if not p.startswith("/api/") and "/resolve/" not in p]


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        site = self.site
        site.requests.append((path, {k.lower(): v for k, v in self.headers.items()}))
        if site.statuses:
            self.send_error(site.statuses.pop(0))
        elif path.startswith("/api/models/"):
            self._info(path.removeprefix("/api/models/"))
        elif "/resolve/" in path:
            repo, _, rest = path[1:].partition("/resolve/")
            self.send_response(302)
            self.send_header("Location", f"/cdn/{repo}/{rest.partition('/')[2]}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._file(path)

    def _info(self, repo: str) -> None:
        files = self.site.repos.get(repo)
        if files is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        siblings: list[dict[str, object]] = []
        for name, data in files.items():
            sha = hashlib.sha256(b"other" if self.site.wrong_sha else data).hexdigest()
            entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": "0" * 40}
            if name.endswith((".gguf", ".safetensors")):
                entry["lfs"] = {"sha256": sha, "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        body = json.dumps({"id": repo, "sha": REVISION, "siblings": siblings}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _content(self, path: str) -> bytes | None:
        if path.startswith("/cdn/"):
            for repo, files in self.site.repos.items():
                if path.startswith(f"/cdn/{repo}/"):
                    return files.get(path.removeprefix(f"/cdn/{repo}/"))
        return self.site.files.get(path)

    def _file(self, path: str) -> None:
        site = self.site
        data = self._content(path)
        if data is None:
            self.send_error(404)
            return
        start = 0
        wanted = self.headers.get("Range")
        current = self.headers.get("If-Range") in (None, site.etag)
        if wanted and site.ranges and current:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        if site.sizes:
            self.send_header("Content-Length", str(len(data) - start))
        if site.validators:
            self.send_header("ETag", site.etag)
        for name, value in site.extra_headers.items():
            self.send_header(name, value)
        self.end_headers()
        cut = site.cuts.pop(0) if site.cuts else len(data)
        self.wfile.write(data[start : start + cut])


@contextmanager
def serving(site: Site) -> Generator[Site]:
    """Run a server for ``site`` on a free port of this machine."""
    handler = type("Handler", (_Handler,), {"site": site})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        site.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
