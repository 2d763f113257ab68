"""hermes-agent's `model_tools`: schemas of toolsets, and calls of tools in an open environment."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import TOOLSETS
from hermes_rl.rewards.sync_bridge import wait
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import get_toolset
from hermes_rl.tools.toolset import OpenToolset


def get_tool_definitions(
    enabled_toolsets: Sequence[str] | None = None,
    disabled_toolsets: Sequence[str] | None = None,
    quiet_mode: bool = False,  # noqa: ARG001 - nothing is printed in either mode
) -> list[dict[str, Any]]:
    """Schemas of these toolsets' tools; ConfigError for a toolset that is unknown, or not open in the environment.

    None means every toolset that can be used here.
    """
    opened: Mapping[str, OpenToolset] = {}
    running = False
    with suppress(ConfigError):
        opened, running = ToolHost.current().toolsets, True
    names = _usable(opened, running=running) if enabled_toolsets is None else enabled_toolsets
    chosen: dict[str, dict[str, Any]] = {}
    for name in names:
        if name in (disabled_toolsets or ()):
            continue
        if name in opened:
            tools = opened[name].tools
        else:
            toolset = get_toolset(name)
            if running and toolset.open is not None:
                raise ConfigError(f"the toolset {name} is not open in this environment; add it to enabled_toolsets")
            tools = toolset.tools
        chosen |= {tool.name: tool.schema for tool in tools}
    return list(chosen.values())


def handle_function_call(
    function_name: str,
    function_args: Mapping[str, Any],
    task_id: str | None = None,
    user_task: str | None = None,  # noqa: ARG001 - hermes-agent's summaries of long results used it; ours are cut
) -> str:
    """Call a tool in the sandbox of a task, as the agent does, and return JSON text.

    Call it where ToolContext works. A wrong call is an error in the text; a broken sandbox raises, and the rollout has
    no score.
    """
    return wait(ToolHost.current().session(task_id or "default").call(function_name, function_args)).text


def _usable(opened: Mapping[str, OpenToolset], *, running: bool) -> list[str]:
    usable = list(opened)
    for name in TOOLSETS.names():
        with suppress(ConfigError):
            if name not in opened and (get_toolset(name).open is None or not running):
                usable.append(name)
    return usable


__all__ = ["get_tool_definitions", "handle_function_call"]
