"""Embeddings of texts: what the routes of all dialects do alike.

A model that generates text has embeddings, too: the activations behind its last norm, pooled over
a prompt's tokens. How they are pooled the model's file says (``pooling_type``), or ``--pooling``;
else the last token's are taken, as vLLM does with such models.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from starlette.requests import Request as HttpRequest

from gristmill.errors import RequestError
from gristmill.serve.completion_request import CompletionFields, prompts
from gristmill.serve.dialect import renamed
from gristmill.serve.fields import Flag, Whole
from gristmill.serve.prompt import chat_ids
from gristmill.serve.protocol import Prompt, Served
from gristmill.serve.requests import kept
from gristmill.serve.run import Job, new_id, now, start
from gristmill.types import Pooling, SamplingParams

if TYPE_CHECKING:
    from gristmill.serve.state import State

F32 = npt.NDArray[np.float32]

CHAT = ("messages", "chat_template_kwargs", "add_generation_prompt")
MAX_TEXTS = 2048
WAVE = 256
EUCLIDEAN = 2
INT16_MOST = 32760
"""What the largest value becomes under llama-server's norm 0."""


class EmbeddingFields(CompletionFields):
    """What the bodies have in common; ``input`` has other names in some dialects."""

    prompt: Any = None
    input: Any = None
    messages: list[Any] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[Whole, Field(ge=1)] | None = None
    embd_normalize: Annotated[Whole, Field(ge=-1, le=64)] = EUCLIDEAN
    add_generation_prompt: Flag = False
    truncation_side: Literal["left", "right"] = "left"
    chat_template_kwargs: Annotated[dict[str, Any], Field(default_factory=dict)]


@dataclass(frozen=True)
class Embedded:
    """One prompt's embedding: float32 rows [1, width], or one for each token; not normalised."""

    rows: F32
    tokens: int
    cached: int


async def embed(
    http: HttpRequest,
    fields: EmbeddingFields,
    served: Served,
    model: str,
    *,
    name: str = "input",
    pooling: Pooling | None = None,
) -> list[Embedded]:
    """The embeddings of ``fields.input``, in order; ``name`` is what the client calls it.

    Raises: RequestError, ContextError, OverloadError, ClientGoneError.
    """
    state: State = http.app.state.gristmill

    def tokenise(asked: EmbeddingFields) -> list[tuple[int, ...]]:
        if asked.input is None and asked.messages is not None:
            return [chat_ids(served, {name: getattr(asked, name) for name in CHAT})]
        if asked.input is None:
            raise RequestError(f"'{name}' is missing.", name)
        with renamed({"prompt": name}):
            return prompts(asked.input, served, asked, MAX_TEXTS)

    ids = await state.in_worker(tokenise, fields)
    made = [Prompt(_cut(each, fields, served.context)) for each in ids]
    one = fields.model_copy(update={"n": 1, "stream": False, "logprobs": None, "best_of": None})
    pooling = pooling or served.pooling
    nothing = SamplingParams(max_tokens=0)
    whole = Job(state, served, one, model, new_id("embd", one), made, nothing, now(), pooling)
    wave = min(WAVE, served.most_answers or WAVE)
    found: list[Embedded] = []
    for at in range(0, len(made), wave):
        found += await _wave(http, replace(whole, prompts=made[at : at + wave]))
    return found


async def _wave(http: HttpRequest, job: Job) -> list[Embedded]:
    """As many of a long list as the engine may be asked for at once."""
    ticket, group = start(job)
    try:
        ticket.watch(http.receive)
        await group.whole(ticket)
    finally:
        ticket.close()
    found: list[Embedded] = []
    for answer, prompt in zip(group.answers, job.prompts, strict=True):
        values = np.frombuffer(answer.embedding or b"", np.float32)
        rows = 1 if job.pooling != "each" else len(prompt.ids)
        found.append(Embedded(values.reshape(rows, -1), len(prompt.ids), answer.cached))
    return found


def _cut(ids: tuple[int, ...], fields: EmbeddingFields, context: int) -> tuple[int, ...]:
    wanted = fields.truncate_prompt_tokens
    if wanted is None:
        return ids
    keep = kept(wanted, context)
    return ids[:keep] if fields.truncation_side == "right" else ids[-keep:]


def one_row(served: Served, route: str) -> None:
    """Raises RequestError if the server pools nothing: ``route`` wants one row for a text."""
    if served.pooling == "each":
        raise RequestError(
            f"{route} needs one embedding for a text; the server was started with "
            "'--pooling none', which gives one for each token."
        )


def normalised(rows: F32, norm: int, dimensions: int | None = None) -> F32:
    """Each row's first ``dimensions`` values, scaled to length one.

    ``norm``: -1 leaves them, 0 makes the largest 32,760, p the p-norm one (2: Euclidean). A row
    of zeros stays. Raises RequestError for more dimensions than there are.
    """
    if dimensions is not None:
        if dimensions > rows.shape[1]:
            raise RequestError(
                f"'dimensions' is {dimensions}; this model's embeddings have {rows.shape[1]}.",
                "dimensions",
            )
        rows = rows[:, :dimensions]
    if norm < 0:
        return rows
    wide = np.abs(rows.astype(np.float64))
    if norm == 0:
        length = wide.max(axis=1, keepdims=True, initial=0) / INT16_MOST
    else:
        length = (wide**norm).sum(axis=1, keepdims=True) ** (1 / norm)
    return np.divide(rows, np.where(length > 0, length, 1), dtype=np.float64).astype(np.float32)


def written(row: F32, fields: EmbeddingFields) -> object:
    """A row as JSON has it: numbers, or base64 of little-endian float32."""
    if fields.encoding_format == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return row.tolist()


def counted(embedded: Sequence[Embedded]) -> dict[str, object]:
    """OpenAI's ``usage``."""
    tokens = sum(each.tokens for each in embedded)
    return {"prompt_tokens": tokens, "total_tokens": tokens}
