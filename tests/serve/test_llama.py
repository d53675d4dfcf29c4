"""llama-server's own routes, over the real engine on a tiny random model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from gristmill.backends.reference import ReferenceProgram
from tests.serve.llama_harness import tiny_server
from tests.serve.test_real_engine import Real

FINAL = [
    *("index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted"),
    *("tokens_evaluated", "generation_settings", "prompt", "has_new_line", "truncated"),
    *("stop_type", "stopping_word", "tokens_cached", "timings"),
]
PARTIAL = [
    *("index", "content", "tokens", "stop", "id_slot", "tokens_predicted", "tokens_evaluated"),
]
TEXT = "the mill grinds the grain "


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    directory = tmp_path_factory.mktemp("llama")
    saves = directory / "saves"
    saves.mkdir()
    with tiny_server(directory, slot_save_path=str(saves)) as running:
        yield running


@pytest.fixture
def http(real: Real) -> Iterator[httpx.Client]:
    with real.client() as client:
        yield client


def ask(http: httpx.Client, prompt: Any = TEXT, status: int = 200, **more: Any) -> Any:
    body = {"prompt": prompt, "n_predict": 8, "temperature": 0, **more}
    got = http.post("/completion", json=body)
    assert got.status_code == status, got.text
    return got.json()


def streamed(http: httpx.Client, prompt: Any = TEXT, **more: Any) -> list[Any]:
    body = {"prompt": prompt, "n_predict": 8, "temperature": 0, "stream": True, **more}
    got = http.post("/completion", json=body)
    assert got.status_code == 200, got.text
    assert got.headers["content-type"].startswith("text/event-stream")
    events = [each for each in got.text.split("\n\n") if each]
    assert all(each.startswith("data: ") for each in events) and "[DONE]" not in got.text
    return [json.loads(each[6:]) for each in events]


def refused(http: httpx.Client, param: str, **more: Any) -> str:
    error = ask(http, status=400, **more)["error"]
    assert error["code"] == 400 and error["param"] == param, error
    return str(error["message"])


def test_the_whole_answer(real: Real, http: httpx.Client) -> None:
    got = ask(http)
    assert list(got) == FINAL
    ids = http.post("/tokenize", json={"content": TEXT, "add_special": True}).json()["tokens"]
    assert got["stop"] is True and got["tokens"] == [] and got["index"] == 0
    assert got["tokens_evaluated"] == len(ids) and got["tokens_predicted"] == 8
    assert got["tokens_cached"] == len(ids) + 7
    assert got["stop_type"] == "limit" and got["stopping_word"] == "" and not got["truncated"]
    assert got["prompt"] == http.post("/detokenize", json={"tokens": ids}).json()["content"]
    assert got["model"] == "tiny" and 0 <= got["id_slot"] < real.served.slots.count  # type: ignore[union-attr]
    assert got["timings"]["predicted_n"] == 8
    assert got["timings"]["cache_n"] + got["timings"]["prompt_n"] == len(ids)
    tokens = ask(http, return_tokens=True)["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json()["content"] == got["content"]
    assert http.post("/completions", json={"prompt": "x", "n_predict": 1}).json()["stop"] is True


def test_settings_are_those_used(http: httpx.Client) -> None:
    settings = http.post("/completion", json={"prompt": "a", "n_predict": 1}).json()[
        "generation_settings"
    ]
    wanted = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_last_n": 64}
    assert {name: settings[name] for name in wanted} == wanted
    assert settings["seed"] == 2**32 - 1 and settings["n_predict"] == settings["max_tokens"] == 1
    got = ask(http, seed=7, top_k=3, stop=["zz", ""], logit_bias=[[5, 1.5], [6, False]], n_keep=4)
    settings = got["generation_settings"]
    assert (settings["seed"], settings["top_k"], settings["stop"]) == (7, 3, ["zz"])
    assert settings["temperature"] == 0.0 and settings["n_keep"] == 4
    assert settings["logit_bias"][0] == {"bias": 1.5, "token": 5}
    props = http.get("/props").json()["default_generation_settings"]["params"]
    plain = http.post("/completion", json={"prompt": "a", "n_predict": 1}).json()
    same = set(props) - {"n_predict", "max_tokens"}
    assert {k: props[k] for k in same} == {k: plain["generation_settings"][k] for k in same}


def test_forms_of_a_prompt(real: Real, http: httpx.Client) -> None:
    encode = real.tokenizer.encode
    a = encode("the mill", add_special=True, parse_special=True)
    inner = encode("the mill", add_special=False, parse_special=True)
    forms: list[tuple[Any, list[list[int]]]] = [
        ("the mill", [a]),
        (a, [a]),
        ([5, "the mill", 6], [[5, *inner, 6]]),
        (["the mill", 5], [[*a, 5]]),
        ({"prompt_string": "the mill"}, [a]),
        (["the mill", "the mill"], [a, a]),
        (
            ["the mill", [5, "the mill"], {"prompt_string": "the mill"}, [6]],
            [a, [5, *inner], a, [6]],
        ),
        ([["the mill", 5]], [[*a, 5]]),
    ]
    for prompt, wanted in forms:
        got = ask(http, prompt, n_predict=1)
        answers = got if isinstance(got, list) else [got]
        assert isinstance(got, list) == (len(wanted) > 1)
        assert [each["index"] for each in answers] == list(range(len(wanted)))
        assert [each["tokens_evaluated"] for each in answers] == [len(ids) for ids in wanted]
        assert [each["prompt"] for each in answers] == [real.tokenizer.decode(i) for i in wanted]
    for bad in ([], [[]], 5, True, {}, [1.5], [999_999], [-1], {"prompt_string": 5}, [True, 5]):
        refused(http, "prompt", prompt=bad)
    assert "sees" in refused(
        http, "prompt", prompt={"prompt_string": "x", "multimodal_data": ["aGk="]}
    )
    assert http.post("/completion", json={}).json()["error"]["param"] == "prompt"


def test_several_answers(http: httpx.Client) -> None:
    got = ask(http, ["a b c", "d e f"], n_cmpl=2, temperature=1.0, seed=4)
    assert [each["index"] for each in got] == [0, 1, 2, 3]
    assert got[0]["prompt"] == got[1]["prompt"] != got[2]["prompt"]
    assert len({each["content"] for each in got}) > 1


@pytest.mark.parametrize("more", [{}, {"stop": ["e"]}, {"n_probs": 3}, {"n_predict": 0}])
def test_a_stream_says_what_the_whole_does(http: httpx.Client, more: dict[str, Any]) -> None:
    whole = ask(http, return_tokens=True, **more)
    *chunks, last = streamed(http, return_tokens=True, **more)
    assert all(list(chunk)[:7] == PARTIAL and chunk["stop"] is False for chunk in chunks)
    assert "".join(chunk["content"] for chunk in chunks) == whole["content"]
    assert [t for chunk in (*chunks, last) for t in chunk["tokens"]] == whole["tokens"]
    told = [entry for chunk in chunks for entry in chunk.get("completion_probabilities", [])]
    assert told == whole.get("completion_probabilities", [])
    assert list(last) == FINAL and last["content"] == ""
    for name in ("stop_type", "stopping_word", "tokens_predicted", "has_new_line", "prompt"):
        assert last[name] == whole[name]
    counts = [chunk["tokens_predicted"] for chunk in chunks]
    assert counts == sorted(counts)


def test_streams_of_several_prompts_are_told_apart(http: httpx.Client) -> None:
    prompts = ["the mill", "grain of wheat", "x"]
    whole = ask(http, prompts)
    chunks = streamed(http, prompts)
    for answer in whole:
        mine = [chunk for chunk in chunks if chunk["index"] == answer["index"]]
        assert "".join(chunk["content"] for chunk in mine) == answer["content"]
        assert [chunk["stop"] for chunk in mine] == [False] * (len(mine) - 1) + [True]


def test_why_it_stopped(real: Real, http: httpx.Client) -> None:
    eos = min(real.tokenizer.eos_ids)
    got = ask(http, logit_bias=[[eos, 100]])
    assert (got["stop_type"], got["content"], got["tokens_predicted"]) == ("eos", "", 1)
    got = ask(http, logit_bias=[[eos, 100]], ignore_eos=True)
    assert (got["stop_type"], got["tokens_predicted"]) == ("limit", 8)
    whole = ask(http)["content"]
    word = whole[3:5]
    got = ask(http, stop=[word, "never"])
    assert (got["stop_type"], got["stopping_word"]) == ("word", word)
    assert got["content"] == whole[: whole.index(word)]
    newline = real.tokenizer.encode("\n", add_special=False, parse_special=False)[-1]
    assert ask(http, logit_bias=[[newline, 100]])["has_new_line"] is True
    got = ask(http, n_predict=-1, logit_bias=[[newline, 100]], ignore_eos=True)
    assert got["truncated"] and got["stop_type"] == "limit"
    assert got["tokens_predicted"] + got["tokens_evaluated"] == real.served.context


def test_counts_of_tokens(http: httpx.Client) -> None:
    """BC-23: exactly as many; 0 evaluates the prompt only."""
    for count in (0, 1, 2):
        got = ask(http, n_predict=count, ignore_eos=True)
        assert got["tokens_predicted"] == count and got["stop_type"] == "limit"
    text = "a prompt that nobody has asked about before, long enough for a block or two " * 2
    assert ask(http, text, n_predict=0)["content"] == ""
    assert ask(http, text, n_predict=1)["timings"]["cache_n"] >= 32


def test_probabilities(http: httpx.Client) -> None:
    entries = ask(http, n_probs=4)["completion_probabilities"]
    assert len(entries) == 8
    for entry in entries:
        assert list(entry) == ["id", "token", "bytes", "logprob", "top_logprobs"]
        assert len(entry["top_logprobs"]) == 4
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] <= 0
        assert bytes(entry["bytes"]).decode(errors="ignore") == entry["token"]
    assert (
        len(ask(http, n_probs=100, n_predict=1)["completion_probabilities"][0]["top_logprobs"])
        == 100
    )
    assert "completion_probabilities" not in ask(http, n_probs=0)


def test_probabilities_after_sampling(http: httpx.Client) -> None:
    more: dict[str, Any] = {
        "n_probs": 5,
        "post_sampling_probs": True,
        "temperature": 0.9,
        "top_k": 3,
        "seed": 1,
    }
    for entry in ask(http, **more)["completion_probabilities"]:
        assert list(entry) == ["id", "token", "bytes", "prob", "top_probs"]
        assert 1 <= len(entry["top_probs"]) <= 3
        assert entry["prob"] in [top["prob"] for top in entry["top_probs"]]
        assert abs(sum(top["prob"] for top in entry["top_probs"]) - 1) < 1e-4
    assert ask(http, **more)["generation_settings"]["post_sampling_probs"] is True
    only = ask(http, **{**more, "temperature": 0})["completion_probabilities"]
    assert all(entry["prob"] == 1.0 for entry in only)


def test_response_fields(http: httpx.Client) -> None:
    paths = ["content", "generation_settings/n_predict", "timings/none", "no", "stop/x"]
    got = ask(http, response_fields=paths)
    assert list(got) == ["content", "generation_settings/n_predict"]
    assert got["generation_settings/n_predict"] == 8
    assert list(streamed(http, response_fields=paths)[-1]) == list(got)


def test_progress(http: httpx.Client) -> None:
    text = "grain after grain goes through the stones of the mill " * 6
    chunks = streamed(http, text, return_progress=True)
    told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert told and list(told[0]) == ["total", "cache", "processed", "time_ms"]
    assert told[-1]["processed"] == told[-1]["total"] == chunks[-1]["tokens_evaluated"]
    assert told[0]["cache"] == 0
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 2, "stream": True}
    page = http.post("/v1/chat/completions", json={**chat, "return_progress": True}).text
    first = json.loads(page.split("\n\n")[0].removeprefix("data: "))
    assert first["prompt_progress"]["total"] > 0
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}


def test_what_is_refused(http: httpx.Client) -> None:
    refused(http, "lora", lora=[{"id": 0, "scale": 1.0}])
    assert ask(http, lora=[])["stop"] is True
    refused(http, "id_slot", id_slot=10_000)
    got = http.post("/v1/completions", json={"prompt": "x", "id_slot": 10_000})
    assert got.status_code == 400 and got.json()["error"]["param"] == "id_slot"
    refused(http, "id_slot", id_slot=-2)
    refused(http, "response_fields", response_fields=[1])
    for name, value in (("n_keep", -2), ("n_discard", -1), ("n_indent", -1), ("n_probs", -1)):
        got = http.post("/completion", json={"prompt": "x", name: value})
        assert got.status_code == 400, name
    got = http.post("/completion", json={"prompt": "x", "model": "none"})
    assert got.status_code == 404


def test_constraints(http: httpx.Client) -> None:
    """BC-29, and its kind on this route: enforced, or 400 that names the field."""
    more: dict[str, Any] = {"temperature": 1, "seed": 3, "n_predict": 60}
    got = ask(http, grammar='root ::= "yes" | "no" " thanks"', **more)
    assert got["content"] in ("yes", "no thanks") and got["stop_type"] == "eos"
    assert got["generation_settings"]["grammar"].startswith("root")
    schema = {"enum": ["left", "right"]}
    assert json.loads(ask(http, json_schema=schema, **more)["content"]) in ("left", "right")
    both = ask(http, grammar='root ::= "up"', json_schema=schema, **more)
    assert both["content"] == "up"
    chunks = streamed(http, grammar='root ::= "yes"', **more)
    assert "".join(chunk["content"] for chunk in chunks) == "yes"
    for name, value in (
        ("grammar", 'root ::= "a'),
        ("grammar", "root ::= nothing"),
        ("json_schema", {"$ref": "#/nowhere"}),
        ("json_schema", 5),
    ):
        answer = http.post("/completion", json={"prompt": "x", name: value})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == name, name
    odd = {"type": "string", "pattern": r"^a\!$"}
    answer = http.post("/completion", json={"prompt": "x", "json_schema": odd})
    assert answer.status_code == 400 or json.loads(answer.json()["content"]) == "a!"


def test_biases(real: Real, http: httpx.Client) -> None:
    """BC-19, in llama-server's forms."""
    first = ask(http, n_predict=1, return_tokens=True)["tokens"][0]
    for ban in ([[first, False]], [[first, -100]], {str(first): -100}, {str(first): False}):
        got = ask(http, n_predict=1, return_tokens=True, logit_bias=ban)
        assert got["tokens"] != [first]
    word = real.tokenizer.encode("q", add_special=False, parse_special=False)
    assert ask(http, n_predict=2, logit_bias=[["q", 100]])["content"].startswith("q")
    told = ask(http, logit_bias=[["q", 1.5]])["generation_settings"]["logit_bias"]
    assert told == [{"bias": 1.5, "token": token} for token in word]
    for bad in ([[999_999, 1]], [[-1, 1]], [[1]], [[1, True]], [["a", "b"]], 5, [[1.5, 1]]):
        refused(http, "logit_bias", logit_bias=bad)


def test_values_read_as_llama_server_reads_them(http: httpx.Client) -> None:
    greedy = ask(http)["content"]
    assert ask(http, temperature=-1)["content"] == greedy
    got = ask(http, temperature=0.8, top_k=-5, seed=-1)["generation_settings"]
    assert got["top_k"] == 0 and got["seed"] == 2**32 - 1
    assert ask(http, stop="")["content"] == greedy
    null = dict.fromkeys(("stop", "seed", "n_probs", "lora", "id_slot", "cache_prompt"))
    assert ask(http, **null)["content"] == greedy


def test_without_the_cache(http: httpx.Client) -> None:
    text = "never seen, never kept: " * 8
    assert ask(http, text, cache_prompt=False)["timings"]["cache_n"] == 0
    assert ask(http, text)["timings"]["cache_n"] == 0
    assert ask(http, text)["timings"]["cache_n"] >= 32
    assert ask(http, text, cache_prompt=False)["timings"]["cache_n"] == 0
    body = {"prompt": text, "max_tokens": 1, "cache_prompt": False}
    used = http.post("/v1/completions", json=body).json()["usage"]
    assert used["prompt_tokens_details"]["cached_tokens"] == 0


def test_indentation_and_time(real: Real, http: httpx.Client) -> None:
    def forced(text: str) -> list[list[Any]]:
        ids = real.tokenizer.encode(text, add_special=False, parse_special=False)
        return [[ids[-1], 100]]

    got = ask(http, logit_bias=forced("\n"), n_indent=2, n_predict=20, ignore_eos=True)
    assert got["content"] == "\n" and got["stop_type"] == "limit"
    got = ask(http, logit_bias=forced("\n"), t_max_predict_ms=1, n_predict=400, ignore_eos=True)
    assert 0 < got["tokens_predicted"] < 400 and got["stop_type"] == "limit"
    got = ask(http, logit_bias=forced("q"), t_max_predict_ms=1, n_predict=60, ignore_eos=True)
    assert got["tokens_predicted"] == 60


def slot(http: httpx.Client, number: Any, action: str, status: int = 200, **body: Any) -> Any:
    got = http.post(f"/slots/{number}?action={action}", json=body)
    assert got.status_code == status, got.text
    return got.json()


def test_slots_saved_and_restored(real: Real, http: httpx.Client) -> None:
    text = "what a slot holds is worth keeping, says the miller " * 5
    first = ask(http, text, id_slot=2)
    assert first["id_slot"] == 2
    made = slot(http, 2, "save", filename="miller.bin")
    assert list(made) == ["id_slot", "filename", "n_saved", "n_written", "timings"]
    assert made["n_saved"] == first["tokens_cached"] // 32 * 32
    path = Path(str(real.state.options.slot_save_path)) / "miller.bin"
    assert path.stat().st_size == made["n_written"]
    dropped = slot(http, 2, "erase")
    assert dropped == {"id_slot": 2, "n_erased": made["n_saved"]}
    assert ask(http, text, cache_prompt=False)["content"] == first["content"]
    back = slot(http, 1, "restore", filename="miller.bin")
    assert back["n_restored"] == made["n_saved"] and back["n_read"] == made["n_written"]
    again = ask(http, text)
    assert again["content"] == first["content"]
    assert again["timings"]["cache_n"] == min(made["n_saved"], again["tokens_evaluated"] - 1)


def test_slots_that_cannot_be(real: Real, http: httpx.Client) -> None:
    ask(
        http, "something to be saved that is long enough for a block, and then some more", id_slot=0
    )
    for name in (
        "../a",
        "a/b",
        "a\\b",
        "..",
        ".",
        "",
        ".hidden",
        "a\0b",
        "a\n",
        "x" * 300,
        " a",
        "a.",
    ):
        for action in ("save", "restore"):
            error = slot(http, 0, action, 400, filename=name)["error"]
            assert error["param"] == "filename", name
    for number in ("99", "-1", "x", "1e3", "9" * 30):
        assert slot(http, number, "erase", 400)["error"]["param"] == "id_slot"
    assert slot(http, 0, "sell", 400)["error"]["param"] == "action"
    assert slot(http, 0, "save", 400)["error"]["param"] == "filename"
    assert slot(http, 0, "restore", 400, filename="none.bin")["error"]["param"] == "filename"
    assert slot(http, 0, "save", filename="cut.bin")["n_saved"] > 0
    path = Path(str(real.state.options.slot_save_path)) / "cut.bin"
    path.write_bytes(path.read_bytes()[:-9])
    assert "cut short" in slot(http, 0, "restore", 400, filename="cut.bin")["error"]["message"]
    (path.parent / "link.bin").symlink_to("/etc/passwd")
    slot(http, 0, "restore", 400, filename="link.bin")


def test_slots_shown(http: httpx.Client) -> None:
    ask(http, "a secret", id_slot=3)
    page = http.get("/slots")
    assert "secret" not in page.text
    shown = page.json()
    assert [each["id"] for each in shown] == list(range(len(shown)))
    mine = shown[3]
    assert mine["is_processing"] is False and mine["next_token"][0]["n_decoded"] == 8
    assert mine["params"]["n_predict"] == 8 and "prompt" not in mine
    assert http.get("/slots?fail_on_no_slot=1").status_code == 200


def test_busy_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ReferenceProgram.run

    def slowly(program: ReferenceProgram, batch: Any) -> Any:
        time.sleep(0.02)
        return run(program, batch)

    monkeypatch.setattr(ReferenceProgram, "run", slowly)
    more: dict[str, Any] = {"max_running": 1, "slot_save_path": str(tmp_path), "slot_prompts": True}
    with tiny_server(tmp_path, **more) as real, real.client() as http, real.client() as other:
        body = {"prompt": "the mill", "stream": True, "ignore_eos": True, "id_slot": 0}
        with http.stream("POST", "/completion", json=body) as got:
            chunks = got.iter_raw()
            next(chunks)
            for path, status in (("/slots?fail_on_no_slot=1", 503), ("/slots", 200)):
                shown = other.get(path)
                assert shown.status_code == status
            assert shown.json()[0]["prompt"].endswith("the mill")
            assert shown.json()[0]["is_processing"]
        assert http.get("/props").json()["total_slots"] == 1


def test_properties(real: Real, http: httpx.Client) -> None:
    props = http.get("/props").json()
    assert props["model_path"] == "tiny.gguf" and props["total_slots"] == real.served.slots.count  # type: ignore[union-attr]
    assert props["chat_template"] == real.state.options.chat_template
    assert (
        props["eos_token"] and props["default_generation_settings"]["n_ctx"] == real.served.context
    )
    assert str(Path(real.state.options.model).parent) not in json.dumps(props)
    got = http.post("/props", json={})
    assert got.status_code == 501 and got.json()["error"]["type"] == "not_supported_error"
    assert http.get("/lora-adapters").json() == []
    assert http.post("/lora-adapters", json=[]).json() == {"success": True}
    assert http.post("/lora-adapters", json=[{"id": 0, "scale": 1}]).status_code == 400
    assert http.post("/lora-adapters", json={}).status_code == 400


def test_what_is_switched_off(tmp_path: Path) -> None:
    off: dict[str, Any] = {"slots": False, "props": True, "prefix_cache": False}
    with tiny_server(tmp_path, **off) as real, real.client() as http:
        assert http.get("/slots").status_code == 501
        assert http.post("/slots/0?action=erase").status_code == 501
        assert http.post("/props", json={}).json() == {"success": True}


def test_a_template_applied_is_a_prompt(real: Real, http: httpx.Client) -> None:
    """A special token of a message's text stays text in a chat; a raw prompt parses it."""
    body = {"messages": [{"role": "user", "content": "what does a mill do?"}]}
    text = http.post("/apply-template", json=body).json()["prompt"]
    assert text == "<|im_start|>user\nwhat does a mill do?<|im_end|><|im_start|>assistant\n"
    chat = http.post("/v1/chat/completions", json={**body, "max_tokens": 8, "temperature": 0})
    raw = ask(http, text)
    assert raw["tokens_evaluated"] == chat.json()["usage"]["prompt_tokens"]
    assert raw["content"] == chat.json()["choices"][0]["message"]["content"]
    for path in ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"):
        assert http.post(path, json=body).json() == {"input_tokens": raw["tokens_evaluated"]}
    assert http.post("/apply-template", json={}).status_code == 400


def test_a_crowd(real: Real, http: httpx.Client) -> None:
    alone = [ask(http, f"{number} grains", seed=number, temperature=1) for number in range(4)]

    def one(number: int) -> Any:
        with real.client() as client:
            return ask(client, f"{number % 4} grains", seed=number % 4, temperature=1)

    with ThreadPoolExecutor(12) as pool:
        for number, got in enumerate(pool.map(one, range(24))):
            assert got["content"] == alone[number % 4]["content"]
