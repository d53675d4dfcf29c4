"""Writes schema_suite.json: the official JSON-Schema-Test-Suite's cases that we serve.

    python tests/golden/make_schema_suite.py FOLDER

FOLDER is ``json/tests/draft2020-12`` in the sdist of `jsonschema` 4.26.0
(`pip download --no-deps --no-binary jsonschema jsonschema==4.26.0`), which carries the suite
(https://github.com/json-schema-org/JSON-Schema-Test-Suite, MIT, © 2012 Julian Berman).
Schemas that are refused are kept by their keyword only: enough to see that they stay refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gristmill.engine.grammar import Grammars
from gristmill.errors import RequestError
from gristmill.types import Constraint
from tests.engine.spelled import Bytes

LICENSE = "JSON-Schema-Test-Suite, MIT license, Copyright (c) 2012 Julian Berman"


def main(folder: Path) -> None:
    """Compile every schema and write down which are served."""
    grammars = Grammars(Bytes(), Bytes.vocab_size, frozenset({Bytes.EOS}))
    served: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.json")):
        for group in json.loads(path.read_text()):
            schema = group["schema"]
            if isinstance(schema, dict):
                schema.pop("$schema", None)
            case = {"name": f"{path.stem}: {group['description']}", "schema": schema}
            try:
                grammars.compile(Constraint("json_schema", json.dumps(schema))).result()
            except RequestError:
                refused.append(case)
                continue
            case["valid"] = [test["data"] for test in group["tests"] if test["valid"]]
            case["invalid"] = [test["data"] for test in group["tests"] if not test["valid"]]
            served.append(case)
    out = Path(__file__).with_name("schema_suite.json")
    whole = {"source": LICENSE, "served": served, "refused": refused[::4]}
    out.write_text(json.dumps(whole, separators=(",", ":")) + "\n")
    print(f"{len(served)} served, {len(refused)} refused, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
