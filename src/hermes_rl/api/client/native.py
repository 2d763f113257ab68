"""Groups to our own API, over its binary routes.

Always true: a group that was posted is durable there, and one posted twice counts once.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from hermes_rl.api.client.connection import PATIENCE, ApiError, ApiUnavailableError, Connection, Content
from hermes_rl.api.client.standing import Standing
from hermes_rl.api.wire import (
    GROUP_TYPE,
    Draws,
    EnvironmentRegistration,
    Posted,
    QueueStatus,
    RegisteredEnvironment,
    WorkGrant,
    WorkRequest,
)

HEARTBEAT_TIME = 10.0
POST_TIME = 60.0
# The slowest line a large group is given time for, in bytes a second.
SLOWEST = 1e6
Answer = TypeVar("Answer")


async def answers_as_ours(connection: Connection, *, patience: float = PATIENCE) -> bool:
    """Whether `hermes-rl api` answers there. One that does not let us in counts: registering says why."""
    try:
        await connection.ask("GET", "/v1/status", QueueStatus, patience=patience)
    except ApiUnavailableError:
        raise
    except ApiError as error:
        return error.kind in {"unauthorised", "forbidden"}
    return True


class NativeDestination:
    """Our own API, as one environment sees it."""

    kind = "hermes-rl api"

    def __init__(
        self, connection: Connection, registration: EnvironmentRegistration, *, patience: float = PATIENCE
    ) -> None:
        self._connection = connection
        self._registration = registration
        self._patience = patience
        self._number: int | None = None

    @property
    def withheld(self) -> Mapping[str, int]:
        return {}

    async def register(self) -> Standing:
        known = await self._register(self._patience)
        path = f"/v1/environments/{known.id}/draws?since={known.cursor or 0}"
        draws = await self._connection.ask("GET", path, Draws, patience=self._patience)
        return Standing(known.cursor, frozenset(draws.draws))

    async def work(self, *, running: int, wanted: int, cursor: int | None = None) -> WorkGrant:
        request = WorkRequest(running=running, wanted=wanted, cursor=cursor)

        async def ask(number: int) -> WorkGrant:
            path = f"/v1/environments/{number}/work"
            return await self._connection.ask("POST", path, WorkGrant, request, deadline=HEARTBEAT_TIME)

        return await self._known(ask)

    async def post(self, data: bytes) -> Posted:
        content = Content(data, GROUP_TYPE)
        deadline = POST_TIME + len(data) / SLOWEST

        async def ask(number: int) -> Posted:
            path = f"/v1/environments/{number}/groups"
            return await self._connection.ask("POST", path, Posted, content, deadline=deadline)

        return await self._known(ask)

    async def leave(self) -> None:
        if self._number is not None:
            await self._connection.request("POST", f"/v1/environments/{self._number}/leave", deadline=HEARTBEAT_TIME)

    async def _known(self, ask: Callable[[int], Awaitable[Answer]]) -> Answer:
        """What the API answers to the environment, which registers first where it is not known."""
        number = self._number
        if number is None:
            number = (await self._register(0.0)).id
        try:
            return await ask(number)
        except ApiError as error:
            if error.kind != "unknown_environment":
                raise
        return await ask((await self._register(0.0)).id)

    async def _register(self, patience: float) -> RegisteredEnvironment:
        known = await self._connection.ask(
            "POST", "/v1/environments", RegisteredEnvironment, self._registration, patience=patience
        )
        self._number = known.id
        return known
