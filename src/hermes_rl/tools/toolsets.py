"""Toolsets: named sets of tools, and the choice of one for a group. A new toolset is one file and one line here."""

from collections.abc import Iterable, Sequence

from hermes_rl.errors import ConfigError
from hermes_rl.tools.files import patch, read_file, search_files, write_file
from hermes_rl.tools.terminal import process, terminal
from hermes_rl.tools.tool import Tool

TOOLSETS: dict[str, tuple[Tool, ...]] = {
    "terminal": (terminal, process),
    "file": (read_file, write_file, patch, search_files),
}


def all_tools() -> dict[str, Tool]:
    """Every tool of every toolset, by name; what a verifier may use, whatever the policy was given."""
    return {tool.name: tool for tools in TOOLSETS.values() for tool in tools}


def chosen_tools(
    enabled: Sequence[str] | None, disabled: Iterable[str] | None, default: Sequence[str]
) -> dict[str, Tool]:
    """The tools of the configuration's toolsets, else of the environment's default ones; ConfigError for neither."""
    names = list(enabled) if enabled is not None else list(default)
    if enabled is None and not names:
        raise ConfigError(
            f"no toolset was chosen: set enabled_toolsets, or default_toolsets on the class; known: {_known()}. "
            "An empty list means an agent without tools."
        )
    left_out = set(disabled or ())
    for name in (*names, *left_out):
        if name not in TOOLSETS:
            raise ConfigError(f"no toolset is named {name!r}; known: {_known()}")
    return {tool.name: tool for name in names if name not in left_out for tool in TOOLSETS[name]}


def _known() -> str:
    return ", ".join(sorted(TOOLSETS))
