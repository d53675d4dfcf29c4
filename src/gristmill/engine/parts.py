"""What an engine is put together from, and what it knows of a request."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from gristmill.backends.ops import Backend, Memory, Program
from gristmill.engine.embedding import Pool
from gristmill.engine.grammar import Grammars, Recipe
from gristmill.engine.memory import Headroom
from gristmill.engine.output import Detokenizing, Output
from gristmill.engine.plan import Plan
from gristmill.engine.sequence import Clock, Sequence
from gristmill.engine.shelving import Shelving
from gristmill.kv.blocks import BlockManager, BlockTable
from gristmill.kv.shelf import Shelf
from gristmill.types import Delta, Request, Sink, TokenLogprob

log = logging.getLogger("gristmill.engine")

ENDLESS = 1 << 40
"""As good as no bound of tokens."""
SEED_MASK = (1 << 64) - 1

Scores = tuple[TokenLogprob | None, ...]
"""Log-probabilities of a prompt's tokens; the first has none."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is put together from. ``detokenizer`` is given ``skip_special`` and
    the tokens shown all the same."""

    plan: Plan
    backend: Backend
    memory: Memory
    program: Program
    vocab: int
    eos: frozenset[int]
    detokenizer: Callable[[bool, tuple[int, ...]], Detokenizing]
    grammars: Grammars | None = None
    """Needed for constraints and thinking budgets."""
    shelf: Shelf | None = None
    """Where shared prefixes are kept on disk."""
    headroom: Headroom | None = None
    """What the machine has left; None: more than the plan takes."""
    embedder: Callable[[], Program] | None = None
    """Makes the program that ends with the last norm; needed for embeddings."""

    def shelving(self, manager: BlockManager) -> Shelving | None:
        """What goes between the shelf and the cache."""
        return None if self.shelf is None else Shelving(manager, self.memory, self.shelf)


@dataclass(slots=True, eq=False)
class Job:
    """A request and its answers: ``live`` those that are not finished, ``unborn`` how many
    wait for the first one to put their common prompt into the prefix cache. ``scores`` are the
    prompt's log-probabilities, once the first answer has them."""

    request: Request
    sink: Sink
    submitted: float
    seed: int
    arrival: int
    live: dict[int, Sequence] = field(default_factory=dict[int, Sequence])
    unborn: int = 0
    scores: Scores | None = None
    recipe: Recipe | None = None

    def bear(self, parts: Parts, table: BlockTable) -> Sequence:
        """The next answer, alive from now on, with an empty ``table`` for its cache."""
        request, params, context = self.request, self.request.sampling, parts.plan.context
        index, prompt = request.n - self.unborn, len(request.prompt)
        wanted = ENDLESS if params.max_tokens is None else params.max_tokens
        wanted = wanted if request.pooling is None else 0
        end = prompt + wanted if parts.plan.context_shift else min(context, prompt + wanted)
        eos = tuple(sorted(parts.eos))
        shown = parts.detokenizer(params.skip_special_tokens, params.shown_tokens)
        self.unborn -= 1
        self.live[index] = Sequence(
            request=request,
            index=index,
            order=(request.priority, self.arrival, index),
            tokens=array("i", request.prompt),
            end=end,
            table=table,
            sink=self.sink,
            clock=Clock(self.submitted),
            output=Output(request, index, end - prompt, shown, parts.eos),
            seed=(self.seed + index) & SEED_MASK,
            banned=tuple(sorted({*eos, *params.stop_token_ids})),
            always_banned=eos if params.ignore_eos else (),
            prompt_logprobs=list(self.scores or (None,)),
            guide=None if self.recipe is None else self.recipe.guide(),
            pool=None if request.pooling is None else Pool(request.pooling),
        )
        return self.live[index]

    def mourn(self, message: str) -> None:
        """Tell the unfinished answers that the engine failed; touches nothing else."""
        unfinished = [*self.live, *range(self.request.n - self.unborn, self.request.n)]
        for index in unfinished:
            try:
                self.sink(Delta(self.request.id, index, (), "", finish="error", error=message))
            except Exception:
                log.exception("the receiver of request %s failed", self.request.id)
