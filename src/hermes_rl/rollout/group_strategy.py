"""How the rollouts of a group are made: `group_strategy` names a class with this protocol.

Always true: a strategy returns one finished rollout for each place of the group, in order, and makes each by calling
`make`, which retries it; evaluations and forks make independent rollouts whatever the setting says.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeAlias, TypeVar

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import GROUP_STRATEGIES
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.rollout import FinishedRollout, RolloutPlan

T = TypeVar("T")
# Methods of an environment that make its rollouts themselves.
OWN_ROLLOUTS = ("collect_trajectory", "collect_trajectories")
MakeRollout: TypeAlias = Callable[[RolloutPlan], Awaitable[FinishedRollout]]


class PlannedRollouts(Protocol):
    """The rollouts of a group before it starts: `rollout(n)` is the plan of the one at place n, counted from 0."""

    @property
    def size(self) -> int: ...
    def rollout(self, index: int) -> RolloutPlan: ...


class GroupStrategy(Protocol):
    """A class without arguments. `check` raises ConfigError for an environment that it cannot make groups of."""

    def check(self, env: Environment) -> None: ...
    async def rollouts(
        self, env: Environment, planned: PlannedRollouts, make: MakeRollout
    ) -> list[FinishedRollout]: ...


class FlatGroup:
    """Independent rollouts, all at once."""

    def check(self, env: Environment) -> None:
        """Any environment has independent rollouts."""

    async def rollouts(self, env: Environment, planned: PlannedRollouts, make: MakeRollout) -> list[FinishedRollout]:
        """Each from its own plan."""

        async def one(index: int) -> FinishedRollout:
            return await make(planned.rollout(index))

        return await all_at_once(one(index) for index in range(planned.size))


def group_strategy(env: Environment) -> GroupStrategy:
    """The strategy that the configuration names; ConfigError if there is none, or it cannot be used here."""
    name = env.config.group_strategy
    kind = GROUP_STRATEGIES.resolve(name)
    if not callable(kind) or not hasattr(kind, "rollouts") or not hasattr(kind, "check"):
        raise ConfigError(f"{name} is not a group strategy: it needs a class with `check` and `rollouts`")
    strategy: GroupStrategy = kind()
    if not isinstance(strategy, FlatGroup) and (env.seats or any(map(env.overrides, OWN_ROLLOUTS))):
        raise ConfigError(
            f"{env.display_name()} has several agents or makes its own rollouts, which group_strategy {name} cannot "
            "make; use flat"
        )
    strategy.check(env)
    return strategy


async def all_at_once(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order. Every failure of a rollout is in its record: an error here is the end of the run."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
