"""The engine over the toy model: whatever the schedule, the text is the oracle's."""

from __future__ import annotations

import random
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.types import (
    Delta,
    Request,
    SamplingParams,
    StateSpec,
    TokenLogprob,
    Window,
)
from tests.engine.fakes import (
    EOS,
    FULL,
    VOCAB,
    Answer,
    Toy,
    greedy,
    make_plan,
    oracle,
)

LAYOUTS: list[tuple[StateSpec, ...]] = [
    (FULL,),
    (FULL, Window(1, 8, 40)),
    (Window(1, 8, 1), Window(1, 8, 33)),
]

prompts = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 45)),
    min_size=1,
    max_size=9,
)


def prompt_of(blocks: int, value: int, rest: int) -> tuple[int, ...]:
    """Prompts of whole blocks that many share, and a rest."""
    return tuple([5] * 32 * blocks + [1 + value] * rest)


class Finishes(list[str]):
    """A sink that notes who finishes when."""

    def __call__(self, delta: Delta) -> None:
        if delta.finish is not None:
            self.append(delta.request_id)

    def wait(self, count: int) -> list[str]:
        deadline = time.monotonic() + 30
        while len(self) < count and time.monotonic() < deadline:
            time.sleep(0.002)
        return list(self)


# ------------------------------------------------------------- any schedule


@settings(max_examples=60, deadline=None)
@given(
    prompts,
    st.sampled_from(LAYOUTS),
    st.integers(1, 70),
    st.integers(1, 6),
    st.integers(6, 40),
    st.booleans(),
)
def test_any_schedule_gives_the_same_tokens(
    shapes: list[tuple[int, int, int]],
    states: tuple[StateSpec, ...],
    step_tokens: int,
    max_running: int,
    blocks: int,
    cache: bool,
) -> None:
    """Batched = alone, for any chunk size, any pool (so with preemption), with and without
    a prefix cache; and everybody is answered in full, so no schedule starves."""
    plan = make_plan(
        states,
        [blocks] * len(states),
        context=blocks * 32,
        max_running=max_running,
        step_tokens=step_tokens,
        prefix_cache=cache,
    )
    with Toy(plan) as toy:
        wanted = greedy(max_tokens=40)
        asked = [prompt_of(*shape) for shape in shapes]
        answers = [toy.submit(Request(str(i), prompt, wanted)) for i, prompt in enumerate(asked)]
        for prompt, answer in zip(asked, answers, strict=True):
            answer.wait()
            expected = oracle(prompt, states, min(40, blocks * 32 - len(prompt)))
            assert answer.tokens() == expected
            assert answer.last().finish == ("stop" if expected[-1] == EOS else "length")
    assert toy.engine.failure is None
    assert toy.used() == [0] * len(states)


def test_pressure_preempts_and_nobody_errors() -> None:
    plan = make_plan(blocks=[9], context=256, max_running=8)
    with Toy(plan) as toy:
        wanted = greedy(max_tokens=120, ignore_eos=True)
        answers = [toy.submit(Request(str(i), (i + 1,) * 20, wanted)) for i in range(8)]
        for i, answer in enumerate(answers):
            answer.wait()
            assert answer.tokens() == oracle((i + 1,) * 20, (FULL,), 120, [EOS])
            assert answer.last().finish == "length"
        assert toy.engine.stats().preemptions > 0


def test_oldest_finish_first_under_pressure() -> None:
    """Preempting the youngest never lets a late request overtake an early one of its size."""
    order = Finishes()
    with Toy(make_plan(blocks=[9], context=256, max_running=8)) as toy:
        for i in range(6):
            wanted = greedy(max_tokens=100, ignore_eos=True)
            toy.engine.submit(Request(str(i), (i + 1,) * 20, wanted), order)
        assert order.wait(6) == [str(i) for i in range(6)]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from(LAYOUTS))
def test_sampled_text_is_the_same_alone_and_in_a_crowd(
    seed: int, states: tuple[StateSpec, ...]
) -> None:
    params = SamplingParams(temperature=1.3, seed=seed, max_tokens=30)
    with Toy(make_plan(states)) as toy:
        alone = toy.ask(Request("alone", (3, 4, 5), params))
    with Toy(make_plan(states, [7] * len(states), context=224, step_tokens=9)) as toy:
        others = [
            toy.submit(Request(str(i), (i,) * 50, SamplingParams(max_tokens=50))) for i in range(6)
        ]
        crowded = toy.ask(Request("crowded", (3, 4, 5), params))
        for other in others:
            other.wait()
    assert crowded.tokens() == alone.tokens()


def test_a_request_without_a_seed_draws_one() -> None:
    params = SamplingParams(temperature=2.0, max_tokens=30, ignore_eos=True)
    with Toy() as toy:
        one = toy.ask(Request("1", (3, 4, 5), params))
        two = toy.ask(Request("2", (3, 4, 5), params))
    assert one.tokens() != two.tokens()


# ------------------------------------------------------------------- aborts


@pytest.mark.timeout(120)
def test_random_aborts_leave_nothing_behind() -> None:
    """64 at once, many of which leave at random moments."""
    dice = random.Random(7)
    states = LAYOUTS[1]
    with Toy(make_plan(states, [40, 24], context=512, max_running=16)) as toy:
        answers: dict[str, Answer] = {}
        prompts: dict[str, tuple[int, ...]] = {}
        for i in range(64):
            prompt = tuple(dice.randrange(1, VOCAB) for _ in range(dice.randrange(1, 150)))
            request = Request(
                str(i),
                prompt,
                greedy(max_tokens=dice.randrange(0, 60)),
                n=dice.choice([1, 1, 3]),
            )
            prompts[request.id] = prompt
            answers[request.id] = toy.submit(request)
        gone: set[str] = set()
        for name in dice.sample(sorted(answers), 32):
            time.sleep(dice.random() * 0.01)
            gone.add(name)
            toy.engine.abort(name)
        for name, answer in answers.items():
            answer.wait()
            reasons = {answer.last(index).finish for index in range(answer.n)}
            assert reasons <= ({"stop", "length", "abort"} if name in gone else {"stop", "length"})
            known = oracle(prompts[name], states, 60)
            for index in range(answer.n):
                assert answer.tokens(index) == known[: len(answer.tokens(index))]
        assert toy.used() == [0, 0]
        stats = toy.engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        assert sum(stats.finished.values()) == sum(answer.n for answer in answers.values())


def test_abort_takes_effect_within_a_step() -> None:
    with Toy(make_plan(max_running=1)) as toy:
        toy.program.gate = threading.Event()
        running = toy.submit(Request("running", (1, 2, 3), greedy(ignore_eos=True)))
        queued = toy.submit(Request("queued", (1, 2, 3), greedy(ignore_eos=True)))
        while not toy.engine.in_step:
            time.sleep(0.001)
        toy.engine.abort("running")
        toy.engine.abort("queued")
        toy.engine.abort("unknown")
        toy.program.gate.set()
        running.wait()
        queued.wait()
        assert len(running.tokens()) <= 1
        assert queued.tokens() == ()
        assert running.last().finish == queued.last().finish == "abort"
        assert toy.engine.stats().steps == 1
        assert toy.used() == [0]


def test_a_failing_sink_loses_its_own_request_only() -> None:
    def bad(delta: Delta) -> None:
        raise RuntimeError("the client's loop is closed")

    with Toy() as toy:
        toy.engine.submit(Request("bad", (1, 2), greedy(ignore_eos=True), n=5), bad)
        good = toy.ask(Request("good", (1, 2), greedy(max_tokens=9, ignore_eos=True)))
        assert good.tokens() == oracle((1, 2), (FULL,), 9, [EOS])
        assert toy.engine.failure is None
        assert toy.engine.stats().waiting == 0


# -------------------------------------------------------------- the prompt


def test_prefix_cache_counts_and_saves() -> None:
    prompt = tuple(range(1, 60)) * 3
    with Toy() as toy:
        first = toy.ask(Request("1", prompt, greedy(max_tokens=2))).last().timings
        computed = toy.engine.stats().computed_tokens
        second = toy.ask(Request("2", prompt, greedy(max_tokens=2))).last().timings
        saved = 2 * computed - toy.engine.stats().computed_tokens
        other = toy.ask(Request("3", prompt, greedy(max_tokens=2), cache_salt="x")).last().timings
        assert first and second and other
        assert (first.cached_tokens, second.cached_tokens, other.cached_tokens) == (
            0,
            176,
            0,
        )
        assert saved == 176
        stats = toy.engine.stats()
        assert (stats.prefix_queries, stats.prefix_hits) == (3 * len(prompt), 176)


@pytest.mark.parametrize("window_blocks", [6, 9, 14, 40])
def test_return_to_a_shorter_prompt(window_blocks: int) -> None:
    """BC-41: growing turns, then back to the first prompt and to a fork far behind the window,
    with window blocks evicted in between: always what a cold run gives."""
    states = (FULL, Window(1, 8, 70))
    turns = [tuple(1 + (i * i) % 50 for i in range(length)) for length in (90, 200, 330)]
    fork = (*turns[2][:130], 9, 9, 9)
    prompts = [*turns, turns[0], fork, turns[1], turns[2], fork, turns[0]]
    plan = make_plan(states, [64, window_blocks], context=512, step_tokens=32)
    hits = 0
    with Toy(plan) as toy:
        for number, prompt in enumerate(prompts):
            answer = toy.ask(Request(str(number), prompt, greedy(max_tokens=9, ignore_eos=True)))
            assert answer.tokens() == oracle(prompt, states, 9, [EOS])
            timings = answer.last().timings
            hits += timings.cached_tokens if timings else 0
    assert hits > 0 or window_blocks < 9


@pytest.mark.parametrize("shortest_first", [True, False])
@pytest.mark.parametrize("states", LAYOUTS)
def test_equal_prompts_that_arrive_together_are_computed_once(
    states: tuple[StateSpec, ...], shortest_first: bool
) -> None:
    """Eight chats with one long beginning: the followers take over what the first computed."""
    start = tuple(1 + (i * 13) % 50 for i in range(400))
    ends = [(i, i + 1, *range(i)) for i in range(8)]
    ends = ends if shortest_first else ends[::-1]
    with Toy(make_plan(states, step_tokens=50)) as toy:
        toy.program.gate = threading.Event()
        answers = [
            toy.submit(Request(str(i), start + end, greedy(max_tokens=9, ignore_eos=True)))
            for i, end in enumerate(ends)
        ]
        toy.program.gate.set()
        for end, answer in zip(ends, answers, strict=True):
            assert answer.wait().tokens() == oracle(start + end, states, 9, [EOS])
        stats = toy.engine.stats()
        cached = [answer.last().timings for answer in answers]
        own = sum(map(len, ends)) + 8 * 8 + 8 * (len(start) % 32)
        assert stats.computed_tokens <= len(start) + own
        assert stats.prefix_hits == sum(t.cached_tokens for t in cached if t)


def test_n_answers_share_the_prompt() -> None:
    prompt = tuple(range(1, 61)) * 4
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=20)
    with Toy() as toy:
        answer = toy.ask(Request("n", prompt, params, n=4))
        assert toy.engine.stats().computed_tokens <= len(prompt) + 3 + 4 * 19
        for index in range(4):
            alone = SamplingParams(temperature=1.0, seed=5 + index, max_tokens=20)
            assert toy.ask(Request("one", prompt, alone)).tokens() == answer.tokens(index)
        timings = [answer.last(index).timings for index in range(4)]
        assert [t.cached_tokens if t else None for t in timings] == [0, 239, 239, 239]


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    order = Finishes()
    with Toy(make_plan(context=2048, step_tokens=32)) as toy:
        toy.program.gate = threading.Event()
        toy.engine.submit(Request("long", (7,) * 1500, greedy(max_tokens=1)), order)
        toy.engine.submit(Request("short", (3,) * 20, greedy(max_tokens=1)), order)
        toy.program.gate.set()
        assert order.wait(2) == ["short", "long"]


def test_short_prompts_do_not_starve_a_long_one() -> None:
    """However many short ones keep coming, half of every step is the long one's."""
    order = Finishes()
    with Toy(make_plan(context=2048, step_tokens=32, max_running=3)) as toy:
        toy.program.gate = threading.Event()
        toy.engine.submit(Request("long", (7,) * 320, greedy(max_tokens=1)), order)
        for i in range(60):
            toy.engine.submit(
                Request(f"short {i}", (1 + i % 50,) * 32, greedy(max_tokens=1)), order
            )
        toy.program.gate.set()
        assert 5 <= order.wait(61).index("long") <= 25


def test_pressure_preempts_the_least_important() -> None:
    """The one with the lower priority makes room, though it came first."""
    order = Finishes()
    with Toy(make_plan(blocks=[8], context=256)) as toy:
        toy.program.gate = threading.Event()
        wanted = greedy(max_tokens=150, ignore_eos=True)
        toy.engine.submit(Request("low", (1,) * 20, wanted, priority=5), order)
        while not toy.engine.in_step:
            time.sleep(0.001)
        toy.engine.submit(Request("high", (2,) * 20, wanted), order)
        toy.program.gate.set()
        assert order.wait(2) == ["high", "low"]
        assert toy.engine.stats().preemptions > 0


def test_priority_goes_before_arrival() -> None:
    order = Finishes()
    with Toy(make_plan(max_running=1)) as toy:
        toy.program.gate = threading.Event()
        for name, priority in (("a", 0), ("b", 0), ("c", -1), ("d", 5), ("e", 0)):
            params = greedy(max_tokens=1)
            toy.engine.submit(Request(name, (1,), params, priority=priority), order)
            while not toy.engine.in_step:
                time.sleep(0.001)
        toy.program.gate.set()
        assert order.wait(5) == ["a", "c", "b", "e", "d"]


def test_prompt_logprobs_equal_what_decoding_would_have_said() -> None:
    prompt = tuple(1 + (i * 7) % 60 for i in range(100))
    params = greedy(max_tokens=3, prompt_logprobs=2, logprobs=2, ignore_eos=True)
    small, large = make_plan(step_tokens=7, max_running=4), make_plan(step_tokens=400)
    got: list[tuple[TokenLogprob | None, ...]] = []
    for plan in (small, large):
        with Toy(plan) as toy:
            toy.ask(Request("warm", prompt, greedy(max_tokens=1)))
            answer = toy.ask(Request("scored", prompt, params))
            first = answer.deltas[0][0]
            assert first.prompt_logprobs is not None
            assert all(delta.prompt_logprobs is None for delta in answer.deltas[0][1:])
            got.append(first.prompt_logprobs)
            both = toy.ask(Request("both", prompt, params, n=2))
            assert both.deltas[1][0].prompt_logprobs == first.prompt_logprobs
            alone = toy.ask(Request("eval", prompt, greedy(max_tokens=0, prompt_logprobs=2)))
            assert alone.last().prompt_logprobs == first.prompt_logprobs
            continued = toy.ask(Request("rest", prompt[:60], greedy(max_tokens=1, logprobs=2)))
            chosen = continued.last().logprobs[0]
            scored = first.prompt_logprobs[60]
            assert scored is not None
            assert scored.top == chosen.top
    assert got[0] == got[1]
    assert got[0][0] is None
    assert [entry.token for entry in got[0][1:] if entry] == list(prompt[1:])


def test_prompt_logprobs_survive_preemption() -> None:
    """An older answer takes the blocks of a prompt that is scored by half."""
    prompt = tuple(1 + (i * 7) % 60 for i in range(150))
    params = greedy(max_tokens=1, prompt_logprobs=1)
    with Toy() as toy:
        calm = toy.ask(Request("calm", prompt, params)).last().prompt_logprobs
    with Toy(make_plan(blocks=[6], context=192, max_running=2, step_tokens=4)) as toy:
        toy.program.gate = threading.Event()
        old = toy.submit(Request("old", (1,) * 20, greedy(max_tokens=50, ignore_eos=True)))
        scored = toy.submit(Request("scored", prompt, params))
        toy.program.gate.set()
        assert old.wait().tokens() == oracle((1,) * 20, (FULL,), 50, [EOS])
        assert scored.wait().last().prompt_logprobs == calm
        assert toy.engine.stats().preemptions > 0
