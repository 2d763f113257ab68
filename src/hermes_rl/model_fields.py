"""What the fields of a settings model take, in words and in data: for whoever shows them or asks for their values.

Always true: nothing of a model's code runs here but what pydantic made of its annotations.
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
class FieldFacts:
    """`kinds` are of integer, number, boolean, text, list, object, choice and any; null is told by `nullable`."""

    name: str
    kinds: tuple[str, ...]
    nullable: bool = False
    description: str = ""
    choices: tuple[Any, ...] = ()
    bounds: tuple[tuple[str, float], ...] = ()
    of: str = ""
    """What a list or an object is of, in words."""

    @property
    def type(self) -> str:
        """In the words of Python, as the seed's tools say it."""
        words = [_PYTHON[kind] for kind in self.kinds if kind != "choice"]
        words += sorted({type(choice).__name__ for choice in self.choices} - set(words))
        return " or ".join([*words, *(["null"] if self.nullable else [])])

    @property
    def allowed(self) -> str:
        """What may be given, in words."""
        said = [self._kind_allowed(kind) for kind in self.kinds]
        return ", or ".join([*said, *(["null"] if self.nullable else [])])

    def _kind_allowed(self, kind: str) -> str:
        if kind == "choice":
            return "one of " + ", ".join(map(str, self.choices))
        if kind in {"integer", "number"}:
            return f"a {'whole ' if kind == 'integer' else ''}number{_range(dict(self.bounds))}"
        return _ALLOWED[kind] + (f" of {self.of}" if self.of and kind == "list" else "")


def facts_of_model(model: type[BaseModel]) -> dict[str, FieldFacts]:
    """Those of every field, by name, in the model's order."""
    return {name: facts_of(name, field) for name, field in model.model_fields.items()}


def facts_of(name: str, field: FieldInfo) -> FieldFacts:
    found = _Found(bounds=_bounds(field.metadata))
    _look(field.annotation, found)
    return FieldFacts(
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


class _Found:
    def __init__(self, bounds: dict[str, float]) -> None:
        self.kinds: list[str] = []
        self.choices: list[Any] = []
        self.nullable = False
        self.bounds = bounds
        self.of = ""


def _look(annotation: Any, found: _Found) -> None:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *notes = get_args(annotation)
        found.bounds |= _bounds(notes)
        _look(inner, found)
    elif origin in {Union, UnionType}:
        for one in get_args(annotation):
            _look(one, found)
    elif annotation in {None, NoneType}:
        found.nullable = True
    elif origin is Literal:
        found.kinds.append("choice")
        found.choices += get_args(annotation)
    elif isinstance(origin or annotation, type):
        _look_at_type(origin or annotation, get_args(annotation), found)
    else:
        found.kinds.append("any")


def _look_at_type(kind: type, inner: Sequence[Any], found: _Found) -> None:
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
            within = _Found({})
            _look(inner[0], within)
            facts = FieldFacts("", tuple(within.kinds) or ("any",), choices=tuple(within.choices))
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
