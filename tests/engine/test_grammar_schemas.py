"""JSON schemas, judged by `jsonschema` and the official test suite's cases."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gristmill.engine.grammar import Grammars
from gristmill.errors import RequestError
from gristmill.types import Constraint, SamplingParams
from tests.engine.spelled import Bytes, walk

SUITE: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "schema_suite.json").read_text()
)


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(Bytes(), Bytes.vocab_size, frozenset({Bytes.EOS}))


def accepts(grammars: Grammars, schema: object, text: str) -> bool:
    """Whether the text can be a whole answer."""
    params = SamplingParams(constraint=Constraint("json_schema", json.dumps(schema)))
    recipe = grammars.recipe(params)
    assert recipe is not None
    assert recipe.matcher is not None
    matcher = recipe.matcher.deep_copy()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def written(grammars: Grammars, schema: object, seed: int, count: int) -> list[Any]:
    """Values that random walks through the masks have written."""
    params = SamplingParams(constraint=Constraint("json_schema", json.dumps(schema)))
    recipe, rng = grammars.recipe(params), random.Random(seed)
    assert recipe is not None
    walked = [walk(recipe.guide(), rng) for _ in range(count)]
    return [json.loads(Bytes().text(ids)) for ids in walked if ids is not None]


def hold(grammars: Grammars, schema: Any, invalid: list[Any], name: str) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    for value in written(grammars, schema, 1, 4):
        validator.validate(value)
    for value in invalid:
        for text in (json.dumps(value), json.dumps(value, separators=(",", ":"))):
            assert not accepts(grammars, schema, text), (name, text)


@pytest.mark.parametrize("start", range(0, len(SUITE["served"]), 20))
def test_the_suites_schemas_that_are_served(grammars: Grammars, start: int) -> None:
    for case in SUITE["served"][start : start + 20]:
        hold(grammars, case["schema"], case["invalid"], case["name"])


def test_most_of_the_suites_values_can_be_written(grammars: Grammars) -> None:
    """Not all: properties come in the schema's order, and numbers in one way."""
    tried = [(c["schema"], value) for c in SUITE["served"] for value in c["valid"]]
    could = sum(accepts(grammars, schema, json.dumps(value)) for schema, value in tried)
    assert could > 0.9 * len(tried)


def test_the_suites_schemas_that_are_refused(grammars: Grammars) -> None:
    for case in SUITE["refused"]:
        with pytest.raises(RequestError) as caught:
            grammars.compile(Constraint("json_schema", json.dumps(case["schema"]))).result()
        assert str(caught.value).count("\n") == 0


@pytest.mark.slow
def test_the_whole_suite() -> None:
    folder = os.environ.get("GRISTMILL_TEST_SCHEMAS")
    if not folder:
        pytest.skip(
            "set GRISTMILL_TEST_SCHEMAS to json/tests/draft2020-12 in the sdist of jsonschema "
            "(`pip download --no-deps --no-binary jsonschema jsonschema==4.26.0`)"
        )
    grammars = Grammars(Bytes(), Bytes.vocab_size, frozenset({Bytes.EOS}))
    served = 0
    for path in sorted(Path(folder).glob("*.json")):
        for group in json.loads(path.read_text()):
            try:
                schema = json.dumps(group["schema"])
                grammars.compile(Constraint("json_schema", schema)).result()
            except RequestError:
                continue
            served += 1
            invalid = [test["data"] for test in group["tests"] if not test["valid"]]
            hold(grammars, group["schema"], invalid, group["description"])
    assert served >= 160


@pytest.mark.parametrize("keyword", ["not", "if", "contains", "uniqueItems", "propertyNames"])
def test_what_cannot_be_held_is_refused_by_name(grammars: Grammars, keyword: str) -> None:
    value: object = True if keyword == "uniqueItems" else {"type": "string"}
    schema = {"type": "object", "properties": {"a": {keyword: value}}}
    with pytest.raises(RequestError, match=keyword):
        grammars.compile(Constraint("json_schema", json.dumps(schema))).result()
    lenient = {**schema, "x-guidance": {"lenient": True}}
    with pytest.raises(RequestError, match=keyword):
        grammars.compile(Constraint("json_schema", json.dumps(lenient))).result()


def test_large_bounds(grammars: Grammars) -> None:
    """BC-31: large bounds and empty objects are enforced, and quick."""
    for most in (1999, 2000, 2001, 65_536):
        text = {"type": "string", "maxLength": most}
        schema = {"type": "array", "maxItems": 50, "items": text}
        assert accepts(grammars, schema, json.dumps(["x" * most]))
        assert not accepts(grammars, schema, json.dumps(["x" * (most + 1)]))
    numbers = {"type": "array", "items": {"type": "number"}, "minItems": 10, "maxItems": 1000}
    assert accepts(grammars, numbers, json.dumps([1] * 1000))
    assert not accepts(grammars, numbers, json.dumps([1] * 1001))
    assert not accepts(grammars, numbers, json.dumps([1] * 9))
    assert accepts(grammars, {"type": "object", "properties": {}}, "{}")


def test_patterns(grammars: Grammars) -> None:
    """BC-29: a pattern is searched for in the string, and honoured or refused."""
    assert accepts(grammars, {"type": "string", "pattern": r"^hello there indeed\!$"},
                   '"hello there indeed!"')  # fmt: skip
    assert accepts(grammars, {"type": "string", "pattern": "b+"}, '"abbc"')
    assert not accepts(grammars, {"type": "string", "pattern": "^b+$"}, '"abbc"')
    with pytest.raises(RequestError):
        accepts(grammars, {"type": "string", "pattern": "(?=a)b"}, '"b"')


def test_white_space_is_bounded(grammars: Grammars) -> None:
    schema = {"type": "object"}
    assert accepts(grammars, schema, json.dumps({"a": [1, {"b": []}]}, indent=4))
    assert not accepts(grammars, schema, '{"a":' + " " * 100 + "1}")
    assert not accepts(grammars, schema, "{" + "\n" * 10 + "}")
    assert not accepts(grammars, schema, " {}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no JSON"),
        ("false", "nothing can match"),
        ("[1]", "must be an object or true"),
        ('"x"', "must be an object or true"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested"),
        ('{"properties":{"a":' * 60 + "{}" + "}}" * 60, "nested more than 100"),
        ('{"$ref":"#/$defs/no"}', "does not exist"),
        ('{"$ref":"#"}', "no text can match"),
        ('{"$ref":"http://example.com/x"}', "not present"),
        ('{"type":"strin"}', "strin"),
        ('{"enum":[]}', "."),
        ('{"type":"integer","minimum":5,"maximum":3}', "minimum"),
        ('{"allOf":[' + ",".join(['{"$ref":"#/$defs/a"}'] * 1001) + "]}", "1001 references"),
        ('{"enum":["' + "x" * (1 << 20) + '"]}', "characters; the most is"),
        ('{"const":"\ud800"}', "surrogate"),
    ],
)
def test_hopeless_schemas(grammars: Grammars, text: str, why: str) -> None:
    with pytest.raises(RequestError) as caught:
        grammars.compile(Constraint("json_schema", text)).result()
    assert why in str(caught.value), str(caught.value)
    assert len(str(caught.value)) < 500


def test_deep_references_do_not_end_the_process(grammars: Grammars) -> None:
    count = 998
    links = {f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(count)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**links, f"a{count}": {}}}
    assert accepts(grammars, schema, "[[[]]]")
