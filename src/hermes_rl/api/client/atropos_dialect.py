"""Groups to an unmodified run-api of atroposlib 0.4.0, over its JSON routes.

Always true: a group goes there whole, as exactly `group_size` rollouts of one sequence each, or is withheld and
counted; nothing is posted before run-api knows the environment, which would keep it from ever starting. run-api tells
no two posts apart: where its answer was lost the group is posted again, and may then be trained on twice.
"""

import asyncio
import gzip
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_rl import jsontext
from hermes_rl.api.client.connection import PATIENCE, ApiError, ApiUnavailableError, Connection, Content
from hermes_rl.api.client.standing import Standing
from hermes_rl.api.wire import EnvironmentRegistration, Posted, WorkGrant
from hermes_rl.errors import ConfigError
from hermes_rl.messages import Message
from hermes_rl.store.codec import decode
from hermes_rl.store.parts import BadGroupError
from hermes_rl.store.records import atropos_columns
from hermes_rl.trajectory import Group

GREETING = {"message": "AtroposLib API"}
# run-api holds its one thread for a second and more on a large group, or while it makes a batch.
POST_TIME = 120.0
NO_TRAINER = "run-api waits for its trainer to ask for the first batch"
NO_PLACE = -1
# After a request it failed at run-api closes the line, perhaps under the next request.
AGAIN_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class AtroposLimits:
    """What Atropos' environments are told and ours are not: the longest sequence, and how many batches may wait."""

    max_token_length: int = 2048
    max_batches_offpolicy: int = 3


@dataclass(frozen=True, slots=True)
class Registered:
    """The environment as run-api knows it, and its trainer's wishes. `longest` is None where the trainer names none."""

    number: int
    batch_size: int
    longest: int | None


async def answers_as_run_api(connection: Connection, *, patience: float = PATIENCE) -> bool:
    try:
        return bool(jsontext.loads(await connection.request("GET", "/", patience=patience)) == GREETING)
    except ApiUnavailableError:
        raise
    except (ApiError, ValueError):
        return False


class AtroposDestination:
    """Atropos' run-api, as one environment sees it. It keeps no draws, and takes its time to begin."""

    kind = "Atropos run-api"

    def __init__(
        self,
        connection: Connection,
        registration: EnvironmentRegistration,
        limits: AtroposLimits,
        *,
        patience: float = PATIENCE,
    ) -> None:
        if registration.group_size is None:
            raise ConfigError("run-api takes groups of one size only: set env.group_size")
        if not registration.weight:
            raise ConfigError("run-api shares its queue by weight and fails at 0: set env.inference_weight above 0")
        self._connection = connection
        self._registration = registration
        self._group_size = registration.group_size
        self._limits = limits
        self._patience = patience
        self._known: Registered | None = None
        self._step = 0
        self._withheld: Counter[str] = Counter()

    @property
    def withheld(self) -> Mapping[str, int]:
        return self._withheld

    async def register(self) -> Standing:
        """Register if run-api's trainer has begun; if not, `work` and `post` try again."""
        await self._register(self._patience)
        return Standing()

    async def work(self, *, running: int, wanted: int, cursor: int | None = None) -> WorkGrant:
        status = await self._status()
        if status is None or self._known is None:
            return WorkGrant(granted=0, version=self._step, waiting=NO_TRAINER)
        room = self._room(status, self._known.batch_size) - running
        granted = max(min(wanted, room), 0)
        waiting = None if granted == wanted else f"run-api has {status['queue_size']} groups waiting"
        return WorkGrant(granted=granted, version=self._step, waiting=waiting)

    async def post(self, data: bytes) -> Posted:
        if await self._status() is None or self._known is None:
            raise ApiUnavailableError(f"{self._connection.url}: {NO_TRAINER}", kind="no_trainer")
        try:
            body = await asyncio.to_thread(_body, data, self._group_size, self._known)
        except BadGroupError as error:
            raise ApiError(f"not a group: {error}", status=400, kind="bad_group") from error
        if isinstance(body, str):
            self._withheld[body] += 1
            return Posted(new=False, place=NO_PLACE)
        await self._connection.request("POST", "/scored_data", body, deadline=POST_TIME)
        return Posted(new=True, place=NO_PLACE)

    async def leave(self) -> None:
        known, self._known = self._known, None
        if known is not None:
            await self._connection.request("POST", "/disconnect-env", {"env_id": known.number})

    async def _status(self) -> dict[str, Any] | None:
        """The queue as run-api sees it for us; None while it has no trainer. Registers again after a restart."""
        if self._known is None:
            await self._register(AGAIN_PATIENCE)
        status = await self._ask_status()
        # It fails on a number it does not know, and a step that goes back is another life of it.
        if self._known is not None and (status is None or status["current_step"] < self._step):
            await self._register(AGAIN_PATIENCE)
            status = await self._ask_status()
        if status is not None:
            self._step = status["current_step"]
        return status

    async def _ask_status(self) -> dict[str, Any] | None:
        if self._known is None:
            return None
        try:
            answer = await self._connection.request("GET", "/status-env", {"env_id": self._known.number})
        except ApiError as error:
            if error.status != 500:
                raise
            return None
        return _object(answer, "queue_size", "current_step")

    async def _register(self, patience: float) -> None:
        self._known, self._step = None, 0
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
        self._known = Registered(answer["env_id"], info["batch_size"], longest)
        self._step = answer["starting_step"]

    def _room(self, status: Mapping[str, Any], batch_size: int) -> int:
        """How many rollouts may run, by the rule of Atropos' own environments.

        Nothing when as much waits as may, but an environment with a minimum may fill its own part, or no batch would
        ever be made.
        """
        most = max(self._limits.max_batches_offpolicy, 1) * batch_size
        waiting, own_waiting, pack = (
            int(status.get(name, 0)) for name in ("queue_size", "self_queue_size", "max_group_size")
        )
        room = (most // self._group_size - waiting) * self._group_size
        if not self._registration.minimum:
            return room
        pack = max(pack, self._group_size)
        own = math.ceil(self._registration.minimum * most / pack) * pack
        return max(room, own - own_waiting * self._group_size)


def why_withheld(group: Group, group_size: int, longest: int | None) -> str | None:
    """Why the group cannot go to run-api, as a word to count by; None when it can."""
    rollouts = group.rollouts
    causes = {
        "unscored_rollout": any(not rollout.scored for rollout in rollouts),
        "withheld_rollout": any(rollout.withheld is not None for rollout in rollouts),
        "group_size": len(rollouts) != group_size,
        "no_single_sequence": any(len(rollout.sequences) != 1 for rollout in rollouts),
        # Atropos' environments keep back what reaches the limit, not only what exceeds it.
        "too_long": longest is not None
        and any(len(sequence.tokens) >= longest for rollout in rollouts for sequence in rollout.sequences),
    }
    return group.withheld or next((cause for cause, holds in causes.items() if holds), None)


def _body(data: bytes, group_size: int, known: Registered) -> Content | str:
    """What is posted for the group, or why it is not."""
    group = decode(data)
    cause = why_withheld(group, group_size, known.longest)
    if cause is not None:
        return cause
    columns = {**atropos_columns(group), "env_id": known.number}
    columns["messages"] = with_content(columns["messages"])
    return Content(gzip.compress(jsontext.dumps(columns), 1), "application/json", "gzip")


def with_content(rollouts: Sequence[Sequence[Message]]) -> list[list[Message]]:
    """The messages of each rollout as run-api takes them: it refuses one without the key, and not one of null."""
    return [[{"content": None, **message} for message in messages] for messages in rollouts]


def _object(data: bytes, *names: str) -> dict[str, Any]:
    """The JSON object that run-api answered, which has these fields."""
    try:
        value = jsontext.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict) or any(name not in value for name in names):
        shown = data[:200].decode(errors="replace")
        raise ApiError(f"run-api answered without {' and '.join(names)}: {shown}", kind="bad_answer")
    return value
