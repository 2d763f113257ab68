"""Finds and opens toolsets by name: built-in, installed (entry points), `module:TOOLSET`, or an MCP server."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import TOOLSETS
from hermes_rl.tools.mcp_servers import PREFIX, mcp_toolset
from hermes_rl.tools.tool import Tool
from hermes_rl.tools.toolset import OpenToolset, Toolset


def all_tools() -> dict[str, Tool]:
    """Every tool that needs no service, by name; verifiers may use these regardless of the policy's tools."""
    toolsets = map(get_toolset, TOOLSETS.builtin)
    return {tool.name: tool for toolset in toolsets if toolset.open is None for tool in toolset.tools}


def tools_by_name(owners: Mapping[str, Iterable[Tool]]) -> dict[str, Tool]:
    """The tools of all owners; ConfigError when two owners have different tools with the same name."""
    first_seen: dict[str, tuple[str, Tool]] = {}
    for owner, tools in owners.items():
        for tool in tools:
            first_owner, first = first_seen.setdefault(tool.name, (owner, tool))
            if first is not tool:
                server = next((name for name in (owner, first_owner) if name.startswith(PREFIX)), None)
                remedy = f"set a prefix in tool_settings of {server}" if server else "rename one of them"
                raise ConfigError(f"two tools are named {tool.name}, from {first_owner} and from {owner}; {remedy}")
    return {name: tool for name, (_, tool) in first_seen.items()}


def get_toolset(name: str) -> Toolset:
    """The toolset with this name; ConfigError when it is unknown or not available on this machine."""
    if name.startswith(PREFIX):
        return mcp_toolset(name)
    try:
        TOOLSETS.check(name)
    except ValueError:
        raise ConfigError(f"no toolset is named {name!r}; known: {known_toolsets()}") from None
    toolset = TOOLSETS.resolve(name)
    if not isinstance(toolset, Toolset):
        raise ConfigError(f"{name} is not a Toolset")
    if toolset.missing is not None and (reason := toolset.missing()) is not None:
        raise ConfigError(f"the toolset {name} is not available here: {reason}")
    return toolset


def known_toolsets() -> str:
    """The names of all toolsets, with the reason for those not available here."""
    added = sorted({*TOOLSETS.names()} - TOOLSETS.builtin.keys())
    names = [*sorted(TOOLSETS.builtin), *(_name_with_reason(name) for name in added)]
    return f"{', '.join(names)}, and mcp:NAME for an MCP server"


def _name_with_reason(name: str) -> str:
    try:
        get_toolset(name)
    except ConfigError as error:
        return f"{name} (not here: {str(error).partition(': ')[2] or error})"
    return name


@asynccontextmanager
async def open_toolsets(
    names: Iterable[str], settings: Mapping[str, Mapping[str, Any]]
) -> AsyncIterator[dict[str, OpenToolset]]:
    """Open these toolsets for the duration of the block; ConfigError when one is not available."""
    opened: dict[str, OpenToolset] = {}
    async with AsyncExitStack() as services:
        for name in names:
            toolset = get_toolset(name)
            validated = validate_settings(toolset, settings.get(name, {}))
            ready = (
                OpenToolset(toolset.tools)
                if toolset.open is None
                else await services.enter_async_context(toolset.open(validated))
            )
            opened[name] = replace(ready, name=toolset.name)
        yield opened


def validate_settings(toolset: Toolset, values: Mapping[str, Any]) -> Any:
    try:
        return toolset.settings.model_validate(dict(values))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors())
        raise ConfigError(f"tool_settings of {toolset.name}: {problems}") from None
