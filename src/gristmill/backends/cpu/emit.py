"""From nodes to a C++ program: slots by liveness, barriers where a node must wait."""

from __future__ import annotations

from typing import Any

from gristmill.backends.cpu.fuse import row_bytes
from gristmill.backends.cpu.native import native
from gristmill.backends.cpu.record import TOKENS, Columns, Node, Value
from gristmill.backends.ops import Rope, Routing

Access = tuple[bool, int | None]
"""Whether it writes, and the kind of rows it is shared out by (None: by other rules)."""


class Slots:
    """Memory of values: a slot serves several whose lives do not overlap."""

    def __init__(self, nodes: list[Node], result: Value, share: bool) -> None:
        self._last = {x.value: i for i, node in enumerate(nodes) for x in node.inputs}
        self._last[result] = len(nodes)
        self._share = share
        self._free: list[int] = []
        self._where: dict[Value, int] = {}
        self.sizes: list[tuple[int, int]] = []
        """Per slot: kind of rows, bytes of a row."""

    def take(self, value: Value) -> int:
        """A slot for a value that is written now: the smallest free one that needs no growth."""
        size = row_bytes(value)
        fits = [s for s in self._free if self.sizes[s][0] == value.rows]
        # A float32 slot's row length is its stride, so reuse wants equal length there.
        fits = [s for s in fits if self.sizes[s][1] == size or value.act is not None]
        fits = [s for s in fits if self.sizes[s][1] >= size]
        if fits:
            slot = min(fits, key=lambda s: self.sizes[s][1])
            self._free.remove(slot)
        else:
            slot = len(self.sizes)
            self.sizes.append((value.rows, size))
        self._where[value] = slot
        return slot

    def of(self, value: Value) -> int:
        """Where a live value lies."""
        return self._where[value]

    def end(self, index: int, node: Node) -> None:
        """Free what node number ``index`` was the last to read (or nobody reads)."""
        if not self._share:
            return
        values = [*(x.value for x in node.inputs), *node.panels, *([node.out] if node.out else [])]
        for value in dict.fromkeys(values):  # in order: equal recordings give equal programs
            if self._last.get(value, -1) <= index:
                self._free.append(self._where[value])


class Barriers:
    """Says which nodes must wait for all workers before they start."""

    def __init__(self) -> None:
        self._seen: dict[int, list[Access]] = {}

    def before(self, reads: list[tuple[int, int | None]], writes: list[tuple[int, int | None]]):
        """Record a node's accesses (slot, rows it is shared out by); True if it must wait."""
        now: list[tuple[int, Access]] = [(s, (False, by)) for s, by in reads]
        now += [(s, (True, by)) for s, by in writes]
        wait = any(
            (mine[0] or old[0]) and (mine[1] is None or mine[1] != old[1])
            for slot, mine in now
            for old in self._seen.get(slot, ())
        )
        if wait:
            self._seen.clear()
        for slot, access in now:
            self._seen.setdefault(slot, []).append(access)
        return wait


def emit(nodes: list[Node], result: Columns, pool: Any, share: bool = True) -> tuple[Any, int]:
    """The C++ program and the slot of its result. ``share`` False gives each value its own slot."""
    slots, barriers = Slots(nodes, result.value, share), Barriers()
    plan: list[tuple[Node, bool, tuple[int, int], list[int], list[tuple[int, int]]]] = []
    for i, node in enumerate(nodes):
        ins = [(slots.of(x.value), x.at) for x in node.inputs]
        out = (slots.take(node.out), 0) if node.out else (-1, 0)
        panels = [-1, -1, -1]
        for value in node.panels:
            panels[value.act or 0] = slots.take(value)
        by = node.rows if node.by_rows else None
        reads = [(slot, None if node.kind == "outputs" else by) for slot, _ in ins]
        # A row's part of a panel lies among those of other workers' rows, anywhere in the slot.
        writes = [(out[0], by)] if node.out else []
        writes += [(slot, None) for slot in panels if slot >= 0]
        plan.append((node, barriers.before(reads, writes), out, panels, ins))
        slots.end(i, node)
    program = native().Program(pool)
    for rows, size in slots.sizes:
        program.slot(rows, size)
    ropes: dict[Rope, int] = {}
    for node, barrier, out, panels, ins in plan:
        _emit_node(program, node, barrier, out, panels, ins, ropes)
        for panel in node.panels:
            if panel.ordered_as is not None:
                program.order_columns(panel.ordered_as)
    return program, slots.of(result.value)


def _emit_node(
    program: Any,
    node: Node,
    barrier: bool,
    out: tuple[int, int],
    panels: list[int],
    ins: list[tuple[int, int]],
    ropes: dict[Rope, int],
) -> None:
    a = node.args
    if node.kind == "linear":
        residual = ins.pop() if "residual" in a else (-1, 0)
        for x, (slot, _) in zip(node.inputs, ins, strict=False):
            panels[x.value.act or 0] = slot
        kind = "linear" if node.rows == TOKENS else "head"
        program.linear(barrier, out, panels, a["weight"], a["bias"], residual, kind)
    elif node.kind == "experts":
        _emit_experts(program, a, barrier, out, ins)
    elif node.kind == "attention":
        stored = ins[1:] or [(-1, 0), (-1, 0)]
        program.attention(barrier, node.rows, out, ins[0], *stored, **a)
    elif node.kind == "short_conv":
        program.short_conv(barrier, out, *ins, **a)
    elif node.kind == "recur":
        program.recur(barrier, out, ins, **a)
    elif node.kind == "embed":
        program.embed(barrier, node.width, out, panels, a["table"], a["factor"])
    elif node.kind == "outputs":
        program.outputs(barrier, node.width, out, panels, *ins)
    elif node.kind == "rope":
        rope: Rope = a["rope"]
        if rope not in ropes:
            ropes[rope] = program.rope_table(
                list(rope.inv_freq), rope.scale, rope.growth, rope.growth_after
            )
        style = 0 if rope.style == "half" else 1
        program.rope(
            barrier,
            node.rows,
            node.width,
            out,
            panels,
            *ins,
            ropes[rope],
            style,
            len(rope.inv_freq),
            a["head_dim"],
        )
    else:
        getattr(program, node.kind)(barrier, node.rows, node.width, out, panels, *ins, *a.values())


def _emit_experts(
    program: Any,
    args: dict[str, Any],
    barrier: bool,
    out: tuple[int, int],
    ins: list[tuple[int, int]],
) -> None:
    a = {key: value for key, value in args.items() if key not in ("residual", "routing")}
    routing: Routing = args["routing"]
    residual = ins.pop() if "residual" in args else (-1, 0)
    program.experts(
        barrier,
        out,
        *ins,
        residual,
        **a,
        used=routing.used,
        sigmoid=routing.score == "sigmoid",
        normalised=routing.normalised,
        scale=routing.scale,
        groups=routing.groups,
        groups_used=routing.groups_used,
        group_best=routing.group_best,
        weighs_input=routing.weighs_input,
    )
