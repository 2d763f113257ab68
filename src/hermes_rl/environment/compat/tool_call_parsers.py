"""hermes-agent's `environments.tool_call_parsers`: `parse(text)` returns the content and the calls, or None for either.

A registered parser can be named by `tool_call_parser`, like hermes-rl's own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar

from hermes_rl import parsers
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.messages import ToolCall
from hermes_rl.extensions import PARSERS
from hermes_rl.parsers import list_parsers
from hermes_rl.parsers.parser import ParsedText
from hermes_rl.parsers.tool_format import ToolFormat, Tools, json_call

ParseResult: TypeAlias = tuple[str | None, Sequence[Any] | None]


class ToolCallParser(ABC):
    @abstractmethod
    def parse(self, text: str) -> ParseResult:
        """The text without the calls, and the calls as objects or dicts in OpenAI's shape."""


P = TypeVar("P", bound=type[ToolCallParser])


def register_parser(name: str) -> Callable[[P], P]:
    """A class decorator: the parser becomes a choice of `tool_call_parser` under this name."""

    def register(parser: P) -> P:
        attribute = f"parser_{len(vars(_registered))}"
        setattr(_registered, attribute, _RegisteredParser(name, parser()))
        PARSERS.builtin[name] = f"{__name__}:_registered.{attribute}"
        return parser

    return register


def get_parser(name: str) -> ToolCallParser:
    """A parser of this name; KeyError lists the known ones."""
    try:
        found = parsers.get_parser(name)
    except ConfigError as error:
        raise KeyError(str(error)) from None
    return found.registered if isinstance(found, _RegisteredParser) else _OwnParser(found)


class _RegisteredParser:
    """A registered parser as hermes-rl uses it."""

    markers: tuple[str, ...] = ()
    # Its way to write calls is not known, so a prompt lists the tools without instructions.
    tool_format = ToolFormat("", json_call("arguments"))

    def __init__(self, name: str, registered: ToolCallParser) -> None:
        self.name, self.registered = name, registered

    def parse(self, text: str, tools: Tools = ()) -> ParsedText:
        content, calls = self.registered.parse(text)
        return ParsedText(content or "", tuple(map(ToolCall.from_raw, calls or ())))


class _OwnParser(ToolCallParser):
    """A parser of hermes-rl as hermes-agent uses it."""

    def __init__(self, parser: parsers.ToolCallParser) -> None:
        self._parser = parser

    def parse(self, text: str) -> ParseResult:
        parsed = self._parser.parse(text)
        return (parsed.content or None, list(parsed.calls)) if parsed.calls else (text, None)


_registered = SimpleNamespace()

__all__ = ["ParseResult", "ToolCallParser", "get_parser", "list_parsers", "register_parser"]
