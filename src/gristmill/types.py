"""The nouns of the engine: plain data that every room may hold.

Nothing here computes; nothing here imports anything but the standard library.
Shapes are row-major (slowest axis first) and counted in elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

# ---------------------------------------------------------------- weights


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as it lies in its file: undecoded, uncopied.

    ``encoding`` is a key of ``gristmill.quant.ENCODINGS`` ("f32", "q4_k", …).
    ``shape`` is row-major, so a weight matrix is ``(N, K)`` = (out, in).
    ``data`` is a read-only view into the mapped file, exactly the tensor's bytes.

    A *composite* tensor consists of several of the file: ``parts`` has them by their role
    ("codes", "scales", …), ``settings`` what their file says besides (bits, group, …), and
    ``data`` is empty; see ``gristmill.quant.composite``.
    """

    name: str
    encoding: str
    shape: tuple[int, ...]
    data: memoryview
    parts: Mapping[str, RawTensor] = field(default_factory=dict[str, "RawTensor"])
    settings: Mapping[str, int | float | str | bool] = field(
        default_factory=dict[str, "int | float | str | bool"]
    )

    @property
    def elements(self) -> int:
        """Number of weights held."""
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def nbytes(self) -> int:
        """Bytes in the file, of all parts."""
        return self.data.nbytes + sum(part.nbytes for part in self.parts.values())


@dataclass(frozen=True)
class Checkpoint:
    """One model as it was found: its metadata and its mapped tensors.

    ``metadata`` keeps the file's own key names; arrays are lists (strings) or
    numpy arrays (numbers). ``close`` releases the maps; views must be gone by then.
    """

    path: Path
    format: Literal["gguf", "hf"]
    metadata: Mapping[str, object]
    tensors: Mapping[str, RawTensor]
    close: Callable[[], None] = field(repr=False, compare=False)
    release: Callable[[RawTensor], None] = field(repr=False, compare=False)
    """Tell the kernel that a tensor's file pages are no longer needed (after packing)."""


# ------------------------------------------------------- state of a layer


@dataclass(frozen=True, slots=True)
class Paged:
    """Full attention: every token of the context is kept."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Window:
    """Sliding-window attention: a token sees itself and the ``window - 1`` before it."""

    kv_heads: int
    head_dim: int
    window: int


@dataclass(frozen=True, slots=True)
class Slot:
    """Recurrent state: a fixed number of float32 values per sequence."""

    values: int


StateSpec = Paged | Window | Slot
"""What one layer must remember of a sequence. Layers with equal specs share one pool."""

# -------------------------------------------------------------- requests

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer's text must match, from its first token on.

    ``text`` is a JSON schema (as JSON), a regular expression, a Lark or GBNF grammar, a JSON list
    of choices, or a structural tag (as JSON), by ``kind``. ``after``: token ids of which one ends
    the reasoning; nothing is constrained until it has come (empty: from the start).
    """

    kind: Literal["json_schema", "json_object", "regex", "lark", "gbnf", "choice", "structural_tag"]
    text: str = ""
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Thinking:
    """How an answer's reasoning begins and ends, in the model's own markup.

    ``inside``: the prompt has begun it. ``budget``: most tokens of it; when they are used up the
    text ``forced`` is put there (empty: ``closing``), which must hold ``closing``. A constraint
    holds from the end of the reasoning on.
    """

    opening: str
    closing: str
    inside: bool = False
    budget: int | None = None
    forced: str = ""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. The defaults change nothing: the model's own distribution.

    ``temperature`` 0 is greedy. ``top_k`` 0 keeps all. ``seed`` None draws one at
    submission; the same seed gives the same text alone and in a crowd.
    ``logprobs``: None for none, n for the chosen token and n alternatives.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = -1
    """Tokens the penalties look back on; -1 is the whole context, 0 none."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    max_tokens: int | None = None
    """None is: up to the context's end."""
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    shown_tokens: tuple[int, ...] = ()
    """Special tokens that are shown all the same: markup that the answer's parser needs. The one
    that ends an answer never is."""
    penalise_prompt: bool = True
    """Whether presence and frequency penalties count the prompt's tokens (llama.cpp) or the
    answer's alone (OpenAI, vLLM). The repetition penalty counts both."""
    post_sampling: bool = False
    """Whether ``logprobs`` are of what the draw was made from, not of the raw logits."""
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Runs of tokens; the last of one is banned where the answer ends with the others."""
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    """-1 is the whole context, 0 turns it off."""
    dry_breakers: tuple[tuple[int, ...], ...] = ()
    """Runs of tokens that no repetition reaches across."""
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    min_keep: int = 0
    samplers: tuple[str, ...] | None = None
    """Names of ``backends.chain.STEPS`` in order; None: see ``backends.chain.steps``."""
    constraint: Constraint | None = None
    thinking: Thinking | None = None
    """Needed by a budget, and by a constraint on an answer that may begin with reasoning."""


Pooling = Literal["mean", "first", "last", "each"]
"""What becomes of the activations of a prompt's tokens: their mean, those of one token, all."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued ``n`` times. Frozen: the engine keeps its own ``Sequence``."""

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    n: int = 1
    beams: int = 0
    """The likeliest answers are searched for among so many at a time; 0: answers are drawn."""
    length_penalty: float = 1.0
    """Beams are ranked by their log-probability over their length to the power of this."""
    part: bool = False
    """Whether it goes on with what another request began (a beam's next token): it has that one's
    place in the line, and counts for nothing."""
    client: str = ""
    """Whose it is: clients share the engine fairly. After a line break: which of its users'."""
    priority: int = 0
    """The smaller goes first."""
    cache_salt: str = ""
    cache: bool = True
    """Whether cached prefixes are used for it, and its own blocks kept for others."""
    keep: int = 0
    """Where contexts are shifted: tokens at the start that stay; -1 is the prompt."""
    discard: int = 0
    """How many after those go at a time; 0 is half."""
    slot: int = -1
    """The number of the slot it would like to be known by while it runs; -1 is any."""
    progress: bool = False
    """Whether deltas tell how far its prompt is."""
    patience: float | None = None
    """Seconds after its first token at which an answer of more than one line is cut short."""
    indent: int = 0
    """An answer ends before a line that is indented by fewer blanks than this."""
    pooling: Pooling | None = None
    """Not None: nothing is generated; the prompt's embedding comes with the last delta."""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What a piece of an answer adds to its tool call number ``index``.

    The first delta of a call has its ``id`` and ``name``; ``arguments`` are pieces of JSON text
    that join to one object.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """What some text of an answer turned out to be."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[CallDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability (natural log) of a token, and the best alternatives' in its place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """What a finished answer cost. Seconds and tokens."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    draft_tokens: int = 0
    draft_accepted: int = 0
    dropped_tokens: int = 0
    """Of the context, because it was full."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a prompt is computed, in tokens; ``cached`` of them needed no computing."""

    total: int
    cached: int
    done: int
    seconds: float
    """Since its computing began."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What a step adds to answer number ``index`` of a request.

    ``text`` is whole characters only, stop strings already cut off; held-back text comes
    with a later delta. ``finish`` is set on the last delta of an answer, with ``timings``;
    ``stopped_by`` is then the stop string or id that ended it (None for end of sequence).
    """

    request_id: str
    index: int
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish: FinishReason | None = None
    stopped_by: str | int | None = None
    timings: Timings | None = None
    error: str | None = None
    slot: int = -1
    """The slot that the answer runs in; -1 while it waits for one."""
    progress: Progress | None = None
    complete: bool = False
    """The answer ended with its last token, which is text: its constraint allowed no more."""
    embedding: bytes | None = None
    """What ``Request.pooling`` makes of the activations behind the last norm: rows of float32 in
    the machine's byte order, one row or one for each token. Not normalised."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot at one moment. ``task`` numbers the request it runs or last ran; None: none yet.

    ``tokens`` are all its tokens, prompt first. ``left`` is how many more may be generated.
    """

    number: int
    task: int | None = None
    busy: bool = False
    sampling: SamplingParams | None = None
    limit: int = -1
    """Tokens its request asked for; -1: up to the context's end."""
    tokens: tuple[int, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    """Of the prompt, cached ones not counted."""
    generated_tokens: int = 0
    left: int = 0
    several_lines: bool = False


Sink = Callable[[Delta], None]
"""Receives a request's deltas, on the engine's thread: it must only hand them on."""
