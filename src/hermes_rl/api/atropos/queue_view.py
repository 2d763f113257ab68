"""Responses about the queue, computed from one snapshot of the store.

A step is a batch that was sent completely. An environment without heartbeats has no weight and no minimum.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_rl.store.database.registrations import EnvironmentRow, TrainerRow
from hermes_rl.store.database.views import Backlog, Status

TRAINER = "atropos"
# As in run-api, so that no environment is starved of inference.
MIN_WEIGHT = 0.01
LONGEST = "max_token_length"


@dataclass(frozen=True, slots=True)
class QueueView:
    """The store at one moment."""

    status: Status
    environments: Sequence[EnvironmentRow]
    step: int

    @property
    def trainer(self) -> TrainerRow | None:
        return self.status.trainer


def environment_status(view: QueueView, asking: EnvironmentRow, live: Sequence[EnvironmentRow]) -> dict[str, Any]:
    """The response of /status-env. As in run-api, counts are in groups of the asking environment's size."""
    backlog = view.status.backlog
    own = backlog.get(asking.id, Backlog())
    largest = max([1, *map(_group_size, backlog.values())])
    size = max(asking.group_size or 1, _group_size(own))
    batch_size = view.trainer.batch_size if view.trainer else 0
    minimums = {environment.id: int(batch_size * environment.minimum) for environment in live}
    others = sum(
        max(0, math.ceil(part.waiting / largest) * largest - minimums.get(number, 0))
        for number, part in backlog.items()
        if number != asking.id and part.waiting
    )
    return {
        "current_step": view.step,
        "queue_size": (own.waiting + others) // size,
        "unallocated_fraction": 1.0 - min(1.0, sum(environment.minimum for environment in live)),
        "self_queue_size": own.waiting // size,
        "max_group_size": largest,
        "env_weight": _weight(asking, live),
    }


def registration_response(
    environment: EnvironmentRow, everyone: Sequence[EnvironmentRow], trainer: TrainerRow, step: int
) -> dict[str, Any]:
    """The response of /register-env; environments with the same name are numbered in order of arrival."""
    before = sum(other.name == environment.name and other.id < environment.id for other in everyone)
    settings: Mapping[str, Any] = trainer.settings
    return {
        "status": "success",
        "env_id": environment.id,
        "wandb_name": f"{environment.name}_{before}",
        "checkpoint_dir": settings.get("checkpoint_dir", ""),
        "starting_step": step,
        "checkpoint_interval": settings.get("save_checkpoint_interval", -1),
        "num_steps": settings.get("num_steps", -1),
    }


def int_setting(settings: Mapping[str, Any], name: str, default: int) -> int:
    """An integer of the settings; native trainers and environments may store anything there."""
    value = settings.get(name)
    return value if type(value) is int else default


def _group_size(part: Backlog) -> int:
    return math.ceil(part.waiting / part.waiting_groups) if part.waiting_groups else 1


def _weight(asking: EnvironmentRow, live: Sequence[EnvironmentRow]) -> float:
    """Share of the inference capacity, by weight and context length."""
    total = sum(map(_claim, live))
    return max(MIN_WEIGHT, _claim(asking) / total) if total > 0 else 1.0


def _claim(environment: EnvironmentRow) -> float:
    return environment.weight * max(1, int_setting(environment.settings, LONGEST, 1))
