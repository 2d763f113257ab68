"""Delivery to an unmodified run-api of atroposlib 0.4.0, over its JSON routes.

A group is posted as exactly `group_size` rollouts of one sequence each, or withheld and counted. Nothing is posted
before registration, because that would keep run-api from ever starting. run-api does not deduplicate posts: if its
response is lost, the group is posted again and may be trained on twice.
"""

import asyncio
import gzip
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_rl.api.client.connection import PATIENCE, ApiConnection, ApiError, ApiUnavailableError, RequestContent
from hermes_rl.api.client.resume_state import ResumeState
from hermes_rl.api.schemas import EnvironmentRegistration, ItemScores, Posted, WorkGrant
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import Group
from hermes_rl.store.codec import decode
from hermes_rl.store.container import BadGroupError
from hermes_rl.store.records import atropos_columns

GREETING = {"message": "AtroposLib API"}
# run-api blocks its one thread for more than a second on a large group, or while it builds a batch.
POST_TIME = 120.0
NO_TRAINER = "run-api is waiting for its trainer to request the first batch"
NO_PLACE = -1
# run-api closes the connection after a request that failed, possibly during the next one.
RETRY_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class AtroposLimits:
    """Atropos settings without a native counterpart: sequence length, queued batches, whether messages are posted."""

    max_token_length: int = 2048
    max_batches_offpolicy: int = 3
    include_messages: bool = False


@dataclass(frozen=True, slots=True)
class Registered:
    """The registration at run-api. `longest` is the trainer's maximum sequence length, None if it set none."""

    number: int
    batch_size: int
    longest: int | None


async def is_run_api(connection: ApiConnection, *, patience: float = PATIENCE) -> bool:
    try:
        return bool(fast_json.loads(await connection.request("GET", "/", patience=patience)) == GREETING)
    except ApiUnavailableError:
        raise
    except (ApiError, ValueError):
        return False


class AtroposDestination:
    """Atropos' run-api, as used by one environment. It does not track draws."""

    kind = "Atropos run-api"
    keeps_scores = False

    def __init__(
        self,
        connection: ApiConnection,
        registration: EnvironmentRegistration,
        limits: AtroposLimits,
        *,
        patience: float = PATIENCE,
    ) -> None:
        if registration.group_size is None:
            raise ConfigError("run-api needs a fixed group size; set env.group_size")
        if not registration.weight:
            raise ConfigError("run-api fails at weight 0; set env.inference_weight above 0")
        self._connection = connection
        self._registration = registration
        self._group_size = registration.group_size
        self._limits = limits
        self._patience = patience
        self._registered: Registered | None = None
        self._step = 0
        self._withheld: Counter[str] = Counter()

    @property
    def withheld(self) -> Mapping[str, int]:
        return self._withheld

    async def register(self) -> ResumeState:
        """Register if run-api's trainer has started; otherwise `work` and `post` try again."""
        await self._register(self._patience)
        return ResumeState()

    async def work(self, *, running: int, wanted: int, cursor: int | None = None) -> WorkGrant:
        status = await self._status()
        if status is None or self._registered is None:
            return WorkGrant(granted=0, version=self._step, waiting=NO_TRAINER)
        room = self._room(status, self._registered.batch_size) - running
        granted = max(min(wanted, room), 0)
        waiting = None if granted == wanted else f"run-api has {status['queue_size']} groups queued"
        return WorkGrant(granted=granted, version=self._step, waiting=waiting)

    async def post(self, data: bytes) -> Posted:
        if await self._status() is None or self._registered is None:
            raise ApiUnavailableError(f"{self._connection.url}: {NO_TRAINER}", kind="no_trainer")
        try:
            body = await asyncio.to_thread(
                _body, data, self._group_size, self._registered, messages=self._limits.include_messages
            )
        except BadGroupError as error:
            raise ApiError(f"not a group: {error}", status=400, kind="bad_group") from error
        if isinstance(body, str):
            self._withheld[body] += 1
            return Posted(new=False, place=NO_PLACE)
        await self._connection.request("POST", "/scored_data", body, deadline=POST_TIME)
        return Posted(new=True, place=NO_PLACE)

    async def new_scores(self) -> Sequence[ItemScores]:
        return ()

    async def leave(self) -> None:
        known, self._registered = self._registered, None
        if known is not None:
            await self._connection.request("POST", "/disconnect-env", {"env_id": known.number})

    async def _status(self) -> dict[str, Any] | None:
        """run-api's status for this environment; None while it has no trainer. Registers again after a restart."""
        if self._registered is None:
            await self._register(RETRY_PATIENCE)
        status = await self._ask_status()
        # run-api fails on an unknown number, and a step that decreases means it was restarted.
        if self._registered is not None and (status is None or status["current_step"] < self._step):
            await self._register(RETRY_PATIENCE)
            status = await self._ask_status()
        if status is not None:
            self._step = status["current_step"]
        return status

    async def _ask_status(self) -> dict[str, Any] | None:
        if self._registered is None:
            return None
        try:
            answer = await self._connection.request("GET", "/status-env", {"env_id": self._registered.number})
        except ApiError as error:
            if error.status != 500:
                raise
            return None
        return _object(answer, "queue_size", "current_step")

    async def _register(self, patience: float) -> None:
        self._registered, self._step = None, 0
        request = {
            "max_token_length": self._limits.max_token_length,
            "desired_name": self._registration.name,
            "weight": self._registration.weight,
            "group_size": self._group_size,
            "min_batch_allocation": self._registration.minimum or None,
        }
        answer = _object(await self._connection.request("POST", "/register-env", request, patience=patience), "status")
        if answer["status"] != "success":
            return
        info = _object(await self._connection.request("GET", "/info", patience=patience), "batch_size", "max_token_len")
        longest = info["max_token_len"] if info["max_token_len"] > 0 else None
        self._registered = Registered(answer["env_id"], info["batch_size"], longest)
        self._step = answer["starting_step"]

    def _room(self, status: Mapping[str, Any], batch_size: int) -> int:
        """How many rollouts may run, by the rule of Atropos' own environments.

        None while the queue is full, except that an environment with a minimum may fill its own share; otherwise no
        batch would ever complete.
        """
        capacity = max(self._limits.max_batches_offpolicy, 1) * batch_size
        waiting, own_waiting, pack = (
            int(status.get(name, 0)) for name in ("queue_size", "self_queue_size", "max_group_size")
        )
        room = (capacity // self._group_size - waiting) * self._group_size
        if not self._registration.minimum:
            return room
        pack = max(pack, self._group_size)
        own = math.ceil(self._registration.minimum * capacity / pack) * pack
        return max(room, own - own_waiting * self._group_size)


def withhold_reason(group: Group, group_size: int, longest: int | None) -> str | None:
    """The cause why run-api cannot take the group; None if it can."""
    rollouts = group.rollouts
    causes = {
        "unscored_rollout": any(not rollout.scored for rollout in rollouts),
        "withheld_rollout": any(rollout.withheld is not None for rollout in rollouts),
        "group_size": len(rollouts) != group_size,
        "no_single_sequence": any(len(rollout.sequences) != 1 for rollout in rollouts),
        # Atropos environments also drop sequences that only reach the limit.
        "too_long": longest is not None
        and any(len(sequence.tokens) >= longest for rollout in rollouts for sequence in rollout.sequences),
    }
    return group.withheld or next((cause for cause, holds in causes.items() if holds), None)


def _body(data: bytes, group_size: int, known: Registered, *, messages: bool) -> RequestContent | str:
    """The body to post, or the cause why the group is withheld."""
    group = decode(data)
    cause = withhold_reason(group, group_size, known.longest)
    if cause is not None:
        return cause
    columns = {**atropos_columns(group), "env_id": known.number}
    columns["messages"] = add_missing_content(columns["messages"]) if messages else None
    return RequestContent(gzip.compress(fast_json.dumps(columns), 1), "application/json", "gzip")


def add_missing_content(rollouts: Sequence[Sequence[Message]]) -> list[list[Message]]:
    """run-api refuses messages without the key `content`, but accepts null."""
    return [[{"content": None, **message} for message in messages] for messages in rollouts]


def _object(data: bytes, *names: str) -> dict[str, Any]:
    """Parse a JSON object with these fields."""
    try:
        value = fast_json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict) or any(name not in value for name in names):
        text = data[:200].decode(errors="replace")
        raise ApiError(f"run-api's response lacks {' and '.join(names)}: {text}", kind="bad_answer")
    return value
