"""The withheld verifier: which rollouts of a group it sees, and its score.

Always true: an audit changes no score and no training data, and whatever it raises is only its own error. The audited
rollouts of a group are its best by `compute_reward`, ties broken by their seeds, in whatever order they finished. One
of them is also among the best of those that finished before it, so it is audited while its sandbox is there.
"""

import asyncio
import hashlib
import heapq
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from hermes_rl.agent.result import AgentResult
from hermes_rl.core.author_code import describe_error
from hermes_rl.core.errors import ConfigError, InfrastructureError
from hermes_rl.core.tolerance import passes
from hermes_rl.core.trajectory import AuditedReward, Reward, Rollout, Span, validate_reward
from hermes_rl.extensions import AUDITS
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.tools.session import ToolSession

AuditFunction: TypeAlias = Callable[[Any, AgentResult, ToolContext], Awaitable[float | Reward] | float | Reward]

METHOD = "audit_reward"
OWN, OFF = "auto", "off"


@dataclass
class GroupAudits:
    """The choice of one group: its `count` best rollouts. Each is known by its seed."""

    count: int
    _offered: dict[int, tuple[float, str]] = field(default_factory=dict)

    def wants(self, seed: int, score: float) -> bool:
        """Whether a rollout that just got this score is among the best of those that finished."""
        self._offered[seed] = score, _draw("rank", seed)
        return seed in self.chosen()

    def chosen(self) -> frozenset[int]:
        """The seeds of the best rollouts so far."""
        return frozenset(heapq.nlargest(self.count, self._offered, key=lambda seed: self._offered[seed]))

    def keep_chosen(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Without the audits of rollouts that better ones displaced."""
        chosen = self.chosen()
        return [
            rollout if rollout.audit is None or rollout.seed in chosen else replace(rollout, audit=None)
            for rollout in rollouts
        ]


class PassingAudits(GroupAudits):
    """Audits every rollout that passes."""

    def __init__(self, pass_score: float) -> None:
        super().__init__(0)
        self._pass_score = pass_score

    def wants(self, seed: int, score: float) -> bool:
        del seed
        return passes(score, self._pass_score)


def group_audits(env: Environment, size: int, key: str) -> GroupAudits | None:
    """`audit_share` of a group's rollouts; a fraction of one is drawn by the key. None when nothing is audited."""
    if audit_function(env) is None:
        return None
    if env.seats:
        raise ConfigError(
            f"{env.display_name()} has several agents, whose rollouts cannot be audited; set --env.audit off"
        )
    whole, fraction = divmod(env.config.audit_share * size, 1)
    drawn = int(_draw("share", key)[:8], 16) / 16**8 < fraction
    count = int(whole) + drawn
    return GroupAudits(count) if count else None


def audit_function(env: Environment) -> AuditFunction | None:
    """What the environment's rollouts are audited by; None for nothing."""
    name: str = env.config.audit
    if name == OFF or (name == OWN and not env.overrides(METHOD)):
        return None
    function: AuditFunction = env.audit_reward if name == OWN else AUDITS.resolve(name)
    return function


async def audit_rollout(
    env: Environment, item: Any, result: AgentResult, task_id: str, session: ToolSession
) -> AuditedReward:
    """The audited reward of a rollout that has its reward and still its sandbox. Only cancellation propagates."""
    function, seconds = audit_function(env), env.config.worker_timeout

    async def call_author() -> object:
        returned: object = function and function(item, result, ToolContext(task_id))
        return await returned if inspect.isawaitable(returned) else returned

    started_at = time.monotonic()
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            with env.running():
                reward = validate_reward(await bridged(call_author()))
        return AuditedReward(reward.score, reward.components, reward.notes)
    except Exception as error:  # noqa: BLE001 (author code may raise anything, and a sandbox may be gone)
        problem = f"did not finish within {seconds:g} s (worker_timeout)" if limit.expired() else _describe(error)
        env.tools.warn_once(
            f"audit {problem}",
            f"the audit of a rollout {problem}; the rollout keeps its score and the run goes on, but this rollout is "
            "missing from the gap between trained and audited reward",
        )
        return AuditedReward(None, error=problem)
    finally:
        session.record_timing(Span.VERIFIER, METHOD, started_at)


def _describe(error: Exception) -> str:
    if isinstance(error, InfrastructureError):
        return f"failed: {error.failure}: {error.failure.message}"
    return f"raised {describe_error(error)}"


def _draw(what: str, key: object) -> str:
    return hashlib.sha256(f"audit/{what}/{key}".encode()).hexdigest()
