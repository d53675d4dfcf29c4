"""Turning a model's reasoning on and off, and up and down: every template has words of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""What a client may ask for, in order. "none" is no reasoning."""

_ALLOWED = re.compile(r"\b(?:reasoning|thinking)_effort\s+not\s+in\s+\[([^\]]*)\]")
_QUOTED = re.compile(r"""["'](\w+)["']""")
_OFF = ("none", "no_think", "minimal")
"""How templates call the least effort; the first that a template knows is its own."""
_BUDGETS = {"none": 0, "minimal": 512, "low": 2048, "medium": 8192}
"""Tokens, for templates that tell the model of a budget."""
_HARMONY: tuple[str, ...] = ("low", "medium", "high")
_SWITCHES = ("enable_thinking", "thinking")


def variables(source: str, given: Mapping[str, object]) -> dict[str, object]:
    """``given`` with what it asks of the reasoning under all names that the template reads.

    Looked at are ``reasoning_effort`` (one of ``EFFORTS``) and the switches ``enable_thinking``
    and ``thinking``. A variable that is given is never changed, but for an effort that the
    template does not know: it becomes the nearest that it does.
    """
    effort = given.get("reasoning_effort")
    switched = next((given[key] for key in _SWITCHES if isinstance(given.get(key), bool)), None)
    if effort not in EFFORTS:
        effort = None
    if switched is None and effort is None:
        return dict(given)
    on = bool(switched) if switched is not None else effort != "none"
    made: dict[str, object] = {
        "enable_thinking": on,
        "thinking": on,
        "thinking_mode": "enabled" if on else "disabled",
        "reasoning": on,
        "skip_thinking": not on,
    }
    made = {key: value for key, value in made.items() if _reads(source, key)}
    if effort in _BUDGETS or not on:
        made["thinking_budget"] = _BUDGETS[str(effort) if on else "none"]
    wanted = str(effort) if effort is not None and on else "none" if not on else "high"
    level = _level(source, wanted, off=not on)
    if _reads(source, "thinking_effort") and on:
        made["thinking_effort"] = level
    out = {**made, **given}
    # Without an effort a template's default stands, unless effort is its only switch.
    only = not any(_reads(source, key) for key in (*_SWITCHES, "thinking_mode"))
    if _reads(source, "reasoning_effort") and (effort is not None or only):
        out["reasoning_effort"] = level
    return out


def merged(defaults: Mapping[str, object], asked: Mapping[str, object]) -> dict[str, object]:
    """A server's variables under a request's. What a request asks of the reasoning, under
    whichever name, leaves nothing of the server's to contradict it."""
    about = ("reasoning_effort", *_SWITCHES)
    if any(key in asked for key in about):
        defaults = {key: value for key, value in defaults.items() if key not in about}
    return {**defaults, **asked}


def _reads(source: str, name: str) -> bool:
    return re.search(rf"(?<![.\w'\"]){name}\b", source) is not None


def _level(source: str, wanted: str, off: bool) -> str:
    """The template's word for an effort."""
    found = _ALLOWED.search(source)
    allowed: list[str] = _QUOTED.findall(found[1]) if found else []
    if not allowed and "<|channel|>" in source:
        allowed = list(_HARMONY)
    if off:
        quoted: list[str] = allowed or _QUOTED.findall(source)
        known = next((word for word in _OFF if word in quoted), None)
        return known or (_least(allowed) if allowed else "none")
    if not allowed or wanted in allowed:
        return wanted
    at = EFFORTS.index(wanted)
    higher = next((word for word in EFFORTS[at:] if word in allowed), None)
    return higher or next((word for word in reversed(EFFORTS) if word in allowed), wanted)


def _least(allowed: list[str]) -> str:
    return min(allowed, key=lambda word: EFFORTS.index(word) if word in EFFORTS else len(EFFORTS))
