"""The fields of one ScoredData, parsed piece by piece; errors name the field.

Input is strict JSON, so no number is NaN or infinite. The GIL is released between pieces.
"""

import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import orjson

from hermes_rl.api.atropos.members import Text, Value
from hermes_rl.core import fast_json
from hermes_rl.http.errors import RefusedError

Number = TypeVar("Number", int, float)

INT64 = 2**63
# Long enough for a waiting thread to take the GIL.
GIL_PAUSE = 1e-4


def yield_gil() -> None:
    """Give the GIL to the event loop between two pieces of work."""
    time.sleep(GIL_PAUSE)


def format_value(value: Any) -> str:
    """A value for an error message; it may be huge or deeply nested."""
    return repr(value)[:50] if value is None or isinstance(value, str | int | float) else type(value).__name__


class Fields:
    """The non-null fields of a post; `prefix` identifies the post in a list."""

    def __init__(self, members: Mapping[str, Value], prefix: str = "") -> None:
        self.given = {name: value for name, value in members.items() if bytes(value.text[:5]) != b"null"}
        self._prefix = prefix

    def has_values(self, name: str) -> bool:
        """Whether the field is given and not an empty list."""
        return name in self.given and (self.given[name].elements is not None or self.read(name) != [])

    def read(self, name: str) -> Any:
        return self.parsed(name, self.given[name].text)

    def mapping(self, name: str) -> dict[str, Any]:
        if name not in self.given:
            return {}
        value = self.read(name)
        if not isinstance(value, dict):
            raise self.refused(name, "must be an object or null")
        return value

    def array(self, field: str, text: Text) -> list[Any]:
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            # Lone surrogates, which `fast_json` repairs; NaN and infinity, which are refused.
            value = self.parsed(field, text)
        if not isinstance(value, list):
            raise self.refused(field, "must be a list")
        return value

    def lists(
        self, name: str, read: Callable[[str, Text], list[Number]], lengths: list[int] | None = None
    ) -> list[list[Number]]:
        """One list per sequence, with these lengths."""
        rows = []
        for index, text in enumerate(self.elements(name, None if lengths is None else len(lengths))):
            row = read(f"{name}[{index}]", text)
            if lengths is not None and len(row) != lengths[index]:
                raise self.refused(f"{name}[{index}]", f"{len(row)} elements, but tokens[{index}] has {lengths[index]}")
            rows.append(row)
            yield_gil()
        return rows

    def elements(self, name: str, count: int | None) -> tuple[Text, ...]:
        elements = self.value(name).elements
        if elements is None:
            raise self.refused(name, "must be a non-empty list with one element per sequence")
        if count is not None and len(elements) != count:
            raise self.refused(name, f"{len(elements)} elements, but tokens has {count} sequences")
        return elements

    def whole_numbers(self, field: str, text: Text) -> list[int]:
        row: list[int] = self.array(field, text)
        if not {int}.issuperset(map(type, row)):
            self._refuse_element(field, row, lambda value: type(value) is int, "an integer")
        try:
            array("q", row)
        except OverflowError:
            self._refuse_element(field, row, lambda value: -INT64 <= value < INT64, "a 64-bit integer")
        return row

    def numbers(self, field: str, text: Text) -> list[float]:
        row: list[float] = self.array(field, text)
        if not {int, float}.issuperset(map(type, row)):
            self._refuse_element(field, row, lambda value: type(value) in {int, float}, "a finite number")
        return row

    def text(self, name: str) -> str:
        """The text of the field, checked to be JSON."""
        value = self.given[name]
        for index, text in enumerate(value.elements or ()):
            self.parsed(f"{name}[{index}]", text)
            yield_gil()
        if value.elements is None:
            self.read(name)
        return bytes(value.text).decode()

    def refused(self, field: str, what: str) -> RefusedError:
        field = self._prefix + field
        return RefusedError(422, "invalid", f"{field}: {what}", field=field)

    def value(self, name: str) -> Value:
        if name not in self.given:
            raise self.refused(name, "is missing")
        return self.given[name]

    def parsed(self, field: str, text: Text) -> Any:
        try:
            return fast_json.loads(bytes(text))
        except ValueError as error:
            raise self.refused(field, f"not valid JSON (NaN and infinity are not allowed): {error}") from None

    def _refuse_element(self, field: str, row: list[Any], valid: Callable[[Any], bool], expected: str) -> None:
        index, value = next((index, value) for index, value in enumerate(row) if not valid(value))
        raise self.refused(f"{field}[{index}]", f"must be {expected}, not {format_value(value)}")
