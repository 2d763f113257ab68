"""Delivery to the native API, over its binary routes. A posted group is durable, and posting it twice counts once."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from hermes_rl.api.client.connection import PATIENCE, ApiConnection, ApiError, ApiUnavailableError, RequestContent
from hermes_rl.api.client.resume_state import ResumeState
from hermes_rl.api.schemas import (
    GROUP_TYPE,
    Draws,
    EnvironmentRegistration,
    GroupScores,
    ItemScores,
    Posted,
    QueueStatus,
    RegisteredEnvironment,
    WorkGrant,
    WorkRequest,
)
from hermes_rl.core.errors import ConfigError

HEARTBEAT_TIME = 10.0
POST_TIME = 60.0
# Assumed minimum upload rate for the deadline of a post, in bytes per second.
SLOWEST = 1e6
Answer = TypeVar("Answer")


async def is_native_api(connection: ApiConnection, *, patience: float = PATIENCE) -> bool:
    """Whether `hermes-rl api` answers. A refused token counts as yes: registering reports it."""
    try:
        await connection.ask("GET", "/v1/status", QueueStatus, patience=patience)
    except ApiUnavailableError:
        raise
    except ApiError as error:
        return error.kind in {"unauthorised", "forbidden"}
    return True


class NativeDestination:
    """The native API, as used by one environment."""

    kind = "hermes-rl api"
    keeps_scores = True

    def __init__(
        self, connection: ApiConnection, registration: EnvironmentRegistration, *, patience: float = PATIENCE
    ) -> None:
        self._connection = connection
        self._registration = registration
        self._patience = patience
        self._number: int | None = None
        self._scores_read = 0
        """The place of the last group that `new_scores` returned."""

    @property
    def withheld(self) -> Mapping[str, int]:
        return {}

    async def register(self) -> ResumeState:
        known = await self._register(self._patience)
        path = f"/v1/environments/{known.id}/draws?since={known.cursor or 0}"
        draws = await self._connection.ask("GET", path, Draws, patience=self._patience)
        return ResumeState(known.cursor, frozenset(draws.draws))

    async def work(self, *, running: int, wanted: int, cursor: int | None = None) -> WorkGrant:
        request = WorkRequest(running=running, wanted=wanted, cursor=cursor)

        async def ask(number: int) -> WorkGrant:
            path = f"/v1/environments/{number}/work"
            return await self._connection.ask("POST", path, WorkGrant, request, deadline=HEARTBEAT_TIME)

        return await self._as_registered(ask)

    async def post(self, data: bytes) -> Posted:
        content = RequestContent(data, GROUP_TYPE)
        deadline = POST_TIME + len(data) / SLOWEST

        async def ask(number: int) -> Posted:
            path = f"/v1/environments/{number}/groups"
            return await self._connection.ask("POST", path, Posted, content, deadline=deadline)

        return await self._as_registered(ask)

    async def new_scores(self) -> Sequence[ItemScores]:
        async def ask(number: int) -> GroupScores:
            path = f"/v1/environments/{number}/scores?after={self._scores_read}"
            return await self._connection.ask("GET", path, GroupScores, deadline=HEARTBEAT_TIME)

        try:
            found = (await self._as_registered(ask)).groups
        except ApiError as error:
            if error.kind != "no_such_route":
                raise
            raise ConfigError(
                f"{self._connection.url} is older than this hermes-rl: it does not return scores, which "
                "--env.item_sampler needs; upgrade it, or use --env.item_sampler uniform"
            ) from error
        if found:
            self._scores_read = found[-1].place
        return found

    async def leave(self) -> None:
        if self._number is not None:
            await self._connection.request("POST", f"/v1/environments/{self._number}/leave", deadline=HEARTBEAT_TIME)

    async def _as_registered(self, ask: Callable[[int], Awaitable[Answer]]) -> Answer:
        """Send a request with the environment's number, registering first if the API does not know it."""
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
        # An API that did not know the environment has another database.
        self._scores_read = 0
        return known
