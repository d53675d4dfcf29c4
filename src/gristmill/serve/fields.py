"""Checked kinds of request fields, and one clear sentence for what does not fit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gristmill.errors import RequestError

I64 = 2**63


def _number(value: object) -> object:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("is too large") from None
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def _whole(value: object) -> object:
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a whole number")
    if not -I64 <= value < 2 * I64:
        raise ValueError("does not fit 64 bits")
    return value


def _flag(value: object) -> object:
    if value is not None and not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _text(value: object) -> object:
    if value is not None and not isinstance(value, str):
        raise ValueError("must be a string")
    return value


Number = Annotated[float, BeforeValidator(_number)]
Whole = Annotated[int, BeforeValidator(_whole)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Text = Annotated[str, BeforeValidator(_text)]
Short = Annotated[str, BeforeValidator(_text), Field(max_length=512)]

F = TypeVar("F", bound="Fields")


class Fields(BaseModel):
    """Base of all request bodies: frozen, and deaf to fields nobody knows."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    @classmethod
    def parse(cls: type[F], body: Mapping[str, object]) -> F:
        """The checked fields, or ``RequestError`` naming the first one at fault.

        ``null`` means the same as leaving the field out, in every dialect.
        """
        present = {key: value for key, value in body.items() if value is not None}
        try:
            return cls.model_validate(present)
        except ValidationError as error:
            raise _request_error(error) from None


_LENGTHS = {"too_short": ("at least", "min_length"), "too_long": ("at most", "max_length")}


def _request_error(error: ValidationError) -> RequestError:
    first: Any = error.errors(include_url=False)[0]
    where = [str(step) for step in first["loc"]]
    name = where[0] if where else None
    message = str(first["msg"])
    if first["type"] == "value_error":
        message = message.removeprefix("Value error, ")
    elif first["type"] == "missing":
        return RequestError(f"'{name}' is missing.", name)
    elif first["type"] in _LENGTHS:
        bound, limit = _LENGTHS[first["type"]]
        count = first["ctx"][limit]
        message = f"must have {bound} {count} {'entry' if count == 1 else 'entries'}"
    elif first["type"] == "list_type":
        message = "must be a list"
    elif first["type"] in ("dict_type", "model_type", "model_attributes_type"):
        message = "must be an object"
    else:
        message = message.replace("Input should", "should").replace("Value should", "should")
        message = message[:1].lower() + message[1:]
    path = ".".join(where)[:200]
    return RequestError(f"'{path}' {message}{_shown(first['input'])}.", name)


def _shown(value: object) -> str:
    """The offending value, when it is short enough to help."""
    if value is None or isinstance(value, bool):
        return f" (it is {json.dumps(value)})"
    if isinstance(value, float):
        return f" (it is {value})"
    if isinstance(value, int) and abs(value) < 10**20:
        return f" (it is {value})"
    if isinstance(value, str) and len(value) <= 60:
        return f" (it is {value!r})"
    return ""
