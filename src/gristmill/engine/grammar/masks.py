"""Computes masks while the step's program runs.

One helper thread: llguidance gives the GIL back and needs some microseconds a mask, so that a
second one would only take cores from the step. What needs no grammar is done at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from gristmill.engine.grammar.guide import Guide


class Masks:
    """The masks of one step at a time."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None

    def begin(self, asked: Sequence[Guide | None]) -> None:
        """Have the masks of these guides made."""
        guides = [guide for guide in asked if guide is not None]
        slow = [guide for guide in guides if guide.slow]
        if slow:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="gristmill-masks")
            self._running = self._pool.submit(_prepare, slow)
        for guide in guides:
            if not guide.slow:
                guide.prepare()

    def collect(self) -> None:
        """Wait until they are made."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """Let the thread go."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _prepare(guides: Sequence[Guide]) -> None:
    for guide in guides:
        try:
            guide.prepare()
        except BaseException as error:  # a panic in native code is no Exception
            guide.error = f"The constraint could not be followed: {type(error).__name__}."
