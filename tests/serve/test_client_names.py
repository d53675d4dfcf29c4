"""Whose a request is, as the engine is told."""

from __future__ import annotations

from tests.serve.conftest import Start

BODY = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def test_a_client_is_its_key_or_its_address(serve: Start) -> None:
    running = serve(api_keys=("first", "second"))
    with running.client() as http:
        for key, user in (("first", ""), ("second", ""), ("first", "me")):
            body = {**BODY, "user": user} if user else BODY
            headers = {"Authorization": f"Bearer {key}"}
            assert http.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
    first, second, user = (request.client for request in running.engine.requests)
    assert first.startswith("key ") and second.startswith("key ") and first != second
    assert user == first + "\nme"
    assert "first" not in first, "a key is told to nobody"


def test_without_keys_it_is_the_address(serve: Start) -> None:
    running = serve()
    with running.client() as http:
        headers = {"Authorization": "Bearer whatever"}
        assert http.post("/v1/chat/completions", json=BODY, headers=headers).status_code == 200
    assert running.engine.requests[0].client == "127.0.0.1"
