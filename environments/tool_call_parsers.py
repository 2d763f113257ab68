"""The seeds' name for the tool-call parsers."""

from hermes_rl.parsers import get_parser, list_parsers

__all__ = ["get_parser", "list_parsers"]
