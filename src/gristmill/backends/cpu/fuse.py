"""Rewrites of a recording: each named rule joins neighbours without changing a bit."""

from __future__ import annotations

from collections import Counter

from gristmill.backends.cpu.native import native
from gristmill.backends.cpu.record import Columns, Node, Value

ACTS = (0, 1, 2)
"""Activation formats that a linear op may read."""

_Q8 = 2
"""The format whose panels follow a matrix's own order of columns."""


def uses(nodes: list[Node]) -> Counter[Value]:
    """How often each value is read."""
    return Counter(x.value for node in nodes for x in node.inputs)


def residual_into_linear(nodes: list[Node], result: Value) -> list[Node]:
    """x + linear(y): the linear op adds x as it stores, when nobody else reads its result.

    So does the experts op.
    """
    count = uses(nodes)
    count[result] += 1
    producer = {node.out: i for i, node in enumerate(nodes) if node.out is not None}
    gone: set[int] = set()
    for i, node in enumerate(nodes):
        if node.kind != "elementwise" or node.args["op"] != 0:
            continue
        for x, y in (node.inputs, node.inputs[::-1]):
            at = producer.get(y.value, -1)
            linear = nodes[at] if at >= 0 else node
            ready = producer.get(x.value, len(nodes)) < at
            alone = count[y.value] == 1 and y.whole and "residual" not in linear.args
            if linear.kind in ("linear", "experts") and ready and alone:
                linear.args["residual"] = x
                linear.inputs.append(x)
                linear.out = node.out
                gone.add(i)
                break
    return [node for i, node in enumerate(nodes) if i not in gone]


def panels(nodes: list[Node], fuse: bool) -> list[Node]:
    """Give every linear op the panels it reads.

    A row op that produces the activations writes the panels itself (``fuse``), and its float32
    result is dropped where nobody else reads it; otherwise a node of its own makes them. Ops
    that read the same activations share one panel, if their columns lie in the same order.
    """
    made: dict[tuple[Value, int, int, int, bytes | None], Value] = {}
    producer = {node.out: node for node in nodes if node.out is not None}
    result: list[Node] = []
    for node in nodes:
        if node.kind == "linear":
            x = node.inputs.pop(0)
            weight = node.args["weight"]
            for act in (a for a in ACTS if weight.needs(a)):
                order = weight.order if act == _Q8 else None
                key = (x.value, x.at, x.width, act, order)
                if key not in made:
                    ordered_as = None if order is None else weight
                    made[key] = Value(x.value.rows, x.width, act, ordered_as)
                    source = producer[x.value]
                    one = all(panel.act != act for panel in source.panels)
                    if fuse and source.by_rows and x.whole and one:
                        source.panels.append(made[key])
                    else:
                        copy = Node("copy", [x], None, x.value.rows, x.width)
                        copy.panels.append(made[key])
                        result.append(copy)
                node.inputs.append(Columns(made[key], 0, x.width))
            if "residual" in node.args:
                node.inputs.append(node.inputs.pop(0))  # the residual comes last
        result.append(node)
    return result


def drop_unread(nodes: list[Node], result: Value) -> None:
    """A row op need not store float32 that only its panels are made of."""
    count = uses(nodes)
    for node in nodes:
        if node.out is not None and node.panels and not count[node.out] and node.out is not result:
            node.out = None


def row_bytes(value: Value) -> int:
    """Bytes of a row of a slot that holds the value.

    float32 rows get one cache line more than they need: rows a multiple of 4 KiB apart would
    all fall into the same few sets of the first-level cache.
    """
    if value.act is None:
        return (value.width * 4 + 63) // 64 * 64 + 64
    return native().panel_row_bytes(value.act, value.width)
