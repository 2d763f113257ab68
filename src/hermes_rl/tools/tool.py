"""A tool: a coroutine function with a schema, and the check of arguments against it.

`@tool` takes both from the signature and the docstring. A first parameter named `session` is the rollout's ToolSession
and is not shown to the model; the others are, with the descriptions of the docstring's `Args:` section. Arguments are
checked before the function runs.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

ToolFunctionType = Callable[..., Awaitable[Any]]
CheckType = Callable[[Mapping[str, Any]], dict[str, Any]]


class ToolUseError(Exception):
    """The call cannot be carried out as asked; the text goes to the model, so it says what to do instead."""


@dataclass(frozen=True, slots=True)
class Tool:
    """`parameters` is the JSON schema of the arguments; `function` is called with the session and what `check` gave.

    `check` gives the arguments as the function takes them, or raises ToolUseError that names each wrong one.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    check: CheckType
    function: ToolFunctionType
    sandboxed: bool = True

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in OpenAI's form."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }


@overload
def tool(function: ToolFunctionType) -> Tool: ...
@overload
def tool(*, sandboxed: bool) -> Callable[[ToolFunctionType], Tool]: ...
def tool(
    function: ToolFunctionType | None = None, *, sandboxed: bool = True
) -> Tool | Callable[[ToolFunctionType], Tool]:
    """Make a Tool of a coroutine function. `sandboxed=False` for one that needs no sandbox, so none is started."""
    if function is None:
        return lambda function: _tool_of(function, sandboxed=sandboxed)
    return _tool_of(function, sandboxed=sandboxed)


def invalid_arguments(name: str, problems: list[str], known: list[str]) -> ToolUseError:
    """What the model is told of arguments that a tool's schema does not allow."""
    return ToolUseError(
        f"invalid arguments for {name}: {'; '.join(problems)}. Its parameters: {', '.join(known) or 'none'}"
    )


def _tool_of(function: ToolFunctionType, *, sandboxed: bool) -> Tool:
    name = getattr(function, "__name__", "")
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"@tool: {name or function!r} is not a coroutine function; write it as `async def`")
    documentation = inspect.getdoc(function) or ""
    summary, _, rest = documentation.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", rest, maxsplit=1)[0]
    described = dict(re.findall(r"^\s+(\w+): (.+(?:\n\s{6,}.+)*)", section, re.MULTILINE))
    parameters = inspect.signature(function).parameters
    takes_session = next(iter(parameters), None) == "session"
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in list(parameters.values())[takes_session:]:
        if parameter.name not in hints or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"@tool: each parameter of {name} needs a name and a type; {parameter} has not both")
        default = ... if parameter.default is parameter.empty else parameter.default
        description = re.sub(r"\s+", " ", described[parameter.name]) if parameter.name in described else None
        fields[parameter.name] = (hints[parameter.name], Field(default, description=description))
    arguments = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    return Tool(
        name,
        re.sub(r"\s+", " ", summary).strip(),
        _json_schema(arguments),
        _check_against(arguments, name),
        function if takes_session else _without_session(function),
        # Without the session there is no way to the sandbox.
        sandboxed and takes_session,
    )


def _without_session(function: ToolFunctionType) -> ToolFunctionType:
    async def call(_session: Any, /, **arguments: Any) -> Any:
        return await function(**arguments)

    return call


def _check_against(model: type[BaseModel], name: str) -> CheckType:
    def check(arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            checked = model.model_validate(dict(arguments))
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}" for problem in error.errors()
            ]
            raise invalid_arguments(name, problems, list(model.model_fields)) from None
        return {field: getattr(checked, field) for field in model.model_fields}

    return check


def _json_schema(model: type[BaseModel]) -> Any:
    return _without_titles(model.model_json_schema())


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: _without_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    return [_without_titles(value) for value in schema] if isinstance(schema, list) else schema
