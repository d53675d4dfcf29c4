"""Flags from a file and from the environment, and which of them stands before which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gristmill.cli.accepted import MEANINGLESS
from gristmill.cli.asked import to_options
from gristmill.cli.environment import VARIABLES
from gristmill.cli.loading import naming
from gristmill.cli.serve import serve_command
from gristmill.errors import FormatError, UsageError
from gristmill.options import Options, Tls


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def context(*args: str) -> Any:
    return serve_command.make_context("serve", list(args))


def options(*args: str) -> Any:
    given = dict(context(*args).params)
    given.pop("backend")
    given.pop("hf_token")
    return to_options(given)


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(text: str) -> str:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_a_file_in_vllms_form(written: Any) -> None:
    file = written(
        "# our server\n"
        "model: some/model\n"
        'host: "127.0.0.2"\n'
        "port: 6379\n"
        "served-model-name: [a, b]\n"
        "max_model_len: 2048\n"
        "max-num-seqs: 7\n"
        "uvicorn-log-level: warning\n"
        "enable-log-requests: true\n"
        "no-enable-prefix-caching: true\n"
        'allowed-origins: ["https://a.example"]\n'
        "kv-cache-memory-bytes: 1G\n"
        "chat-template-kwargs: {enable_thinking: false, depth: 3}\n"
        "temperature: 0.5\n"
        "api-key:\n  - 0640\n  - two\n"
        "seed:\n"
    )
    got = options("--config", file)
    assert got.model == "hf:some/model" and got.served_names == ("a", "b")
    assert (got.host, got.port) == ("127.0.0.2", 6379)
    assert (got.context, got.max_running, got.kv_bytes) == (2048, 7, 2**30)
    assert got.log_level == "warning" and got.log_requests and not got.prefix_cache
    assert got.allowed_origins == ("https://a.example",)
    assert got.template_variables == '{"enable_thinking": false, "depth": 3}'
    assert got.sampling == (("temperature", 0.5),)
    assert got.api_keys == ("0640", "two")
    assert got.seed is None


def test_which_stands_before_which(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written("port: 2\nmodel: file.gguf\nthreads: 2\n")
    monkeypatch.setenv("LLAMA_ARG_PORT", "3")
    monkeypatch.setenv("LLAMA_ARG_MODEL", "environment.gguf")
    monkeypatch.setenv("LLAMA_ARG_HOST", "127.0.0.3")
    assert options().port == 3 and options().model == "environment.gguf"
    got = options("--config", file)
    assert (got.port, got.model, got.threads, got.host) == (2, "file.gguf", 2, "127.0.0.3")
    got = options("--config", file, "--port", "1", "line.gguf")
    assert (got.port, got.model, got.threads) == (1, "line.gguf", 2)
    assert options("--config", file, "-hf", "own/repo").model == "hf:own/repo"


def test_a_group_is_said_by_one_place(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "4096")
    assert options("--max-model-len", "100").context == 100
    file = written("uds: /run/socket\nlog-level: error\nctx-size: 512\n")
    assert options("--config", file).uds == "/run/socket"
    assert options("--config", file, "--port", "9").uds is None
    assert options("--config", file).context == 512
    assert options("--config", file, "-v").log_level == "debug"
    assert options("--config", file, "-lv", "2").log_level == "warning"


def test_what_means_nothing_in_a_file(written: Any) -> None:
    file = written("tensor-parallel-size: 2\ngpu-memory-utilization: 0.9\nenforce-eager: false\n")
    said = context("--config", file).meta[MEANINGLESS]
    assert len(said) == 2 and all("no meaning here" in line for line in said)
    with pytest.raises(UsageError, match="--enable-lora cannot be honoured"):
        context("--config", written("enable-lora: true\n"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("host: a\nmax-model-length: 5\n", "line 2: .*--max-model-length.*max-model-len"),
        ("prot: 5\n", "line 1: .*'port'"),
        ("port: 70000\n", "line 1: port: .*65535"),
        ("port: [1, 2]\n", "line 1: port: "),
        ("port: true\n", "line 1: 'port' takes a value"),
        ("any-model: maybe\n", "line 1: 'any-model' is true or false"),
        ("any-model: 1\n", "line 1: 'any-model' is true or false"),
        ("port: 1\n\nport: 2\n", "line 3: 'port' says again what line 1"),
        ("max-num-seqs: 1\nparallel: 2\n", "line 2: 'parallel' says again"),
        ("config: other.yaml\n", "line 1: a file cannot name another"),
        ("- port\n- 8000\n", "must hold keys and values"),
        ("just a text\n", "must hold keys and values"),
        ("port: 1\n  host: 2\n", "line 2"),
        ("port: &a 1\nthreads: *a\n", r"line 2: aliases"),
        ("? [a]\n: 1\n", "a key must be"),
        ("port: !!python/object/apply:os.system ['true']\n", "port"),
        ("port: \x00\n", "YAML"),
        ("names: " + "[" * 5000, "deeper than 20"),
        ("alias: [" + "a, " * 20_000 + "]", "more than"),
    ],
)
def test_mistakes_name_the_line(written: Any, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        context("--config", written(text))


def test_an_empty_file(written: Any) -> None:
    assert options("--config", written("")) == Options()
    assert options("--config", written("# nothing\n")) == Options()


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("LLAMA_ARG_MODEL", "a.gguf", "model", "a.gguf"),
        ("LLAMA_ARG_MODEL_URL", "https://a/b.gguf", "model", "https://a/b.gguf"),
        ("LLAMA_ARG_HF_REPO", "own/repo:Q8_0", "model", "hf:own/repo:Q8_0"),
        ("LLAMA_ARG_ALIAS", "a,b", "served_names", ("a", "b")),
        ("LLAMA_ARG_CTX_SIZE", "2048", "context", 2048),
        ("LLAMA_ARG_N_PARALLEL", "3", "max_running", 3),
        ("LLAMA_ARG_N_PARALLEL", "-1", "max_running", None),
        ("LLAMA_ARG_THREADS", "3", "threads", 3),
        ("LLAMA_ARG_THREADS", "-1", "threads", None),
        ("LLAMA_ARG_UBATCH", "64", "step_tokens", 64),
        ("LLAMA_ARG_CACHE_TYPE_K", "bf16", "kv_dtype", "bf16"),
        ("LLAMA_ARG_API_PREFIX", "llm/", "root_path", "/llm"),
        ("LLAMA_API_KEY", "a,b", "api_keys", ("a", "b")),
        ("VLLM_API_KEY", "one key", "api_keys", ("one key",)),
        ("VLLM_CPU_KVCACHE_SPACE", "0.5", "kv_bytes", 2**29),
        ("VLLM_CPU_KVCACHE_SPACE", "0", "kv_bytes", None),
        ("VLLM_CPU_OMP_THREADS_BIND", "0-2|8-9", "cpus", (0, 1, 2, 8, 9)),
        ("VLLM_CPU_OMP_THREADS_BIND", "auto", "cpus", ()),
        ("VLLM_LOGGING_LEVEL", "DEBUG", "log_level", "debug"),
        ("LLAMA_ARG_TEMPERATURE", "0.2", "sampling", (("temperature", 0.2),)),
        ("LLAMA_ARG_REASONING", "off", "template_variables", '{"enable_thinking": false}'),
        ("LLAMA_ARG_LOG_JSONL", "1", "log_format", "json"),
        ("OLLAMA_HOST", "0.0.0.0", "host", "0.0.0.0"),
        ("OLLAMA_HOST", "0.0.0.0", "port", 11434),
        ("OLLAMA_HOST", "http://[::1]:8000", "host", "::1"),
        ("OLLAMA_HOST", ":8000", "port", 8000),
        ("OLLAMA_KEEP_ALIVE", "-1", "keep_alive", None),
    ],
)
def test_variables(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, field: str, value: Any
) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(options(), field) == value
    monkeypatch.setenv(variable, "")
    assert options() == Options()


def test_variables_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "v")
    monkeypatch.setenv("LLAMA_API_KEY", "l")
    monkeypatch.setenv("LLAMA_ARG_PORT", "5")
    monkeypatch.setenv("OLLAMA_HOST", "0.0.0.0:7")
    got = options()
    assert got.api_keys == ("v", "l") and got.port == 5 and got.host == "127.0.0.1"
    assert options("--api-key", "own").api_keys == ("own",)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("LLAMA_ARG_PORT", "http"),
        ("VLLM_CPU_KVCACHE_SPACE", "lots"),
        ("VLLM_CPU_OMP_THREADS_BIND", "3-1"),
        ("VLLM_LOGGING_LEVEL", "loud"),
        ("OLLAMA_HOST", "http://a/b/c"),
        ("LLAMA_ARG_SSL_CERT_FILE", "/no/such/file"),
    ],
)
def test_mistakes_name_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageError, match=rf"{variable}|3-1"):
        options()


def test_a_variable_without_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_N_GPU_LAYERS", "99")
    assert context().meta[MEANINGLESS] == ["LLAMA_ARG_N_GPU_LAYERS has no meaning here."]


# ------------------------------------------------------------ the server's half


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (["--host", "unix:///run/g.sock"], "uds", "/run/g.sock"),
        (["--host", "unix:g.sock"], "uds", "g.sock"),
        (["--host", "/run/llama.sock"], "uds", "/run/llama.sock"),
        (["--uds", "/run/v"], "uds", "/run/v"),
        (["--uds", "/run/v", "--uds-mode", "660"], "uds_mode", 0o660),
        (["--root-path", "/a/b/"], "root_path", "/a/b"),
        (["--root-path", "/"], "root_path", ""),
        (["--cpu-mask", "0x5"], "cpus", (0, 2)),
        (["--cpu-mask", "5", "--cpu-range", "7-8"], "cpus", (0, 2, 7, 8)),
        (["-t", "-1"], "threads", None),
        (["--log-jsonl"], "log_format", "json"),
        (["--log-disable"], "log_level", "error"),
        (["--uvicorn-log-level", "trace"], "log_level", "debug"),
        (["--log-prompts"], "log_requests", True),
        (["--enable-log-requests", "--disable-log-requests"], "log_requests", False),
        (["--disable-access-log-for-endpoints", "/a,/b"], "log_access_except", ("/a", "/b")),
        (["--sse-ping-interval", "-1"], "ping_interval", float("inf")),
        (["--override-generation-config", '{"top_k": 5}'], "sampling", (("top_k", 5),)),
        (
            ["--temp", "1", "--override-generation-config", '{"temperature": 0}'],
            "sampling",
            (("temperature", 1.0),),
        ),
        (["--generation-config", "vllm"], "file_sampling", False),
        (["-hf", "own/repo:Q4_0", "-hff", "x.gguf"], "model", "hf:own/repo:x.gguf"),
        (["-fa", "--port", "1"], "port", 1),
        (["-fa", "on", "a.gguf"], "model", "a.gguf"),
    ],
)
def test_meaning(args: list[str], field: str, value: Any) -> None:
    assert getattr(options(*args), field) == value


@pytest.mark.parametrize(
    "args",
    [
        ["--uds", ""],
        ["--uds", "/" + "x" * 200],
        ["--uds", "a", "--uds-mode", "999"],
        ["--root-path", "/a b"],
        ["--root-path", "/../{x}"],
        ["--cpu-mask", "0"],
        ["--cpu-mask", "xyz"],
        ["--cpu-range", "a-b"],
        ["--chat-template-kwargs", "[]"],
        ["--override-generation-config", '{"colour": 1}'],
        ["--override-generation-config", '{"top_k": true}'],
        ["--override-generation-config", "{"],
        ["--generation-config", "/some/folder"],
        ["--model-url", "http://a/b.gguf"],
        ["--hf-file", "a.gguf"],
        ["--api-key", "with\nnewline"],
        ["--api-key", "not ascii ä"],
        ["--api-key", "a,,b"],
        ["--ssl-keyfile", __file__],
        ["--ssl-cert-reqs", "2", "--ssl-certfile", __file__],
        ["--lora", "a.gguf"],
        ["--speculative-config", "[]"],
        ["--speculative-config", "{"],
        ["--speculative-config", '{"method": "eagle"}'],
        ["--speculative-config", '{"model": "a.gguf"}'],
        ["--speculative-config", '{"num_speculative_tokens": 65}'],
        ["--speculative-config", '{"num_speculative_tokens": true}'],
        ["--grammar-file", "a.gbnf"],
    ],
)
def test_contradictions(args: list[str]) -> None:
    with pytest.raises(UsageError):
        options(*args)


def test_guesses() -> None:
    assert options().draft_tokens == 16
    assert options("--draft-max", "5").draft_tokens == 5
    assert options("--spec-type", "none").draft_tokens == 0
    assert options("--spec-type", "ngram-simple", "--draft", "3").draft_tokens == 3
    config = '{"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_max": 4}'
    assert options("--speculative-config", config).draft_tokens == 7
    assert options("-sc", "{}").draft_tokens == 16


def test_tls() -> None:
    file = __file__
    assert options("--ssl-certfile", file).tls == Tls(file, file)
    got = options("--ssl-cert-file", file, "--ssl-key-file", file, "--ssl-ca-certs", file)
    assert got.tls.client_certificates == "required"
    got = options("--ssl-certfile", file, "--ssl-ca-certs", file, "--ssl-cert-reqs", "1")
    assert got.tls.client_certificates == "optional"


def test_keys_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\none\r\n\n two \n")
    assert options("--api-key-file", str(file), "--api-key", "k").api_keys == ("k", "one", "two")
    for content in (b"\n# nothing\n", b"\xff\xfe", b"a" * 2_000_000, b"tab\there\n"):
        file.write_bytes(content)
        with pytest.raises(UsageError):
            options("--api-key-file", str(file))


def test_errors_about_a_model_name_its_file() -> None:
    path = Path("/some/where/model.gguf")
    with pytest.raises(FormatError, match=r"^/some/where/model.gguf: 'a.key' is"), naming(path):
        raise FormatError("'a.key' is missing.")
    with pytest.raises(FormatError, match=r"^model.gguf is cut"), naming(path):
        raise FormatError("model.gguf is cut short.")
