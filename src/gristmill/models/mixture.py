"""A layer's feed-forward network as a mixture of experts, with what all tokens share beside it."""

from __future__ import annotations

from collections.abc import Mapping

from gristmill.backends.ops import Ops, Part, Weight, X
from gristmill.errors import FormatError
from gristmill.models.config import Config
from gristmill.models.routers import Mixture
from gristmill.models.wants import Wants


def is_mixture(weights: Mapping[str, Weight], layer: int) -> bool:
    """Whether the layer has experts."""
    return f"blk.{layer}.ffn_gate_inp.weight" in weights


def want_mixture(wants: Wants, config: Config, mixture: Mixture, layer: int) -> None:
    """Router, experts, and the shared part where the file has one."""
    at, width, hidden = f"blk.{layer}.", config.width, mixture.hidden
    count = mixture.routing.experts
    router = f"{at}ffn_gate_inp"
    if not wants.has(f"{router}.weight"):
        raise FormatError(
            f"The file has no tensor '{router}.weight', though its metadata says that the model "
            f"has {count} experts."
        )
    wants.matrix(f"{router}.weight", width, (f"{router}.weight", count))
    wants.bias(f"{router}.bias", (f"{router}.bias", count))
    wants.bias(f"{at}exp_probs_b.bias", (f"{at}exp_probs_b.bias", count))
    stems = ((f"{at}ffn_gate_exps", hidden), (f"{at}ffn_up_exps", hidden))
    if fused := _fused(wants, config.layers, "ffn_gate_up_exps"):
        stems = ((f"{at}ffn_gate_up_exps", 2 * hidden),)
    dealt = fused and mixture.gate == "clamped"
    _want_experts(wants, f"{at}ffn_gate_up_exps", count, width, stems, dealt)
    _want_experts(
        wants, f"{at}ffn_down_exps", count, hidden, ((f"{at}ffn_down_exps", width),), False
    )
    if mixture.shared:
        fused = _fused(wants, config.layers, "ffn_gate_up_shexp")
        _want_shared(wants, width, mixture.shared, at, fused)


def _fused(wants: Wants, layers: int, name: str) -> bool:
    """Whether the file has gate and up as one, in any layer."""
    ends = ("weight", "turned")
    return any(wants.has(f"blk.{i}.{name}.{end}") for i in range(layers) for end in ends)


def _want_experts(
    wants: Wants,
    name: str,
    count: int,
    columns: int,
    stems: tuple[tuple[str, int], ...],
    dealt: bool,
) -> None:
    """Matrices and biases of all experts; of each the ``stems`` (name, rows) in order."""
    parts = [_parts_of(wants, stem, count, rows, columns, dealt) for stem, rows in stems]
    rows = sum(n for _, n in stems)
    wants.experts(f"{name}.weight", (count, rows, columns), list(zip(*parts, strict=True)))
    biases = [f"{stem}.bias" for stem, _ in stems]
    if any(wants.has(bias) for bias in biases):
        for bias, (_, n) in zip(biases, stems, strict=True):
            wants.claim(bias, (count, n))
        each = [Part(b, (i, i + 1), dealt=dealt) for i in range(count) for b in biases]
        wants.add(f"{name}.bias", "vector", each, (count * rows,))


def _parts_of(
    wants: Wants, stem: str, count: int, rows: int, columns: int, dealt: bool
) -> list[Part]:
    """The matrix of each expert: of one tensor with three axes, of one with the experts' rows one
    after the other, or each a tensor of its own."""
    whole, turned = f"{stem}.weight", f"{stem}.turned"
    if wants.has(turned):
        wants.claim(turned, (count, columns, rows))
        return [Part(turned, expert=i, turned=True, dealt=dealt) for i in range(count)]
    if wants.has(whole) and wants.axes(whole) == 2:
        wants.claim(whole, (count * rows, columns))
        return [Part(whole, (i * rows, (i + 1) * rows), dealt=dealt) for i in range(count)]
    if wants.has(f"{stem}.0.weight"):
        for i in range(count):
            wants.claim(f"{stem}.{i}.weight", (rows, columns))
        return [Part(f"{stem}.{i}.weight", dealt=dealt) for i in range(count)]
    wants.claim(whole, (count, rows, columns))
    return [Part(whole, expert=i, dealt=dealt) for i in range(count)]


def _want_shared(wants: Wants, width: int, hidden: int, at: str, fused: bool) -> None:
    parts = ((f"{at}ffn_gate_shexp.weight", hidden), (f"{at}ffn_up_shexp.weight", hidden))
    if fused:
        parts = ((f"{at}ffn_gate_up_shexp.weight", 2 * hidden),)
    wants.matrix(f"{at}ffn_gate_up_shexp.weight", width, *parts)
    wants.matrix(f"{at}ffn_down_shexp.weight", hidden, (f"{at}ffn_down_shexp.weight", width))
    gate = f"{at}ffn_gate_inp_shexp.weight"
    if wants.has(gate):
        wants.one_row(gate, width)


def mixture(
    ops: Ops, w: Mapping[str, Weight], config: Config, mixture: Mixture, layer: int, x: X
) -> X:
    """What the layer's experts make of x, and what is shared."""
    at = f"blk.{layer}."
    y = ops.experts(
        x,
        ops.linear(x, w[f"{at}ffn_gate_inp.weight"], w.get(f"{at}ffn_gate_inp.bias")),
        mixture.routing,
        w[f"{at}ffn_gate_up_exps.weight"],
        w[f"{at}ffn_down_exps.weight"],
        gate=mixture.gate,
        limit=mixture.limit,
        gate_up_bias=w.get(f"{at}ffn_gate_up_exps.bias"),
        down_bias=w.get(f"{at}ffn_down_exps.bias"),
        selection=w.get(f"{at}exp_probs_b.bias"),
    )
    return ops.add(y, _shared(ops, w, at, x)) if mixture.shared else y


def _shared(ops: Ops, w: Mapping[str, Weight], at: str, x: X) -> X:
    y = ops.glu(ops.linear(x, w[f"{at}ffn_gate_up_shexp.weight"]), "silu")
    y = ops.linear(y, w[f"{at}ffn_down_shexp.weight"])
    gate = w.get(f"{at}ffn_gate_inp_shexp.weight")
    return y if gate is None else ops.mul(y, ops.activation(ops.linear(x, gate), "sigmoid"))
