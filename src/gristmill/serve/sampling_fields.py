"""Sampling fields that only one of the peers has, and what they mean for the engine.

llama-server's: ``samplers``, DRY, XTC, mirostat, dynamic temperature, top-n-sigma, adaptive-p,
``min_keep``, ``n_probs``. vLLM's: ``allowed_token_ids``, ``bad_words``. ``docs/sampling.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from gristmill.backends.chain import LLAMA_SERVER
from gristmill.errors import RequestError
from gristmill.serve.breakers import bad_runs, breaker_runs
from gristmill.serve.fields import Fields, Flag, Number, Whole
from gristmill.serve.protocol import Served

MAX_PROBS = 1024
MAX_SAMPLERS = 32
MAX_WORDS = 128
MAX_WORD_CHARS = 1024
MAX_ALLOWED = 1 << 19
MOST = 2**31 - 1
BREAKERS = ("\n", ":", '"', "*")

_LETTERS: Mapping[str, str] = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "a": "adaptive_p",
}
_ALIASES: Mapping[str, str] = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p"}
_NAMES: Mapping[str, str] = {
    **{name.replace("_", joint): name for name in _LETTERS.values() for joint in ("_", "-", "")},
    **_ALIASES,
}


def _samplers(value: object) -> object:
    """llama-server's two forms: a list of names, or a text of letters."""
    if value is None:
        return None
    if isinstance(value, str):
        given: list[object] = list(value)
        known = _LETTERS
    elif isinstance(value, list):
        given = value  # pyright: ignore[reportUnknownVariableType]
        known = _NAMES
    else:
        raise ValueError("must be a list of names or a string of letters")
    if len(given) > MAX_SAMPLERS:
        raise ValueError(f"may hold at most {MAX_SAMPLERS} steps")
    found: list[str] = []
    for item in given:
        name = known.get(item.lower() if known is _NAMES else item) if type(item) is str else None
        if name is None:
            shown = f"{item[:40]!r}" if isinstance(item, str) else "something that is no text"
            raise ValueError(f"holds {shown}; there are {', '.join(sorted(known))}")
        found.append(name)
    return tuple(found)


def _texts(value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError("must be a list of strings")
    items: list[object] = value  # pyright: ignore[reportUnknownVariableType]
    if len(items) > MAX_WORDS:
        raise ValueError(f"may hold at most {MAX_WORDS} strings")
    for item in items:
        if not isinstance(item, str) or not item:
            raise ValueError("must hold strings that are not empty")
        if len(item) > MAX_WORD_CHARS:
            raise ValueError(f"may hold strings of at most {MAX_WORD_CHARS} characters")
    return tuple(items)


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
Share = Annotated[Number, Field(ge=0, le=1)]


class Sampled(Fields):
    """The fields."""

    samplers: Annotated[tuple[str, ...] | None, BeforeValidator(_samplers)] = None
    top_n_sigma: Annotated[Number, Field(ge=-1e6, le=1e6)] | None = None
    xtc_probability: Share | None = None
    xtc_threshold: Share | None = None
    dynatemp_range: Annotated[Number, Field(ge=0, le=100)] | None = None
    dynatemp_exponent: Annotated[Number, Field(ge=0, le=100)] | None = None
    mirostat: Annotated[Whole, Field(ge=0, le=2)] | None = None
    mirostat_tau: Annotated[Number, Field(ge=0, le=1000)] | None = None
    mirostat_eta: Annotated[Number, Field(ge=0, le=100)] | None = None
    adaptive_target: Annotated[Number, Field(ge=-1e6, le=1)] | None = None
    adaptive_decay: Annotated[Number, Field(ge=0, le=0.99)] | None = None
    dry_multiplier: Annotated[Number, Field(ge=0, le=1e4)] | None = None
    dry_base: Annotated[Number, Field(ge=0, le=1e4)] | None = None
    dry_allowed_length: Annotated[Whole, Field(ge=0, le=MOST)] | None = None
    dry_penalty_last_n: Annotated[Whole, Field(ge=-1, le=MOST)] | None = None
    dry_sequence_breakers: Annotated[Texts, Field(min_length=1)] | None = None
    min_keep: Annotated[Whole, Field(ge=0, le=MOST)] | None = None
    n_probs: Annotated[Whole, Field(ge=0, le=MAX_PROBS)] = 0
    post_sampling_probs: Flag = False
    allowed_token_ids: (
        Annotated[list[Whole], Field(min_length=1, max_length=MAX_ALLOWED)] | None
    ) = None
    bad_words: Texts = ()

    @property
    def slow(self) -> bool:
        """Whether reading them takes the vocabulary, or many words, to be gone through."""
        return bool(self.dry_multiplier) or len(self.bad_words) > 8


_NUMBERS = (
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_target",
    "adaptive_decay",
    "dry_multiplier",
    "dry_base",
)
_COUNTS = ("mirostat", "dry_allowed_length", "dry_penalty_last_n", "min_keep")


def special_params(fields: Sampled, served: Served) -> dict[str, Any]:
    """The fields as arguments of ``SamplingParams``; what is left out has its default there,
    unless the model's file or the command line has another. Raises RequestError."""
    found: dict[str, Any] = {}
    for name in _NUMBERS + _COUNTS:
        value = getattr(fields, name)
        value = served.defaults.get(name) if value is None else value
        if value is not None:
            found[name] = int(value) if name in _COUNTS else float(value)
    if found.get("dry_base", 1.75) < 1:
        del found["dry_base"]  # llama-server: its default
    if found.get("dry_multiplier"):
        breakers: Sequence[str] = fields.dry_sequence_breakers or BREAKERS
        found["dry_breakers"] = breaker_runs(served.tokenizer, breakers)
    if fields.samplers is not None:
        found["samplers"] = fields.samplers
    if fields.allowed_token_ids is not None:
        found["allowed_token_ids"] = _allowed(fields.allowed_token_ids, served)
    if fields.bad_words:
        found["bad_words"] = bad_runs(served.tokenizer, fields.bad_words)
    found["post_sampling"] = fields.post_sampling_probs
    return found


def _allowed(ids: Sequence[int], served: Served) -> tuple[int, ...]:
    vocab = served.tokenizer.vocab_size
    for token in ids:
        if not 0 <= token < vocab:
            raise RequestError(
                f"'allowed_token_ids' holds the token id {token}; ids go from 0 to {vocab - 1}.",
                "allowed_token_ids",
            )
    return tuple(sorted(set(ids)))


LLAMA_ORDER: tuple[str, ...] = LLAMA_SERVER
"""The order of steps that llama-server's own routes use where a body names none."""
