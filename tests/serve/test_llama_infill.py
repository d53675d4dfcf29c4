"""``/infill``: which ids the model is given, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gristmill.errors import RequestError
from gristmill.serve.llama.errors import NotOfferedError
from gristmill.serve.llama.infill import InfillFields, extras, prompt_ids
from gristmill.serve.protocol import Served
from gristmill.text.infill import Infill
from tests.serve.conftest import fake_served
from tests.serve.fake_engine import CONTEXT, FakeEngine, FakeTokenizer

PRE, SUF, MID = 258, 259, 260


class Letters(FakeTokenizer):
    """Bytes, and three of the specials for the parts."""

    bos = 256
    add_bos = True

    def token_id(self, text: str) -> int | None:
        return None


def served(engine: FakeEngine) -> Served:
    return replace(fake_served(engine), infill=Infill(Letters(), PRE, SUF, MID))


def ids(given: Served, limit: int = 0, extra: Any = None, **fields: str) -> list[int]:
    body = InfillFields(**{"input_prefix": "", "input_suffix": "", **fields})
    return prompt_ids(body, extras(extra), given, limit)


def text(part: Sequence[int]) -> str:
    return bytes(part).decode()


def test_the_parts_and_their_order() -> None:
    engine = FakeEngine()
    try:
        given = served(engine)
        got = ids(given, input_prefix="def f(", input_suffix="):", prompt="a, ")
        assert got == [256, PRE, *b"def f(a, ", SUF, *b"):", MID]
        got = ids(given, extra=[{"filename": "a.py", "text": "import b"}], input_prefix="x")
        assert text(got[: got.index(256)]).endswith("import b")
        # What is too long is cut: the prefix at its start, the suffix at its end.
        got = ids(given, input_prefix="p" * 9999 + "q", input_suffix="s" + "t" * 9999)
        before = got[got.index(PRE) + 1 : got.index(SUF)]
        after = got[got.index(SUF) + 1 : got.index(MID)]
        assert text(before).endswith("q") and text(after).startswith("s")
        assert len(before) == 3 * (len(before) + 2 + len(after)) // 4
        files = [{"filename": "a", "text": "1" * 9000}, {"text": "2" * 100}]
        for limit in (0, 100, 2000):
            got = ids(given, limit, files, input_prefix="p" * 9999, input_suffix="s" * 9999)
            assert len(got) + limit < CONTEXT
    finally:
        engine.close()


@pytest.mark.parametrize("bad", ["x", [1], [{}], [{"text": 1}], [{"text": "a", "filename": 1}]])
def test_extras_that_are_none(bad: Any) -> None:
    with pytest.raises(RequestError):
        extras(bad)
    assert extras([{"text": "a"}]) == [("tmp", "a")] and extras(None) == []


def test_a_model_without_the_tokens(serve: Any) -> None:
    running = serve()
    with pytest.raises(NotOfferedError):
        ids(fake_served(running.engine))
    with running.client() as http:
        body = {"input_prefix": "a", "input_suffix": "b"}
        got = http.post("/infill", json=body)
        assert got.status_code == 501 and got.json()["error"]["type"] == "not_supported_error"
        assert http.post("/infill", json={"input_prefix": "a"}).status_code == 400
        running.state.served = served(running.engine)
        got = http.post("/infill", json={**body, "n_predict": 4, "prompt": "c"}).json()
        assert got["content"] == "ACB"
