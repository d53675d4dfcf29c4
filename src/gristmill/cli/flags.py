"""The flags of ``gristmill serve``: one table, with the names of both peers.

``OPTIONS`` are those with a meaning here; each is shown in its group of ``--help``. What other
servers need and this one does not is in ``accepted.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gristmill.cli.flags_http import HTTP, LOGS
from gristmill.cli.flags_routes import ROUTES
from gristmill.cli.option import Choose, Size, option
from gristmill.cli.several import MODELS

_AT_LEAST_1 = click.IntRange(min=1)
_ABOVE_0_TO_1 = click.FloatRange(0, 1, min_open=True)
_PENALTY = click.FloatRange(0, 100, min_open=True)
_DEFAULT = "Of requests that give none. Default: what the model's file suggests."

OPTIONS: tuple[Callable[[Any], Any], ...] = (
    # ------------------------------------------------------------- the model
    *MODELS,
    option(
        "Model",
        "--chat-template",
        metavar="TEXT|FILE",
        help="A Jinja chat template instead of the model's own.",
    ),
    option(
        "Model",
        "--chat-template-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The same, from a file.",
    ),
    option(
        "Model",
        "-hff",
        "--hf-file",
        metavar="FILE",
        help="Which file of the repository.",
    ),
    option("Model", "-hft", "--hf-token", metavar="TOKEN", help="As HF_TOKEN, for hf: models."),
    option("Model", "-mu", "--model-url", metavar="URL", help="A file on the web, https."),
    option(
        "Model",
        "--chat-template-kwargs",
        "--default-chat-template-kwargs",
        "template_variables",
        metavar="JSON",
        help="What every chat's template sees, as {\"enable_thinking\": false}; a request's own "
        "come first.",
    ),
    option(
        "Model",
        "-rea",
        "--reasoning",
        type=click.Choice(["on", "off", "auto"]),
        default="auto",
        help="Sets enable_thinking for every chat; auto: the template's own default.",
    ),
    option(
        "Model",
        "--tool-call-parser",
        metavar="NAME",
        help="How to read tool calls; 'none' leaves them in the text. Default: the template's.",
    ),
    option(
        "Model",
        "--reasoning-parser",
        metavar="NAME",
        help="How to tell thinking from answering; 'none' leaves it in. Default: the template's.",
    ),
    option(
        "Model",
        "--reasoning-format",
        type=click.Choice(["auto", "none", "deepseek", "deepseek-legacy"]),
        default="auto",
        show_default=True,
        help="Where the thinking goes: 'none' leaves it in the content, 'deepseek-legacy' has it "
        "in both places.",
    ),
    option(
        "Model",
        "--reasoning-budget",
        type=click.IntRange(min=-1),
        default=-1,
        metavar="TOKENS",
        help="Most tokens of thinking in a chat's answer; then it is ended. 0 is none, -1 no "
        "bound. A request may say otherwise.",
    ),
    option(
        "Model",
        "--reasoning-field",
        type=click.Choice(["both", "reasoning", "reasoning-content"]),
        default="both",
        show_default=True,
        help="The name that thinking is sent under: vLLM's, llama-server's, or both.",
    ),
    *HTTP,
    *ROUTES,
    # ------------------------------------------------------------ the engine
    option(
        "Engine",
        "--max-model-len",
        type=_AT_LEAST_1,
        metavar="TOKENS",
        help="Most tokens of one request, prompt and answer. Default: the model's own.",
    ),
    option(
        "Engine",
        "-c",
        "--ctx-size",
        type=click.IntRange(min=0),
        metavar="TOKENS",
        help="llama-server's meaning: divided by -np, if that is given; 0 is the model's own.",
    ),
    option(
        "Engine",
        "--context-shift/--no-context-shift",
        "context_shift",
        default=False,
        show_default=True,
        help="An answer whose context is full goes on without the older half of it.",
    ),
    option(
        "Engine",
        "-np",
        "--parallel",
        "--max-num-seqs",
        "max_running",
        type=Choose(),
        metavar="N",
        help="Most requests computed at once; more wait in line.",
    ),
    option(
        "Engine",
        "-b",
        "--batch-size",
        "-ub",
        "--ubatch-size",
        "--max-num-batched-tokens",
        "step_tokens",
        type=_AT_LEAST_1,
        metavar="TOKENS",
        help="Most tokens computed in one step.",
    ),
    option(
        "Engine",
        "--draft-max",
        "--draft",
        "--draft-n",
        "draft_tokens",
        type=click.IntRange(0, 63),
        default=16,
        show_default=True,
        metavar="TOKENS",
        help="Most tokens guessed ahead, where an answer repeats its text and it pays; 0: none.",
    ),
    option(
        "Engine",
        "--spec-ngram-size-n",
        "draft_match",
        type=click.IntRange(1, 32),
        default=2,
        show_default=True,
        metavar="TOKENS",
        help="Fewest tokens that must have come before for a guess.",
    ),
    option(
        "Engine",
        "--max-slowdown",
        "slowdown",
        type=click.FloatRange(min=1),
        default=2.0,
        show_default=True,
        metavar="FACTOR",
        help="How many times as long prompts may make the others' wait for their next token.",
    ),
    option(
        "Engine",
        "--max-waiting",
        type=click.IntRange(min=0),
        default=1024,
        show_default=True,
        metavar="N",
        help="Most requests in line; beyond it the answer is 503.",
    ),
    option(
        "Engine",
        "--kv-cache-memory-bytes",
        "kv_bytes",
        type=Size(),
        help="Most memory for the KV cache. Default: what is free, taken as it is needed.",
    ),
    option(
        "Engine",
        "-ctk",
        "--cache-type-k",
        "--kv-cache-dtype",
        "kv_dtype",
        default="auto",
        show_default=True,
        metavar="TYPE",
        help="How keys and values are kept: f16, bf16 or f32; auto is bf16 where the processor "
        "multiplies it, else f16.",
    ),
    option(
        "Engine",
        "-q",
        "--quantization",
        metavar="TYPE",
        help="Quantise weights of 16 or 32 bits while loading: q8_0, q6_k, q5_k, q4_k, q4_0, fp8, "
        "int8 and others that `gristmill quantize` makes. Of a model that is quantised already it "
        "may name the method, as vLLM's clients do.",
    ),
    option(
        "Engine",
        "--embedding-type",
        metavar="TYPE",
        help="With -q: the embedding's encoding, e.g. q8_0.",
    ),
    option(
        "Engine",
        "--output-type",
        metavar="TYPE",
        help="With -q: the head's encoding, e.g. q6_k.",
    ),
    option(
        "Engine",
        "--spec-type",
        type=click.Choice(
            ["none", "ngram-simple", "ngram-cache", "ngram-map-k", "ngram-map-k4v", "ngram-mod"]
        ),
        help="Where guesses come from: none, or (all other names) the text so far.",
    ),
    option(
        "Engine",
        "-sc",
        "--speculative-config",
        metavar="JSON",
        help='vLLM\'s form of --draft-max: {"method": "ngram", "num_speculative_tokens": 8}.',
    ),
    option(
        "Engine",
        "--pooling",
        type=click.Choice(["none", "mean", "cls", "last"]),
        help="What a text's embedding is: its tokens' mean, its first one's (cls), its last one's, "
        "or (none) one for each token. Default: what the model's file says, else last.",
    ),
    option("Engine", "-ctv", "--cache-type-v", metavar="TYPE", help="Must be the same as -ctk."),
    option(
        "Engine",
        "--enable-prefix-caching/--no-enable-prefix-caching",
        "prefix_cache",
        default=True,
        show_default=True,
        help="Compute the same beginning of two prompts once.",
    ),
    option(
        "Engine",
        "--prefix-cache-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Keep beginnings that prompts share there, so that they survive a restart. Whoever "
        "can read it can learn what was said.",
    ),
    option(
        "Engine",
        "--prefix-cache-dir-size",
        "prefix_cache_dir_bytes",
        type=Size(),
        default="4GiB",
        show_default=True,
        help="Most bytes of it; the least recently used go first.",
    ),
    option(
        "Engine",
        "-t",
        "--threads",
        type=Choose(),
        metavar="N",
        help="Threads that compute. Default: the physical cores this process may use.",
    ),
    option(
        "Engine",
        "-s",
        "--seed",
        type=click.IntRange(-1, 2**63 - 1),
        metavar="N",
        help="Where requests without a seed draw theirs from; -1 is random.",
    ),
    option(
        "Engine",
        "--step-timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=120.0,
        show_default=True,
        metavar="SECONDS",
        help="A step that takes longer ends the process.",
    ),
    option(
        "Engine",
        "--backend",
        type=click.Choice(["cpu", "reference"]),
        default="cpu",
        show_default=True,
        help="'reference' is exact and very slow: numpy, for comparing.",
    ),
    option(
        "Engine",
        "-C",
        "--cpu-mask",
        metavar="HEX",
        help="Run on these CPUs only: bit N of a hexadecimal number is CPU N.",
    ),
    option(
        "Engine",
        "-Cr",
        "--cpu-range",
        metavar="LIST",
        help="Run on these CPUs only: 0-3,8. Adds to --cpu-mask.",
    ),
    # ------------------------------------------------------ requests' defaults
    *(
        option("Requests", *names, dest, type=kind, metavar="N", help=text)
        for names, dest, kind, text in (
            (("--temp", "--temperature"), "temperature", click.FloatRange(0, 100), _DEFAULT),
            (("--top-k",), "top_k", click.IntRange(-1), "The same."),
            (("--top-p",), "top_p", click.FloatRange(0, 1), "The same."),
            (("--min-p",), "min_p", click.FloatRange(0, 1), "The same."),
            (("--typical", "--typical-p"), "typical_p", _ABOVE_0_TO_1, "The same."),
            (("--repeat-penalty",), "repetition_penalty", _PENALTY, "The same."),
            (("--repeat-last-n",), "repeat_last_n", click.IntRange(-1), "The same."),
        )
    ),
    option(
        "Requests",
        "--override-generation-config",
        metavar="JSON",
        help='vLLM\'s way to give such defaults: {"temperature": 0.7}.',
    ),
    option(
        "Requests",
        "--generation-config",
        default="auto",
        metavar="auto|vllm",
        show_default=True,
        help="vllm: what the model's file suggests is not heeded.",
    ),
    *LOGS,
    option(
        "More",
        "--config",
        expose_value=False,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Flags from a YAML file: their names without dashes as keys. The command line "
        "stands before the file, the file before the environment.",
    ),
)
