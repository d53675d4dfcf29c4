"""The engine over the toy model: whatever the schedule, the text is the oracle's."""

from __future__ import annotations

import random
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
    text_of,
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
            160,
            0,
        )
        assert saved == 160
        stats = toy.engine.stats()
        assert (stats.prefix_queries, stats.prefix_hits) == (3 * len(prompt), 160)


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
        assert toy.engine.stats().computed_tokens < 2 * len(prompt)
        for index in range(4):
            alone = SamplingParams(temperature=1.0, seed=5 + index, max_tokens=20)
            assert toy.ask(Request("one", prompt, alone)).tokens() == answer.tokens(index)
        timings = [answer.last(index).timings for index in range(4)]
        assert [t.cached_tokens if t else None for t in timings] == [0, 224, 224, 224]


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
