"""A Jinja environment for strangers' templates: no reach beyond its values, bounded in work.

Chat templates come with model files and requests, so they are programs of people we do not
know. Jinja's sandbox keeps them from the interpreter; here their steps, time and text are
bounded too, by counting every loop iteration and call, and by measuring texts *before* they
are made. The dialect is the one Hugging Face's templates are written in.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn, cast

import jinja2
import jinja2.ext
import jinja2.utils
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 1_000_000
MAX_SECONDS = 5.0
"""Processor time of one rendering."""
_MAX_WIDTH = 10_000
_MAX_DEPTH = 200


class LimitError(Exception):
    """The template does too much; the text says what of."""


class TemplateRaised(Exception):
    """The template called ``raise_exception``: its sentence is meant for the client."""


class Budget:
    """What one rendering may still do."""

    def __init__(self, characters: int) -> None:
        self.characters = characters
        self._steps = 0
        self._counts: dict[int, tuple[object, int]] = {}
        self._deadline = time.thread_time() + MAX_SECONDS

    def step(self, count: int = 1) -> None:
        """Count work; LimitError when it is too much."""
        before = self._steps
        self._steps += count
        if self._steps > MAX_STEPS:
            raise LimitError(f"takes more than {MAX_STEPS} steps")
        if before >> 9 != self._steps >> 9 and time.thread_time() > self._deadline:
            raise LimitError(f"takes more than {MAX_SECONDS:g} seconds")

    def text(self, length: int) -> None:
        """Allow a text of ``length`` characters to be made, or raise LimitError."""
        if length > self.characters:
            raise LimitError(f"makes a text of more than {self.characters} characters")

    def value(self, value: object, depth: int = 0) -> int:
        """Walk a value that is about to be written out; about how many characters that is."""
        self.step()
        if isinstance(value, str):
            return len(value) + 2
        if depth > _MAX_DEPTH:
            raise LimitError(f"nests values more than {_MAX_DEPTH} deep")
        if isinstance(value, Mapping):
            items = cast("Mapping[object, object]", value).items()
            size = 2 + sum(self.value(k, depth + 1) + self.value(v, depth + 1) for k, v in items)
        elif isinstance(value, (list, tuple, set, frozenset)):
            parts = cast("Iterable[object]", value)
            size = 2 + sum(self.value(part, depth + 1) for part in parts)
        else:
            size = 24
        self.text(size)
        return size

    def count(self, value: object, depth: int = 0) -> int:
        """How many values a container holds, all levels together; LimitError when too many.

        A list of twice the same list, sixty times over, is small in memory and endless to
        compare: so it must not come to be. Containers never change here, so counts are kept.
        """
        if not isinstance(value, (list, tuple, dict)):
            return 1
        known = self._counts.get(id(cast(object, value)))
        if known is not None:
            return known[1]
        if depth > _MAX_DEPTH:
            raise LimitError(f"nests values more than {_MAX_DEPTH} deep")
        whole = cast("Sequence[object] | dict[object, object]", value)
        parts = whole.values() if isinstance(whole, dict) else whole
        return self.keep(whole, 1 + sum(self.count(part, depth + 1) for part in parts))

    def keep(self, value: object, count: int) -> int:
        """Remember a container's count (and the container, so that its identity stays its own)."""
        if count > MAX_STEPS:
            raise LimitError(f"makes a value of more than {MAX_STEPS} parts")
        self._counts[id(value)] = (value, count)
        return count


_PLANE_16 = re.compile(r"(?<!\\)((?:\\\\)*)\\U(0010[0-9a-f]{4})")
_PLANE_16_JSON = re.compile(r"(?<!\\)((?:\\\\)*)(\\udb[c-f][0-9a-f]\\ud[c-f][0-9a-f]{2})")

_budget: ContextVar[Budget] = ContextVar("template_budget")


class _Counted:
    """An iterable of a loop, whose steps are counted."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __iter__(self) -> Iterator[Any]:
        step = _budget.get().step
        for item in self._inner:
            step()
            yield item

    def __len__(self) -> int:
        return len(cast(Sized, self._inner))  # a TypeError where there is none, as Jinja expects


class _Bounded(NodeTransformer):
    """Puts the counting and measuring into a parsed template."""

    def visit_For(self, node: nodes.For, *args: Any, **kwargs: Any) -> nodes.Node:
        node = cast(nodes.For, self.generic_visit(node, *args, **kwargs))
        node.iter = _filter("_counted", cast(nodes.Expr, node.iter))
        return node

    def visit_Concat(self, node: nodes.Concat, *args: Any, **kwargs: Any) -> nodes.Node:
        node = cast(nodes.Concat, self.generic_visit(node, *args, **kwargs))
        return _filter("_concat", nodes.List(node.nodes, lineno=node.lineno))

    def visit_List(self, node: nodes.List, *args: Any, **kwargs: Any) -> nodes.Node:
        return _filter("_made", cast(nodes.List, self.generic_visit(node, *args, **kwargs)))

    def visit_Dict(self, node: nodes.Dict, *args: Any, **kwargs: Any) -> nodes.Node:
        return _filter("_made", cast(nodes.Dict, self.generic_visit(node, *args, **kwargs)))

    def visit_Tuple(self, node: nodes.Tuple, *args: Any, **kwargs: Any) -> nodes.Node:
        node = cast(nodes.Tuple, self.generic_visit(node, *args, **kwargs))
        return _filter("_made", node) if node.ctx == "load" else node


def _filter(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks assistant text for training: no effect."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return caller()


class Environment(ImmutableSandboxedEnvironment):
    """Compiles templates whose rendering is bounded; see ``Budget``."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
            optimized=False,  # constant folding would compute before there is a budget
            finalize=_finalize,
        )
        for name in ("urlize", "xmlattr"):
            del self.filters[name]
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _Dict(),
            "namespace": _Namespace,
        }
        self.filters |= _filters(dict(self.filters))

    def compiled(self, source: str) -> jinja2.Template:
        """Parse, bound and compile. Raises jinja2.TemplateSyntaxError."""
        return self.from_string(_Bounded().visit(self.parse(source)))

    def run(self, template: jinja2.Template, values: dict[str, Any], budget: Budget) -> str:
        """Render. Raises LimitError, TemplateRaised, and whatever the template's errors are."""
        token = _budget.set(budget)
        try:
            context = template.new_context(values)
            return self.concat(template.root_render_func(context))
        finally:
            _budget.reset(token)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:  # type: ignore[override]
        """Join what a template, a macro or a block has written."""
        budget = _budget.get()
        out: list[str] = []
        length = 0
        for part in parts:
            length += len(part)
            budget.text(length)
            out.append(part)
        return "".join(out)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Every call of a template comes through here."""
        _budget.get().step()
        _guard_method(__obj, args)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic that could make something huge."""
        budget = _budget.get()
        if operator == "+" and isinstance(left, (str, list, tuple)):
            size = len(cast(Sized, left)) + (len(right) if isinstance(right, Sized) else 0)
            budget.text(size)
            if not isinstance(left, str):
                made: object = super().call_binop(context, operator, left, right)
                budget.keep(made, budget.count(cast(object, left)) + budget.count(right))
                return made
        elif operator == "*":
            for a, b in ((left, right), (right, left)):
                if isinstance(a, (str, list, tuple)) and isinstance(b, int):
                    length = len(a) if isinstance(a, str) else budget.count(cast(object, a))
                    budget.text(length * max(0, b))
            _guard_numbers(left, right)
        elif operator == "**":
            _guard_numbers(left, right)
            if (
                isinstance(right, int)
                and isinstance(left, int)
                and right * left.bit_length() > 4096
            ):
                raise LimitError("computes a power that is too large")
        elif operator == "%" and isinstance(left, str):
            _guard_format(left, right)
        return super().call_binop(context, operator, left, right)


def _guard_numbers(*numbers: object) -> None:
    if any(isinstance(n, int) and n.bit_length() > 4096 for n in numbers):
        raise LimitError("computes with a number that is too large")


def _guard_width(*widths: object) -> None:
    if any(isinstance(w, int) and w > _MAX_WIDTH for w in widths):
        raise LimitError(f"pads a text to more than {_MAX_WIDTH} characters")


def _guard_format(pattern: str, values: object) -> None:
    formats = "%" in pattern or "{" in pattern
    if formats and ("*" in pattern or re.search(r"\d{5}", pattern)):
        _guard_width(_MAX_WIDTH + 1)
    budget = _budget.get()
    budget.text(len(pattern) + budget.value(values) * (1 + pattern.count("{")))


def _guard_method(method: object, args: tuple[Any, ...]) -> None:
    """Measure what a method of a text would make."""
    method = getattr(method, "__wrapped__", method)  # the sandbox wraps str.format
    text = getattr(method, "__self__", None)
    name = getattr(method, "__name__", "")
    if not isinstance(text, str):
        return
    budget = _budget.get()
    if name in ("ljust", "rjust", "center", "zfill", "expandtabs"):
        _guard_width(*args)
    elif name == "replace" and len(args) >= 2:
        budget.text(_replaced_length(text, args[0], args[1]))
    elif name == "join" and args:
        _guard_join(text, args[0])
    elif name in ("format", "format_map"):
        _guard_format(text, args)


def _replaced_length(text: str, old: object, new: object) -> int:
    if not isinstance(old, str) or not isinstance(new, str):
        return 0
    return len(text) + max(0, len(new) - len(old)) * text.count(old)


def _guard_join(separator: str, parts: object) -> None:
    if isinstance(parts, (list, tuple)):
        budget = _budget.get()
        known = cast("Sequence[object]", parts)
        budget.text(sum(len(separator) + budget.value(part) for part in known))


# ------------------------------------------------------- filters and functions


def _finalize(value: Any) -> Any:
    """What ``{{ value }}`` writes: containers are measured before they become text."""
    return value if isinstance(value, str) else _written(value)


def _written(value: Any) -> Any:
    """A value as text. Python escapes private-use characters inside containers, and masking
    (see ``masking``) needs them as they are: its characters of plane 16 are put back."""
    _budget.get().value(value)
    if not isinstance(value, (Mapping, list, tuple)):
        return value
    return _PLANE_16.sub(lambda m: m[1] + chr(int(m[2], 16)), str(cast(object, value)))


def _made(value: Any) -> Any:
    """A container that the template has just made."""
    _budget.get().count(value)
    return value


def _concat(parts: Sequence[Any]) -> str:
    texts = [str(_finalize(part)) for part in parts]
    _budget.get().text(sum(map(len, texts)))
    return "".join(texts)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: no HTML escapes, not forced into ASCII."""
    _guard_width(len(indent) if isinstance(indent, str) else indent)
    if isinstance(value, Iterator):  # what ``map`` and ``select`` give
        value = list(_Counted(value))
    _budget.get().value(value)
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    if ensure_ascii:  # what masking has swapped must come out as it is, here too
        text = _PLANE_16_JSON.sub(lambda m: m[1] + json.loads(f'"{m[2]}"'), text)
    return text


def _filters(
    builtin: Mapping[str, Callable[..., Any]],
) -> dict[str, Callable[..., Any]]:
    """The filters that differ from Jinja's own: measured before they work."""

    @jinja2.pass_eval_context
    def join(context: Any, value: Any, d: str = "", attribute: Any = None) -> Any:
        parts = list(_Counted(value))
        if attribute is None:
            _guard_join(str(d), parts)
        return builtin["join"](context, parts, d, attribute)

    @jinja2.pass_eval_context
    def replace(context: Any, s: Any, old: Any, new: Any, count: Any = None) -> Any:
        _budget.get().text(_replaced_length(str(s), old, new))
        return builtin["replace"](context, s, old, new, count)

    def string(value: Any) -> Any:
        return builtin["string"](_finalize(value))

    def pprint(value: Any) -> Any:
        return builtin["pprint"](_finalize(value))

    def format_(value: Any, *args: Any, **kwargs: Any) -> Any:
        _guard_format(str(value), kwargs or args)
        return builtin["format"](value, *args, **kwargs)

    def widths(name: str) -> Callable[..., Any]:
        def bounded(value: Any, *args: Any, **kwargs: Any) -> Any:
            _guard_width(*args, *kwargs.values())
            budget = _budget.get()
            width = max([1, *(w for w in (*args, *kwargs.values()) if isinstance(w, int))])
            if isinstance(value, str):
                budget.text(len(value) + value.count("\n") * width)
            return builtin[name](value, *args, **kwargs)

        return bounded

    return {
        "_counted": _Counted,
        "_concat": _concat,
        "_made": _made,
        "tojson": _tojson,
        "join": join,
        "replace": replace,
        "string": string,
        "format": format_,
        "pprint": pprint,
        **{name: widths(name) for name in ("center", "indent", "batch", "slice")},
    }


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRaised(str(message))


def _strftime_now(format: str) -> str:
    """The local time, in a format that the template chooses."""
    if len(format) > 1000 or re.search(r"%[^%a-zA-Z]*\d", format):
        raise LimitError("asks for a date that is too long")
    return datetime.now().strftime(format)


class _Dict:
    """``dict(…)`` without the class behind it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return _made(dict(*args, **kwargs))


class _Namespace(jinja2.utils.Namespace):
    """``namespace(…)``, whose names may not begin with an underscore."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"the namespace attribute {name!r} begins with an underscore")
        super().__setitem__(name, value)
