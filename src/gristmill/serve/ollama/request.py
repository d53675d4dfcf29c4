"""Bodies of ``/api/generate`` and ``/api/chat``, and what they are in OpenAI's fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from gristmill.errors import RequestError
from gristmill.serve import durations
from gristmill.serve.chat_request import MAX_MESSAGES, MAX_TOOLS
from gristmill.serve.dialect import a_list, a_text, an_object, ignored, maybe_object
from gristmill.serve.fields import Fields, Flag, Short, Text, Whole
from gristmill.serve.host import Keep
from gristmill.serve.protocol import Served

MAX_CONTEXT = 4_000_000

# Ollama's own defaults (docs/modelfile.md), where the model's file suggests nothing.
_DEFAULTS: Mapping[str, float] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.9,
    "repetition_penalty": 1.1,
    "repeat_last_n": 64,
}
_SAMPLING: Mapping[str, str] = {
    # option → field of the generating routes
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "repeat_last_n",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "stop": "stop",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}
NAMES: Mapping[str, str] = {
    **{field: f"options.{option}" for option, field in _SAMPLING.items()},
    "n_predict": "options.num_predict",
    "max_tokens": "options.num_predict",
    "response_format": "format",
    "reasoning_effort": "think",
    "chat_template_kwargs": "think",
}
"""Our field → the client's, for errors."""
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "tfs_z": (1,),
    "penalize_newline": (True,),
    "vocab_only": (False,),
    "embedding_only": (False,),
    "logits_all": (False,),
}
"""Options that would change the answer and are not served: the values that ask for nothing."""


def keep(value: object) -> Keep:
    """How long a model stays, by a request's ``keep_alive``. Raises RequestError."""
    if value is None:
        return "default"
    try:
        return durations.seconds(value)
    except ValueError as error:
        raise RequestError(f"'keep_alive' {error}.", "keep_alive") from None


class Common(Fields):
    """What both bodies have."""

    model: Annotated[Short, Field(min_length=1)]
    stream: Flag = True
    format: Any = None
    options: Any = None
    keep_alive: Any = None
    think: Any = None
    logprobs: Flag = False
    top_logprobs: Whole | None = None
    truncate: Flag = False

    def keep(self) -> Keep:
        """How long the model stays after this request. Raises RequestError."""
        return keep(self.keep_alive)

    def shared(self, served: Served) -> dict[str, object]:
        """The OpenAI fields that both bodies come to. Raises RequestError."""
        found: dict[str, object] = {"model": self.model, "stream": self.stream}
        for name, value in _DEFAULTS.items():
            if name not in served.defaults:
                found[name] = value
        found |= _options(self.options)
        if self.format is not None and self.format != "":
            found["response_format"] = _format(self.format)
        if self.truncate:
            found["truncate_prompt_tokens"] = -1
        return found


class GenerateFields(Common):
    """``/api/generate``."""

    prompt: Text = ""
    suffix: Text = ""
    system: Text = ""
    template: Text = ""
    images: Any = None
    raw: Flag = False
    context: Annotated[list[Whole], Field(max_length=MAX_CONTEXT)] | None = None

    def check(self) -> None:
        """What no single field can tell. Raises RequestError."""
        if self.images:
            raise _text_only("images")
        if self.template:
            raise RequestError(
                "'template' is not taken from requests; start the server with --chat-template.",
                "template",
            )
        for mode in ("raw", "suffix"):
            if getattr(self, mode) and (self.system or self.context):
                name = "system" if self.system else "context"
                raise RequestError(f"'{name}' cannot be used with '{mode}'.", name)
        if self.raw and self.suffix:
            raise RequestError("'suffix' cannot be used with 'raw'.", "suffix")

    def messages(self) -> list[dict[str, object]]:
        """The prompt as a chat of one turn."""
        made: list[dict[str, object]] = []
        if self.system:
            made.append({"role": "system", "content": self.system})
        made.append({"role": "user", "content": self.prompt})
        return made


class OllamaChatFields(Common):
    """``/api/chat``."""

    messages: Annotated[list[Any], Field(max_length=MAX_MESSAGES, default_factory=list)]
    tools: Annotated[list[Any], Field(max_length=MAX_TOOLS, default_factory=list)]


def thinking(think: object) -> dict[str, object]:
    """``think`` as fields of the chat route. Raises RequestError."""
    if think is None or think == "":
        return {}
    if isinstance(think, bool):
        return {"chat_template_kwargs": {"enable_thinking": think, "thinking": think}}
    if think in ("low", "medium", "high", "max"):
        return {
            "chat_template_kwargs": {"enable_thinking": True, "thinking": True},
            "reasoning_effort": think,
        }
    raise RequestError("'think' must be true, false, 'low', 'medium' or 'high'.", "think")


def messages(given: Sequence[object]) -> list[dict[str, object]]:
    """Ollama's messages as OpenAI's: calls get ids, results name the call they belong to.

    Raises RequestError naming the message at fault.
    """
    made: list[dict[str, object]] = []
    open_calls: list[tuple[str, str]] = []
    for at, each in enumerate(given):
        where = f"messages[{at}]"
        message = an_object(each, where)
        if message.get("images"):
            raise _text_only(f"{where}.images")
        out: dict[str, object] = {"role": message.get("role")}
        out["content"] = message.get("content")
        if message.get("thinking"):
            out["thinking"] = message["thinking"]
        calls = message.get("tool_calls")
        if calls:
            items = a_list(calls, f"{where}.tool_calls")
            out["tool_calls"] = _calls(items, f"{where}.tool_calls", at, open_calls)
        if message.get("role") == "tool":
            out |= _result(message, open_calls)
        made.append(out)
    return made


def _calls(
    calls: Sequence[object], where: str, at: int, open_calls: list[tuple[str, str]]
) -> list[dict[str, object]]:
    made: list[dict[str, object]] = []
    open_calls.clear()
    for index, each in enumerate(calls):
        call = an_object(each, f"{where}[{index}]")
        function = an_object(call.get("function"), f"{where}[{index}].function")
        name = a_text(function, "name", f"{where}[{index}].function")
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
        given = call.get("id")
        call_id = given if isinstance(given, str) and given else f"call_{at}_{index}"
        open_calls.append((call_id, name))
        made.append(
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
        )
    return made


def _result(message: Mapping[str, object], open_calls: list[tuple[str, str]]) -> dict[str, object]:
    """Which call a result is of: by its id, else by its tool's name, else the next one."""
    wanted, name = message.get("tool_call_id"), message.get("tool_name") or message.get("name")
    for index, (call_id, called) in enumerate(open_calls):
        if wanted == call_id or (wanted is None and name in (None, called)):
            del open_calls[index]
            return {"tool_call_id": call_id, "name": called}
    found: dict[str, object] = {}
    if wanted is not None:
        found["tool_call_id"] = wanted
    if name is not None:
        found["name"] = name
    return found


def _options(given: object) -> dict[str, object]:
    options = maybe_object(given, "options")
    found: dict[str, object] = {}
    for option, field in _SAMPLING.items():
        if options.get(option) is not None:
            found[field] = options[option]
    for option, harmless in _NEUTRAL.items():
        value = options.get(option)
        if value is not None and value not in harmless:
            raise ignored(f"options.{option}", "options")
    limit = options.get("num_predict")
    if limit is not None:
        if isinstance(limit, bool) or not isinstance(limit, int | float):
            raise RequestError("'options.num_predict' must be a whole number.", "options")
        if limit > 0:  # else: no limit but the context's, whichever of Ollama's words for it
            found["max_tokens"] = limit
    for option in ("num_ctx", "num_keep", "num_batch", "num_thread"):
        value = options.get(option)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise RequestError(f"'options.{option}' must be a whole number.", "options")
    stop = found.get("stop")
    if stop == []:
        del found["stop"]
    return found


def _format(value: object) -> dict[str, object]:
    if value == "json":
        return {"type": "json_object"}
    if isinstance(value, dict):
        return {"type": "json_schema", "json_schema": {"name": "format", "schema": value}}
    raise RequestError("'format' must be 'json' or a JSON schema, an object.", "format")


def _text_only(name: str) -> RequestError:
    return RequestError(f"'{name}': this server's models take text only.", name)
