"""A raw prompt as a client asks for its continuation: the fields, their checks, the job.

The other dialects' routes for raw prompts translate their bodies into these fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request as HttpRequest

from gristmill.errors import RequestError
from gristmill.serve.constraints import settle
from gristmill.serve.fields import Flag, Text, Whole
from gristmill.serve.mixed import is_id
from gristmill.serve.protocol import Prompt, Served
from gristmill.serve.requests import (
    MAX_LOGPROBS,
    MAX_N,
    Generation,
    refuse_hopeless,
    refuse_unsupported,
    truncate,
)
from gristmill.serve.run import Job, now, sampling_of
from gristmill.serve.state import State

MAX_PROMPTS = 256


class CompletionFields(Generation):
    """The body."""

    prompt: Any
    echo: Flag = False
    suffix: Text = ""
    best_of: Annotated[Whole, Field(ge=1, le=MAX_N)] | None = None
    logprobs: Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_special_tokens: Flag = True

    @property
    def scored(self) -> int | None:
        """Alternatives wanted for the prompt's tokens: an echo with logprobs shows theirs too."""
        if self.prompt_logprobs is None and self.echo:
            return self.logprobs
        return self.prompt_logprobs


def prompts(
    value: object, served: Served, fields: CompletionFields, most: int = MAX_PROMPTS
) -> list[tuple[int, ...]]:
    """OpenAI's four forms: a text, ids, a list of texts, a list of lists of ids.

    Raises: RequestError for anything else, for ids beyond the vocabulary and for too many.
    """
    if isinstance(value, str):
        return [_encode(value, served, fields)]
    if not isinstance(value, list) or not value:
        raise RequestError(
            "'prompt' must be a string, a list of token ids, or a list of either.", "prompt"
        )
    items: list[object] = value  # pyright: ignore[reportUnknownVariableType]
    if is_id(items[0]):
        return [_ids(items, served)]
    if len(items) > most:
        raise RequestError(f"'prompt' may hold at most {most} prompts.", "prompt")
    found: list[tuple[int, ...]] = []
    for item in items:
        if isinstance(item, str):
            found.append(_encode(item, served, fields))
        elif isinstance(item, list):
            found.append(_ids(item, served))  # pyright: ignore[reportUnknownArgumentType]
        else:
            raise RequestError("'prompt' must hold texts or lists of token ids.", "prompt")
    return found


def _encode(text: str, served: Served, fields: CompletionFields) -> tuple[int, ...]:
    if fields.truncate_prompt_tokens is None:
        refuse_hopeless(text, served.tokenizer, served.context)
    ids = served.tokenizer.encode(text, add_special=fields.add_special_tokens, parse_special=True)
    if not ids:
        raise RequestError("'prompt' is empty, and this model has no start token.", "prompt")
    return tuple(ids)


def _ids(items: Sequence[object], served: Served) -> tuple[int, ...]:
    vocab = served.tokenizer.vocab_size
    if not items:
        raise RequestError("'prompt' holds an empty list of token ids.", "prompt")
    for item in items:
        if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < vocab:
            raise RequestError(f"'prompt' must hold token ids from 0 to {vocab - 1}.", "prompt")
    return tuple(items)  # pyright: ignore[reportReturnType]


def infill_prompts(value: object, served: Served, fields: CompletionFields) -> list[list[int]]:
    """Prompts that ask for what stands between ``prompt`` and ``suffix``.

    Raises: RequestError for prompts that are no texts, and for models that cannot.
    """
    if served.infill is None:
        raise RequestError(
            "'suffix' needs a model with tokens for filling in; this one has none.", "suffix"
        )
    texts: list[object] = value if isinstance(value, list) else [value]  # pyright: ignore
    if not 1 <= len(texts) <= MAX_PROMPTS or not all(isinstance(text, str) for text in texts):
        raise RequestError(
            f"With 'suffix' the prompt must be a text or a list of up to {MAX_PROMPTS}.", "prompt"
        )
    refuse_hopeless(fields.suffix, served.tokenizer, served.context)
    after = served.tokenizer.encode(fields.suffix, add_special=False, parse_special=False)
    found: list[list[int]] = []
    for text in texts:
        assert isinstance(text, str)
        refuse_hopeless(text, served.tokenizer, served.context)
        before = served.tokenizer.encode(text, add_special=False, parse_special=False)
        found.append(served.infill.prompt(before, after))
    return found


def parse_completion(body: dict[str, object]) -> CompletionFields:
    """The checked fields of a body in OpenAI's form. Raises RequestError."""
    refuse_unsupported(body, completions=True)
    fields = CompletionFields.parse(body)
    if fields.n_probs and fields.logprobs is None:  # llama-server's name for it
        fields = fields.model_copy(update={"logprobs": fields.n_probs})
    if fields.best_of is not None and fields.best_of < fields.n:
        raise RequestError(
            f"'best_of' ({fields.best_of}) is less than 'n' ({fields.n}).", "best_of"
        )
    if fields.best_of is not None and fields.best_of > fields.n and fields.stream:
        raise RequestError("'best_of' above 'n' cannot be streamed.", "best_of")
    if fields.echo and fields.suffix:
        raise RequestError("'echo' cannot be had together with 'suffix'.", "echo")
    if fields.echo and fields.logprobs is not None and fields.stream:
        raise RequestError("'echo' with 'logprobs' cannot be streamed.", "echo")
    return fields


async def completion_job(http: HttpRequest, fields: CompletionFields, job_id: str) -> Job:
    """Everything the engine must be told: the prompts tokenised, the sampling checked.

    Raises: NotFoundError, OverloadError, RequestError.
    """
    state: State = http.app.state.gristmill
    served, model = await state.acquire(http, fields.model)
    asked = fields.model_copy(update={"prompt_logprobs": fields.scored})
    tried = max(fields.n, fields.best_of or 1)
    told = 0 if tried > fields.n and fields.logprobs is None else fields.logprobs
    chosen = await sampling_of(state, asked, served, told)
    chosen = await settle(served, chosen, fields, None)

    def tokenise(value: object) -> list[tuple[int, ...]]:
        if fields.suffix:
            return [tuple(ids) for ids in infill_prompts(value, served, fields)]
        return prompts(value, served, fields)

    ids = await state.in_worker(tokenise, fields.prompt)
    made = [Prompt(truncate(each, fields, served.context)) for each in ids]
    asked = fields.model_copy(update={"n": tried})
    return Job(state, served, asked, model, job_id, made, chosen, now())
