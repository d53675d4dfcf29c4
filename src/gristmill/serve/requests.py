"""The fields every generating route shares, and how they become ``SamplingParams``.

A field is honoured, or refused with 400 when it is known and not served here; only fields
that nobody knows are passed over.

Defaults are the model file's own suggestions where it makes any (``general.sampling.*``),
else OpenAI's: temperature 1, top_p 1. Conventions taken over from the peers:
``top_k`` -1 or 0 keeps all; ``seed`` -1 draws one; ``temperature`` below 1e-5 is greedy;
``top_p`` 0 keeps only the likeliest token; ``max_tokens`` -1 sets no limit. Presence and frequency
penalties count the answer's tokens (OpenAI, vLLM), and the prompt's too where ``repeat_last_n``
says how far they look back (llama-server).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field

from gristmill.errors import ContextError, RequestError
from gristmill.serve.constraints import GUIDED, Constrained
from gristmill.serve.fields import Fields, Flag, Number, Short, Text, Whole
from gristmill.serve.protocol import Served, Tokenizer
from gristmill.serve.sampling_fields import Sampled, special_params
from gristmill.types import SamplingParams

GREEDY_BELOW = 1e-5
MAX_N = 128
MAX_STOPS = 64
MAX_STOP_CHARS = 4096
MAX_STOP_IDS = 1024
MAX_BIASES = 4096
MAX_LOGPROBS = 20
MAX_TOKENS = 2**31 - 1
BAN = -1e9
"""What a ban adds to a logit: below anything a model computes, and still a finite number."""

# Fields that another server honours and this one does not (yet). Each is refused unless its
# value asks for nothing: the values that do are listed.
_NOTHING: tuple[object, ...] = (False, "", [], {})
_COMPLETIONS: Mapping[str, tuple[object, ...]] = {"best_of": (1,), "suffix": _NOTHING}
"""Those of raw prompts alone."""
_REFUSED: Mapping[str, tuple[object, ...]] = {
    "prompt_embeds": _NOTHING,
    "logits_processors": _NOTHING,
    "functions": _NOTHING,
    "function_call": ("auto", "none"),
    "audio": _NOTHING,
    "modalities": (["text"],),
}


def refuse_unsupported(body: Mapping[str, object], completions: bool = False) -> None:
    """Raises ``RequestError`` for a field whose meaning this version would have to ignore.

    ``completions`` says that ``best_of`` and ``suffix`` have one.
    """
    refused = _REFUSED if completions else {**_REFUSED, **_COMPLETIONS}
    for name, value in body.items():
        if value is None:
            continue
        if name.startswith("guided_") and name not in GUIDED:
            raise _unserved(name)
        harmless = refused.get(name)
        if harmless is not None and not _among(value, harmless):
            raise _unserved(name)


def _among(value: object, harmless: Sequence[object]) -> bool:
    # 0 == False in Python; a number must not pass for a flag, so the kinds are compared too.
    numbers = (int, float)
    for each in harmless:
        same_kind = type(value) is type(each) or (type(value) in numbers and type(each) in numbers)
        if same_kind and value == each:
            return True
    return False


def _unserved(name: str) -> RequestError:
    return RequestError(
        f"'{name}' is not supported by this version of gristmill; it would have been ignored.",
        name,
    )


def _stops(value: object) -> object:
    if value is None:
        return ()
    items: list[object] = value if isinstance(value, list) else [value]  # pyright: ignore
    if len(items) > MAX_STOPS:
        raise ValueError(f"may hold at most {MAX_STOPS} strings")
    for item in items:
        if not isinstance(item, str):
            raise ValueError("must be a string or a list of strings")
        if not item:
            raise ValueError("must not hold an empty string")
        if len(item) > MAX_STOP_CHARS:
            raise ValueError(f"may hold strings of at most {MAX_STOP_CHARS} characters")
    return tuple(items)


class StreamOptions(Fields):
    """``stream_options``."""

    include_usage: Flag = False
    continuous_usage_stats: Flag = False


class Generation(Constrained, Sampled):
    """What ``/v1/chat/completions`` and ``/v1/completions`` have in common."""

    model: Short | None = None
    n: Annotated[Whole, Field(ge=1, le=MAX_N)] = 1
    stream: Flag = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[Whole, Field(ge=-1, le=MAX_TOKENS)] | None = None
    n_predict: Annotated[Whole, Field(ge=-1, le=MAX_TOKENS)] | None = None
    min_tokens: Annotated[Whole, Field(ge=0, le=MAX_TOKENS)] = 0
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    top_k: Annotated[Whole, Field(ge=-1, le=MAX_TOKENS)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0, le=100)] | None = Field(
        None, validation_alias=AliasChoices("repetition_penalty", "repeat_penalty")
    )
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] = 0.0
    repeat_last_n: Annotated[Whole, Field(ge=-1, le=MAX_TOKENS)] | None = None
    seed: Whole | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(_stops)] = ()
    stop_token_ids: Annotated[list[Whole], Field(max_length=MAX_STOP_IDS, default_factory=list)]
    include_stop_str_in_output: Flag = False
    ignore_eos: Flag = False
    skip_special_tokens: Flag = True
    logit_bias: Any = None
    prompt_logprobs: Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    truncate_prompt_tokens: Annotated[Whole, Field(ge=-1, le=MAX_TOKENS)] | None = None
    return_token_ids: Flag = False
    timings_per_token: Flag = False
    request_id: Short | None = None
    priority: Annotated[Whole, Field(ge=-(2**31), lt=2**31)] = 0
    cache_salt: Short = ""
    user: Text = ""
    cache_prompt: Flag = True
    use_beam_search: Flag = False
    length_penalty: Annotated[Number, Field(ge=-10, le=10)] = 1.0
    n_keep: Annotated[Whole, Field(ge=-1, lt=2**31)] = 0
    n_discard: Annotated[Whole, Field(ge=0, lt=2**31)] = 0
    id_slot: Annotated[Whole, Field(ge=-1, lt=2**31)] = -1
    return_progress: Flag = False
    t_max_predict_ms: Annotated[Whole, Field(ge=-1)] = 0
    n_indent: Annotated[Whole, Field(ge=0, le=MAX_TOKENS)] = 0
    timeout: Annotated[Number, Field(gt=0, le=1e9)] | None = None

    @property
    def patience(self) -> float | None:
        """``t_max_predict_ms`` in seconds, None for no such limit."""
        return self.t_max_predict_ms / 1e3 if self.t_max_predict_ms > 0 else None

    @property
    def limit(self) -> int | None:
        """Most tokens to generate, by whichever name it was given."""
        given = self.n_predict if self.max_tokens is None else self.max_tokens
        return None if given == -1 else given

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a stream carries the usage so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


def sampling(fields: Generation, served: Served, logprobs: int | None) -> SamplingParams:
    """The checked parameters for the engine. ``logprobs``: alternatives wanted, None for none.

    Raises: RequestError for what only the loaded model can tell (ids beyond the vocabulary).
    """
    default = served.defaults
    temperature = _pick(fields.temperature, default, "temperature", 1.0)
    top_p = _pick(fields.top_p, default, "top_p", 1.0)
    top_k = int(_pick(fields.top_k, default, "top_k", 0))
    if top_p == 0:
        top_p, top_k = 1.0, 1
    if fields.limit is not None and fields.min_tokens > fields.limit:
        raise RequestError(
            f"'min_tokens' ({fields.min_tokens}) is more than 'max_tokens' ({fields.limit}).",
            "min_tokens",
        )
    if fields.prompt_logprobs is not None and fields.stream:
        raise RequestError("'prompt_logprobs' cannot be streamed.", "prompt_logprobs")
    vocab = served.tokenizer.vocab_size
    for token in fields.stop_token_ids:
        _check_id(token, vocab, "stop_token_ids")
    seed = fields.seed
    return SamplingParams(
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_k=min(max(top_k, 0), vocab),
        top_p=top_p,
        min_p=_pick(fields.min_p, default, "min_p", 0.0),
        typical_p=_pick(fields.typical_p, default, "typical_p", 1.0),
        repetition_penalty=_pick(fields.repetition_penalty, default, "repetition_penalty", 1.0),
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        repeat_last_n=int(_pick(fields.repeat_last_n, default, "repeat_last_n", -1)),
        logit_bias=logit_bias(fields.logit_bias, served),
        seed=None if seed is None or seed == -1 else seed % 2**64,
        max_tokens=None if fields.limit is None else min(fields.limit, served.context),
        min_tokens=fields.min_tokens,
        ignore_eos=fields.ignore_eos,
        stop=fields.stop,
        stop_token_ids=tuple(fields.stop_token_ids),
        include_stop=fields.include_stop_str_in_output,
        logprobs=logprobs,
        prompt_logprobs=fields.prompt_logprobs,
        skip_special_tokens=fields.skip_special_tokens,
        penalise_prompt=fields.repeat_last_n is not None or "repeat_last_n" in default,
        **special_params(fields, served),
    )


def _pick(
    given: float | None, default: Mapping[str, float | int], name: str, fallback: float
) -> float:
    return float(default.get(name, fallback)) if given is None else given


def _check_id(token: int, vocab: int, param: str) -> None:
    if not 0 <= token < vocab:
        raise RequestError(
            f"'{param}' holds the token id {token}; ids go from 0 to {vocab - 1}.", param
        )


def logit_bias(value: object, served: Served) -> tuple[tuple[int, float], ...]:
    """OpenAI's form ``{"id": bias}`` and llama-server's ``[[id | text, bias | false], …]``.

    -100 and ``false`` ban a token. A text biases each of its tokens.
    """
    if value is None:
        return ()
    if not isinstance(value, dict | list):
        raise RequestError("'logit_bias' must be an object or a list of pairs.", "logit_bias")
    if len(value) > MAX_BIASES:  # pyright: ignore[reportUnknownArgumentType]
        raise RequestError(f"'logit_bias' may hold at most {MAX_BIASES} entries.", "logit_bias")
    pairs: list[tuple[object, object]]
    if isinstance(value, dict):
        pairs = [(_key_id(key), bias) for key, bias in value.items()]  # pyright: ignore
    else:
        pairs = [_pair(item) for item in value]  # pyright: ignore
    biases: dict[int, float] = {}
    for key, bias in pairs:
        amount = _amount(bias)
        for token in _tokens_of(key, served):
            biases[token] = amount
    return tuple(biases.items())


def _key_id(key: object) -> int:
    text = str(key)
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise RequestError(
            f"'logit_bias' has the key {text[:60]!r}; keys are token ids.", "logit_bias"
        )
    return int(text)


def _pair(item: object) -> tuple[object, object]:
    if not isinstance(item, list) or len(item) != 2:  # pyright: ignore[reportUnknownArgumentType]
        raise RequestError("'logit_bias' as a list must hold pairs [token, bias].", "logit_bias")
    return item[0], item[1]  # pyright: ignore[reportUnknownVariableType]


def _amount(bias: object) -> float:
    if bias is False:
        return BAN
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
        raise RequestError(
            "'logit_bias' takes numbers from -100 to 100, or false for a ban.", "logit_bias"
        )
    return BAN if bias <= -100 else float(bias)


def _tokens_of(key: object, served: Served) -> Sequence[int]:
    if isinstance(key, str):
        return served.tokenizer.encode(key[:MAX_STOP_CHARS], add_special=False, parse_special=False)
    if isinstance(key, bool) or not isinstance(key, int):
        raise RequestError("'logit_bias' names tokens by id or text.", "logit_bias")
    _check_id(key, served.tokenizer.vocab_size, "logit_bias")
    return (key,)


def refuse_hopeless(text: str, tokenizer: Tokenizer, most: int | None) -> None:
    """Raises ContextError for a text far too long, before it is tokenised in vain."""
    least = tokenizer.at_least(text)
    if most is not None and least > most:
        raise ContextError(least, most, counted=False)


def truncate(ids: tuple[int, ...], fields: Generation, context: int) -> tuple[int, ...]:
    """Keeps the last ``truncate_prompt_tokens`` ids, only if that was asked for."""
    wanted = fields.truncate_prompt_tokens
    if wanted is None:
        return ids
    return ids[-kept(wanted, context - max(1, min(fields.limit or 1, context - 1))) :]


def kept(wanted: int, most: int) -> int:
    """Tokens that ``truncate_prompt_tokens`` keeps of a prompt; -1 is ``most``."""
    keep = most if wanted == -1 else wanted
    if keep < 1:
        raise RequestError(
            "'truncate_prompt_tokens' must be -1 or at least 1.", "truncate_prompt_tokens"
        )
    return keep
