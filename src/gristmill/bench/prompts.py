"""Prompts whose length is known and whose beginning no cache has seen.

A prompt is a row of common English words, each of them one token in most vocabularies. Which
words is drawn from a seed, the run's own mark and the request's name: two requests differ from
their first words on, two runs too, while all endpoints of a run get the same.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gristmill.errors import UsageError

_COMMON = (
    "time year people way day man thing woman life child world school state family student "
    "group country problem hand part place case week company system program question work "
    "government number night point home water room mother area money story fact month lot "
    "right study book eye job word business issue side kind head house service friend father "
    "power hour game line end member law car city community name president team minute idea "
    "body information back parent face others level office door health person art war history "
    "party result change morning reason research girl guy moment air teacher force education "
    "foot boy age policy music market sense nation plan college interest death experience "
    "effect use class control field development role effort rate heart drug show leader light "
    "voice wife whole police mind price report decision son view relationship town road "
    "arm difference value building action season society tax director position player record "
    "paper space ground form event official matter center couple site project base activity "
    "star table need court oil situation cost industry figure street image phone data picture "
    "practice piece land product doctor wall worker news test movie north love support"
)
WORDS = _COMMON.split()

LONGEST_FILE = 64 << 20
MARK_WORDS = 8


@dataclass(frozen=True, slots=True)
class Length:
    """A prompt's tokens: drawn between ``least`` and ``most``, both included; or ``FROM_FILE``."""

    least: int
    most: int

    def __str__(self) -> str:
        if self == FROM_FILE:
            return "a file"
        return str(self.least) if self.least == self.most else f"{self.least}–{self.most}"

    @property
    def middle(self) -> int | None:
        """The mean, for plots; None if nobody knows."""
        return (self.least + self.most) // 2 or None


FROM_FILE = Length(0, 0)
"""Prompts from a file have whatever length they have."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Tokens of a prompt of w words: ``base + each · w``, as the first endpoint counted."""

    base: float = 0.0
    each: float = 1.0

    def words(self, tokens: int) -> int:
        """Words that come nearest to ``tokens`` tokens, at least one."""
        return max(1, round((tokens - self.base) / self.each))


class Prompts:
    """Makes the prompts of a run. ``run`` is drawn anew for each run unless a test says it.

    ``shared`` tokens of each prompt are the same in the whole run, to measure a prefix cache.
    ``texts`` from a file are used in turn, each behind a mark of its own.
    """

    def __init__(
        self,
        seed: int,
        run: str,
        shared: int = 0,
        texts: Sequence[str] = (),
        fit: Fit | None = None,
    ) -> None:
        self.seed = seed
        self.run = run
        self.shared = shared
        self.texts = tuple(texts)
        self.fit = fit or Fit()

    def words(self, count: int, *name: object) -> str:
        """``count`` words that depend on the seed, on ``name`` and on ``count`` alone."""
        # A string seeds by its SHA-512, the same on every machine.
        chooser = random.Random("/".join(map(str, (self.seed, count, *name))))
        return " ".join(chooser.choices(WORDS, k=count))

    def text(self, length: Length, index: int, *name: object, only_for: object = "") -> str:
        """The prompt of request ``index`` of the measurement that ``name`` names.

        ``only_for`` names an endpoint that shall have words of its own; lengths stay the same.
        """
        who = (self.run, *name, only_for, index)
        if self.texts:
            text = self.texts[index % len(self.texts)]
            return f"{self.words(MARK_WORDS, *who)}\n{text}"
        draw = random.Random("/".join(map(str, ("length", self.seed, *name, index))))
        count = self.fit.words(draw.randint(length.least, length.most))
        if not self.shared:
            return self.words(count, *who)
        common = min(count, round(self.shared / self.fit.each))
        rest = self.words(count - common, *who)
        return f"{self.words(common, self.run, 'shared')} {rest}".rstrip()


def arrivals(rate: float, count: int, *name: object) -> list[float]:
    """Seconds from the start at which ``count`` requests of a Poisson process come."""
    chooser = random.Random("/".join(map(str, ("arrivals", rate, *name))))
    now = 0.0
    times: list[float] = []
    for _ in range(count):
        times.append(now)
        now += chooser.expovariate(rate)
    return times


def read_prompts(path: Path) -> list[str]:
    """Prompts from a file: a text a line, or (``.jsonl``) a string or ``{"prompt": …}`` a line.

    Raises UsageError for a file that is too large, holds none, or is not what its name says.
    """
    try:
        if path.stat().st_size > LONGEST_FILE:
            raise UsageError(f"{path} is larger than {LONGEST_FILE >> 20} MiB.")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as text: {error}.") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if path.suffix == ".jsonl":
        found = [_from_json(path, number, line) for number, line in numbered]
    else:
        found = [line for _, line in numbered]
    if not found:
        raise UsageError(f"{path} holds no prompt.")
    return found


def _from_json(path: Path, number: int, line: str) -> str:
    try:
        value: object = json.loads(line)
    except ValueError:
        value = None
    if isinstance(value, dict):
        value = value.get("prompt")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(value, str) or not value:
        raise UsageError(f'{path}, line {number}: it must be a string or {{"prompt": string}}.')
    return value
