"""Writes ``llama_sampling.json``: what llama.cpp's own samplers make of random logits.

Needs the package ``xllamacpp`` (its module exports llama.cpp's C functions):

    python tests/golden/llama_sampling.py tests/golden/llama_sampling.json

A case is a list of samplers with their arguments, logits, and the tokens that came before; then
the ids that are left and their probabilities. Mirostat and adaptive-p choose a token each step;
the token and what was left are written down step by step.
"""

from __future__ import annotations

import ctypes as c
import json
import random
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

VOCAB = 48


class Data(c.Structure):
    """llama_token_data."""

    _fields_ = (("id", c.c_int32), ("logit", c.c_float), ("p", c.c_float))


class Array(c.Structure):
    """llama_token_data_array."""

    _fields_ = (
        ("data", c.POINTER(Data)),
        ("size", c.c_size_t),
        ("selected", c.c_int64),
        ("sorted", c.c_bool),
    )


class Vector(c.Structure):
    """A std::vector as GCC lays it out."""

    _fields_ = (("begin", c.c_void_p), ("end", c.c_void_p), ("capacity", c.c_void_p))


KINDS = {
    "top_k": (c.c_int32,),
    "top_p": (c.c_float, c.c_size_t),
    "min_p": (c.c_float, c.c_size_t),
    "typical": (c.c_float, c.c_size_t),
    "temp_ext": (c.c_float, c.c_float, c.c_float),
    "xtc": (c.c_float, c.c_float, c.c_size_t, c.c_uint32),
    "top_n_sigma": (c.c_float,),
    "penalties": (c.c_int32, c.c_int32, c.c_float, c.c_float, c.c_float),
    "mirostat": (c.c_int32, c.c_uint32, c.c_float, c.c_float, c.c_int32),
    "mirostat_v2": (c.c_uint32, c.c_float, c.c_float),
    "adaptive_p": (c.c_float, c.c_float, c.c_uint32),
}
KEPT: list[Any] = []


def library() -> c.CDLL:
    """The module with llama.cpp in it."""
    spec = find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        raise SystemExit("xllamacpp is not installed")
    return c.CDLL(str(next(Path(spec.origin).parent.glob("*.so"))))


def vector(items: Any, size: int) -> Vector:
    """``items`` is a ctypes array, ``size`` the bytes of an element."""
    KEPT.append(items)
    start = c.addressof(items)
    end = start + size * len(items)
    return Vector(start, end, end)


def sampler(lib: c.CDLL, name: str, arguments: list[Any]) -> c.c_void_p:
    """One llama_sampler."""
    if name == "dry":
        *numbers, breakers = arguments
        runs = [vector((c.c_int32 * len(run))(*run), 4) for run in breakers]
        outer = vector((Vector * len(runs))(*runs), c.sizeof(Vector))
        KEPT.append(outer)
        make = lib._Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE
        make.argtypes = (c.c_float, c.c_float, c.c_int32, c.c_int32, c.c_void_p)
        arguments = [*numbers, c.addressof(outer)]
    else:
        make = getattr(lib, f"llama_sampler_init_{name}")
        make.argtypes = KINDS[name]
    make.restype = c.c_void_p
    return c.c_void_p(make(*arguments))


def case(lib: c.CDLL, rng: random.Random, chain: list[tuple[str, list[Any]]], steps: int) -> Any:
    """Apply a chain to random logits, ``steps`` times, accepting what it selects."""
    made = [sampler(lib, name, arguments) for name, arguments in chain]
    history = [rng.randrange(6) for _ in range(rng.randrange(5, 40))]
    for token in history:
        for each in made:
            lib.llama_sampler_accept(each, token)
    done = []
    for _ in range(steps):
        spread = rng.choice([0.5, 2.0, 4.0])
        logits = [round(rng.gauss(0, spread), 3) for _ in range(VOCAB)]
        for token in range(6):
            logits[token] = round(logits[token] + 2, 3)
        items = (Data * VOCAB)(*(Data(i, x, 0.0) for i, x in enumerate(logits)))
        array = Array(items, VOCAB, -1, False)
        for each in made:
            lib.llama_sampler_apply(each, c.byref(array))
        left = [array.data[i] for i in range(array.size)]
        alive = sorted((d.id, d.logit, d.p) for d in left if d.logit != float("-inf"))
        selected = left[array.selected].id if array.selected >= 0 else None
        step = {"logits": logits, "selected": selected, "ids": [d[0] for d in alive]}
        # what selects has left probabilities; other samplers' p may be old
        column = 2 if selected is not None else 1
        step["p" if column == 2 else "left"] = [round(d[column], 6) for d in alive]
        done.append(step)
        if selected is not None:
            history_token = selected
            for each in made:
                lib.llama_sampler_accept(each, history_token)
    return {"chain": chain, "history": history, "steps": done}


def chains(rng: random.Random) -> list[tuple[list[tuple[str, list[Any]]], int]]:
    """The chains to write down."""
    pick = rng.choice
    keep = pick([0, 0, 1, 4, 12])
    steps: dict[str, list[Any]] = {
        "top_k": [pick([1, 5, 20])],
        "top_p": [pick([0.3, 0.8, 0.95]), keep],
        "min_p": [pick([0.02, 0.2]), keep],
        "typical": [pick([0.3, 0.9]), keep],
        "temp_ext": [pick([0.6, 1.4]), pick([0.0, 0.0, 0.5, 2.0]), pick([1.0, 0.5, 2.0])],
        "xtc": [1.0, pick([0.05, 0.1, 0.3]), keep, 1],
        "top_n_sigma": [pick([0.5, 1.0, 2.0])],
        "penalties": [VOCAB, pick([4, 64]), pick([1.0, 1.3]), pick([0.0, 0.4]), pick([0.0, 0.6])],
        "dry": [pick([0.8, 2.0]), pick([1.0, 1.75]), pick([1, 2]), pick([8, 64]),
                pick([[[9]], [[3]], [[2, 3], [1]], [[0, 0, 1]]])],
    }  # fmt: skip
    names = [name for name in steps if not (name == "typical" and rng.random() < 0.5)]
    order = rng.sample(names, rng.randrange(1, len(names)))
    if "top_n_sigma" in order:  # what it drops stays a candidate there, of no weight
        order = [n for n in order if n not in ("typical", "temp_ext")]
    made = [([(name, steps[name]) for name in order], 1)]
    warm = ("temp_ext", [pick([0.8, 1.0, 1.5]), 0.0, 1.0])
    tau, eta = pick([1.0, 3.0, 5.0]), pick([0.1, 0.5])
    made.append(([warm, ("mirostat", [VOCAB, rng.randrange(99), tau, eta, 100])], 4))
    made.append(([warm, ("mirostat_v2", [rng.randrange(99), tau, eta])], 4))
    made.append(([("adaptive_p", [pick([0.1, 0.5, 0.9]), pick([0.0, 0.9]), 3])], 4))
    return made


def main() -> None:
    """Write the cases."""
    lib = library()
    for name in ("accept", "apply"):
        getattr(lib, f"llama_sampler_{name}").restype = None
    rng = random.Random(1)
    found = [case(lib, rng, chain, n) for _ in range(25) for chain, n in chains(rng)]
    Path(sys.argv[1]).write_text(json.dumps({"cases": found}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
