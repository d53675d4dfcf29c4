"""A toy model whose every logit depends on every token it can see through the block tables.

Tokens are stored, with their positions, in blocks; a row's logits are drawn from a hash of all
tokens read back through the tables, group by group. A wrong table, position, span, or a block
that was given away too early changes the text, or raises.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from gristmill.backends.ops import (
    BLOCK_TOKENS,
    F32,
    Batch,
    Choice,
    Chooser,
    Ops,
    Wanted,
    X,
)
from gristmill.engine.engine import Engine, Parts
from gristmill.engine.memory import Headroom
from gristmill.engine.plan import Facts, Plan
from gristmill.errors import EngineError, RequestError, ResourceError
from gristmill.kv.shelf import Shelf
from gristmill.types import (
    Delta,
    Paged,
    RawTensor,
    Request,
    SamplingParams,
    Slot,
    StateSpec,
    Window,
)

VOCAB = 61
EOS = 0
POISON = -7


class ToyMemory:
    """Blocks of (token, position) pairs, poisoned until written."""

    def __init__(self, states: Sequence[StateSpec], ceiling: int | None = None) -> None:
        self.states = tuple(states)
        self.data = [np.empty((0, BLOCK_TOKENS, 2), np.int32) for _ in states]
        self.ceiling = ceiling

    def block_bytes(self, group: int) -> int:
        del group
        return BLOCK_TOKENS * 8

    def blocks(self, group: int) -> int:
        return len(self.data[group])

    def resize(self, group: int, blocks: int) -> None:
        if self.ceiling is not None and blocks > self.ceiling:
            raise ResourceError("The toy machine has no more memory.")
        grown = np.full((blocks, BLOCK_TOKENS, 2), POISON, np.int32)
        keep = min(blocks, len(self.data[group]))
        grown[:keep] = self.data[group][:keep]
        self.data[group] = grown

    def copy(self, group: int, source: int, target: int) -> None:
        self.data[group][target] = self.data[group][source]

    def dump(self, group: int, block: int) -> bytes:
        return self.data[group][block].tobytes()

    def fill(self, group: int, block: int, data: bytes) -> None:
        self.data[group][block] = np.frombuffer(data, np.int32).reshape(BLOCK_TOKENS, 2)


class ToyProgram:
    """Writes the step's tokens, reads back what each row sees, hashes it into logits."""

    def __init__(self, memory: ToyMemory) -> None:
        self.memory = memory
        self.gate: threading.Event | None = None
        self.fail: Exception | None = None
        self.batches: list[tuple[int, int]] = []
        self.states: dict[tuple[int, int], bytes] = {}
        """Of the step: by group and row, a recurrent state after the row's token."""

    def run(self, batch: Batch) -> F32:
        if self.gate is not None:
            self.gate.wait(30)
        if self.fail is not None:
            raise self.fail
        self.batches.append((len(batch.spans), len(batch.ids)))
        check_batch(batch)
        for number, span in enumerate(batch.spans.tolist()):
            row, count, start = (int(value) for value in span)
            positions = np.arange(start, start + count)
            assert np.array_equal(batch.positions[row : row + count], positions)
            for group in range(len(self.memory.states)):
                self._store(group, batch, number, row, count, start)
        logits = np.empty((len(batch.outputs), VOCAB), np.float32)
        for index, row in enumerate(map(int, batch.outputs)):
            number = int(np.searchsorted(batch.spans[:, 0], row, side="right")) - 1
            logits[index] = self._logits(batch, number, int(batch.positions[row]))
        return logits

    def _store(
        self, group: int, batch: Batch, number: int, row: int, count: int, start: int
    ) -> None:
        if isinstance(self.memory.states[group], Slot):
            self._remember(group, batch, number, row, count, start)
            return
        for offset in range(count):
            position = start + offset
            block = batch.tables[group][number, position // BLOCK_TOKENS]
            assert block >= 0, "writing to a block that was let go"
            cell = self.memory.data[group][block, position % BLOCK_TOKENS]
            cell[:] = batch.ids[row + offset], position

    def _remember(
        self, group: int, batch: Batch, number: int, row: int, count: int, start: int
    ) -> None:
        """A state is a running hash and its length; kept as ``ops.Batch`` says."""
        data, table = self.memory.data[group], batch.tables[group][number]
        value = 1
        if start:
            block = table[(start - 1) // BLOCK_TOKENS]
            assert block >= 0, "the state before the step is not there"
            value, length = map(int, data[block, 0])
            assert length == start, "a state of other tokens"
        for offset in range(count):
            value = (value * 31 + int(batch.ids[row + offset]) + 7) % 1_000_003
            self.states[group, row + offset] = value.to_bytes(4, "little")
            end = start + offset + 1
            block = table[(end - 1) // BLOCK_TOKENS]
            if offset + 1 == count:
                assert block >= 0, "the state after the step has no place"
            if block >= 0 and (offset + 1 == count or end % BLOCK_TOKENS == 0):
                data[block, 0] = value, end

    def _logits(self, batch: Batch, number: int, position: int) -> F32:
        seen = hashlib.blake2b(digest_size=8)
        row, _, start = batch.spans[number].tolist()
        for group, spec in enumerate(self.memory.states):
            if isinstance(spec, Slot):
                seen.update(self.states[group, row + position - start])
                continue
            first = max(0, position - spec.window + 1) if isinstance(spec, Window) else 0
            where = np.arange(first, position + 1)
            blocks = batch.tables[group][number, where // BLOCK_TOKENS]
            assert (blocks >= 0).all(), "reading a block that was let go"
            cells = self.memory.data[group][blocks, where % BLOCK_TOKENS]
            assert (cells[:, 1] == where).all(), "a block holds other positions"
            seen.update(cells.tobytes())
        random = np.random.default_rng(int.from_bytes(seen.digest(), "little"))
        return random.normal(0, 2, VOCAB).astype(np.float32)


def check_batch(batch: Batch) -> None:
    """The promises of ``ops.Batch``."""
    spans = batch.spans
    assert spans.shape[1:] == (3,)
    assert len(batch.ids) == len(batch.positions) == spans[:, 1].sum()
    assert (spans[:, 1] > 0).all()
    assert (spans[:, 0] == np.cumsum(spans[:, 1]) - spans[:, 1]).all()
    assert (np.diff(batch.outputs) > 0).all()
    for table in batch.tables:
        assert table.shape[0] == len(spans)
        assert table.flags.c_contiguous
    for values in (batch.ids, batch.positions, spans, batch.outputs, *batch.tables):
        assert values.dtype == np.int32


@dataclass
class ToyChooser:
    """Greedy or by temperature, with its own random stream."""

    params: SamplingParams
    random: np.random.Generator
    history: list[int] = field(default_factory=list[int])

    def accept(self, token: int) -> None:
        self.history.append(token)


class ToyBackend:
    """Just enough of ``ops.Backend``."""

    name = "toy"
    threads = 1

    def pack(self, wanted: Wanted, tensors: Mapping[str, RawTensor]) -> object:
        raise NotImplementedError

    def kv_dtype(self, asked: str) -> str:
        return asked

    def give_way(self, on: bool) -> None:
        pass

    def memory(self, states: Sequence[StateSpec], kv_dtype: str) -> ToyMemory:
        del kv_dtype
        return ToyMemory(states)

    def compile(self, forward: Callable[[Ops], X], memory: ToyMemory) -> ToyProgram:
        del forward
        return ToyProgram(memory)

    def chooser(
        self, params: SamplingParams, seed: int, vocab: int, prompt: Sequence[int]
    ) -> ToyChooser:
        assert vocab == VOCAB
        assert all(0 <= token < vocab for token in prompt)
        if params.top_k == 99:
            raise RequestError("The toy does not like a top_k of 99.", "top_k")
        return ToyChooser(params, np.random.default_rng(seed))

    def choose(
        self,
        logits: F32,
        rows: Sequence[int],
        choosers: Sequence[Chooser],
        banned: Sequence[Sequence[int]],
        masks: Sequence[npt.NDArray[np.uint32] | None] | None = None,
    ) -> list[Choice]:
        del masks
        choices: list[Choice] = []
        for row, chooser, ban in zip(rows, choosers, banned, strict=True):
            assert isinstance(chooser, ToyChooser)
            raw = logits[row].astype(np.float64)
            scores = raw.copy()
            for token, bias in chooser.params.logit_bias:
                scores[token] += bias
            scores[list(ban)] = -np.inf
            if chooser.params.temperature > 0:
                scores = scores / chooser.params.temperature
                scores += chooser.random.gumbel(size=VOCAB)
            token = int(scores.argmax())
            chooser.accept(token)
            choices.append(_choice(raw, token, chooser.params.logprobs or 0))
        return choices

    def logprobs(
        self, logits: F32, rows: Sequence[int], tokens: Sequence[int], top: int
    ) -> list[Choice]:
        pairs = zip(rows, tokens, strict=True)
        return [_choice(logits[row].astype(np.float64), token, top) for row, token in pairs]

    def close(self) -> None: ...


def _choice(raw: npt.NDArray[np.float64], token: int, top: int) -> Choice:
    logprobs = raw - np.log(np.exp(raw).sum())
    best = np.argsort(-logprobs)[:top]
    return Choice(token, float(logprobs[token]), tuple((int(b), float(logprobs[b])) for b in best))


class ToyDetokenizer:
    """Token t is the letter or letters ``text_of(t)``."""

    def __init__(self, skip_special: bool = True, shown: tuple[int, ...] = ()) -> None:
        self.skip_special = skip_special

    def push(self, ids: Sequence[int], /) -> str:
        return "".join(map(text_of, ids))

    def flush(self) -> str:
        return ""


def text_of(token: int) -> str:
    """One or two letters a token, so that stop strings cross the borders."""
    return chr(ord("a") + token % 26) + ("." if token >= 52 else "")


FULL = Paged(1, 8)


def make_plan(
    states: Sequence[StateSpec] = (FULL,),
    blocks: Sequence[int] | None = None,
    context: int = 512,
    max_running: int = 8,
    step_tokens: int = 48,
    max_waiting: int = 1000,
    prefix_cache: bool = True,
) -> Plan:
    """A plan for the toy, every number given."""
    blocks = [4 * context // BLOCK_TOKENS] * len(states) if blocks is None else blocks
    facts = Facts("toy", "toy", context, tuple(states), (256,) * len(states), 0, "toy", 1)
    return Plan(
        facts=facts,
        context=context,
        kv_tokens=min(blocks) * BLOCK_TOKENS,
        kv_bytes=sum(blocks) * 256,
        kv_blocks=tuple(blocks),
        kv_dtype="f16",
        max_running=max_running,
        step_tokens=step_tokens,
        max_waiting=max_waiting,
        prefix_cache=prefix_cache,
        seed=1,
        step_timeout=30.0,
    )


class Toy:
    """An engine over the toy, and the answers it gave."""

    def __init__(
        self,
        plan: Plan | None = None,
        ceiling: int | None = None,
        on_failure: Callable[[EngineError], None] | None = None,
        eos: frozenset[int] = frozenset({EOS}),
        headroom: Headroom | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        self.plan = plan or make_plan()
        self.memory = ToyMemory(self.plan.facts.states, ceiling)
        self.program = ToyProgram(self.memory)
        parts = Parts(
            plan=self.plan,
            backend=ToyBackend(),  # type: ignore[arg-type]
            memory=self.memory,
            program=self.program,
            vocab=VOCAB,
            eos=eos,
            detokenizer=ToyDetokenizer,
            headroom=headroom,
            shelf=shelf,
        )
        self.engine = Engine(parts, on_failure, check_idle=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.close()

    def submit(self, request: Request) -> Answer:
        """Send a request; its answers fill up as they come."""
        answer = Answer(request.n)
        self.engine.submit(request, answer)
        return answer

    def ask(self, request: Request, timeout: float = 30.0) -> Answer:
        """Send a request and wait until all of it is answered."""
        return self.submit(request).wait(timeout)

    def used(self) -> list[int]:
        """Blocks in use, per group."""
        return [group.used for group in self.engine.stats().kv]


class Answer:
    """A sink that keeps everything and holds the engine to the rules of ``Delta``."""

    def __init__(self, n: int = 1) -> None:
        self.n = n
        self.deltas: list[list[Delta]] = [[] for _ in range(min(n, 200))]
        self.changed = threading.Condition()
        self.broken: str | None = None

    def __call__(self, delta: Delta) -> None:
        with self.changed:
            mine = self.deltas[delta.index]
            if mine and mine[-1].finish is not None:
                self.broken = "a delta after the last"
            mine.append(delta)
            self.changed.notify_all()

    def done(self) -> bool:
        return all(mine and mine[-1].finish is not None for mine in self.deltas)

    def wait(self, timeout: float = 30.0) -> Answer:
        with self.changed:
            assert self.changed.wait_for(self.done, timeout), "no answer in time"
        assert self.broken is None, self.broken
        return self

    def wait_tokens(self, count: int, timeout: float = 30.0) -> Answer:
        """Wait for the first ``count`` tokens of answer 0."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.tokens()) >= count, timeout)
        return self

    def tokens(self, index: int = 0) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas[index] for token in delta.tokens)

    def text(self, index: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas[index])

    def last(self, index: int = 0) -> Delta:
        return self.deltas[index][-1]


def greedy(**fields: object) -> SamplingParams:
    """Temperature 0, and what else is given."""
    return SamplingParams(temperature=0.0, **fields)  # type: ignore[arg-type]


def oracle(
    prompt: Sequence[int],
    states: Sequence[StateSpec],
    count: int,
    banned: Sequence[int] = (),
) -> tuple[int, ...]:
    """What greedy decoding gives, worked out without engine, blocks or tables."""
    tokens = list(prompt)
    for _ in range(count):
        seen = hashlib.blake2b(digest_size=8)
        last = len(tokens) - 1
        for spec in states:
            if isinstance(spec, Slot):
                value = 1
                for token in tokens:
                    value = (value * 31 + token + 7) % 1_000_003
                seen.update(value.to_bytes(4, "little"))
                continue
            first = max(0, last - spec.window + 1) if isinstance(spec, Window) else 0
            pairs = [(tokens[p], p) for p in range(first, last + 1)]
            seen.update(np.array(pairs, np.int32).tobytes())
        random = np.random.default_rng(int.from_bytes(seen.digest(), "little"))
        logits = random.normal(0, 2, VOCAB).astype(np.float32)
        logits[list(banned)] = -np.inf
        token = int(logits.argmax())
        tokens.append(token)
        if token == EOS:
            break
    return tuple(tokens[len(prompt) :])
