"""Where an environment's finished groups go: our own API, or Atropos' run-api, behind one face.

Always true: a destination registers again by itself when the API has forgotten it; what it raises is an ApiError.
"""

from collections.abc import Mapping
from typing import Protocol

from hermes_rl.api.client.atropos_dialect import AtroposDestination, AtroposLimits, answers_as_run_api
from hermes_rl.api.client.connection import PATIENCE, Connection
from hermes_rl.api.client.native import NativeDestination, answers_as_ours
from hermes_rl.api.client.standing import Standing
from hermes_rl.api.wire import EnvironmentRegistration, Posted, WorkGrant
from hermes_rl.errors import ConfigError

__all__ = ["Destination", "Standing", "find_destination"]

ATROPOS_LIMITS = AtroposLimits()


class Destination(Protocol):
    """What `serve` asks of an API. `kind` names it for a person, `withheld` counts what it cannot take, by cause."""

    kind: str

    @property
    def withheld(self) -> Mapping[str, int]: ...

    async def register(self) -> Standing:
        """Make the environment known and learn where it stands; waits while there is nothing to register with."""
        ...

    async def work(self, *, running: int, wanted: int, cursor: int | None = None) -> WorkGrant:
        """Say what runs, and ask how many more rollouts may begin."""
        ...

    async def post(self, data: bytes) -> Posted:
        """Hand over a group in its binary form. The API has it when this returns; to be tried again when it raises."""
        ...

    async def leave(self) -> None:
        """Say that no more will come, for now."""
        ...


async def find_destination(
    connection: Connection,
    registration: EnvironmentRegistration,
    *,
    limits: AtroposLimits = ATROPOS_LIMITS,
    patience: float = PATIENCE,
) -> Destination:
    """The destination that answers at the connection's address; not registered yet.

    ApiUnavailableError when nothing answers for `patience` seconds, ConfigError when it is neither of the two.
    """
    if await answers_as_ours(connection, patience=patience):
        return NativeDestination(connection, registration, patience=patience)
    if await answers_as_run_api(connection, patience=patience):
        return AtroposDestination(connection, registration, limits, patience=patience)
    raise ConfigError(
        f"{connection.url} answers, but neither as `hermes-rl api` nor as Atropos' run-api; "
        "check env.rollout_server_url, which is the address without a path"
    )
