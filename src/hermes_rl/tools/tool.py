"""A tool: a coroutine function whose signature and docstring are its schema.

The first parameter is the rollout's ToolSession and is not shown to the model; the others are, with the
descriptions of the docstring's `Args:` section. Arguments are checked against the types before the function runs.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

ToolFunctionType = Callable[..., Awaitable[Any]]


class ToolUseError(Exception):
    """The call cannot be carried out as asked; the text goes to the model, so it says what to do instead."""


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    arguments: type[BaseModel]
    function: ToolFunctionType
    sandboxed: bool = True

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in OpenAI's form."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": _json_schema(self.arguments),
            },
        }

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with their types; ToolUseError that names each wrong one."""
        try:
            checked = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}" for problem in error.errors()
            )
            known = ", ".join(self.arguments.model_fields)
            raise ToolUseError(f"invalid arguments for {self.name}: {problems}. Its parameters: {known}") from None
        return {name: getattr(checked, name) for name in self.arguments.model_fields}


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


def _tool_of(function: ToolFunctionType, *, sandboxed: bool) -> Tool:
    documentation = inspect.getdoc(function) or ""
    summary, _, rest = documentation.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", rest, maxsplit=1)[0]
    described = dict(re.findall(r"^\s+(\w+): (.+(?:\n\s{6,}.+)*)", section, re.MULTILINE))
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        default = ... if parameter.default is parameter.empty else parameter.default
        description = re.sub(r"\s+", " ", described[name]) if name in described else None
        fields[name] = (hints[name], Field(default, description=description))
    name = getattr(function, "__name__", "")
    arguments = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    return Tool(name, re.sub(r"\s+", " ", summary).strip(), arguments, function, sandboxed)


@cache
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
