"""``/openapi.json`` is sound and whole; requests made up from it find no 500."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest

from gristmill.serve import app as application
from tests.serve.conftest import Start
from tests.serve.fake_engine import FakeEngine


def document(serve: Start, **options: Any) -> Any:
    headers = {"Authorization": "Bearer k"}
    with serve(**options).client(headers=headers) as client:
        return client.get("/openapi.json").json()


def test_every_route_is_described(serve: Start) -> None:
    made = document(serve)
    routes = [(path, "get") for path, _ in application._GET]  # pyright: ignore[reportPrivateUsage]
    routes += [(path, "post") for path, _, _ in application._POST]  # pyright: ignore
    for path, method in routes:
        shown = re.sub(r":\w+}", "}", path)
        operation = made["paths"][shown][method]
        assert operation["summary"], (path, method)
        assert set(operation["responses"]) == {"200", "default"}
        for name in re.findall(r"{(\w+)", path):
            assert name in [each["name"] for each in operation["parameters"]]
    for path, _, body in application._POST:  # pyright: ignore[reportPrivateUsage]
        if body is not None:
            content = made["paths"][re.sub(r":\w+}", "}", path)]["post"]["requestBody"]["content"]
            assert content["application/json"]["schema"]["$ref"].endswith(f"/{body.__name__}")
    ids = [each["operationId"] for ops in made["paths"].values() for each in ops.values()]
    assert len(ids) == len(set(ids))


def test_every_reference_is_there(serve: Start) -> None:
    made = document(serve)
    text = str(made)
    assert "#/$defs/" not in text
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        assert name in made["components"]["schemas"]


def test_key_and_prefix(serve: Start) -> None:
    made = document(serve, api_keys=("k",), root_path="/llm")
    assert made["servers"] == [{"url": "/llm"}]
    assert made["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
    assert "security" not in made["paths"]["/health"]["get"]


@pytest.mark.slow
def test_requests_made_up_from_it(serve: Start) -> None:
    pytest.importorskip("schemathesis", reason="made-up requests: pip install schemathesis")
    running = serve(FakeEngine())
    got = subprocess.run(
        [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            f"{running.url}/openapi.json",
            "--checks=not_a_server_error",
            "--phases=examples,coverage,fuzzing",
            f"--max-examples={os.environ.get('SCHEMATHESIS_EXAMPLES', '30')}",
            "--request-timeout=20",
            "--no-color",
            "--suppress-health-check=all",
            "--generation-deterministic",
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    # A 501 is an answer: it says that this model or this command line has no such thing.
    statuses = set(re.findall(r"\[(5\d\d)\]", got.stdout))
    assert statuses <= {"501"}, got.stdout[:20000]
    assert re.search(r"Tested: +\d\d", got.stdout), got.stdout + got.stderr
    with running.client() as client:
        assert client.get("/health").status_code == 200
