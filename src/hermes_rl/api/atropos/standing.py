"""What environments and the trainer are told of the queue: decisions over one look at the store.

Always true: a step is a batch that was handed out to its last byte, not one that could be; an environment that fell
silent has no weight and no minimum.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_rl.store.database.listing import Backlog, Status
from hermes_rl.store.database.members import Environment, Trainer

TRAINER = "atropos"
# run-api's: no environment is starved of inference altogether.
LEAST_WEIGHT = 0.01
LONGEST = "max_token_length"


@dataclass(frozen=True, slots=True)
class Look:
    """The store at one moment."""

    status: Status
    environments: Sequence[Environment]
    step: int

    @property
    def trainer(self) -> Trainer | None:
        return self.status.trainer


def told_environment(look: Look, asking: Environment, live: Sequence[Environment]) -> dict[str, Any]:
    """The answer to /status-env, in the units of run-api: groups of the size of the one who asks."""
    backlog = look.status.backlog
    own = backlog.get(asking.id, Backlog())
    largest = max([1, *map(_group_size, backlog.values())])
    size = max(asking.group_size or 1, _group_size(own))
    batch_size = look.trainer.batch_size if look.trainer else 0
    minimums = {one.id: int(batch_size * one.minimum) for one in live}
    others = sum(
        max(0, math.ceil(part.waiting / largest) * largest - minimums.get(number, 0))
        for number, part in backlog.items()
        if number != asking.id and part.waiting
    )
    return {
        "current_step": look.step,
        "queue_size": (own.waiting + others) // size,
        "unallocated_fraction": 1.0 - min(1.0, sum(one.minimum for one in live)),
        "self_queue_size": own.waiting // size,
        "max_group_size": largest,
        "env_weight": _weight(asking, live),
    }


def told_registration(
    environment: Environment, everyone: Sequence[Environment], trainer: Trainer, step: int
) -> dict[str, Any]:
    """The answer to /register-env; the names of environments that asked for the same one are numbered by arrival."""
    before = sum(one.name == environment.name and one.id < environment.id for one in everyone)
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


def whole(settings: Mapping[str, Any], name: str, otherwise: int) -> int:
    """A number of the settings, which trainers and environments of our own make as they like."""
    value = settings.get(name)
    return value if type(value) is int else otherwise


def _group_size(part: Backlog) -> int:
    return math.ceil(part.waiting / part.waiting_groups) if part.waiting_groups else 1


def _weight(asking: Environment, live: Sequence[Environment]) -> float:
    """Its part of all inference, by weight and context length."""
    total = sum(_claim(one) for one in live)
    return max(LEAST_WEIGHT, _claim(asking) / total) if total > 0 else 1.0


def _claim(environment: Environment) -> float:
    return environment.weight * max(1, whole(environment.settings, LONGEST, 1))
