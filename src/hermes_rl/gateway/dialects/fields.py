"""Reading a request that anybody may have written.

Always true: what is read has the type it is said to have; anything else is a BadRequestError that names the field.
Each function names it from where it reads; `within` and `each` put the way there before it.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hermes_rl.gateway.asked import BadRequestError

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


def count(value: Any, param: str, *, most: int | None = None) -> int | None:
    """A whole number from 1 on, or None when it is not given."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise expected("an integer", value, param)
    if value < 1 or (most is not None and value > most):
        raise BadRequestError(f"expected {'1 or more' if most is None else f'1 to {most}'}, but got {value}", param)
    return value


def mapping(value: Any, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise expected("an object", value, param)
    return value


def within(value: Any, param: str, read: Callable[[dict[str, Any]], T]) -> T:
    """What is read of an object; `read` names the fields to blame from there on."""
    try:
        return read(mapping(value, ""))
    except BadRequestError as error:
        raise error.under(param) from None


def each(value: Any, param: str, read: Callable[[dict[str, Any]], T]) -> list[T]:
    """What is read of each object of an array; of none when it is not given."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise expected("an array", value, param)
    done: list[T] = []
    # The way to a field is put together only for whoever is refused: a long conversation has thousands of fields.
    try:
        for one in value:
            if not isinstance(one, dict):
                raise expected("an object", one, "")
            done.append(read(one))
    except BadRequestError as error:
        raise error.under(f"{param}.{len(done)}") from None
    return done


def texts(value: Any, param: str) -> list[str]:
    """Strings given as one or as an array, without the empty ones."""
    if value is None or isinstance(value, str):
        return [value] if value else []
    if not isinstance(value, list):
        raise expected("an array", value, param)
    return [one for place, item in enumerate(value) if (one := text(item, f"{param}.{place}"))]


def kind(value: Mapping[str, Any]) -> str:
    return text(value.get("type"), "type")


def function(raw: Mapping[str, Any], schema: str = "parameters") -> dict[str, Any]:
    """A tool in OpenAI's form, with only what a prompt shows: an option such as `strict` would stand there as noise."""
    described, parameters = optional_text(raw.get("description"), "description"), raw.get(schema)
    return {
        "type": "function",
        "function": {
            "name": name(raw.get("name"), "name"),
            **({} if described is None else {"description": described}),
            "parameters": NO_PARAMETERS if parameters is None else mapping(parameters, schema),
        },
    }


def chosen(named: str, tools: list[dict[str, Any]], param: str) -> dict[str, Any]:
    """The choice of one tool, which must be there."""
    if all(tool["function"]["name"] != named for tool in tools):
        raise BadRequestError(f"tool {named!r} is not among 'tools'", param)
    return {"type": "function", "function": {"name": named}}


def mode(value: Any, param: str) -> str | None:
    if value is None:
        return None
    if text(value, param) not in MODES:
        raise BadRequestError(f"expected one of {', '.join(MODES)}, but got {value!r}", param)
    return str(value)
