"""A toolset: a named set of tools and, for those that need one, the service they share.

A service (a search provider, a browser, an MCP server) is opened once for an environment, before the first rollout.
One that cannot work here raises ConfigError then, with what to install or set; never in the middle of a rollout.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from hermes_rl.tools.tool import Tool


class ToolsetSettings(BaseModel):
    """Base of a toolset's settings: its part of `tool_settings` in the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class OpenToolset:
    """A toolset that works here. `service` is what its tools get from `session.service(NAME)`."""

    tools: tuple[Tool, ...]
    service: Any = None


@dataclass(frozen=True, slots=True)
class Toolset:
    """`tools` are those known without opening; `open` is given the checked settings.

    `missing` tells why the toolset cannot work here, None when it can; one that cannot is not offered.
    """

    name: str
    tools: tuple[Tool, ...] = ()
    settings: type[ToolsetSettings] = ToolsetSettings
    open: Callable[[Any], AbstractAsyncContextManager[OpenToolset]] | None = None
    missing: Callable[[], str | None] | None = None
