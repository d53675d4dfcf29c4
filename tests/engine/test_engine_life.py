"""The engine over the toy model: limits of an answer, bad requests, failure, the end."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import (
    ContextError,
    EngineError,
    OverloadError,
    RequestError,
)
from gristmill.types import (
    Delta,
    Request,
    SamplingParams,
)
from tests.engine.fakes import (
    EOS,
    FULL,
    VOCAB,
    Toy,
    greedy,
    make_plan,
    oracle,
    text_of,
)

# ------------------------------------------------------------------- limits


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_max_tokens_is_exact(count: int) -> None:
    """BC-23."""
    with Toy() as toy:
        answer = toy.ask(Request("m", (1, 2, 3), greedy(max_tokens=count, ignore_eos=True)))
        assert len(answer.tokens()) == count
        assert answer.last().finish == "length"
        timings = answer.last().timings
        assert timings is not None
        assert (timings.prompt_tokens, timings.generated_tokens) == (3, count)
        assert toy.used() == [0]


def test_no_max_tokens_is_up_to_the_context() -> None:
    with Toy(make_plan(context=100)) as toy:
        answer = toy.ask(Request("m", (1, 2, 3), greedy(ignore_eos=True)))
        assert len(answer.tokens()) == 97
        assert answer.last().finish == "length"


def test_prompt_that_fills_the_context() -> None:
    with Toy(make_plan(context=96)) as toy:
        assert len(toy.ask(Request("1", (1,) * 95, greedy())).tokens()) == 1
        assert toy.ask(Request("0", (1,) * 96, greedy(max_tokens=0))).tokens() == ()
        for length, params in (
            (96, greedy()),
            (97, greedy(max_tokens=0)),
            (5000, greedy()),
        ):
            with pytest.raises(ContextError) as caught:
                toy.submit(Request("c", (1,) * length, params))
            assert (caught.value.prompt_tokens, caught.value.context) == (length, 96)


def test_min_tokens_bans_every_end() -> None:
    plain = oracle((9, 9), (FULL,), 400)
    assert plain[-1] == EOS
    most = len(plain) + 5
    with Toy() as toy:
        stop = plain[0]
        answer = toy.ask(Request("m", (9, 9), greedy(min_tokens=most, stop_token_ids=(stop,))))
        body = answer.tokens()[:most]
        assert len(body) == most
        assert not {EOS, stop} & set(body)


def test_stop_strings_count_from_min_tokens_on() -> None:
    tokens = oracle((4, 2), (FULL,), 40, [EOS])
    text = [text_of(token) for token in tokens]
    stop = text[0]
    again = next(i for i in range(12, 40) if stop in text[i])
    with Toy() as toy:
        params = greedy(stop=(stop,), min_tokens=13, ignore_eos=True)
        answer = toy.ask(Request("m", (4, 2), params))
        assert answer.tokens() == tokens[: again + 1]
        assert answer.text() == "".join(text[:again]) + text[again].partition(stop)[0]


def test_ignore_eos_never_ends() -> None:
    params = greedy(max_tokens=200, ignore_eos=True, logit_bias=((EOS, 100.0),))
    with Toy(eos=frozenset({EOS, 1})) as toy:
        answer = toy.ask(Request("m", (9, 9), params))
        assert len(answer.tokens()) == 200
        assert not {EOS, 1} & set(answer.tokens())


@pytest.mark.parametrize("eos", [3, 17, 60])
def test_any_of_several_ends_stops(eos: int) -> None:
    """BC-11: the union of all end ids; the end is not in the text."""
    with Toy(eos=frozenset({3, 17, 60})) as toy:
        answer = toy.ask(Request("m", (9,), greedy(logit_bias=((eos, 1000.0),))))
        assert answer.tokens() == (eos,)
        assert answer.text() == ""
        assert answer.last().finish == "stop"
        assert answer.last().stopped_by is None


def test_stop_ids_name_themselves() -> None:
    tokens = oracle((4, 2), (FULL,), 30, [EOS])
    stop = tokens[6]
    end = tokens.index(stop)
    with Toy() as toy:
        for include in (False, True):
            params = greedy(stop_token_ids=(stop,), include_stop=include, ignore_eos=True)
            answer = toy.ask(Request("m", (4, 2), params))
            assert answer.tokens() == tokens[: end + 1]
            assert answer.text() == "".join(map(text_of, tokens[: end + include]))
            assert answer.last().finish == "stop"
            assert answer.last().stopped_by == stop


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 25), st.integers(1, 4), st.booleans(), st.integers(1, 40))
def test_stop_strings_cross_token_borders(
    start: int, length: int, include: bool, limit: int
) -> None:
    """BC-13: the text up to the stop, nothing lost and nothing twice, and no step too many."""
    tokens = oracle((4, 2), (FULL,), limit, [EOS])
    whole = "".join(map(text_of, tokens))
    longer = "".join(map(text_of, oracle((4, 2), (FULL,), 60, [EOS])))
    stop = longer[start : start + length]
    with Toy() as toy:
        params = greedy(stop=(stop, "zzzz"), include_stop=include, ignore_eos=True)
        params = SamplingParams(
            temperature=0.0,
            stop=params.stop,
            include_stop=include,
            ignore_eos=True,
            max_tokens=limit,
        )
        answer = toy.ask(Request("m", (4, 2), params))
    at = whole.find(stop)
    if at < 0:
        assert answer.text() == whole
        assert answer.last().finish == "length"
    else:
        end = at + len(stop)
        assert answer.text() == whole[: end if include else at]
        assert (answer.last().finish, answer.last().stopped_by) == ("stop", stop)
        said = 0
        needed = 0
        while said < end:
            said += len(text_of(tokens[needed]))
            needed += 1
        assert len(answer.tokens()) == needed


def test_logprobs_come_one_for_each_token() -> None:
    with Toy() as toy:
        answer = toy.ask(Request("m", (4, 2), greedy(max_tokens=9, logprobs=3)))
        for delta in answer.deltas[0]:
            assert [entry.token for entry in delta.logprobs] == list(delta.tokens)
            assert all(len(entry.top) == 3 for entry in delta.logprobs)
        silent = toy.ask(Request("m", (4, 2), greedy(max_tokens=9)))
        assert all(delta.logprobs == () for delta in silent.deltas[0])


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (Request("r", ()), "prompt"),
        (Request("r", (1, VOCAB)), "prompt"),
        (Request("r", (-1,)), "prompt"),
        (Request("r", (1 << 40,)), "prompt"),
        (Request("r", (1,), n=0), "n"),
        (Request("r", (1,), n=1 << 40), "n"),
        (Request("r", (1,), SamplingParams(temperature=-0.1)), "temperature"),
        (Request("r", (1,), SamplingParams(temperature=float("nan"))), "temperature"),
        (Request("r", (1,), SamplingParams(temperature=float("inf"))), "temperature"),
        (Request("r", (1,), SamplingParams(top_p=1.1)), "top_p"),
        (Request("r", (1,), SamplingParams(top_k=-1)), "top_k"),
        (
            Request("r", (1,), SamplingParams(repetition_penalty=0.0)),
            "repetition_penalty",
        ),
        (Request("r", (1,), SamplingParams(max_tokens=-1)), "max_tokens"),
        (Request("r", (1,), SamplingParams(min_tokens=-1)), "min_tokens"),
        (Request("r", (1,), SamplingParams(logprobs=1 << 40)), "logprobs"),
        (Request("r", (1,), SamplingParams(logit_bias=((VOCAB, 1.0),))), "logit_bias"),
        (Request("r", (1,), SamplingParams(logit_bias=((-1, 5.0),))), "logit_bias"),
        (
            Request("r", (1,), SamplingParams(logit_bias=((1, float("nan")),))),
            "logit_bias",
        ),
        (Request("r", (1,), SamplingParams(stop_token_ids=(VOCAB,))), "stop_token_ids"),
        (Request("r", (1,), SamplingParams(stop=("",))), "stop"),
    ],
)
def test_bad_requests_are_refused_and_harm_nobody(request_: Request, param: str) -> None:
    with Toy() as toy:
        with pytest.raises(RequestError) as caught:
            toy.submit(request_)
        assert caught.value.param == param
        assert toy.ask(Request("ok", (1,), greedy(max_tokens=1))).done()


def test_an_id_can_be_used_once_at_a_time() -> None:
    with Toy() as toy:
        toy.program.gate = threading.Event()
        first = toy.submit(Request("same", (1,), greedy(max_tokens=1)))
        with pytest.raises(RequestError):
            toy.submit(Request("same", (1,), greedy(max_tokens=1)))
        toy.program.gate.set()
        first.wait()
        toy.ask(Request("same", (1,), greedy(max_tokens=1)))


def test_a_sampler_refused_by_the_back_end_is_one_requests_error() -> None:
    with Toy() as toy:
        good = toy.submit(Request("good", (1, 2), greedy(max_tokens=20, ignore_eos=True)))
        bad = toy.ask(Request("bad", (1, 2), SamplingParams(top_k=99), n=2))
        for index in range(2):
            assert bad.last(index).finish == "error"
            assert "top_k" in (bad.last(index).error or "")
        assert good.wait().tokens() == oracle((1, 2), (FULL,), 20, [EOS])
        assert toy.used() == [0]


def test_the_line_is_bounded() -> None:
    with Toy(make_plan(max_running=2, max_waiting=3)) as toy:
        toy.program.gate = threading.Event()
        answers = [toy.submit(Request(str(i), (1,), greedy(max_tokens=1))) for i in range(5)]
        with pytest.raises(OverloadError):
            toy.submit(Request("much", (1,), greedy(max_tokens=1)))
        stats = toy.engine.stats()
        assert stats.running + stats.waiting == 5
        toy.program.gate.set()
        for answer in answers:
            answer.wait()
        toy.ask(Request("later", (1,), greedy(max_tokens=1)))


def test_less_memory_than_planned_is_one_requests_error() -> None:
    """The machine refuses to grow: who cannot run even alone is told; the others go on."""
    with Toy(make_plan(context=512), ceiling=3) as toy:
        big = toy.submit(Request("big", (1,) * 200, greedy(max_tokens=1)))
        grows = toy.submit(Request("grows", (2,) * 60, greedy(ignore_eos=True)))
        small = toy.submit(Request("small", (3,) * 60, greedy(max_tokens=5, ignore_eos=True)))
        assert big.wait().last().finish == "error"
        assert grows.wait().last().finish == "error"
        assert len(grows.tokens()) == 3 * 32 - 60 + 1
        assert small.wait().tokens() == oracle((3,) * 60, (FULL,), 5, [EOS])
        assert toy.used() == [0]


# ------------------------------------------------------------ life and death


def test_a_failure_tells_everybody_and_is_kept() -> None:
    told: list[EngineError] = []
    with Toy(make_plan(max_running=2), on_failure=told.append) as toy:
        toy.program.gate = threading.Event()
        answers = [
            toy.submit(Request(str(i), (1, 2), greedy(ignore_eos=True), n=2)) for i in range(4)
        ]
        toy.program.fail = ZeroDivisionError("the kernel slipped")
        toy.program.gate.set()
        for answer in answers:
            answer.wait()
            for index in range(2):
                assert answer.last(index).finish == "error"
                assert "the kernel slipped" in (answer.last(index).error or "")
        toy.engine.close()
        assert len(told) == 1
        assert told[0] is toy.engine.failure
        assert isinstance(told[0].__cause__, ZeroDivisionError)
        with pytest.raises(EngineError):
            toy.submit(Request("late", (1,), greedy()))


def test_a_failure_is_known_before_anybody_is_told() -> None:
    """Who hears of it and asks at once must not be told that all is well."""
    order: list[str] = []
    with Toy(on_failure=lambda error: order.append(str(error))) as toy:
        toy.program.fail = MemoryError()
        told = threading.Event()

        def sink(delta: Delta) -> None:
            order.append("told")
            told.set()

        toy.engine.submit(Request("a", (1, 2), greedy()), sink)
        assert told.wait(10)
    assert order == ["The engine failed: MemoryError", "told"]


def test_close_drains_then_tells() -> None:
    toy = Toy()
    quick = toy.submit(Request("quick", (1, 2), greedy(max_tokens=5, ignore_eos=True)))
    toy.engine.close(20)
    assert quick.done()
    assert quick.last().finish == "length"
    with pytest.raises(OverloadError):
        toy.submit(Request("late", (1,), greedy()))
    toy.engine.close()


def test_close_ends_what_does_not_finish() -> None:
    toy = Toy(make_plan(context=20000, max_running=1))
    endless = toy.submit(Request("endless", (1, 2), greedy(ignore_eos=True)))
    queued = toy.submit(Request("queued", (1, 2), greedy(ignore_eos=True), n=2))
    endless.wait_tokens(3)
    toy.engine.close(0.05)
    assert endless.done()
    assert endless.last().finish == "abort"
    assert "shutting down" in (endless.last().error or "")
    assert queued.wait().tokens() == ()
    assert toy.used() == [0]


def test_idle_takes_no_time() -> None:
    with Toy() as toy:
        toy.ask(Request("warm", (1,), greedy(max_tokens=1)))
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.02


def test_timings_are_those_of_the_answer() -> None:
    with Toy(make_plan(max_running=1)) as toy:
        toy.program.gate = threading.Event()
        start = time.monotonic()
        first = toy.submit(Request("first", (1,) * 9, greedy(max_tokens=4, ignore_eos=True)))
        second = toy.submit(Request("second", (1,) * 9, greedy(max_tokens=4, ignore_eos=True)))
        time.sleep(0.2)
        toy.program.gate.set()
        one, two = first.wait().last().timings, second.wait().last().timings
        took = time.monotonic() - start
    assert one is not None
    assert two is not None
    assert one.queue_s < 0.2 <= one.prefill_s
    assert two.queue_s >= 0.2
    for timings in (one, two):
        assert timings.decode_s > 0
        assert timings.queue_s + timings.prefill_s + timings.decode_s <= took
        assert (timings.prompt_tokens, timings.generated_tokens) == (9, 4)


def test_an_abort_in_the_line_has_waited() -> None:
    with Toy(make_plan(max_running=1)) as toy:
        toy.program.gate = threading.Event()
        toy.submit(Request("first", (1,), greedy(max_tokens=4)))
        queued = toy.submit(Request("queued", (1,), greedy(max_tokens=4)))
        time.sleep(0.1)
        toy.engine.abort("queued")
        toy.program.gate.set()
        timings = queued.wait().last().timings
    assert timings is not None
    assert timings.queue_s >= 0.1
    assert timings.prefill_s == timings.decode_s == 0.0


def test_stats_add_up() -> None:
    with Toy() as toy:
        for i in range(3):
            toy.ask(Request(str(i), (1 + i,) * 40, greedy(max_tokens=10, ignore_eos=True)))
        stats = toy.engine.stats()
    assert stats.requests == 3
    assert stats.prompt_tokens == 120
    assert stats.generated_tokens == 30
    assert stats.computed_tokens == 120 + 27
    assert stats.finished == {"stop": 0, "length": 3, "abort": 0, "error": 0}
    assert stats.steps == sum(stats.step_tokens.counts) == sum(stats.step_seconds.counts)
    assert stats.step_tokens.total == stats.computed_tokens
    assert stats.kv_usage == 0.0
