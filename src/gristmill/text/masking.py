"""Keeping message content from turning into markup.

A template writes messages and markup into one text; afterwards nobody can tell a ``<|im_end|>``
of the template from one that a user has typed. So the characters of markup inside content are
swapped, before rendering, for private-use characters, one for one: lengths, slices, trimming,
JSON and every other thing a template does to text go on as before, and each character of the
rendered text still says where it came from. Afterwards they are swapped back, and what they
spelled is encoded as ordinary text.

What a template *looks for* in content it no longer finds if it is masked. That is the point,
with one exception: tags of reasoning in an assistant's message, which templates cut off there.
They are masked only if the message brings its reasoning separately, as this server returns it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from gristmill.errors import RequestError
from gristmill.text.messages import Arguments
from gristmill.text.special import SpecialFinder
from gristmill.text.tokenizer import Segment

_PRIVATE = range(0x100000, 0x10FFFE)
_KEPT = frozenset(' \t\r\n\v\f"\\')
"""Never swapped: templates trim these, JSON escapes them."""
_MAX_DEPTH = 100
_WORD = re.compile(r"[\w ]*")
_REASONING_TAGS = ("<think>", "</think>")


class Markup:
    """The texts that content must not turn into; made once for a tokenizer and a template."""

    def __init__(self, texts: Iterable[str]) -> None:
        known = [text for text in dict.fromkeys(texts) if not _KEPT.issuperset(text)]
        self.chars = sorted({char for text in known for char in text} - _KEPT)
        self._longest = max(map(len, known), default=0)
        strict = self._prepare(known)
        self._sets = {False: strict, True: strict}
        if not set(_REASONING_TAGS).isdisjoint(known):
            self._sets[True] = self._prepare([t for t in known if t not in _REASONING_TAGS])

        self._joined = "\0".join(known)

    @staticmethod
    def _prepare(texts: list[str]) -> tuple[SpecialFinder, frozenset[str], frozenset[str]]:
        starts = frozenset(text[:n] for text in texts for n in range(1, len(text)))
        ends = frozenset(text[n:] for text in texts for n in range(1, len(text)))
        return SpecialFinder((text, 0) for text in texts), starts, ends

    def spans(self, text: str, keep_reasoning: bool) -> list[tuple[int, int]]:
        """What to mask in ``text``: markup, and what may become markup with its neighbours in
        the prompt: an end that begins some, a beginning that ends some, and (``<{{ name }}>``)
        all of a text that stands inside some, unless it is a mere word."""
        if 1 < len(text) < self._longest and not _WORD.fullmatch(text) and text in self._joined:
            return [(0, len(text))]
        finder, starts, ends = self._sets[keep_reasoning]
        spans = list(finder.spans(text))
        room = min(spans[0][0] if spans else len(text), self._longest - 1)
        head = next((n for n in range(room, 0, -1) if text[:n] in ends), 0)
        if head:
            spans.insert(0, (0, head))
        room = min(len(text) - (spans[-1][1] if spans else 0), self._longest - 1)
        tail = next((n for n in range(room, 0, -1) if text[-n:] in starts), 0)
        if tail:
            spans.append((len(text) - tail, len(text)))
        return spans


class Mask:
    """Masks texts for one rendering and reads the result."""

    def __init__(self, markup: Markup, inputs: object) -> None:
        """``inputs``: everything the template is given (a private-use character that is there
        already must not be taken for a swapped one)."""
        self._markup = markup
        used: set[str] = set()
        _collect(inputs, used, 0)
        free = (chr(c) for c in _PRIVATE if chr(c) not in used)
        self._swap = {ord(a): ord(b) for a, b in zip(markup.chars, free, strict=False)}
        if len(self._swap) < len(markup.chars):
            raise RequestError("The messages use all private-use characters; some must be free.")
        self._back = {chr(b): chr(a) for a, b in self._swap.items()}
        self._swapped = re.compile(f"[{''.join(self._back)}]+") if self._back else None
        self.used = False
        """Whether anything has been masked."""

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Normalised messages with all their texts masked, except the roles."""
        return [
            {
                key: value if key == "role" else self._value(value, _keep_reasoning(message, key))
                for key, value in message.items()
            }
            for message in messages
        ]

    def value(self, value: Any) -> Any:
        """A value (tools, documents, template arguments) with all its texts masked."""
        return self._value(value, False)

    def segments(self, rendered: str) -> list[Segment]:
        """The rendered text, swapped back: masked stretches are untrusted, the rest trusted."""
        if self._swapped is None or not self.used:
            return [(rendered, True)] if rendered else []
        out: list[Segment] = []
        done = 0
        for match in self._swapped.finditer(rendered):
            if match.start() > done:
                out.append((rendered[done : match.start()], True))
            out.append(("".join(self._back[char] for char in match[0]), False))
            done = match.end()
        if done < len(rendered):
            out.append((rendered[done:], True))
        return out

    def _value(self, value: Any, keep_reasoning: bool, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            raise RequestError(f"The request nests values more than {_MAX_DEPTH} deep.")
        if isinstance(value, str):
            return self._text(value, keep_reasoning)
        if isinstance(value, Arguments):
            return Arguments(
                {self._text(k, False): self._value(v, False, depth + 1) for k, v in value.items()},
                self._text(str(value), False),
            )
        if isinstance(value, Mapping):
            fields = cast("Mapping[Any, Any]", value)
            return {
                self._value(k, False, depth + 1): self._value(v, keep_reasoning, depth + 1)
                for k, v in fields.items()
            }
        if isinstance(value, (list, tuple)):
            parts = cast("Sequence[Any]", value)
            return [self._value(part, keep_reasoning, depth + 1) for part in parts]
        return value

    def _text(self, text: str, keep_reasoning: bool) -> str:
        spans = self._markup.spans(text, keep_reasoning)
        if not spans:
            return text
        self.used = True
        out: list[str] = []
        done = 0
        for start, end in spans:
            out += (text[done:start], text[start:end].translate(self._swap))
            done = end
        return "".join(out) + text[done:]


def _keep_reasoning(message: Mapping[str, Any], key: str) -> bool:
    return (
        key == "content"
        and message.get("role") == "assistant"
        and "reasoning_content" not in message
    )


def _collect(value: object, used: set[str], depth: int) -> None:
    """Gather the private-use characters of all texts in ``value``."""
    if depth > _MAX_DEPTH:
        raise RequestError(f"The request nests values more than {_MAX_DEPTH} deep.")
    if isinstance(value, str):
        if not value.isascii() and max(value) >= "\U00100000":
            used.update(char for char in value if char >= "\U00100000")
    elif isinstance(value, Mapping):
        for pair in cast("Mapping[object, object]", value).items():
            _collect(pair[0], used, depth + 1)
            _collect(pair[1], used, depth + 1)
    elif isinstance(value, (list, tuple)):
        for part in cast("Sequence[object]", value):
            _collect(part, used, depth + 1)
