"""From a checkpoint to a running engine."""

from __future__ import annotations

import gc
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import gristmill
from gristmill import backends, models
from gristmill.backends.ops import Backend, Memory, Program, Wanted, Weight, state_groups
from gristmill.engine.engine import Engine, Parts
from gristmill.engine.grammar import Grammars
from gristmill.engine.machine import Machine, look
from gristmill.engine.memory import Headroom, reserve_of
from gristmill.engine.plan import Facts, Plan, groups_of, resolve
from gristmill.engine.slotfiles import fingerprint_of
from gristmill.engine.watchdog import Watchdog
from gristmill.errors import EngineError, UsageError
from gristmill.kv.shelf import Shelf
from gristmill.options import Options
from gristmill.text.detokenizer import Detokenizer
from gristmill.text.tokenizer import Tokenizer
from gristmill.types import Checkpoint, RawTensor

log = logging.getLogger("gristmill.loader")

Progress = Callable[[float], None]
"""Told the share of the weights that is packed, 0 to 1."""
Change = Callable[[str, RawTensor], RawTensor]
"""What becomes of the tensor of a name before it is packed."""


@dataclass(frozen=True)
class Loaded:
    """A model that answers. ``close`` ends its engine and its threads."""

    checkpoint: Checkpoint
    model: models.Model
    tokenizer: Tokenizer
    backend: Backend
    plan: Plan
    engine: Engine
    watchdog: Watchdog
    program: Program
    grammars: Grammars

    def close(self, drain_timeout: float = 0.0) -> None:
        """Let running requests finish within ``drain_timeout`` seconds, then end all."""
        self.engine.close(drain_timeout)
        self.watchdog.close()
        self.grammars.close()
        self.backend.close()


def load(
    checkpoint: Checkpoint,
    options: Options,
    progress: Progress | None = None,
    *,
    on_failure: Callable[[EngineError], None] | None = None,
    backend: str = "cpu",
    machine: Machine | None = None,
    change: Change | None = None,
) -> Loaded:
    """Pack the weights, decide the plan, start the engine.

    ``change`` is made to matrices as they are packed.

    Raises UnsupportedError or FormatError for the model, UsageError for the options,
    ResourceError when the machine is too small. ``on_failure`` is the engine's.
    """
    machine = look() if machine is None else machine
    checkpoint = models.understand(checkpoint)
    model = models.build(checkpoint, options.context)
    threads = options.threads or (machine.cores if backend == "cpu" else None)
    place = backends.open(backend, threads)
    try:
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(Tokenizer.of, checkpoint)
            weights = pack(place, model.wanted(), checkpoint, progress or _nobody, change)
            tokenizer = reading.result()
        options = replace(options, kv_dtype=place.kv_dtype(options.kv_dtype))
        memory = place.memory(model.states(), options.kv_dtype)
        facts = _facts(checkpoint, model, place, memory, weights)
        if change is not None:
            facts = replace(facts, quantisation=_asked(options))
        plan = resolve(options, facts, machine if options.kv_bytes else _after(machine))
        if plan.context != (options.context or model.config.context):
            model = models.build(checkpoint, plan.context)
        program = place.compile(partial(model.forward, weights=weights), memory)
        grammars = Grammars(tokenizer, model.config.vocab, frozenset(tokenizer.eos_ids))
        parts = Parts(
            plan=plan,
            backend=place,
            memory=memory,
            program=program,
            vocab=model.config.vocab,
            eos=frozenset(tokenizer.eos_ids),
            detokenizer=partial(Detokenizer, tokenizer),
            grammars=grammars,
            shelf=_shelf(options, plan, checkpoint),
            headroom=Headroom(_available, reserve_of(machine.memory_limit)),
            embedder=partial(
                place.compile, partial(model.forward, weights=weights, logits=False), memory
            ),
        )
        engine = Engine(parts, on_failure, check_idle=log.isEnabledFor(logging.DEBUG))
    except BaseException:
        place.close()
        raise
    gc.freeze()  # vocabularies are large: no collection should walk them again
    watchdog = Watchdog(engine, plan.step_timeout)
    return Loaded(checkpoint, model, tokenizer, place, plan, engine, watchdog, program, grammars)


def pack(
    backend: Backend,
    wanted: list[Wanted],
    checkpoint: Checkpoint,
    progress: Progress,
    change: Change | None = None,
) -> dict[str, Weight]:
    """Every wanted weight, packed; file pages that are no longer needed are given back."""
    tensors = _Changed(checkpoint.tensors, wanted, change)
    uses = Counter(part.tensor for want in wanted for part in want.parts)
    sizes = {name: tensor.nbytes for name, tensor in checkpoint.tensors.items()}
    total = sum(sizes.get(name, 0) for name in uses) or 1
    done = 0
    weights: dict[str, Weight] = {}
    for want in wanted:
        weights[want.name] = backend.pack(want, tensors)
        for part in want.parts:
            uses[part.tensor] -= 1
            if uses[part.tensor] == 0:
                done += sizes[part.tensor]
                tensors.forget(part.tensor)
                checkpoint.release(checkpoint.tensors[part.tensor])
        progress(min(1.0, done / total))
    return weights


class _Changed(Mapping[str, RawTensor]):
    """A file's tensors, changed when they are asked for, and kept until they are not needed."""

    def __init__(
        self, source: Mapping[str, RawTensor], wanted: list[Wanted], change: Change | None
    ) -> None:
        self._source = source
        self._change = change
        self._made: dict[str, RawTensor] = {}
        # Vectors are small, and what is turned has its rows where encodings have none.
        self._kept = {
            part.tensor
            for want in wanted
            for part in want.parts
            if want.kind == "vector" or part.turned or part.row
        }

    def __getitem__(self, name: str) -> RawTensor:
        if self._change is None or name in self._kept:
            return self._source[name]
        if name not in self._made:
            self._made[name] = self._change(name, self._source[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)

    def forget(self, name: str) -> None:
        """Nobody will ask for it again."""
        self._made.pop(name, None)


def _asked(options: Options) -> str:
    asked = (options.quantization, options.embedding_type, options.output_type)
    return " ".join(each or "-" for each in asked)


def _facts(
    checkpoint: Checkpoint,
    model: models.Model,
    backend: Backend,
    memory: Memory,
    weights: Mapping[str, Weight],
) -> Facts:
    name = checkpoint.metadata.get("general.name")
    groups = groups_of(state_groups(model.states()))
    return Facts(
        name=name if isinstance(name, str) and name else checkpoint.path.stem,
        architecture=model.config.architecture,
        trained_context=model.config.context,
        states=groups,
        block_bytes=tuple(memory.block_bytes(group) for group in range(len(groups))),
        weights_bytes=sum(weight.nbytes for weight in weights.values()),
        backend=backend.name,
        threads=backend.threads,
    )


def _after(machine: Machine) -> Machine:
    """The machine again, now that the weights have their memory."""
    now = look()
    available = min(machine.memory_available, now.memory_available)
    return Machine(machine.memory_limit, available, machine.cores)


def _shelf(options: Options, plan: Plan, checkpoint: Checkpoint) -> Shelf | None:
    """The folder of prefixes that was asked for."""
    if options.prefix_cache_dir is None:
        return None
    if not plan.prefix_cache:
        raise UsageError("--prefix-cache-dir needs the prefix cache, which is switched off.")
    print_ = hashlib.blake2b(
        fingerprint_of(plan, checkpoint) + gristmill.__version__.encode(), digest_size=32
    ).digest()
    return Shelf(
        Path(options.prefix_cache_dir),
        print_,
        plan.facts.block_bytes,
        options.prefix_cache_dir_bytes,
    )


def _available() -> int:
    return look().memory_available


def _nobody(share: float) -> None:
    del share
