"""Stop strings: nothing lost, nothing twice, and a stream is the same as the whole."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.text.stops import StopMatcher


def run(stops: tuple[str, ...], pieces: list[str], include: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include)
    out: list[str] = []
    for piece in pieces:
        text, stop = matcher.push(piece)
        out.append(text)
        if stop is not None:
            assert matcher.push("more") == ("", stop)
            assert matcher.flush() == ""
            return "".join(out), stop
    return "".join(out) + matcher.flush(), None


def naive(stops: tuple[str, ...], text: str, include: bool) -> tuple[str, str | None]:
    """Try every end, first to last; of the strings that end there, the longest."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if s and text[:end].endswith(s)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.text(alphabet="ab", max_size=5), max_size=4),
    st.lists(st.text(alphabet="abc", max_size=6), max_size=8),
    st.booleans(),
)
def test_stream_equals_whole(stops: list[str], pieces: list[str], include: bool) -> None:
    wanted = naive(tuple(stops), "".join(pieces), include)
    assert run(tuple(stops), pieces, include) == wanted
    assert run(tuple(stops), ["".join(pieces)], include) == wanted


def test_text_before_the_stop_in_the_same_piece() -> None:
    """BC-13 (1): token "?\\n" with stop "\\n"."""
    matcher = StopMatcher(("\n",))
    assert matcher.push("why") == ("why", None)
    assert matcher.push("?\n") == ("?", "\n")


def test_held_text_is_flushed_once() -> None:
    """BC-13 (2, 3): a beginning of a stop string at the end of the answer."""
    matcher = StopMatcher(("endzzz",))
    assert matcher.push("the end") == ("the ", None)
    assert matcher.flush() == "end"
    assert matcher.flush() == ""


def test_one_stop_is_the_beginning_of_another() -> None:
    """BC-13 (4): the shorter completes first."""
    assert run(("ab", "abc"), ["xabc"]) == ("x", "ab")
    assert run(("ab", "abc"), ["x", "a", "b", "c"]) == ("x", "ab")


def test_two_stops_that_end_together() -> None:
    assert run(("b", "ab"), ["x", "ab"]) == run(("ab", "b"), ["xab"]) == ("x", "ab")


def test_only_what_may_match_is_held() -> None:
    matcher = StopMatcher(("stop",))
    assert matcher.push("a s") == ("a ", None)
    assert matcher.push("t") == ("", None)
    assert matcher.push("i") == ("sti", None)


def test_long_stop_strings_cost_linear_time() -> None:
    stop = "a" * 20_000 + "b"
    matcher = StopMatcher((stop,))
    out = "".join(matcher.push("a" * 1000)[0] for _ in range(100))
    assert len(out) == 80_000 and matcher.push("b") == ("", stop)
