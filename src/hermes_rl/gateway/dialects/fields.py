"""Reads fields of untrusted requests.

What is read has the declared type; anything else is a BadRequestError that names the field. Each function names the
field relative to where it reads; `read_object` and `read_each` prepend the path.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hermes_rl.gateway.request import BadRequestError

T = TypeVar("T")
NAMES = {str: "a string", bool: "a boolean", int: "an integer", float: "a number", list: "an array", dict: "an object"}
MODES = ("auto", "none", "required")
NO_PARAMETERS = {"type": "object", "properties": {}}


def expected(what: str, value: Any, param: str) -> BadRequestError:
    return BadRequestError(f"expected {what}, but got {NAMES.get(type(value), 'null')} instead", param)


def text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise expected("a string", value, param)
    return value


def optional_text(value: Any, param: str) -> str | None:
    return None if value is None else text(value, param)


def name(value: Any, param: str) -> str:
    if not text(value, param):
        raise BadRequestError("expected a name, but got an empty string", param)
    return str(value)


def flag(value: Any, param: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise expected("a boolean", value, param)
    return bool(value)


def count(value: Any, param: str, *, maximum: int | None = None) -> int | None:
    """An integer from 1 on; None when it is missing."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise expected("an integer", value, param)
    if value < 1 or (maximum is not None and value > maximum):
        allowed = "1 or more" if maximum is None else f"1 to {maximum}"
        raise BadRequestError(f"expected {allowed}, but got {value}", param)
    return value


def mapping(value: Any, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise expected("an object", value, param)
    return value


def read_object(value: Any, param: str, read: Callable[[dict[str, Any]], T]) -> T:
    """Read an object. `read` names invalid fields relative to it."""
    try:
        return read(mapping(value, ""))
    except BadRequestError as error:
        raise error.under(param) from None


def read_each(value: Any, param: str, read: Callable[[dict[str, Any]], T]) -> list[T]:
    """Read each object of an array; a missing array is empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise expected("an array", value, param)
    done: list[T] = []
    # Field paths are built only for errors: a long conversation has thousands of fields.
    try:
        for item in value:
            if not isinstance(item, dict):
                raise expected("an object", item, "")
            done.append(read(item))
    except BadRequestError as error:
        raise error.under(f"{param}.{len(done)}") from None
    return done


def texts(value: Any, param: str) -> list[str]:
    """A string or an array of strings, without empty ones."""
    if value is None or isinstance(value, str):
        return [value] if value else []
    if not isinstance(value, list):
        raise expected("an array", value, param)
    return [string for index, item in enumerate(value) if (string := text(item, f"{param}.{index}"))]


def kind(value: Mapping[str, Any]) -> str:
    return text(value.get("type"), "type")


def function(raw: Mapping[str, Any], schema: str = "parameters") -> dict[str, Any]:
    """A tool in OpenAI's format, with only what a prompt shows: an option such as `strict` would be noise there."""
    described, parameters = optional_text(raw.get("description"), "description"), raw.get(schema)
    return {
        "type": "function",
        "function": {
            "name": name(raw.get("name"), "name"),
            **({} if described is None else {"description": described}),
            "parameters": NO_PARAMETERS if parameters is None else mapping(parameters, schema),
        },
    }


def chosen_tool(named: str, tools: list[dict[str, Any]], param: str) -> dict[str, Any]:
    """The choice of one tool, which must be declared."""
    if all(tool["function"]["name"] != named for tool in tools):
        raise BadRequestError(f"tool {named!r} is not among 'tools'", param)
    return {"type": "function", "function": {"name": named}}


def mode(value: Any, param: str) -> str | None:
    if value is None:
        return None
    if text(value, param) not in MODES:
        raise BadRequestError(f"expected one of {', '.join(MODES)}, but got {value!r}", param)
    return str(value)
