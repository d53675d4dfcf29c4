"""The nouns of a host: a model that can be asked for, one that is loaded, and where it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from gristmill.errors import GristmillError
from gristmill.serve.protocol import Served

Stage = Literal["unloaded", "loading", "loaded", "unloading"]

Report = Callable[[str, int, int], None]
"""Told how a load is going: the stage, how much is done, and of how much (0: not known)."""

Gone = Callable[[], Awaitable[None]]
"""Looks for the client's going away; only called when there is something to wait for."""

Keep = float | Literal["default"] | None
"""Seconds that a model stays loaded after a use; None: for ever."""


async def _silence() -> None:
    return


@dataclass(frozen=True, slots=True)
class Alive:
    """What is told every so many seconds to those who wait."""

    every: float = 3600.0
    tell: Callable[[], Awaitable[None]] = _silence


LATEST = ":latest"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the loading is. ``total`` 0 means that the end is not known yet."""

    stage: str = "starting"
    done: int = 0
    total: int = 0

    @property
    def fraction(self) -> float:
        """Share done of this stage, 0 to 1."""
        return min(1.0, self.done / self.total) if self.total > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be asked for. ``size`` is its files' bytes, ``modified`` seconds since
    1970: 0 where it is not on this machine yet."""

    reference: str
    names: tuple[str, ...]
    size: int = 0
    modified: float = 0.0
    path: str = ""
    """Its file, as far as that is known before it is loaded."""
    stored: bool = False
    """Whether it is served because it is in the model store."""


@dataclass(frozen=True)
class Opened:
    """A loaded model. ``held`` is the most memory it takes, its KV cache included; ``close``
    ends its engine and frees that memory (slow: not for the event loop), if nobody else holds
    on to ``served`` any more."""

    served: Served
    held: int
    close: Callable[[], None]
    path: str = ""


class Opener(Protocol):
    """How models are opened: on threads of their own, one at a time."""

    def need(self, model: Model, report: Report) -> int:
        """Fetches the model if it must be; the bytes of memory without which it is of no use."""
        ...

    def load(self, model: Model, room: int | None, report: Report) -> Opened:
        """Loads it, to take at most ``room`` bytes of memory (None: what there is)."""
        ...


class LoadError(GristmillError):
    """The model that a request asked for could not be loaded."""


@dataclass(eq=False)
class Entry:
    """One model of the host, loaded or not."""

    model: Model
    names: tuple[str, ...]
    pinned: bool = False
    stage: Stage = "unloaded"
    opened: Opened | None = None
    held: int = 0
    """Bytes of the budget it takes."""
    progress: Progress = Progress()
    leases: int = 0
    """Exchanges that use it now."""
    waiting: int = 0
    """Exchanges that wait for it."""
    leaving: bool = False
    """Whether it is to make room: nobody new is let in."""
    parting: bool = False
    """Whether it is to be unloaded after its last use, whatever else is said."""
    keep: float | None = None
    """Seconds it stays after its last use; None: for ever."""
    used: float = 0.0
    """When it was last used, in ``time.monotonic`` seconds."""
    expires: float | None = None
    """When it will be unloaded if nobody comes, in seconds since 1970; None: it will not."""
    attempt: asyncio.Future[None] | None = None
    """The load that waits in line or goes on."""
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    @property
    def served(self) -> Served | None:
        """The loaded model."""
        return self.opened.served if self.opened is not None else None

    @property
    def free(self) -> bool:
        """Whether it may be used now."""
        return self.opened is not None and self.stage == "loaded" and not self.leaving

    @property
    def idle(self) -> bool:
        """Whether it may be unloaded now."""
        return (
            self.stage == "loaded"
            and not self.pinned
            and self.leases == 0
            and (self.waiting == 0 or self.leaving)
        )


def spellings(name: str) -> tuple[str, ...]:
    """What a name may be in our words: Ollama's tag and its prefix of the Hugging Face hub."""
    plain = name.removesuffix(LATEST)
    found = [name, plain]
    for prefix in ("hf.co/", "huggingface.co/"):
        if plain.startswith(prefix):
            found.append("hf:" + plain.removeprefix(prefix))
    return tuple(dict.fromkeys(found))
