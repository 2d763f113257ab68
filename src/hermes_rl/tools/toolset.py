"""Toolsets: named sets of tools with an optional shared service.

A service (search provider, browser, MCP server) is opened once per environment, before the first rollout. If it is not
available, it raises ConfigError then, with what to install or configure, and never during a rollout.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from hermes_rl.tools.tool import Tool


class ToolsetSettings(BaseModel):
    """Base class of a toolset's settings, its part of `tool_settings` in the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class OpenToolset:
    """An open toolset. Its tools get `service` from `session.service(NAME)`."""

    tools: tuple[Tool, ...]
    service: Any = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Toolset:
    """`tools` are those known before opening; `open` takes the validated settings.

    `missing` returns why the toolset is not available here; None when it is.
    """

    name: str
    tools: tuple[Tool, ...] = ()
    settings: type[ToolsetSettings] = ToolsetSettings
    open: Callable[[Any], AbstractAsyncContextManager[OpenToolset]] | None = None
    missing: Callable[[], str | None] | None = None
