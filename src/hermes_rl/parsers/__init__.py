"""Tool-call text formats, one file each. A file owns how its format is parsed, recognised and taught to a model."""

from collections.abc import Iterable
from functools import cache

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import PARSERS
from hermes_rl.parsers.parser import BrokenCall, ParsedText, ToolCallParser


def get_parser(name: str) -> ToolCallParser:
    """A built-in parser, an installed one, or `module:Class`; ConfigError for anything else."""
    resolved = PARSERS.resolve(name)
    parser: ToolCallParser = resolved() if isinstance(resolved, type) else resolved
    if not all(hasattr(parser, attribute) for attribute in ("name", "markers", "tool_format", "parse")):
        raise ConfigError(f"{name} is not a tool-call parser: it needs name, markers, tool_format and parse")
    return parser


def list_parsers() -> list[str]:
    """The built-in and installed parsers, with aliases."""
    return PARSERS.names()


def leaked_marker(text: str, own: Iterable[str] = ()) -> str | None:
    """The first marker of any format in unparsed text. `own` are the markers of the parser in use, checked first."""
    return next((marker for marker in (*own, *_builtin_markers()) if marker in text), None)


@cache
def _builtin_markers() -> tuple[str, ...]:
    return tuple(dict.fromkeys(marker for name in PARSERS.builtin for marker in get_parser(name).markers))


__all__ = ["BrokenCall", "ParsedText", "ToolCallParser", "get_parser", "leaked_marker", "list_parsers"]
