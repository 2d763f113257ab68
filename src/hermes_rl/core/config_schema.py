"""Describes the fields of a pydantic settings model: types, choices and bounds, as text and as data.

Always true: this reads annotations only and runs no code of the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

BOUNDS = ("ge", "gt", "le", "lt")


@dataclass(frozen=True, slots=True)
class FieldSchema:
    """`kinds` holds any of: integer, number, boolean, text, list, object, choice, any. Null is in `nullable`."""

    name: str
    kinds: tuple[str, ...]
    nullable: bool = False
    description: str = ""
    choices: tuple[Any, ...] = ()
    bounds: tuple[tuple[str, float], ...] = ()
    of: str = ""
    """The element type of a list, as text."""

    @property
    def type(self) -> str:
        """Python type names, as in the seed's tools."""
        words = [_PYTHON[kind] for kind in self.kinds if kind != "choice"]
        words += sorted({type(choice).__name__ for choice in self.choices} - set(words))
        return " or ".join([*words, *(["null"] if self.nullable else [])])

    @property
    def allowed(self) -> str:
        """The accepted values, as text."""
        texts = [self._kind_allowed(kind) for kind in self.kinds]
        return ", or ".join([*texts, *(["null"] if self.nullable else [])])

    def _kind_allowed(self, kind: str) -> str:
        if kind == "choice":
            return "one of " + ", ".join(map(str, self.choices))
        if kind in {"integer", "number"}:
            return f"a {'whole ' if kind == 'integer' else ''}number{_range(dict(self.bounds))}"
        return _ALLOWED[kind] + (f" of {self.of}" if self.of and kind == "list" else "")


def describe_model(model: type[BaseModel]) -> dict[str, FieldSchema]:
    """The schema of every field by name, in the model's order."""
    return {name: describe_field(name, field) for name, field in model.model_fields.items()}


def describe_field(name: str, field: FieldInfo) -> FieldSchema:
    found = _Scan(bounds=_bounds(field.metadata))
    _scan(field.annotation, found)
    return FieldSchema(
        name,
        kinds=tuple(dict.fromkeys(found.kinds)) or ("any",),
        nullable=found.nullable,
        description=field.description or "",
        choices=tuple(found.choices),
        bounds=tuple(found.bounds.items()),
        of=found.of,
    )


_PYTHON = {
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "text": "str",
    "list": "list",
    "object": "dict",
    "any": "any",
}
_ALLOWED = {
    "boolean": "true or false",
    "text": "text",
    "list": "a list",
    "object": "an object (as JSON)",
    "any": "any value",
}


class _Scan:
    def __init__(self, bounds: dict[str, float]) -> None:
        self.kinds: list[str] = []
        self.choices: list[Any] = []
        self.nullable = False
        self.bounds = bounds
        self.of = ""


def _scan(annotation: Any, found: _Scan) -> None:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *notes = get_args(annotation)
        found.bounds |= _bounds(notes)
        _scan(inner, found)
    elif origin in {Union, UnionType}:
        for member in get_args(annotation):
            _scan(member, found)
    elif annotation in {None, NoneType}:
        found.nullable = True
    elif origin is Literal:
        found.kinds.append("choice")
        found.choices += get_args(annotation)
    elif isinstance(origin or annotation, type):
        _scan_type(origin or annotation, get_args(annotation), found)
    else:
        found.kinds.append("any")


def _scan_type(kind: type, inner: Sequence[Any], found: _Scan) -> None:
    if issubclass(kind, Enum):
        found.kinds.append("choice")
        found.choices += [member.value for member in kind]
    elif issubclass(kind, bool):
        found.kinds.append("boolean")
    elif issubclass(kind, int):
        found.kinds.append("integer")
    elif issubclass(kind, float):
        found.kinds.append("number")
    elif issubclass(kind, str):
        found.kinds.append("text")
    elif issubclass(kind, list | tuple | set | frozenset):
        found.kinds.append("list")
        if inner:
            within = _Scan({})
            _scan(inner[0], within)
            facts = FieldSchema("", tuple(within.kinds) or ("any",), choices=tuple(within.choices))
            found.of = f"({', '.join(map(str, facts.choices))})" if facts.choices else facts.allowed.removeprefix("a ")
    elif issubclass(kind, dict | Mapping | BaseModel):
        found.kinds.append("object")
    else:
        found.kinds.append("any")


def _bounds(notes: Sequence[Any]) -> dict[str, float]:
    bounds: dict[str, float] = {}
    for note in notes:
        if isinstance(note, FieldInfo):
            bounds |= _bounds(note.metadata)
        for name in BOUNDS:
            value = getattr(note, name, None)
            if isinstance(value, int | float):
                bounds[name] = value
    return bounds


def _range(bounds: Mapping[str, float]) -> str:
    words = [
        f"{word} {bounds[name]:,}".replace(",", "_") if isinstance(bounds[name], int) else f"{word} {bounds[name]:g}"
        for name, word in (("ge", "from"), ("gt", "above"), ("le", "to"), ("lt", "below"))
        if name in bounds
    ]
    return "".join(f" {word}" for word in words)
