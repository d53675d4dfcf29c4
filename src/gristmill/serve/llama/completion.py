"""``POST /completion`` and ``/completions``: llama-server's own form of a continued prompt.

Several prompts, or several answers to one, come back as a list; one comes alone. A stream has a
chunk a token and ends with the whole answer but its text; there is no ``[DONE]``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.serve.answers import Answer, Group, Part, Write
from gristmill.serve.exchange import promise
from gristmill.serve.limits import read_object
from gristmill.serve.llama.probs import probabilities
from gristmill.serve.llama.request import NativeFields, native_job
from gristmill.serve.llama.settings import generation_settings
from gristmill.serve.openai.chunks import progress_form
from gristmill.serve.openai.usage import running_timings, timings
from gristmill.serve.run import Job, reply
from gristmill.serve.state import State
from gristmill.serve.stream import OpenAiEvents


class NativeEvents(OpenAiEvents):
    """Server-sent events that just end."""

    def alive(self) -> bytes:
        """An empty comment."""
        return b":\n\n"

    def end(self) -> bytes:
        """Nothing: the last chunk has ``"stop": true``."""
        return b""


async def completion(http: HttpRequest) -> Response:
    """Continues one prompt or several."""
    state: State = http.app.state.gristmill
    state.open()
    body = await read_object(http, state.options.max_body_bytes)
    return await respond(http, body)


async def respond(http: HttpRequest, body: Mapping[str, object]) -> Response:
    """The answer to a body of ``/completion``."""
    if body.get("stream") is True:
        promise(http, NativeEvents())
    job = await native_job(http, body)
    fields = job.fields
    assert isinstance(fields, NativeFields)
    wanted = fields.sse_ping_interval
    if wanted is not None:
        job = replace(job, ping=float(wanted) if wanted > 0 else math.inf)
    shape = NativeShape(job, fields, body)
    return await reply(http, job, shape.writer, shape.whole, shape.ending, NativeEvents())


class NativeShape:
    """Makes the bodies and chunks of one completion."""

    def __init__(self, job: Job, fields: NativeFields, body: Mapping[str, object]) -> None:
        self.job = job
        self.fields = fields
        self.body = body
        self.tokenizer = job.served.tokenizer

    def whole(self, group: Group) -> object:
        """One object, or a list of them."""
        made = [self._final(answer) for answer in group.answers]
        return made[0] if len(made) == 1 else made

    def writer(self, group: Group) -> Write:
        """A chunk a part, then what ended the answer."""

        silent: dict[int, list[int]] = {}

        def write(answer: Answer, part: Part, ended: bool) -> list[object]:
            made: list[object] = []
            tokens = silent.setdefault(answer.index, [])
            tokens.extend(part.tokens)
            if part.progress is not None or part.content or part.logprobs:
                made.append(self._partial(group, answer, part, tokens))
                silent[answer.index] = []
            if ended:
                made.append(self._final(answer, silent[answer.index]))
            return made

        return write

    def ending(self, group: Group) -> list[object]:
        """Nothing comes after the last answer."""
        del group
        return []

    def _partial(
        self, group: Group, answer: Answer, part: Part, tokens: list[int]
    ) -> dict[str, object]:
        chunk: dict[str, object] = {
            "index": answer.index,
            "content": part.content,
            "tokens": tokens,
            "stop": False,
            "id_slot": answer.slot,
            "tokens_predicted": len(answer.tokens),
            "tokens_evaluated": answer.prompt_tokens,
        }
        if self.fields.timings_per_token and part.progress is None:
            chunk["timings"] = running_timings(answer, group)
        if part.progress is not None:
            chunk["prompt_progress"] = progress_form(part.progress)
        if part.logprobs:
            chunk["completion_probabilities"] = self._probabilities(part.logprobs)
        return chunk

    def _final(self, answer: Answer, rest: list[int] | None = None) -> dict[str, object]:
        """``rest``: at a stream's end, the tokens without a text that no chunk has had."""
        streamed = rest is not None
        tokens = rest or []
        if not streamed and self.fields.return_tokens:
            tokens = list(answer.tokens)
        content = "".join(answer.content)
        ids = self.job.prompts[answer.index // self.fields.n].ids
        generated = answer.generated
        body: dict[str, object] = {
            "index": answer.index,
            "content": "" if streamed else content,
            "tokens": tokens,
            "id_slot": answer.slot,
            "stop": True,
            "model": self.job.model,
            "tokens_predicted": generated,
            "tokens_evaluated": answer.prompt_tokens,
            "generation_settings": generation_settings(self.job.sampling, self.fields, self.body),
            "prompt": self.tokenizer.decode(ids),
            "has_new_line": "\n" in content,
            "truncated": self._full(answer),
            "stop_type": self._stop_type(answer),
            "stopping_word": answer.stopped_by if isinstance(answer.stopped_by, str) else "",
            "tokens_cached": answer.prompt_tokens + max(0, generated - 1),
            "timings": timings(answer),
        }
        if answer.logprobs and not streamed:
            body["completion_probabilities"] = self._probabilities(answer.logprobs)
        return nested(self.fields.response_fields, body) if self.fields.response_fields else body

    def _probabilities(self, entries: Sequence[object]) -> list[dict[str, object]]:
        after = self.fields.post_sampling_probs
        return probabilities(entries, self.tokenizer, after)  # pyright: ignore[reportArgumentType]

    def _full(self, answer: Answer) -> bool:
        """Whether the context's end cut the answer, or what it goes on from."""
        if answer.timings is not None and answer.timings.dropped_tokens:
            return True
        tokens = answer.prompt_tokens + answer.generated
        return answer.finish == "length" and tokens >= self.job.served.context

    @staticmethod
    def _stop_type(answer: Answer) -> str:
        if answer.finish == "length":
            return "limit"
        if answer.finish != "stop":
            return "none"
        return "word" if isinstance(answer.stopped_by, str) else "eos"


def nested(paths: Sequence[str], body: Mapping[str, object]) -> dict[str, object]:
    """Only the named fields; ``a/b`` is field b of field a, under the name ``a/b``."""
    found: dict[str, object] = {}
    for path in paths:
        value: object = body
        for step in path.split("/"):
            if not isinstance(value, dict) or step not in value:
                break
            value = value[step]  # pyright: ignore[reportUnknownVariableType]
        else:
            found[path] = value
    return found
