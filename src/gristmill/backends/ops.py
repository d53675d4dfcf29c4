"""The protocol between models, engine and back ends: the ops a model may call.

A model's ``forward`` is written against ``Ops`` and nothing else. The reference back end
(numpy, float64) runs it eagerly: it is the specification. The CPU back end records it once
into a program that C++ plays every step.

An ``X`` is a matrix of activations: rows are the tokens of the step (or, after ``outputs``,
the rows whose logits are wanted), columns are features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from gristmill.types import RawTensor, SamplingParams, StateSpec

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]

BLOCK_TOKENS = 32
"""Tokens of one KV block."""

# --------------------------------------------------------------- weights


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a tensor in the file; ``rows`` None takes all of them.

    ``heads``, if not 0: in each of so many heads the rows lie as Hugging Face has them, first
    all first features of the rotated pairs, then all second ones; they are dealt into pairs,
    which is GGUF's order for the architectures whose ``Rope.style`` is "pairs".
    ``expert``, if given: of a tensor with three axes, (experts, rows, columns), the matrix of one.
    ``turned``: a matrix that lies (K, N) in the file. ``dealt``: the rows lie first of the one
    half, first of the other, second of the one, …; they are dealt into halves. ``row``: a vector
    that is a matrix of one row.
    """

    tensor: str
    rows: tuple[int, int] | None = None
    heads: int = 0
    expert: int | None = None
    turned: bool = False
    dealt: bool = False
    row: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """A weight a model wants: parts of the file's tensors, stacked by rows.

    ``kind`` "matrix" is (N, K), for ``linear`` and ``embed``; "table" is one for ``embed`` alone,
    of which only the rows that are asked for need ever be read from the file; "vector" is (N,),
    decoded to float32, for norms and biases, with ``plus`` added to each value (Gemma's 1 + w);
    its parts may have more axes, and are read in order. "experts" is (E, N, K): the parts are
    matrices stacked by rows, all of expert 0 first, then all of expert 1, …, equal in rows from
    expert to expert.
    ``shape`` is what the model's config says it must be: a mismatch is a ``FormatError``.
    """

    name: str
    kind: Literal["matrix", "table", "vector", "experts"]
    parts: tuple[Part, ...]
    shape: tuple[int, ...]
    plus: float = 0.0


class Weight(Protocol):
    """A packed weight, opaque to models."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, K) of a matrix, (N,) of a vector, (E, N, K) of experts."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        ...


# ------------------------------------------------------------------ rope


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding, resolved: one frequency per rotated pair.

    ``inv_freq[i]`` is in radians per position. ``style`` "half" pairs feature i with
    i + dims/2 (Hugging Face), "pairs" 2i with 2i + 1 (GGUF's llama order); dims = 2 ·
    len(inv_freq), and features beyond dims pass unchanged. ``scale`` multiplies sine and
    cosine (YaRN's and LongRoPE's attention factor), and so does, if ``growth_after`` is not 0,
    1 + growth · ln(1 + ⌊position / growth_after⌋) (Llama 4's temperature of long contexts).
    Source: arXiv 2104.09864, 2309.00071.
    """

    inv_freq: tuple[float, ...]
    style: Literal["half", "pairs"] = "half"
    scale: float = 1.0
    growth: float = 0.0
    growth_after: int = 0


# --------------------------------------------------------------- experts


@dataclass(frozen=True, slots=True)
class Routing:
    """How a row chooses its experts, and what their results weigh.

    The logits of the ``experts`` become scores by ``score``; the ``used`` best are chosen (of
    equal ones the first). With ``groups`` > 1 the experts lie in so many equal groups, and only
    the ``groups_used`` best groups can be chosen from; a group is as good as its ``group_best``
    best experts together. A chosen expert weighs its score, over the sum of the chosen scores
    if ``normalised``, times ``scale``.
    """

    experts: int
    used: int
    score: Literal["softmax", "sigmoid"] = "softmax"
    normalised: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    group_best: int = 1
    weighs_input: bool = False
    """Whether the weight multiplies what an expert reads (Llama 4), not its result."""


Gate = Literal["silu", "gelu_tanh", "gelu", "clamped"]
"""How an expert's halves meet: act(gate) · up; "clamped" is gpt-oss's
(clip(up, ±limit) + 1) · g · sigmoid(1.702 · g) with g = min(gate, limit)."""


# ------------------------------------------------------------------- ops

Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu2", "sigmoid", "softplus"]


class X(Protocol):
    """Activations of a step: opaque, of known ``width`` (columns)."""

    @property
    def width(self) -> int:
        """Columns."""
        ...


class Ops(Protocol):
    """What a model may do. Every op takes and returns ``X``; float32 unless it says otherwise."""

    def embed(self, table: Weight, scale: float = 1.0) -> X:
        """Rows of ``table`` (vocab, d) for the step's token ids, times ``scale``."""
        ...

    def rms_norm(self, x: X, weight: Weight | None, eps: float, heads: int = 1) -> X:
        """x / sqrt(mean(x²) + eps) · weight, over each of ``heads`` equal column groups.

        ``weight`` has width/heads values and serves every group; None is all ones.
        """
        ...

    def layer_norm(
        self, x: X, weight: Weight, bias: Weight | None, eps: float, heads: int = 1
    ) -> X:
        """(x − mean) / sqrt(var + eps) · weight + bias, over each of ``heads`` column groups.

        ``weight`` and ``bias`` have x's width: each group has its own.
        """
        ...

    def linear(self, x: X, weight: Weight, bias: Weight | None = None) -> X:
        """x · weightᵀ + bias."""
        ...

    def split(self, x: X, *widths: int) -> tuple[X, ...]:
        """Column ranges of x, in order; the widths sum to x's. Views, no copy."""
        ...

    def rope(self, x: X, rope: Rope, head_dim: int) -> X:
        """Rotate each head of ``head_dim`` columns by its row's position."""
        ...

    def attention(
        self,
        q: X,
        k: X | None,
        v: X | None,
        layer: int,
        *,
        scale: float,
        softcap: float = 0.0,
        sinks: Weight | None = None,
    ) -> X:
        """Store k and v (kv_heads · head_dim columns) in ``layer``'s state, then attend causally.

        Without k and v, attend to what an earlier op of the step stored for ``layer``; then q may
        also have only the rows of ``outputs``, as ``rope``'s x may.
        q has heads · head_dim columns; heads is a multiple of kv_heads (grouped queries). The
        window, if any, is the layer's ``StateSpec``'s. ``softcap`` c > 0 turns a score s into
        c·tanh(s/c). ``sinks`` has one extra logit per head that takes weight but adds nothing.
        """
        ...

    def glu(self, x: X, kind: Literal["silu", "gelu_tanh", "gelu"]) -> X:
        """act(first half of the columns) · second half."""
        ...

    def experts(
        self,
        x: X,
        logits: X,
        routing: Routing,
        gate_up: Weight,
        down: Weight,
        *,
        gate: Gate,
        limit: float = 0.0,
        gate_up_bias: Weight | None = None,
        down_bias: Weight | None = None,
        selection: Weight | None = None,
        result_scale: Weight | None = None,
    ) -> X:
        """The weighted sum of what each row's chosen experts make of it.

        logits has a column per expert. gate_up (E, 2h, d) and down (E, d, h) are of kind
        "experts", the gate's rows first; the biases are vectors of E·2h and E·d values.
        ``selection`` (E) is added to the scores for the choice alone; ``result_scale`` (E)
        multiplies the weight of an expert.
        """
        ...

    def activation(self, x: X, kind: Activation) -> X:
        """Elementwise activation."""
        ...

    def short_conv(
        self,
        x: X,
        weight: Weight,
        layer: int,
        *,
        taps: int,
        bias: Weight | None = None,
        at: int = 0,
    ) -> X:
        """Each column's causal convolution: Σ_j weight[c, j] · x[t − taps + 1 + j, c] + bias[c].

        ``weight`` is a vector of width · taps. The last taps − 1 rows of x are kept in
        ``layer``'s ``Slot``, (taps − 1) · width values from ``at`` on.
        """
        ...

    def recur(
        self,
        q: X,
        k: X,
        v: X,
        step: X,
        gain: X,
        layer: int,
        *,
        rate: Weight,
        key_heads: int,
        delta: bool,
        tiled: bool = False,
        skip: Weight | None = None,
        at: int = 0,
    ) -> X:
        """A matrix S for each head that decays, is written and is read, token by token.

        S ← exp(rate · step) · S; then S ← S + k · uᵀ with u = gain · v, or by the delta rule
        (arXiv 2412.06464) u = gain · (v − Sᵀk); the result is Sᵀq + skip · v. ``step`` and
        ``gain`` have a column for each head, ``rate`` and ``skip`` a value. q and k have
        ``key_heads`` heads; head h reads h // (heads / key_heads), or h % key_heads if ``tiled``.
        S lies in ``layer``'s ``Slot``, heads · key_dim · value_dim values from ``at`` on. Without
        the delta rule this is Mamba 2's scan (arXiv 2405.21060).
        """
        ...

    def add(self, x: X, y: X) -> X:
        """x + y."""
        ...

    def mul(self, x: X, y: X) -> X:
        """x · y, elementwise; y may be of one column, which multiplies all of x's."""
        ...

    def scale(self, x: X, factor: float) -> X:
        """x · factor."""
        ...

    def softcap(self, x: X, cap: float) -> X:
        """cap · tanh(x / cap)."""
        ...

    def outputs(self, x: X) -> X:
        """Only the rows whose logits are wanted (``Batch.outputs``), in that order."""
        ...


# ----------------------------------------------------------------- steps


@dataclass(slots=True)
class Batch:
    """The input of one step: rows of tokens, the sequences they belong to, their blocks.

    ids, positions: int32 [T]. spans: int32 [B, 3], one row per sequence: its first row, its
    number of rows, the tokens already in its state (= position of its first row). A
    sequence's rows are consecutive. tables: per state group, int32 [B, W]: block ids of
    tokens 0…, ``BLOCK_TOKENS`` each; -1 where a window has let a block go. outputs: int32 [S],
    the rows whose logits are wanted, ascending.

    A group of ``Slot``s has a state in a block: entry i is the state after the last computed
    token of [32·i, 32·(i+1)). A step goes on from the entry of the token before its first row,
    and writes that of its last row; both must be there. Where others between are there, they
    get the state at their block's end; -1 where none is kept.
    """

    ids: I32
    positions: I32
    spans: I32
    tables: tuple[I32, ...]
    outputs: I32


def state_groups(states: Sequence[StateSpec]) -> tuple[tuple[StateSpec, tuple[int, ...]], ...]:
    """The distinct specs, by first layer, each with its layers: one block table per group."""
    groups: dict[StateSpec, list[int]] = {}
    for layer, spec in enumerate(states):
        groups.setdefault(spec, []).append(layer)
    return tuple((spec, tuple(layers)) for spec, layers in groups.items())


class Memory(Protocol):
    """The bytes of all states: for each group an array of blocks that grows and shrinks."""

    def block_bytes(self, group: int) -> int:
        """Bytes of one block: all layers of the group, keys and values, BLOCK_TOKENS tokens."""
        ...

    def blocks(self, group: int) -> int:
        """Blocks there are."""
        ...

    def resize(self, group: int, blocks: int) -> None:
        """Grow or cut to ``blocks``; existing blocks keep their content. Raises ResourceError."""
        ...

    def copy(self, group: int, source: int, target: int) -> None:
        """Copy one block onto another."""
        ...

    def dump(self, group: int, block: int) -> bytes:
        """A block's content, ``block_bytes`` long, in this back end's own layout."""
        ...

    def fill(self, group: int, block: int, data: bytes) -> None:
        """Overwrite a block with what ``dump`` gave. Raises ValueError for another length."""
        ...


class Program(Protocol):
    """A compiled ``forward``."""

    def run(self, batch: Batch) -> F32:
        """Compute the step; logits float32 [S, vocab], valid until the next run."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token; logprob and top (id, logprob), if asked, are of the raw distribution."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Chooser(Protocol):
    """One answer's sampling state: its parameters, its random stream, its token history."""

    def accept(self, token: int) -> None:
        """Add a token to the history that penalties look back on."""
        ...


class Backend(Protocol):
    """A place where models run."""

    @property
    def name(self) -> str:
        """For the ready block: "cpu (avx512)"."""
        ...

    @property
    def threads(self) -> int:
        """Worker threads."""
        ...

    def pack(self, wanted: Wanted, tensors: Mapping[str, RawTensor]) -> Weight:
        """Pack a weight. Raises FormatError (missing, wrong shape), UnsupportedError."""
        ...

    def kv_dtype(self, asked: str) -> str:
        """The cache type for what was asked: "auto" is the fastest of 16 bits here."""
        ...

    def memory(self, states: Sequence[StateSpec], kv_dtype: str) -> Memory:
        """State memory for a model, empty. Raises UsageError for an unknown dtype."""
        ...

    def compile(self, forward: Callable[[Ops], X], memory: Memory) -> Program:
        """Turn a forward into a program over that memory."""
        ...

    def chooser(
        self, params: SamplingParams, seed: int, vocab: int, prompt: Sequence[int]
    ) -> Chooser:
        """Sampling state for one answer; penalties count ``prompt`` too."""
        ...

    def choose(
        self,
        logits: F32,
        rows: Sequence[int],
        choosers: Sequence[Chooser],
        banned: Sequence[Sequence[int]],
        masks: Sequence[npt.NDArray[np.uint32] | None] | None = None,
    ) -> list[Choice]:
        """For each i choose from ``logits[rows[i]]`` by ``choosers[i]``, and accept it.

        ``banned[i]`` ids cannot be chosen (end of sequence before ``min_tokens``);
        ``masks[i]``, if given, is a bitmask over the vocabulary of what is allowed.
        """
        ...

    def logprobs(
        self, logits: F32, rows: Sequence[int], tokens: Sequence[int], top: int
    ) -> list[Choice]:
        """The log-probability of given tokens in given rows, with the ``top`` best."""
        ...

    def give_way(self, on: bool) -> None:
        """While on, a running program lets other threads of the process have its cores between
        two pieces of work, which costs less than to be displaced in the middle of one."""
        ...

    def close(self) -> None:
        """Stop the threads, free the memory."""
        ...
