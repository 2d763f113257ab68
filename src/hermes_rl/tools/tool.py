"""Tools: coroutine functions with a JSON schema and argument validation.

`@tool` derives the schema from the signature and the docstring. A first parameter named `session` is the rollout's
ToolSession and is hidden from the model; the others get their descriptions from the docstring's `Args:` section.
Arguments are validated before the function runs. A method of an environment has `self` before these.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

ToolFunctionType = Callable[..., Awaitable[Any]]
CheckType = Callable[[Mapping[str, Any]], dict[str, Any]]


class ToolUseError(Exception):
    """The call cannot be run as requested. The model sees the text, so it should say what to do instead."""


@dataclass(frozen=True, slots=True)
class Tool:
    """`parameters` is the JSON schema of the arguments; `function` takes the session and the checked arguments.

    `check` validates and converts the arguments, or raises ToolUseError naming each invalid one. A `method` takes
    its object first; the attribute of an object is the tool bound to it.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    check: CheckType
    function: ToolFunctionType
    sandboxed: bool = True
    method: bool = False

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        if instance is None or not self.method:
            return self
        return replace(self, function=partial(self.function, instance), method=False)

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in OpenAI's format."""
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
    """Turn a coroutine function into a Tool. With `sandboxed=False` no sandbox is started for it."""
    if function is None:
        return lambda function: _make_tool(function, sandboxed=sandboxed)
    return _make_tool(function, sandboxed=sandboxed)


def tools_of(owner: object, named: Iterable[Tool]) -> tuple[Tool, ...]:
    """The named tools, then the methods of the owner's class that are tools; all methods are bound to the owner."""
    methods = {
        name: bound
        for base in reversed(type(owner).__mro__)
        for name, value in vars(base).items()
        if isinstance(value, Tool) and value.method and isinstance(bound := getattr(owner, name), Tool)
    }
    chosen = [methods.pop(tool.name, tool) if tool.method else tool for tool in named]
    return (*chosen, *methods.values())


def invalid_arguments(name: str, problems: list[str], known: list[str]) -> ToolUseError:
    """The error for arguments that do not match a tool's schema."""
    return ToolUseError(
        f"invalid arguments for {name}: {'; '.join(problems)}. Its parameters: {', '.join(known) or 'none'}"
    )


def _make_tool(function: ToolFunctionType, *, sandboxed: bool) -> Tool:
    name = getattr(function, "__name__", "")
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"@tool: {name or function!r} is not a coroutine function; write it as `async def`")
    documentation = inspect.getdoc(function) or ""
    summary, _, rest = documentation.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", rest, maxsplit=1)[0]
    descriptions = dict(re.findall(r"^\s+(\w+): (.+(?:\n\s{6,}.+)*)", section, re.MULTILINE))
    parameters = list(inspect.signature(function).parameters.values())
    method = bool(parameters) and parameters[0].name == "self"
    parameters = parameters[method:]
    takes_session = bool(parameters) and parameters[0].name == "session"
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in parameters[takes_session:]:
        if parameter.name not in hints or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"@tool: each parameter of {name} needs a name and a type; {parameter} does not have both")
        default = ... if parameter.default is parameter.empty else parameter.default
        description = re.sub(r"\s+", " ", descriptions[parameter.name]) if parameter.name in descriptions else None
        fields[parameter.name] = (hints[parameter.name], Field(default=default, description=description))
    arguments = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    return Tool(
        name,
        re.sub(r"\s+", " ", summary).strip(),
        _json_schema(arguments),
        _argument_checker(arguments, name),
        function if takes_session else _without_session(function),
        # Without the session, the tool cannot reach the sandbox.
        sandboxed and takes_session,
        method,
    )


def _without_session(function: ToolFunctionType) -> ToolFunctionType:
    async def call(*bound_and_session: Any, **arguments: Any) -> Any:
        return await function(*bound_and_session[:-1], **arguments)

    return call


def _argument_checker(model: type[BaseModel], name: str) -> CheckType:
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
