"""The toolsets there are, and the opening of those an environment may use. A new one is a file and a line here.

Other packages, and the floors above this one, add theirs by an entry point of the group `hermes_rl.toolsets`, which is
looked into only when a name is not known here.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import entry_points
from typing import Any

from pydantic import ValidationError

from hermes_rl.errors import ConfigError
from hermes_rl.tools.browser.toolset import BROWSER
from hermes_rl.tools.code_execution import CODE_EXECUTION
from hermes_rl.tools.files import FILE
from hermes_rl.tools.mcp_servers import PREFIX, mcp_toolset
from hermes_rl.tools.terminal import TERMINAL
from hermes_rl.tools.todo import TODO
from hermes_rl.tools.tool import Tool
from hermes_rl.tools.toolset import OpenToolset, Toolset
from hermes_rl.tools.vision import VISION
from hermes_rl.tools.web.toolset import WEB

TOOLSETS: dict[str, Toolset] = {
    toolset.name: toolset for toolset in (TERMINAL, FILE, WEB, BROWSER, CODE_EXECUTION, TODO, VISION)
}
ADDED = "hermes_rl.toolsets"


def all_tools() -> dict[str, Tool]:
    """Every tool that needs no service, by name; what a verifier may use, whatever the policy was given."""
    return {tool.name: tool for toolset in TOOLSETS.values() if toolset.open is None for tool in toolset.tools}


def tools_by_name(owners: Mapping[str, Iterable[Tool]]) -> dict[str, Tool]:
    """The tools of all owners together; ConfigError when two of them have different tools of one name."""
    found: dict[str, tuple[str, Tool]] = {}
    for owner, tools in owners.items():
        for tool in tools:
            first_owner, first = found.setdefault(tool.name, (owner, tool))
            if first is not tool:
                server = next((one for one in (owner, first_owner) if one.startswith(PREFIX)), None)
                remedy = f"set a prefix in tool_settings of {server}" if server else "rename one of them"
                raise ConfigError(f"two tools are named {tool.name}, of {first_owner} and of {owner}; {remedy}")
    return {name: tool for name, (_, tool) in found.items()}


def toolset_named(name: str) -> Toolset:
    """The toolset of that name; ConfigError naming the known ones for any other, or why it cannot work here."""
    if name.startswith(PREFIX):
        return mcp_toolset(name)
    if name in TOOLSETS:
        return TOOLSETS[name]
    toolset = added_toolset(name)
    if toolset is None:
        raise ConfigError(f"no toolset is named {name!r}; known: {known_toolsets()}")
    if toolset.missing is not None and (why := toolset.missing()) is not None:
        raise ConfigError(f"the toolset {name} cannot work here: {why}")
    return toolset


def known_toolsets() -> str:
    """Their names; of one that cannot work here, why."""
    added = sorted({entry.name for entry in entry_points(group=ADDED)} - TOOLSETS.keys())
    names = [*sorted(TOOLSETS), *(_with_reason(name) for name in added)]
    return f"{', '.join(names)}, and mcp:NAME for an MCP server"


def added_toolset(name: str) -> Toolset | None:
    """The toolset that an entry point of that name stands for; ConfigError when it stands for none."""
    for entry in entry_points(group=ADDED, name=name):
        try:
            toolset = entry.load()
        except Exception as error:
            raise ConfigError(f"the toolset {name} cannot be loaded from {entry.value}: {error}") from error
        if not isinstance(toolset, Toolset):
            raise ConfigError(f"the entry point {name} of {ADDED} leads to {entry.value}, which is no Toolset")
        return toolset
    return None


def _with_reason(name: str) -> str:
    try:
        toolset_named(name)
    except ConfigError as error:
        return f"{name} (not here: {str(error).partition(': ')[2] or error})"
    return name


@asynccontextmanager
async def open_toolsets(
    names: Iterable[str], settings: Mapping[str, Mapping[str, Any]]
) -> AsyncIterator[dict[str, OpenToolset]]:
    """Open each of these for as long as the block lasts; ConfigError from the first that cannot work here."""
    opened: dict[str, OpenToolset] = {}
    async with AsyncExitStack() as services:
        for name in names:
            toolset = toolset_named(name)
            checked = checked_settings(toolset, settings.get(name, {}))
            opened[name] = (
                OpenToolset(toolset.tools)
                if toolset.open is None
                else await services.enter_async_context(toolset.open(checked))
            )
        yield opened


def checked_settings(toolset: Toolset, values: Mapping[str, Any]) -> Any:
    try:
        return toolset.settings.model_validate(dict(values))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(f"tool_settings of {toolset.name}: {problems}") from None
