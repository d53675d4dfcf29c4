"""What a person asked of ``gristmill bench serve``, from the command line's texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gristmill.bench.online import CPU_ARTICLE, Scenario, Slo
from gristmill.bench.prompts import FROM_FILE, Length
from gristmill.errors import UsageError

_LOAD = {
    "streams": "--streams",
    "rates": "--rate",
    "prompts": "--prompt",
    "tokens": "--tokens",
    "file": "--prompts",
}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|)")


def scenarios_of(given: Mapping[str, Any]) -> tuple[Scenario, ...]:
    """Every length at every number of streams, or at every rate; or those of a preset.

    Raises UsageError for options that contradict each other.
    """
    if given["preset"] is not None:
        named = [flag for key, flag in _LOAD.items() if given[key]]
        if named:
            raise UsageError(f"--preset says the load already; leave out {named[0]}.")
        return CPU_ARTICLE
    if given["file"] and given["prompts"]:
        raise UsageError("Give --prompt (drawn, of that length) or --prompts (a file), not both.")
    if given["streams"] and given["rates"]:
        raise UsageError("Give --streams (closed loop) or --rate (open loop), not both.")
    lengths = [FROM_FILE] if given["file"] else parse_lengths(given["prompts"] or "64")
    tokens: int = given["tokens"] or 128
    if given["rates"]:
        return tuple(Scenario(p, tokens, rate=rate) for p in lengths for rate in given["rates"])
    streams: tuple[int, ...] = given["streams"] or (1, 4, 8)
    return tuple(Scenario(p, tokens, streams=n) for p in lengths for n in streams)


def parse_lengths(text: str) -> list[Length]:
    """``64,46-64,2034``. Raises UsageError for anything else."""
    found: list[Length] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,7})(?:\s*[-–]\s*(\d{1,7}))?\s*", part)
        if match is None:
            raise UsageError(f"--prompt {text!r}: it must be tokens or ranges, like 64,46-64.")
        least = int(match[1])
        most = int(match[2] or least)
        if not 1 <= least <= most:
            raise UsageError(f"--prompt {text!r}: a range goes from 1 or more up.")
        found.append(Length(least, most))
    if len(set(found)) < len(found):
        raise UsageError(f"--prompt {text!r} names a length twice.")
    return found


def check_shared(shared: int, scenarios: tuple[Scenario, ...], file: Path | None) -> None:
    """Raises UsageError for a shared prefix that leaves nothing of a prompt."""
    if shared and file is not None:
        raise UsageError("--shared-prefix is for drawn prompts; those of a file are as they are.")
    shortest = min(scenario.prompt.least for scenario in scenarios)
    if shared >= shortest and shared:
        raise UsageError(
            f"--shared-prefix {shared} leaves nothing of a prompt of {shortest} tokens to differ."
        )


def parse_slo(text: str) -> Slo:
    """``ttft=500ms,tpot=0.05``: seconds unless ms is said. Raises UsageError."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        match = _TIME.fullmatch(value.strip())
        if name not in ("ttft", "tpot", "e2e") or match is None or name in limits:
            raise UsageError(
                f"--slo {text!r}: it must be ttft, tpot and e2e with a time each, like "
                "ttft=500ms,tpot=50ms."
            )
        limits[name] = float(match[1]) / (1000 if match[2] == "ms" else 1)
    return Slo(**limits)
