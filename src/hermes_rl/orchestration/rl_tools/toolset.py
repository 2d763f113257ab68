"""The toolset `rl`, with which an agent in a rollout trains models. Available where its requirements are met.

Always true: each rollout has its own draft, deleted with the rollout; the runs it started stay.
"""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from hermes_rl.orchestration.discovery.allowed_files import AllowedFiles
from hermes_rl.orchestration.requirements import missing_for_toolset
from hermes_rl.orchestration.rl_tools.context import CallerContext
from hermes_rl.orchestration.rl_tools.dispatch import RL_TOOLS, call_rl_tool
from hermes_rl.orchestration.rl_tools.session_draft import delete_session
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import Tool
from hermes_rl.tools.toolset import Toolset

NAME = "rl"


def missing() -> str | None:
    """Why no run can be started here with any preset. Keys are not checked, since not every preset needs one."""
    requirements = missing_for_toolset()
    return "; ".join(f"{needed.name} is missing, run `{needed.fix}`" for needed in requirements) or None


def _bind_to_rollout(tool: Tool) -> Tool:
    async def call(session: ToolSession, /, **arguments: Any) -> dict[str, Any]:
        return await call_rl_tool(await session.resource(NAME, _rollout_context), tool.name, arguments)

    # `call_rl_tool` checks the arguments and reports errors in the tools' own format.
    return replace(tool, function=call, check=dict)


@asynccontextmanager
async def _rollout_context() -> AsyncIterator[CallerContext]:
    # The policy is not trusted with files of the host.
    context = CallerContext(f"rollout-{uuid.uuid4().hex[:16]}", allowed_files=AllowedFiles())
    try:
        yield context
    finally:
        delete_session(context.session)


RL = Toolset(NAME, tuple(_bind_to_rollout(rl_tool.tool) for rl_tool in RL_TOOLS.values()), missing=missing)
