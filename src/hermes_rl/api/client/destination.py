"""Destinations for finished groups: the native API or Atropos' run-api, behind one interface.

A destination registers again by itself if the API lost its registration; it raises only ApiError.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from hermes_rl.api.client.atropos_destination import AtroposDestination, AtroposLimits, is_run_api
from hermes_rl.api.client.connection import PATIENCE, ApiConnection
from hermes_rl.api.client.native_destination import NativeDestination, is_native_api
from hermes_rl.api.client.resume_state import ResumeState
from hermes_rl.api.schemas import EnvironmentRegistration, ItemScores, Posted, WorkGrant
from hermes_rl.core.errors import ConfigError

__all__ = ["Destination", "ResumeState", "find_destination"]

ATROPOS_LIMITS = AtroposLimits()


class Destination(Protocol):
    """An API as `serve` uses it. `kind` is its display name; `withheld` counts groups it does not accept, by cause.

    `keeps_scores` says whether it stores the scores of groups, for `new_scores`.
    """

    kind: str
    keeps_scores: bool

    @property
    def withheld(self) -> Mapping[str, int]: ...

    async def register(self) -> ResumeState:
        """Register the environment and return where to resume; waits while the API does not answer."""
        ...

    async def work(self, *, running: int, wanted: int, cursor: int | None = None) -> WorkGrant:
        """Report running rollouts, and request more."""
        ...

    async def post(self, data: bytes) -> Posted:
        """Post a group in its binary form. The API has stored it when this returns; retry if it raises."""
        ...

    async def new_scores(self) -> Sequence[ItemScores]:
        """The next groups stored since the last call, by this environment or a replica; empty when there are none."""
        ...

    async def leave(self) -> None:
        """Disconnect; the environment may register again."""
        ...


async def find_destination(
    connection: ApiConnection,
    registration: EnvironmentRegistration,
    *,
    limits: AtroposLimits = ATROPOS_LIMITS,
    patience: float = PATIENCE,
) -> Destination:
    """Detect the API at the connection's address; does not register.

    ApiUnavailableError if nothing answers for `patience` seconds, ConfigError if it is neither API.
    """
    if await is_native_api(connection, patience=patience):
        return NativeDestination(connection, registration, patience=patience)
    if await is_run_api(connection, patience=patience):
        return AtroposDestination(connection, registration, limits, patience=patience)
    raise ConfigError(
        f"{connection.url} is neither `hermes-rl api` nor Atropos' run-api; "
        "set env.rollout_server_url to the address of one, without a path"
    )
