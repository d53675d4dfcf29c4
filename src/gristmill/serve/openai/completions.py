"""``POST /v1/completions``: raw text in, its continuation out. Special tokens are parsed."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.serve.answers import Answer, Group, Part, Write
from gristmill.serve.completion_request import CompletionFields, completion_job, parse_completion
from gristmill.serve.exchange import promise
from gristmill.serve.limits import read_object
from gristmill.serve.openai.chunks import chunk, usage_chunk
from gristmill.serve.openai.logprobs import Cursor, completion_form, prompt_form
from gristmill.serve.openai.usage import timings, usage
from gristmill.serve.run import Job, new_id, reply
from gristmill.serve.state import State
from gristmill.serve.stream import OpenAiEvents
from gristmill.types import TokenLogprob

KIND = "text_completion"


async def completions(http: HttpRequest) -> Response:
    """Continues one prompt or several."""
    state: State = http.app.state.gristmill
    state.open()
    fields = parse_completion(await read_object(http, state.options.max_body_bytes))
    if fields.stream:
        promise(http, OpenAiEvents())
    job = await completion_job(http, fields, new_id("cmpl", fields))
    shape = CompletionShape(job, fields)
    return await reply(http, job, shape.writer, shape.whole, shape.ending)


class CompletionShape:
    """Makes the bodies and chunks of one completion."""

    def __init__(self, job: Job, fields: CompletionFields) -> None:
        self.job = job
        self.fields = fields
        self.tokenizer = job.served.tokenizer
        self.tried = job.fields.n
        """Answers to each prompt; ``fields.n`` of them are told."""
        self._echoes: dict[int, str] = {}

    def _echo(self, answer: Answer) -> str:
        """The prompt's text, as its tokens say it."""
        if not self.fields.echo:
            return ""
        which = answer.index // self.tried
        if which not in self._echoes:
            ids = self.job.prompts[which].ids
            self._echoes[which] = self.tokenizer.decode(ids, skip_special=True)
        return self._echoes[which]

    def whole(self, group: Group) -> dict[str, object]:
        """``text_completion``."""
        body = self.job.envelope(KIND)
        answers = group.answers
        body["choices"] = [
            {**self._choice(answer, answers[answer.index - answer.index % self.tried]), "index": at}
            for at, answer in enumerate(self._best(answers))
        ]
        body["usage"] = usage(group)
        took = timings(group.answers[0])
        if took is not None:
            body["timings"] = took
        return body

    def _best(self, answers: Sequence[Answer]) -> list[Answer]:
        """For each prompt the ``n`` of the ``best_of`` tried that are likeliest by the token."""
        best: list[Answer] = []
        for first in range(0, len(answers), self.tried):
            tried = answers[first : first + self.tried]
            if self.tried > self.fields.n:
                tried = sorted(tried, key=_likelihood, reverse=True)[: self.fields.n]
            best += tried
        return best

    def _choice(self, answer: Answer, head: Answer) -> dict[str, object]:
        """``head`` is the first answer to the same prompt: it alone has the prompt's scores."""
        ids = self.job.prompts[answer.index // self.tried].ids
        choice: dict[str, object] = {
            "index": answer.index,
            "text": self._echo(answer) + "".join(answer.content),
            "logprobs": self._all_logprobs(answer, head, ids),
            "finish_reason": answer.finish,
            "stop_reason": answer.stopped_by,
        }
        if self.fields.prompt_logprobs is not None:
            entries = head.prompt_logprobs
            choice["prompt_logprobs"] = entries and prompt_form(entries, self.tokenizer)
        if self.fields.return_token_ids:
            choice["prompt_token_ids"] = list(ids)
            choice["token_ids"] = list(answer.tokens)
        return choice

    def _all_logprobs(
        self, answer: Answer, head: Answer, ids: Sequence[int]
    ) -> dict[str, object] | None:
        if self.fields.logprobs is None:
            return None
        entries: list[TokenLogprob | None] = list(answer.logprobs)
        tokens = [each.token for each in answer.logprobs]
        if self.fields.echo and head.prompt_logprobs is not None:
            entries = [*head.prompt_logprobs, *entries]
            tokens = [*ids, *tokens]
        cursor = Cursor()
        if self.fields.echo and head.prompt_logprobs is None:
            cursor.skip(self._echo(answer))
        return completion_form(entries, tokens, self.tokenizer, cursor)

    def writer(self, group: Group) -> Write:
        """Text as it comes, then an empty text with the reason."""
        cursors: dict[int, Cursor] = {}

        def write(answer: Answer, part: Part, ended: bool) -> list[object]:
            if part.progress is not None:
                return [self._chunk(group, answer, "", part, None)]
            made: list[object] = []
            if answer.index not in cursors:
                cursors[answer.index] = Cursor()
                echo = self._echo(answer)
                if echo or self.fields.return_token_ids:
                    made.append(self._opening(group, answer, echo))
                    cursors[answer.index].skip(echo)
            telling = part.logprobs if self.fields.logprobs is not None else ()
            ids = self.fields.return_token_ids and part.tokens
            if part.content or telling or ids:
                chunk = self._chunk(group, answer, part.content, part, cursors[answer.index])
                made.append(chunk)
            if ended:
                made.append(self._chunk(group, answer, "", None, None, closing=True))
            return made

        return write

    def _opening(self, group: Group, answer: Answer, echo: str) -> dict[str, object]:
        opening = self._chunk(group, answer, echo, None, None)
        if self.fields.return_token_ids:
            ids = self.job.prompts[answer.index // self.tried].ids
            choices = opening["choices"]
            assert isinstance(choices, list)
            choices[0]["prompt_token_ids"] = list(ids)
        return opening

    def _chunk(
        self,
        group: Group,
        answer: Answer,
        text: str,
        part: Part | None,
        cursor: Cursor | None,
        closing: bool = False,
    ) -> dict[str, object]:
        logprobs = None
        if part is not None and part.logprobs and cursor and self.fields.logprobs is not None:
            tokens = [each.token for each in part.logprobs]
            logprobs = completion_form(part.logprobs, tokens, self.tokenizer, cursor)
        body: dict[str, object] = {"text": text, "logprobs": logprobs}
        return chunk(self.job, group, answer, KIND, body, part, closing)

    def ending(self, group: Group) -> list[object]:
        """The chunk of usage, if asked for."""
        return usage_chunk(self.job, group, KIND)


def _likelihood(answer: Answer) -> float:
    """Mean log-probability of an answer's tokens; of no token it is the least."""
    values = [each.logprob for each in answer.logprobs]
    return sum(values) / len(values) if values else float("-inf")
