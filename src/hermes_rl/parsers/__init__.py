"""Tool-call text formats, a file each, and their registry. A new format is one file and one line here."""

from hermes_rl.errors import ConfigError
from hermes_rl.parsers.hermes import HermesParser
from hermes_rl.parsers.parser import BrokenCall, ParsedText, ToolCallParser

PARSERS: dict[str, type[ToolCallParser]] = {parser.name: parser for parser in (HermesParser,)}


def get_parser(name: str) -> ToolCallParser:
    """The parser of that name; ConfigError listing the known ones for any other."""
    if name not in PARSERS:
        raise ConfigError(f"no tool-call parser is named {name!r}; known: {', '.join(list_parsers())}")
    return PARSERS[name]()


def list_parsers() -> list[str]:
    return sorted(PARSERS)


__all__ = ["PARSERS", "BrokenCall", "ParsedText", "ToolCallParser", "get_parser", "list_parsers"]
