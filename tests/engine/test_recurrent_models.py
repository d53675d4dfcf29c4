"""Models with recurrent layers through the whole engine: what the cache gives changes no token."""

from __future__ import annotations

import random

import pytest

from gristmill.backends.ops import state_groups
from gristmill.engine.engine import Engine, Parts
from gristmill.models import build
from gristmill.types import Request
from tests.backends.cpu_case import opened
from tests.engine.fakes import Answer, ToyDetokenizer, greedy, make_plan
from tests.models.recipes import golden


@pytest.mark.parametrize(
    "name", ["granitemoehybrid", "lfm2", "qwen3_5", "qwen3_5_moe", "qwen3_next"]
)
def test_turns_and_crowds_give_the_text_of_no_cache(name: str) -> None:
    made = golden(name)
    checkpoint = made.gguf or made.hf
    model = build(checkpoint, 256)
    draw = random.Random(1)
    prompts = [tuple(draw.choices(range(3, 40), k=70))]
    prompts += [prompts[0][:50] + tuple(draw.choices(range(3, 40), k=20)) for _ in range(3)]
    texts: list[list[tuple[int, ...]]] = []
    with opened() as backend:
        weights = {w.name: backend.pack(w, checkpoint.tensors) for w in model.wanted()}
        for cache in (False, True):
            specs = tuple(spec for spec, _ in state_groups(model.states()))
            memory = backend.memory(model.states(), "f32")
            plan = make_plan(specs, context=256, max_running=3, prefix_cache=cache)
            program = backend.compile(lambda ops: model.forward(ops, weights), memory)
            parts = Parts(plan, backend, memory, program, 40, frozenset({2}), ToyDetokenizer)
            engine = Engine(parts, None, check_idle=True)
            got: list[tuple[int, ...]] = []
            talk = prompts[0]
            for turn in range(3):
                answer = Answer()
                engine.submit(
                    Request(f"t{turn}", talk, greedy(max_tokens=12, ignore_eos=True)), answer
                )
                got.append(answer.wait(30).tokens())
                talk = (*talk, *got[-1], 7, 8, 9)
            answers = [Answer() for _ in prompts]
            for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
                engine.submit(
                    Request(str(i), prompt, greedy(max_tokens=12, ignore_eos=True)), answer
                )
            got += [answer.wait(30).tokens() for answer in answers]
            assert (engine.stats().prefix_hits > 0) is cache
            engine.close()
            texts.append(got)
    assert texts[0] == texts[1]
