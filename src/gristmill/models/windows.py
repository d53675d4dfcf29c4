"""Which layers slide, and which are not rotated."""

from __future__ import annotations

from gristmill.errors import FormatError, UnsupportedError
from gristmill.models.families import Family
from gristmill.models.metadata import Metadata

_LIMIT = (1 << 31) - 1


def read_window(meta: Metadata, family: Family, layers: int, context: int) -> int:
    """The window in tokens, itself included, of sliding layers; 0 if there are none."""
    window = meta.integer("attention.sliding_window", 0, _LIMIT, family.window)
    if family.period is None and 0 < window < context:
        raise UnsupportedError(
            f"A sliding window ({meta.name('attention.sliding_window')!r}) is not served "
            f"in {meta.architecture} models: the file does not say which layers slide."
        )
    if family.period is None or (family.period == 0 and window >= context):
        return 0
    return window if any(local_layers(meta, family, layers)) else 0


def local_layers(meta: Metadata, family: Family, layers: int) -> tuple[bool, ...]:
    """Which layers slide where there is a window: a flag for each, or all but every n-th."""
    key = "attention.sliding_window_pattern"
    flags = meta.array(key)
    if flags is None:
        period = meta.integer(key, 0, 1 << 16, family.period)
        return tuple(period == 0 or i % period != period - 1 for i in range(layers))
    if len(flags) < layers:
        raise FormatError(f"{meta.name(key)!r} has {len(flags)} entries for {layers} layers.")
    return tuple(bool(flag) for flag in flags[:layers])


def unrotated_layers(
    meta: Metadata, family: Family, layers: int, local: tuple[bool, ...]
) -> tuple[bool, ...]:
    """The layers whose q and k are not rotated; empty if all are."""
    key = "attention.rope_pattern"
    flags = meta.array(key)
    if flags is not None:
        if len(flags) < layers:
            raise FormatError(f"{meta.name(key)!r} has {len(flags)} entries for {layers} layers.")
        return tuple(not flag for flag in flags[:layers])
    if family.unrotated == "fourth":
        return tuple(i % 4 == 3 for i in range(layers))
    if family.unrotated == "full" and any(local):
        return tuple(not slides for slides in local)
    return ()
