"""One environment's gateway, for agents that are programs: a key and a door for each rollout.

Always true: it has no port and no file; sandboxes reach it through an outlet.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from hermes_rl.gateway.passes import Pass, Passes

if TYPE_CHECKING:
    from hermes_rl.gateway.server import Door, GatewayServer


class Gateway:
    """Made by `open_gateway`. `passes.open(policy)` gives a rollout its key."""

    def __init__(self, server: "GatewayServer") -> None:
        self._server = server

    @property
    def passes(self) -> Passes:
        return self._server.passes

    def door(self, opened: Pass) -> "AbstractAsyncContextManager[Door]":
        """The rollout's own door, until the end of the block; another rollout's key is refused there."""
        return self._server.door(opened)


@asynccontextmanager
async def open_gateway() -> AsyncIterator[Gateway]:
    # Only here, as uvicorn takes long to import.
    from hermes_rl.gateway.server import GatewayServer

    yield Gateway(GatewayServer())
