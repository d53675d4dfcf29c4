"""``/metrics``: the engine's counters read when asked, and histograms of finished answers.

Names are vLLM's and llama-server's where the meaning is the same, ``gristmill:`` otherwise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gristmill.types import FinishReason, Timings

if TYPE_CHECKING:
    from gristmill.serve.protocol import EngineStats, HistogramView, Served

# A "_created" series beside every counter doubles the page and tells no dashboard anything.
disable_created_metrics()

_LABELS = ("model_name", "engine")
_ENGINE = "0"
"""vLLM numbers the engines behind one server; here is one for each model."""

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 10)
_LONG = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


@dataclass(frozen=True, slots=True)
class _Row:
    """One metric read from a field of the engine's stats."""

    name: str
    field: str
    text: str
    counter: bool = False


_REASONS = ("stop", "length", "abort", "error")

# A field that the engine does not report (yet) leaves its metric out: never a made-up zero.
_ROWS = (
    _Row("vllm:num_requests_running", "running", "Requests being computed."),
    _Row("vllm:num_requests_waiting", "waiting", "Requests in the queue."),
    _Row("vllm:kv_cache_usage_perc", "kv_usage", "Share of KV blocks in use, 0 to 1."),
    _Row("vllm:prefix_cache_queries", "prefix_queries", "Prompt tokens looked up.", True),
    _Row("vllm:prefix_cache_hits", "prefix_hits", "Prompt tokens found cached.", True),
    _Row("vllm:num_preemptions", "preemptions", "Requests put back for want of room.", True),
    _Row("vllm:prompt_tokens", "prompt_tokens", "Prompt tokens, cached ones included.", True),
    _Row("vllm:generation_tokens", "generated_tokens", "Tokens generated.", True),
    _Row("vllm:spec_decode_num_drafts", "drafts", "Drafts tried.", True),
    _Row("vllm:spec_decode_num_draft_tokens", "draft_tokens", "Tokens drafted.", True),
    _Row("vllm:spec_decode_num_accepted_tokens", "draft_accepted", "Draft tokens kept.", True),
    _Row("llamacpp:prompt_tokens", "prompt_tokens", "Prompt tokens, cached ones included.", True),
    _Row("llamacpp:tokens_predicted", "generated_tokens", "Tokens generated.", True),
    _Row("llamacpp:n_decode", "steps", "Steps computed.", True),
    _Row("llamacpp:requests_processing", "running", "Requests being computed."),
    _Row("llamacpp:requests_deferred", "waiting", "Requests in the queue."),
    _Row("gristmill:steps", "steps", "Steps computed.", True),
    _Row("gristmill:computed_tokens", "computed_tokens", "Tokens through the model.", True),
    _Row("gristmill:model_seconds", "model_seconds", "Seconds the back end computed.", True),
    _Row("gristmill:stalled_seconds", "stalled", "Seconds without progress in a step."),
    _Row("gristmill:kv_bytes", "kv_bytes", "Bytes of memory taken for KV."),
    _Row("gristmill:kv_bytes_limit", "kv_bytes_limit", "Bytes that KV may grow to."),
    _Row("gristmill:weights_bytes", "weights_bytes", "Bytes held by packed weights."),
)
_HISTOGRAMS = (
    _Row("vllm:iteration_tokens_total", "step_tokens", "Tokens computed in a step."),
    _Row("gristmill:step_seconds", "step_seconds", "Seconds that a step took."),
)

_BETWEEN = _Row("vllm:inter_token_latency_seconds", "", "From one token to the next.")

NAMES: tuple[str, ...] = (
    *(row.name + ("_total" if row.counter else "") for row in (*_ROWS, *_HISTOGRAMS)),
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_params_n",
    "vllm:request_params_max_tokens",
    "llamacpp:prompt_seconds_total",
    "llamacpp:tokens_predicted_seconds_total",
    "llamacpp:prompt_tokens_seconds",
    "llamacpp:predicted_tokens_seconds",
    "llamacpp:n_busy_slots_per_decode",
    "http_requests_total",
    "http_request_duration_seconds",
    "http_request_duration_highr_seconds",
    "http_request_size_bytes",
    "http_response_size_bytes",
)
"""Every metric that may be on the page, but for the process' own."""


class Metrics:
    """The server's registry: one per app, so tests do not share counters."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._served: list[Served] = []
        self._prefill_s = 0.0
        self._prefill_tokens = 0
        self._decode_s = 0.0
        self._decode_tokens = 0
        self.registry.register(_EngineCollector(self))
        ProcessCollector(registry=self.registry)

        def seconds(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, _LABELS, registry=self.registry, buckets=buckets)

        self._first = seconds(
            "vllm:time_to_first_token_seconds", "From the request to its first token.", _LONG
        )
        self._between: dict[str, Tally] = {}
        self._per_token = seconds(
            "vllm:request_time_per_output_token_seconds", "A request's mean of it.", _SHORT
        )
        self._whole = seconds("vllm:e2e_request_latency_seconds", "The whole request.", _LONG)
        self._queue = seconds("vllm:request_queue_time_seconds", "Waiting in the queue.", _LONG)
        self._prefill = seconds("vllm:request_prefill_time_seconds", "Reading the prompt.", _LONG)
        self._decode = seconds("vllm:request_decode_time_seconds", "Writing the answer.", _LONG)
        self._inference = seconds(
            "vllm:request_inference_time_seconds", "Prompt and answer, without the queue.", _LONG
        )
        self._prompt = seconds("vllm:request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._generated = seconds("vllm:request_generation_tokens", "Tokens of an answer.", _TOKENS)
        self._most = seconds(
            "vllm:request_max_num_generation_tokens",
            "Tokens of the longest answer to a request.",
            _TOKENS,
        )
        self._n = seconds("vllm:request_params_n", "Answers asked for.", (1, 2, 5, 10, 20))
        self._asked = seconds("vllm:request_params_max_tokens", "'max_tokens', if any.", _TOKENS)
        self._done = Counter(
            "vllm:request_success",
            "Answers finished, by reason.",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )

    @property
    def served(self) -> tuple[Served, ...]:
        """The loaded models."""
        return tuple(self._served)

    def attach(self, served: Served) -> None:
        """A model is loaded: its engine is asked from now on."""
        if all(each.engine is not served.engine for each in self._served):
            self._served.append(served)
            for reason in _REASONS:  # so that a rate has something to begin from
                self._done.labels(served.names[0], _ENGINE, reason)

    def detach(self, served: Served) -> None:
        """A model is about to be unloaded. What was measured of its answers stays."""
        self._served = [each for each in self._served if each.engine is not served.engine]

    def of(self, served: Served) -> Meter:
        """What the answers of one model are measured with."""
        return Meter(self, served.names[0])

    def first_token(self, model: str, seconds: float) -> None:
        """An answer's first token came ``seconds`` after its request."""
        self._first.labels(model, _ENGINE).observe(seconds)

    def between(self, model: str) -> Tally:
        """Takes the seconds from one token of a model's to the next."""
        return self._between.setdefault(model, Tally(_SHORT))

    def tallies(self) -> Iterable[tuple[str, Tally]]:
        """Those of all models that have answered, loaded or not any more."""
        return self._between.items()

    def finished(
        self, model: str, reason: FinishReason, seconds: float, timings: Timings | None
    ) -> None:
        """An answer ended, ``seconds`` after its request."""
        self._done.labels(model, _ENGINE, reason).inc()
        self._whole.labels(model, _ENGINE).observe(seconds)
        if timings is None:
            return
        self._queue.labels(model, _ENGINE).observe(timings.queue_s)
        self._prefill.labels(model, _ENGINE).observe(timings.prefill_s)
        self._decode.labels(model, _ENGINE).observe(timings.decode_s)
        self._inference.labels(model, _ENGINE).observe(timings.prefill_s + timings.decode_s)
        self._prompt.labels(model, _ENGINE).observe(timings.prompt_tokens)
        self._generated.labels(model, _ENGINE).observe(timings.generated_tokens)
        if timings.generated_tokens > 1:
            mean = timings.decode_s / (timings.generated_tokens - 1)
            self._per_token.labels(model, _ENGINE).observe(mean)
        self._prefill_s += timings.prefill_s
        self._prefill_tokens += timings.prompt_tokens - timings.cached_tokens
        self._decode_s += timings.decode_s
        self._decode_tokens += timings.generated_tokens

    def request(self, model: str, n: int, max_tokens: int | None, longest: int) -> None:
        """A request has ended; its longest answer had so many tokens."""
        self._n.labels(model, _ENGINE).observe(n)
        if max_tokens is not None:
            self._asked.labels(model, _ENGINE).observe(max_tokens)
        self._most.labels(model, _ENGINE).observe(longest)

    def cut_off(self, model: str, answers: int) -> None:
        """Answers ended before their end: the client left, or was told why."""
        self._done.labels(model, _ENGINE, "abort").inc(answers)

    def seconds(self) -> tuple[float, float]:
        """Seconds that finished answers took, added up: prompts, generation."""
        return self._prefill_s, self._decode_s

    def rates(self) -> tuple[float, float]:
        """Tokens per second of finished answers: prompts, generation."""
        prompt = self._prefill_tokens / self._prefill_s if self._prefill_s else 0.0
        generated = self._decode_tokens / self._decode_s if self._decode_s else 0.0
        return prompt, generated

    def text(self) -> bytes:
        """The whole page, in Prometheus' text format."""
        return generate_latest(self.registry)


class Tally:
    """A histogram that costs a tenth of prometheus_client's: it counts on one thread (the event
    loop), with every token, and is written out when it is asked for. See ``HistogramView``."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = tuple(map(float, bounds))
        self.total = 0.0
        self._counts = [0] * (len(bounds) + 1)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many were at most each bound and above the one before; then those above all."""
        return tuple(self._counts)

    def add(self, value: float, count: int) -> None:
        """``count`` observations of ``value``."""
        self._counts[bisect_left(self.bounds, value)] += count
        self.total += value * count


class Meter:
    """The metrics of one model's answers."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self.metrics = metrics
        self.model = model
        self._between = metrics.between(model)  # asked for with every token

    def first_token(self, seconds: float) -> None:
        """See ``Metrics``."""
        self.metrics.first_token(self.model, seconds)

    def next_tokens(self, seconds: float, count: int) -> None:
        """``count`` more tokens came ``seconds`` after the one before."""
        self._between.add(seconds / count, count)

    def request(self, n: int, max_tokens: int | None, longest: int) -> None:
        """See ``Metrics``."""
        self.metrics.request(self.model, n, max_tokens, longest)

    def cut_off(self, answers: int) -> None:
        """See ``Metrics``."""
        self.metrics.cut_off(self.model, answers)

    def finished(self, reason: FinishReason, seconds: float, timings: Timings | None) -> None:
        """See ``Metrics``."""
        self.metrics.finished(self.model, reason, seconds, timings)


class _EngineCollector(Collector):
    """Reads the engines' snapshots when Prometheus asks, and not a moment sooner."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before a model is there."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One family a row, one sample a model. llama-server's names have no label for the
        model: theirs is the sum."""
        yield _histogram(_BETWEEN, list(self._metrics.tallies()))
        stats = [(each.names[0], each.engine.stats()) for each in self._metrics.served]
        if not stats:
            return
        for row in _ROWS:
            values = [(name, float(value)) for name, value in _fields(stats, row.field)]
            if values:
                yield _family(row, values)
        for row in _HISTOGRAMS:
            views = _fields(stats, row.field)
            if views:
                yield _histogram(row, views)
        yield from _derived([each for _, each in stats], self._metrics)


def _fields(stats: list[tuple[str, EngineStats]], name: str) -> list[tuple[str, Any]]:
    found = [(model, getattr(each, name, None)) for model, each in stats]
    return [(model, value) for model, value in found if value is not None]


def _family(row: _Row, values: list[tuple[str, float]]) -> Metric:
    labels = () if row.name.startswith("llamacpp:") else _LABELS
    kind = CounterMetricFamily if row.counter else GaugeMetricFamily
    family = kind(row.name, row.text, labels=labels)
    if labels:
        for model, value in values:
            family.add_metric([model, _ENGINE], value)
    else:
        family.add_metric([], sum(value for _, value in values))
    return family


def _histogram(row: _Row, views: Iterable[tuple[str, HistogramView]]) -> Metric:
    family = HistogramMetricFamily(row.name, row.text, labels=_LABELS)
    for model, view in views:
        buckets: list[tuple[str, float]] = []
        seen = 0
        for bound, count in zip((*view.bounds, float("inf")), view.counts, strict=True):
            seen += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), seen))
        family.add_metric([model, _ENGINE], buckets, view.total)
    return family


def _derived(stats: list[EngineStats], metrics: Metrics) -> Iterable[Metric]:
    read, wrote = metrics.seconds()
    yield CounterMetricFamily("llamacpp:prompt_seconds", "Seconds of reading prompts.", read)
    yield CounterMetricFamily(
        "llamacpp:tokens_predicted_seconds", "Seconds of writing answers.", wrote
    )
    prompt, generated = metrics.rates()
    yield GaugeMetricFamily("llamacpp:prompt_tokens_seconds", "Prompt tokens per second.", prompt)
    yield GaugeMetricFamily(
        "llamacpp:predicted_tokens_seconds", "Generated tokens per second.", generated
    )
    steps = sum(getattr(each, "steps", 0) for each in stats)
    busy = sum(getattr(each, "step_sequences", 0) for each in stats)
    if steps:
        yield GaugeMetricFamily(
            "llamacpp:n_busy_slots_per_decode", "Mean sequences in a step.", busy / steps
        )
