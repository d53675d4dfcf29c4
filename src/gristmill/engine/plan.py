"""What ``Options`` come to on this machine, with this model: frozen and printable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.backends.ops import BLOCK_TOKENS
from gristmill.engine.machine import Machine
from gristmill.errors import ResourceError, UsageError
from gristmill.kv.pools import Need
from gristmill.options import Options
from gristmill.types import Slot, StateSpec

LEAST_CONTEXT = 256
"""A server whose memory holds less than this is of no use to anyone."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the model and the back end say. ``states`` and ``block_bytes`` are per group."""

    name: str
    architecture: str
    trained_context: int
    states: tuple[StateSpec, ...]
    block_bytes: tuple[int, ...]
    weights_bytes: int
    backend: str
    threads: int
    quantisation: str = ""
    """What was made of the weights while they were loaded; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Every number the engine runs by.

    ``context`` is the most tokens of one request, prompt and answer together; ``kv_tokens``
    is what the shared pool holds of all requests and of the prefix cache. They are two
    numbers: many requests share the pool, each may grow to ``context``.
    """

    facts: Facts
    context: int
    kv_tokens: int
    kv_bytes: int
    kv_blocks: tuple[int, ...]
    kv_dtype: str
    max_running: int
    step_tokens: int
    max_waiting: int
    prefix_cache: bool
    seed: int | None
    step_timeout: float
    context_shift: bool = False
    slowdown: float = 2.0
    """See ``engine.pace``."""
    draft_tokens: int = 0
    """Most tokens that are guessed for one sequence in one step (``engine.speculation``)."""
    draft_match: int = 2
    """Fewest tokens that must have come before for a guess."""
    notes: tuple[str, ...] = ()
    """What the person should know: where an option could not be had as asked."""

    def describe(self) -> str:
        """A few lines for the ready block."""
        facts = self.facts
        rows = {
            "model": f"{facts.name} ({facts.architecture}), {_mebibytes(facts.weights_bytes)}",
            "context": f"{self.context} of {facts.trained_context} tokens, for each request",
            "kv pool": f"{self.kv_tokens} tokens, for all requests together, taken as needed "
            f"up to {_mebibytes(self.kv_bytes)} ({self.kv_dtype})",
            "running": f"up to {self.max_running} requests, {self.step_tokens} tokens a step; "
            f"{self.max_waiting} more may wait",
            "backend": f"{facts.backend}, {facts.threads} threads",
        }
        lines = [f"{name:9} {text}" for name, text in rows.items()]
        return "\n".join(lines + [f"note      {note}" for note in self.notes])


def resolve(options: Options, facts: Facts, machine: Machine) -> Plan:
    """Turn what was asked for into what will be done.

    Raises UsageError for an option out of its range, ResourceError if the memory holds no
    useful context.
    """
    _check(options)
    notes: list[str] = []
    context = options.context or facts.trained_context
    if context > facts.trained_context:
        notes.append(
            f"The context asked for, {context}, is beyond the {facts.trained_context} tokens "
            f"the model was trained on; {facts.trained_context} is used."
        )
        context = facts.trained_context
    max_running = options.max_running or min(256, max(16, 16 * facts.threads))
    step_tokens = options.step_tokens or (256 if facts.threads <= 8 else 512)
    if step_tokens < max_running:
        notes.append(f"A step takes {max_running} tokens, one for each running request.")
        step_tokens = max_running
    limit = _kv_limit(options, machine)
    most = _round_up(context) * max_running
    need = Need(facts.states, facts.block_bytes, max_running, step_tokens)
    tokens = need.tokens_within(limit, most)
    tokens -= tokens % BLOCK_TOKENS
    if tokens < context:
        context = _shrunk(options, context, tokens, limit, notes)
    return Plan(
        facts=facts,
        context=context,
        kv_tokens=tokens,
        kv_bytes=need.bytes(tokens),
        kv_blocks=need.blocks(tokens),
        kv_dtype=options.kv_dtype,
        max_running=max_running,
        step_tokens=step_tokens,
        max_waiting=options.max_waiting,
        prefix_cache=options.prefix_cache,
        seed=options.seed,
        step_timeout=options.step_timeout,
        context_shift=options.context_shift,
        slowdown=options.slowdown,
        draft_tokens=_draft_tokens(options, facts),
        draft_match=options.draft_match,
        notes=tuple(notes),
    )


def _draft_tokens(options: Options, facts: Facts) -> int:
    """None for a model with recurrent states: what a wrong guess did to them cannot be undone."""
    recurrent = any(isinstance(spec, Slot) for spec in facts.states)
    return 0 if recurrent else options.draft_tokens


def _check(options: Options) -> None:
    """Every number in its range. Errors name the flag, as a person types it."""
    for flag, value, least, most in (
        ("--max-model-len", options.context, 1, None),
        ("--max-num-seqs", options.max_running, 1, 4096),
        ("--max-num-batched-tokens", options.step_tokens, 1, 65536),
        ("--kv-cache-memory-bytes", options.kv_bytes, 1, None),
        ("--threads", options.threads, 1, None),
        ("--max-waiting", options.max_waiting, 0, None),
        ("--draft-max", options.draft_tokens, 0, 63),
        ("--spec-ngram-size-n", options.draft_match, 1, 32),
    ):
        if value is not None and value < least:
            raise UsageError(f"{flag} is {value}; it must be at least {least}.")
        if value is not None and most is not None and value > most:
            raise UsageError(f"{flag} is {value}; it must be at most {most}.")
    if not options.slowdown >= 1:
        raise UsageError(f"--max-slowdown is {options.slowdown}; it must be at least 1.")
    if not options.step_timeout > 0:
        raise UsageError(f"--step-timeout is {options.step_timeout}; it must be above 0 seconds.")


def _kv_limit(options: Options, machine: Machine) -> int:
    """Bytes the pool may take: what was asked for, or what is available less a margin."""
    if options.kv_bytes is not None:
        return options.kv_bytes
    margin = max(256 << 20, machine.memory_limit // 10)
    return max(0, machine.memory_available - margin)


def _shrunk(options: Options, context: int, tokens: int, limit: int, notes: list[str]) -> int:
    """The context that memory allows, said aloud; an explicit wish is not silently cut."""
    asked = options.context is not None and options.context <= context
    if tokens < min(context, LEAST_CONTEXT) or asked:
        raise ResourceError(
            f"The memory for the KV cache ({_mebibytes(limit)}) holds {tokens} tokens; "
            f"the context needs {context if asked else min(context, LEAST_CONTEXT)}. Allow more "
            "memory (--kv-cache-memory-bytes) or ask for a smaller context (--max-model-len)."
        )
    notes.append(
        f"Memory for the KV cache ({_mebibytes(limit)}) holds {tokens} tokens, so a request's "
        f"context is {tokens} instead of the model's {context}."
    )
    return tokens


def _round_up(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"


def groups_of(
    states: Sequence[tuple[StateSpec, tuple[int, ...]]],
) -> tuple[StateSpec, ...]:
    """The specs of ``ops.state_groups``, without their layers."""
    return tuple(spec for spec, _ in states)
