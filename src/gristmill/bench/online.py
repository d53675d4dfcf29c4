"""``gristmill bench serve``: endpoints beside each other, each scenario on all in turn.

A round measures every endpoint once; every other round goes through them backwards, so that
a machine that warms up or slows down favours none. Nothing else is sent meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import httpx

from gristmill.bench.card import Card
from gristmill.bench.client import Answer, Api, Ask, Client, Endpoint
from gristmill.bench.load import closed, opened
from gristmill.bench.memory import Memory, listener, memory_of
from gristmill.bench.prompts import Fit, Length, Prompts, arrivals
from gristmill.bench.report import Better, Measure, Report
from gristmill.bench.stats import percentile
from gristmill.errors import GristmillError

Told = Callable[[str, int, int], None]
"""Told what is being measured, the steps done and the steps in all."""

LOCAL = ("127.0.0.1", "localhost", "::1", "[::1]", "0.0.0.0")
QUANTILES = (50, 90, 99)
TOGETHER = 20e-6
"""Seconds between two events below which they came in one piece."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of load: ``streams`` at a time, or ``rate`` requests a second (Poisson)."""

    prompt: Length
    tokens: int
    streams: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        """As it is called in reports."""
        if self.rate is not None:
            load = f"{self.rate:g} requests/s"
        else:
            load = "1 stream" if self.streams == 1 else f"{self.streams} streams"
        return f"{load}, prompts of {self.prompt}, {self.tokens} tokens out"


CPU_ARTICLE = (
    *(Scenario(Length(46, 64), 256, streams=n) for n in (1, 4, 8)),
    Scenario(Length(2034, 2034), 64, streams=1),
)
"""``--preset cpu-article``: one user, four and eight at short prompts; one long prompt."""


@dataclass(frozen=True, slots=True)
class Slo:
    """What an answer must keep to be counted as good. Seconds; None: whatever it took."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def kept(self, answer: Answer) -> bool:
        """Whether this one is good."""
        pairs = ((self.ttft, answer.ttft), (self.tpot, answer.tpot), (self.e2e, answer.latency))
        return all(most is None or value is None or value <= most for most, value in pairs)


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for. ``requests`` None: twice the streams, at least 4, at a time."""

    scenarios: tuple[Scenario, ...]
    api: Api = "chat"
    rounds: int = 5
    requests: int | None = None
    seed: int = 0
    shared_prefix: int = 0
    texts: tuple[str, ...] = ()
    ignore_eos: bool = True
    slo: Slo | None = None
    api_key: str | None = None
    timeout: float = 600.0
    run: str = field(default_factory=lambda: secrets.token_hex(4))
    """This run's mark: what keeps its prompts apart from those of any other."""

    def count(self, scenario: Scenario) -> int:
        """Requests of one round of a scenario."""
        if self.requests is not None:
            return self.requests
        return 20 if scenario.streams is None else max(4, 2 * scenario.streams)


@dataclass(frozen=True, slots=True)
class Round:
    """One endpoint in one round of one scenario. ``seconds``: first start to last end."""

    answers: tuple[Answer, ...]
    memory: Memory | None

    @property
    def good(self) -> list[Answer]:
        """Those that came."""
        return [answer for answer in self.answers if answer.error is None]

    @property
    def seconds(self) -> float:
        """From the first request's start to the last answer's end."""
        return max(a.ended for a in self.answers) - min(a.started for a in self.answers)


async def measure(
    endpoints: Sequence[Endpoint], settings: Settings, card: Card, told: Told
) -> Report:
    """Run it all. Raises GristmillError when an endpoint answers nothing at all."""
    headers = {"Accept-Encoding": "identity"}
    if settings.api_key:
        headers["Authorization"] = f"Bearer {settings.api_key}"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        headers=headers, timeout=settings.timeout, limits=limits, trust_env=False
    ) as http:
        clients = [await _open(endpoint, settings, http) for endpoint in endpoints]
        bench = Bench(clients, settings, told)
        fit = Fit() if settings.texts else await bench.calibrate()
        bench.prompts = Prompts(
            settings.seed, settings.run, settings.shared_prefix, settings.texts, fit
        )
        report = Report("serve", _title(clients), bench.labels, card, _asked(clients, settings))
        for scenario in settings.scenarios:
            rounds = await bench.scenario(scenario)
            _add(report, scenario, settings, bench, rounds)
        _add_memory_notes(report, clients)
    return report


async def _open(endpoint: Endpoint, settings: Settings, http: httpx.AsyncClient) -> Client:
    model = endpoint.model or await Client(endpoint, settings.api, http).model()
    pid = endpoint.pid
    url = httpx.URL(endpoint.base)
    if pid is None and url.host in LOCAL:
        pid = listener(url.port or (443 if url.scheme == "https" else 80))
    known = replace(endpoint, model=model, pid=pid)
    return Client(known, settings.api, http, settings.ignore_eos)


class Bench:
    """The endpoints and the prompts of a run."""

    def __init__(self, clients: Sequence[Client], settings: Settings, told: Told) -> None:
        self.clients = list(clients)
        self.labels = tuple(client.endpoint.label for client in clients)
        self.prompts = Prompts(settings.seed, settings.run)
        self._settings = settings
        self._told = told
        self._done = 0
        self._steps = len(settings.scenarios) * (settings.rounds + 1) * len(clients)
        bases = [client.endpoint.base for client in clients]
        self.same_server = len(set(bases)) < len(bases)
        """One server named twice: its cache would know the second's prompts."""

    async def calibrate(self) -> Fit:
        """How many tokens a word is for the first endpoint, its template's own included."""
        counts: list[tuple[int, int]] = []
        for words in (16, 80):
            text = self.prompts.words(words, self._settings.run, "calibrate")
            (answer,) = await closed(self.clients[0], [Ask(text, 1)], 1)
            _must_answer(self.clients[0], [answer])
            counts.append((words, answer.prompt_tokens))
        (w1, t1), (w2, t2) = counts
        if t1 <= 0 or t2 <= t1:
            return Fit()
        each = (t2 - t1) / (w2 - w1)
        return Fit(t1 - each * w1, each)

    async def scenario(self, scenario: Scenario) -> list[list[Round]]:
        """A warm-up and all rounds: ``[endpoint][round]``."""
        found: list[list[Round]] = [[] for _ in self.clients]
        order = list(range(len(self.clients)))
        for turn in range(-1, self._settings.rounds):
            for index in order if turn % 2 == 0 else reversed(order):
                phase = f"round {turn + 1}" if turn >= 0 else "warm-up"
                what = f"{scenario.name}: {phase}, {self.labels[index]}"
                self._told(what, self._done, self._steps)
                answers = await self._once(scenario, turn, index)
                self._done += 1
                if turn < 0:
                    _must_answer(self.clients[index], answers)
                    continue
                pid = self.clients[index].endpoint.pid
                memory = None if pid is None else memory_of(pid)
                found[index].append(Round(tuple(answers), memory))
        self._told(scenario.name, self._done, self._steps)
        return found

    async def _once(self, scenario: Scenario, turn: int, index: int) -> list[Answer]:
        settings, client = self._settings, self.clients[index]
        place = f"scenario {settings.scenarios.index(scenario)}"
        own = index if self.same_server else ""
        count = settings.count(scenario)
        texts = [
            self.prompts.text(scenario.prompt, i, place, turn, only_for=own) for i in range(count)
        ]
        asks = [Ask(text, scenario.tokens) for text in texts]
        if scenario.rate is None:
            return await closed(client, asks, scenario.streams or 1)
        return await opened(client, asks, arrivals(scenario.rate, count, settings.seed, turn))


def _must_answer(client: Client, answers: Sequence[Answer]) -> None:
    errors = [answer.error for answer in answers if answer.error is not None]
    if len(errors) == len(answers):
        raise GristmillError(f"{client.endpoint.label} answers no request: {errors[0]}.")


def _title(clients: Sequence[Client]) -> str:
    sides = " and ".join(client.endpoint.label for client in clients)
    return f"gristmill bench serve: {sides}"


def _asked(clients: Sequence[Client], settings: Settings) -> dict[str, object]:
    asked: dict[str, object] = {
        c.endpoint.label: f"{c.endpoint.base}, model {c.endpoint.model}" for c in clients
    }
    slo = settings.slo
    return asked | {
        "api": settings.api,
        "rounds": settings.rounds,
        "requests a round": ", ".join(str(settings.count(s)) for s in settings.scenarios),
        "seed": settings.seed,
        "run": settings.run,
        "shared prefix": settings.shared_prefix,
        "prompts": "from a file" if settings.texts else "random words",
        "ignore_eos": settings.ignore_eos,
        "temperature": 0,
        "slo": "none"
        if slo is None
        else ", ".join(
            f"{name} ≤ {most:g} s"
            for name, most in (("ttft", slo.ttft), ("tpot", slo.tpot), ("e2e", slo.e2e))
            if most is not None
        ),
    }


# ------------------------------------------------------------------ figures


def _add(
    report: Report,
    scenario: Scenario,
    settings: Settings,
    bench: Bench,
    rounds: list[list[Round]],
) -> None:
    """A scenario's measures and what must be said of them."""
    for label, sides in zip(bench.labels, rounds, strict=True):
        for f in _figures(settings.slo):
            values = tuple(f.value(each) for each in sides)
            if any(not math.isnan(v) for v in values):
                what = (scenario.name, f.key, f.metric, f.unit, label, values, f.better)
                place = (scenario.streams, scenario.prompt.middle)
                report.measures.append(Measure(*what, *place))
        _say_what_is_odd(report, label, scenario, settings, sides)
    if len(rounds) > 1:
        _compare_texts(report, scenario, bench, rounds)


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the things that a round tells."""

    key: str
    metric: str
    unit: str
    better: Better
    value: Callable[[Round], float]


def _figures(slo: Slo | None) -> list[Figure]:
    """All of them, in the order of the report."""
    found = [
        Figure("output_tps", "output tokens", "tokens/s", "higher", _output_tps),
        Figure("user_tps", "speed of one user", "tokens/s", "higher", _user_tps),
        Figure("total_tps", "all tokens", "tokens/s", "higher", _total_tps),
        Figure("rps", "requests", "1/s", "higher", _rps),
    ]
    if slo is not None:
        found += [
            Figure("goodput", "goodput", "1/s", "higher", partial(_goodput, slo)),
            Figure("goodput_share", "within the SLO", "%", "higher", partial(_share, slo)),
        ]
    for key, name, values in _LATENCIES:
        for q in QUANTILES:
            at = partial(_quantile, values, q)
            found.append(Figure(f"{key}_p{q}", f"{name}, p{q}", "ms", "lower", at))
    return [
        *found,
        Figure("prompt_tokens", "prompt, mean", "tokens", "neither", _prompt_tokens),
        Figure("cached_tokens", "of it cached", "tokens", "neither", _cached_tokens),
        Figure("failed", "failed", "requests", "neither", _failed),
        Figure("pss", "memory of the server, PSS", "MB", "lower", _pss),
        Figure("peak_rss", "memory, peak RSS", "MB", "lower", _peak_rss),
    ]


_LATENCIES: tuple[tuple[str, str, Callable[[Answer], list[float]]], ...] = (
    ("ttft", "first token", lambda a: [a.ttft]),
    ("tpot", "time per token", lambda a: [] if a.tpot is None else [a.tpot]),
    ("itl", "between events", lambda a: a.gaps),
    ("e2e", "whole answer", lambda a: [a.latency]),
)


def _output_tps(r: Round) -> float:
    return sum(a.tokens for a in r.good) / r.seconds


def _total_tps(r: Round) -> float:
    return sum(a.tokens + a.prompt_tokens for a in r.good) / r.seconds


def _rps(r: Round) -> float:
    return len(r.good) / r.seconds


def _user_tps(r: Round) -> float:
    """Tokens a second that the median user sees, after the first token."""
    times = [a.tpot for a in r.good if a.tpot]
    return 1 / percentile(times, 50) if times else math.nan


def _goodput(slo: Slo, r: Round) -> float:
    return sum(slo.kept(a) for a in r.good) / r.seconds


def _share(slo: Slo, r: Round) -> float:
    """Of all requests: one that failed kept nothing."""
    return 100 * sum(slo.kept(a) for a in r.good) / len(r.answers)


def _quantile(values: Callable[[Answer], list[float]], q: int, r: Round) -> float:
    """Milliseconds."""
    return 1000 * percentile([value for a in r.good for value in values(a)], q)


def _prompt_tokens(r: Round) -> float:
    return sum(a.prompt_tokens for a in r.good) / len(r.good) if r.good else math.nan


def _cached_tokens(r: Round) -> float:
    return sum(a.cached_tokens for a in r.good) / len(r.good) if r.good else math.nan


def _failed(r: Round) -> float:
    return len(r.answers) - len(r.good)


def _pss(r: Round) -> float:
    return math.nan if r.memory is None else r.memory.pss / 1e6


def _peak_rss(r: Round) -> float:
    return math.nan if r.memory is None else r.memory.peak_rss / 1e6


# -------------------------------------------------------------------- notes


def _say_what_is_odd(
    report: Report, label: str, scenario: Scenario, settings: Settings, rounds: list[Round]
) -> None:
    answers = [answer for each in rounds for answer in each.answers]
    good = [answer for answer in answers if answer.error is None]
    failed = [answer.error for answer in answers if answer.error is not None]
    if failed:
        report.note(
            f"{label}, {scenario.name}: {len(failed)} of {len(answers)} requests failed "
            f"({failed[0]}); they are in no latency."
        )
    lengths = sorted({answer.tokens for answer in good})
    if settings.ignore_eos and lengths and lengths != [scenario.tokens]:
        report.note(
            f"{label}, {scenario.name}: answers had {lengths[0]} to {lengths[-1]} tokens "
            f"instead of exactly {scenario.tokens}."
        )
    if any(len(answer.times) < 0.9 * answer.tokens for answer in good):
        report.note(
            f"{label} sends several tokens in one event: its times between events are not "
            "between tokens."
        )
    gaps = [gap for answer in good for gap in answer.gaps]
    if sum(gap < TOGETHER for gap in gaps) > len(gaps) / 10:
        report.note(
            f"{label}, {scenario.name}: more than a tenth of the events came together with the "
            "one before: something on the way gathers them, and times per token are not its own."
        )
    if good and not any(answer.prompt_tokens for answer in good):
        report.note(f"{label} does not count tokens (usage): its events are counted instead.")


def _compare_texts(
    report: Report, scenario: Scenario, bench: Bench, rounds: list[list[Round]]
) -> None:
    """At temperature 0: whether all endpoints said the same."""
    if bench.same_server:
        report.note(
            "An endpoint is named twice: each time it got prompts of its own, so texts are "
            "not compared."
        )
        return
    answers = [[answer for each in side for answer in each.answers] for side in rounds]
    for label, other in zip(bench.labels[1:], answers[1:], strict=True):
        pairs = [
            (a.text, b.text)
            for a, b in zip(answers[0], other, strict=True)
            if a.error is None and b.error is None
        ]
        same = sum(a == b for a, b in pairs)
        report.note(
            f"{scenario.name}: {bench.labels[0]} and {label} returned the same text for {same} "
            f"of {len(pairs)} prompts (temperature 0)."
        )


def _add_memory_notes(report: Report, clients: Sequence[Client]) -> None:
    for client in clients:
        if client.endpoint.pid is None:
            report.note(
                f"{client.endpoint.label}: memory is not measured, the server's process is not "
                "visible from here (--pid names it)."
            )


def run(endpoints: Sequence[Endpoint], settings: Settings, card: Card, told: Told) -> Report:
    """``measure``, for a caller without an event loop."""
    return asyncio.run(measure(endpoints, settings, card, told))
