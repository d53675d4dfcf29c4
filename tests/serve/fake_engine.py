"""A small engine and tokenizer that keep the real ones' promises, for the server's tests.

Tokens are bytes (0 to 255) and a few specials. The fake answers a prompt by saying it again in
upper case, one token a step, on its own thread, so that threads, aborts and batches are real.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gristmill.errors import ContextError, OverloadError
from gristmill.types import Delta, FinishReason, Request, Sink, Timings, TokenLogprob

SPECIALS = {"<s>": 256, "</s>": 257, "<|user|>": 258, "<|assistant|>": 259, "<|end|>": 260}
NAMES = {id_: name for name, id_ in SPECIALS.items()}
EOS = 257
CONTEXT = 4096


class FakeTokenizer:
    """Bytes, and specials where they may be parsed."""

    vocab_size = 261
    eos_ids = frozenset({257, 260})

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        ids = [SPECIALS["<s>"]] if add_special else []
        parts = re.split("(" + "|".join(map(re.escape, SPECIALS)) + ")", text)
        for part in parts:
            if parse_special and part in SPECIALS:
                ids.append(SPECIALS[part])
            else:
                ids.extend(part.encode())
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        pieces = [b"" if skip_special and id_ > 255 else self.piece(id_) for id_ in ids]
        return b"".join(pieces).decode(errors="replace")

    def hidden(self, token: int) -> bool:
        return token > 255

    def at_least(self, text: str) -> int:
        return len(text) // 20

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else NAMES[token].encode()


@dataclass
class Running:
    request: Request
    sink: Sink
    script: list[list[int]]
    done: list[int]
    pending: list[bytes]


@dataclass(frozen=True)
class Stats:
    running: int
    waiting: int
    steps: int
    generated_tokens: int
    aborted: int


def upper(request: Request, index: int) -> list[int]:
    """The script of an answer: the prompt's bytes in upper case, then the end."""
    text = bytes(id_ for id_ in request.prompt if id_ < 256).decode(errors="replace")
    return [*text.upper().encode(), EOS]


Script = Callable[[Request, int], list[int]]
"""The ids of answer ``index`` to a request."""


class FakeEngine:
    """One token a step for every answer. ``hold`` stops it, ``fail`` ends all with an error."""

    def __init__(self, step: float = 0.0, script: Script = upper, max_waiting: int = 1024) -> None:
        self.step_seconds = step
        self.script = script
        self.max_waiting = max_waiting
        self.requests: list[Request] = []
        self.hold = threading.Event()
        self.hold.set()
        self.steps = 0
        self.generated = 0
        self.aborted: list[str] = []
        self._lock = threading.Lock()
        self._running: dict[str, Running] = {}
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, request: Request, sink: Sink) -> None:
        if len(request.prompt) >= CONTEXT:
            raise ContextError(len(request.prompt), CONTEXT)
        with self._lock:
            if self._closed or len(self._running) >= self.max_waiting:
                raise OverloadError("The queue is full.", retry_after=3)
            self.requests.append(request)
            self._running[request.id] = Running(
                request,
                sink,
                [self.script(request, i) for i in range(request.n)],
                [0] * request.n,
                [b""] * request.n,
            )
        self._wake.set()

    def abort(self, request_id: str) -> None:
        with self._lock:
            if self._running.pop(request_id, None) is not None:
                self.aborted.append(request_id)

    def fail(self, message: str) -> None:
        with self._lock:
            running, self._running = list(self._running.values()), {}
        for each in running:
            for index in range(each.request.n):
                each.sink(Delta(each.request.id, index, (), "", finish="error", error=message))

    def stats(self) -> Stats:
        return Stats(len(self._running), 0, self.steps, self.generated, len(self.aborted))

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._closed:
            if not self._running:
                self._wake.wait()
                self._wake.clear()
                continue
            self.hold.wait()
            if self.step_seconds:
                time.sleep(self.step_seconds)
            with self._lock:
                running = list(self._running.values())
            self.steps += 1
            for each in running:
                self._advance(each)

    def _advance(self, each: Running) -> None:
        for index in range(each.request.n):
            if each.done[index] >= 0:
                self._one(each, index)
        if all(done < 0 for done in each.done):
            with self._lock:
                self._running.pop(each.request.id, None)

    def _one(self, each: Running, index: int) -> None:
        params = each.request.sampling
        at = each.done[index]
        token = each.script[index][at]
        finish: FinishReason | None = None
        ends = token in FakeTokenizer.eos_ids and not params.ignore_eos
        if not ends:
            each.pending[index] += FakeTokenizer().piece(token)
        if ends:
            finish = "stop"
        elif at + 1 == params.max_tokens or at + 1 == len(each.script[index]):
            finish = "length"
        text = self._text(each, index, finish is not None)
        logprobs = (
            (TokenLogprob(token, -0.5, tuple((t, -1.0 - t) for t in range(params.logprobs))),)
            if params.logprobs is not None and not ends
            else ()
        )
        prompt = None
        if at == 0 and params.prompt_logprobs is not None:
            rest = [TokenLogprob(t, -2.0, ((t, -2.0),)) for t in each.request.prompt[1:]]
            prompt = (None, *rest)
        self.generated += 1
        each.done[index] = -1 if finish else at + 1
        took = Timings(0.001, 0.01, 0.1, len(each.request.prompt), 2, at + 1) if finish else None
        if each.request.id in self._running:
            each.sink(
                Delta(each.request.id, index, (token,), text, logprobs, prompt, finish, None, took)
            )

    def _text(self, each: Running, index: int, last: bool) -> str:
        """Whole characters only; what is left at the end is replaced."""
        held = each.pending[index]
        for cut in range(len(held), -1, -1):
            try:
                text = held[:cut].decode()
            except UnicodeDecodeError:
                continue
            each.pending[index] = held[cut:]
            if last:
                text += each.pending[index].decode(errors="replace")
            return text
        return ""
