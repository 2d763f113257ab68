"""The fields of one ScoredData, read piece by piece, each refused by its own name.

Always true: what is read is JSON, so no number is NaN or infinite; between two pieces others may have the interpreter.
"""

import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import orjson

from hermes_rl import jsontext
from hermes_rl.api.atropos.splitting import Text, Value
from hermes_rl.api.problems import RefusedError

Number = TypeVar("Number", int, float)

INT64 = 2**63
# Long enough for a thread that waits for the interpreter to get it.
BREATH = 1e-4


def breathe() -> None:
    """Let the event loop have the interpreter between two pieces of work."""
    time.sleep(BREATH)


def shown(value: Any) -> str:
    """A value for a message, which may be large, or nested beyond what can be shown."""
    return repr(value)[:50] if value is None or isinstance(value, str | int | float) else type(value).__name__


class Fields:
    """The fields of a post that are not null; `prefix` says which post of several it is."""

    def __init__(self, members: Mapping[str, Value], prefix: str = "") -> None:
        self.given = {name: value for name, value in members.items() if bytes(value.text[:5]) != b"null"}
        self._prefix = prefix

    def says(self, name: str) -> bool:
        """Whether there is something in the list, and not only a list."""
        return name in self.given and (self.given[name].elements is not None or self.read(name) != [])

    def read(self, name: str) -> Any:
        return self.parsed(name, self.given[name].text)

    def mapping(self, name: str) -> dict[str, Any]:
        if name not in self.given:
            return {}
        value = self.read(name)
        if not isinstance(value, dict):
            raise self.refused(name, "an object or null")
        return value

    def array(self, field: str, text: Text) -> list[Any]:
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            # Half a surrogate pair in a text, which `jsontext` mends; NaN and infinity, which are refused.
            value = self.parsed(field, text)
        if not isinstance(value, list):
            raise self.refused(field, "a list")
        return value

    def lists(
        self, name: str, read: Callable[[str, Text], list[Number]], lengths: list[int] | None = None
    ) -> list[list[Number]]:
        """One list a sequence, of these lengths."""
        rows = []
        for index, text in enumerate(self.elements(name, None if lengths is None else len(lengths))):
            row = read(f"{name}[{index}]", text)
            if lengths is not None and len(row) != lengths[index]:
                raise self.refused(f"{name}[{index}]", f"{len(row)} of them for {lengths[index]} in tokens[{index}]")
            rows.append(row)
            breathe()
        return rows

    def elements(self, name: str, count: int | None) -> tuple[Text, ...]:
        elements = self.value(name).elements
        if elements is None:
            raise self.refused(name, "a list with one element a sequence, and one sequence at least")
        if count is not None and len(elements) != count:
            raise self.refused(name, f"{len(elements)} of them for {count} sequences in tokens")
        return elements

    def whole_numbers(self, field: str, text: Text) -> list[int]:
        row: list[int] = self.array(field, text)
        if not {int}.issuperset(map(type, row)):
            self._blame(field, row, lambda value: type(value) is int, "a whole number")
        try:
            array("q", row)
        except OverflowError:
            self._blame(field, row, lambda value: -INT64 <= value < INT64, "a number of 64 bits")
        return row

    def numbers(self, field: str, text: Text) -> list[float]:
        row: list[float] = self.array(field, text)
        if not {int, float}.issuperset(map(type, row)):
            self._blame(field, row, lambda value: type(value) in {int, float}, "a finite number")
        return row

    def text(self, name: str) -> str:
        """The text, known to be JSON."""
        value = self.given[name]
        for index, text in enumerate(value.elements or ()):
            self.parsed(f"{name}[{index}]", text)
            breathe()
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
            return jsontext.loads(bytes(text))
        except ValueError as error:
            raise self.refused(field, f"no JSON, which knows neither NaN nor infinity: {error}") from None

    def _blame(self, field: str, row: list[Any], good: Callable[[Any], bool], due: str) -> None:
        index, value = next((index, value) for index, value in enumerate(row) if not good(value))
        raise self.refused(f"{field}[{index}]", f"{due}, not {shown(value)}")
