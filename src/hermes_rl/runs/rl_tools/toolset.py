"""The toolset `rl`: an agent in a rollout that trains models. It is there where its requirements are met.

Always true: each rollout has a draft of its own, which is gone with the rollout; the runs it started stay.
"""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from hermes_rl.runs.requirements import missing_for_toolset
from hermes_rl.runs.rl_tools.calling import RL_TOOLS, called
from hermes_rl.runs.rl_tools.desk import Desk
from hermes_rl.runs.rl_tools.drafts import forget_session
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import Tool
from hermes_rl.tools.toolset import Toolset

NAME = "rl"


def missing() -> str | None:
    """Why no run could be started here, whatever the preset. A key is asked for only by the preset that needs it."""
    lacking = missing_for_toolset()
    return "; ".join(f"{one.name} is not there, run `{one.mend}`" for one in lacking) or None


def _in_a_rollout(tool: Tool) -> Tool:
    async def call(session: ToolSession, /, **arguments: Any) -> dict[str, Any]:
        return await called(await session.resource(NAME, _own_desk), tool.name, arguments)

    # `called` checks them, and tells what is wrong as these tools do.
    return replace(tool, function=call, check=dict)


@asynccontextmanager
async def _own_desk() -> AsyncIterator[Desk]:
    desk = Desk(f"rollout-{uuid.uuid4().hex[:16]}")
    try:
        yield desk
    finally:
        forget_session(desk.session)


RL = Toolset(NAME, tuple(_in_a_rollout(one.tool) for one in RL_TOOLS.values()), missing=missing)
