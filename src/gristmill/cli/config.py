"""``--config FILE``: flags from a YAML file, in vLLM's form.

Keys are flags' names without the leading dashes; values are scalars, lists where a flag may be
repeated, objects where it takes JSON. A person gets the line of what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
import yaml

from gristmill.errors import UsageError

MAX_BYTES = 1 << 20
MAX_NODES = 10_000
MAX_DEPTH = 20


def read_config(file: Path, command: click.Command, ctx: click.Context) -> dict[str, Any]:
    """The values of a file by parameter name, converted. Raises UsageError with the line."""
    known = {
        name.lstrip("-"): (param, name in param.secondary_opts)
        for param in command.get_params(ctx)
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
        if name.startswith("--")
    }
    found: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, line, value in _entries(file):
        at = f"{file}, line {line}"
        name = key.replace("_", "-")
        if name not in known:
            shown = [each for each, (param, _) in known.items() if not param.hidden]
            near = get_close_matches(name, shown, 1, 0.5) or get_close_matches(name, known, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise UsageError(f"{at}: there is no flag '--{name[:80]}'.{hint}")
        param, negative = known[name]
        if name == "config":
            raise UsageError(f"{at}: a file cannot name another.")
        where = str(param.name)
        if where in found:
            raise UsageError(f"{at}: '{key}' says again what line {lines[where]} has said.")
        if value is None:
            continue
        lines[where] = line
        found[where] = convert(param, ctx, f"{at}: {key}", _value(param, negative, value, at, key))
    return found


def convert(param: click.Parameter, ctx: click.Context, source: str, value: Any) -> Any:
    """``value`` as the parameter takes it. Raises UsageError that begins with ``source``."""
    try:
        return param.type_cast_value(ctx, value)
    except click.BadParameter as error:
        raise UsageError(f"{source}: {error.message}") from None


def _value(param: click.Option, negative: bool, value: Any, at: str, key: str) -> Any:
    """What YAML has, as a command line would have it."""
    if param.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{at}: '{key}' is true or false, not {value!r}.")
        return value != negative
    if isinstance(value, bool):
        raise UsageError(f"{at}: '{key}' takes a value, not true or false.")
    if param.multiple:
        items: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore
        return [_text(each) for each in items]
    return _text(value)


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _entries(file: Path) -> Sequence[tuple[str, int, Any]]:
    """(key, line, value) of the file's one mapping."""
    try:
        with file.open("rb") as source:
            data = source.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{file} is longer than a configuration may be ({MAX_BYTES} bytes).")
    try:
        _check_events(file, data)
        root: Any = yaml.compose(data, Loader=yaml.SafeLoader)  # pyright: ignore
        if root is None:
            return []
        if not isinstance(root, yaml.MappingNode):
            raise UsageError(f"{file} must hold keys and values, like 'port: 8000'.")
        entries: list[tuple[str, int, Any]] = []
        for key, value in root.value:
            line = int(key.start_mark.line) + 1
            if not isinstance(key, yaml.ScalarNode):
                raise UsageError(f"{file}, line {line}: a key must be a flag's name.")
            entries.append((str(key.value), line, _construct(value)))
        return entries
    except (yaml.YAMLError, UnicodeError, ValueError, RecursionError) as error:
        raise UsageError(_yaml_sentence(file, error)) from None


def _check_events(file: Path, data: bytes) -> None:
    """Bounds what the file may hold before anything is built from it."""
    events: Iterable[Any] = yaml.parse(data, Loader=yaml.SafeLoader)  # pyright: ignore
    depth = 0
    for count, event in enumerate(events):  # pyright: ignore
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise UsageError(f"{file} is nested deeper than {MAX_DEPTH} levels.")
        if isinstance(event, yaml.AliasEvent):
            line = event.start_mark.line + 1
            raise UsageError(f"{file}, line {line}: aliases (*name) are not taken.")
        if count > MAX_NODES:
            raise UsageError(f"{file} holds more than {MAX_NODES} values.")


def _construct(node: yaml.Node) -> Any:
    """The value of a node, by YAML's safe types; dates and the like stay text."""
    if isinstance(node, yaml.SequenceNode):
        return [_construct(each) for each in node.value]
    if isinstance(node, yaml.MappingNode):
        return {str(_construct(key)): _construct(value) for key, value in node.value}
    text = str(node.value)
    kind = node.tag.rpartition(":")[2]
    if kind in ("int", "float", "bool", "null"):
        value: object = yaml.safe_load(text) if text else None
        # "0640" and "1_000" are numbers to YAML, and not what a command line would take.
        same = isinstance(value, bool) or value is None or str(value) == text
        return value if same or isinstance(value, float) else text
    return text


def _yaml_sentence(file: Path, error: BaseException) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{file}, line {error.problem_mark.line + 1}: {error.problem or 'is not YAML'}."
    return f"{file} is not YAML: {' '.join(str(error).split())[:200] or type(error).__name__}."


_TCP = frozenset({"host", "port"})
GROUPS: tuple[frozenset[str], ...] = (
    # What one place has said of these, another place with less to say does not add to.
    frozenset({"model", "model_flag", "hf", "hf_file", "model_url"}),
    frozenset({"max_model_len", "ctx_size"}),
    frozenset({"chat_template", "chat_template_file"}),
    frozenset({"reasoning_parser", "reasoning_format"}),
    frozenset({"cpu_mask", "cpu_range"}),
    frozenset({"kv_dtype", "cache_type_v"}),
    frozenset({"log_level", "verbose", "verbosity", "log_disable"}),
    frozenset({"log_requests", "no_log_requests"}),
    frozenset({"log_format", "log_jsonl"}),
)


def layered(given: frozenset[str], *places: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping of ``places``, the weightiest first; ``given`` is what the command line has."""
    found: dict[str, Any] = {}
    said = set(given)
    for place in places:
        hidden = {name for group in GROUPS for name in group if group & said}
        if said & _TCP:
            hidden.add("uds")
        if "uds" in said:
            hidden |= _TCP
        new = {name: value for name, value in place.items() if name not in hidden | said}
        found |= new
        said |= set(new)
    return found
