"""Run the scripted agents of one task and collect the evidence."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hermes_rl.agent.result import AgentResult
from hermes_rl.core.author_code import describe_error
from hermes_rl.core.errors import SandboxError
from hermes_rl.core.trajectory import Reward, validate_reward
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.scripted_policy import run_script
from hermes_rl.rewards.tool_context import DEFAULT_TIMEOUT, ToolContext
from hermes_rl.rewards.verification import Verdict
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.validation.audit.cheats import TOGETHER, only_talks, task_cheats
from hermes_rl.validation.audit.evidence import AgentScores, HarborFiles
from hermes_rl.validation.cheats import CLAIM, Script
from hermes_rl.validation.item_checks import CheckedItem, HookError, hook_errors
from hermes_rl.validation.leaks import leaked_answer, sandbox_leaks
from hermes_rl.validation.report import AgentKind, ValidationFinding
from hermes_rl.validation.validate import NULL_SCRIPT, call_reward, check_script

VERIFICATIONS = 3
REPEATED = {AgentKind.NULL, AgentKind.ORACLE}
# 26 hours apart, so that the date always differs between them.
ELSEWHERE = (
    "export TZ=EAST-14 LC_ALL=C LANG=C LANGUAGE=C PYTHONHASHSEED=1",
    "export TZ=WEST+12 LC_ALL=C.UTF-8 LANG=C.UTF-8 LANGUAGE=en PYTHONHASHSEED=2",
)


@dataclass(slots=True)
class Observed:
    """What the agents of a task showed."""

    agents: list[AgentScores] = field(default_factory=list)
    leaks: list[ValidationFinding] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Role:
    agent: str
    kind: AgentKind
    script: Script


class _Elsewhere(ToolContext):
    """The context of a reward whose commands run with other environment variables."""

    def __init__(self, ctx: ToolContext, exports: str) -> None:
        self.__dict__.update(copy.copy(vars(ctx)))
        self._exports = exports

    def terminal(self, command: str, timeout: int = DEFAULT_TIMEOUT) -> dict[str, Any]:
        return super().terminal(f"{self._exports}\n{command}", timeout)

    def verify(
        self,
        command: str,
        *,
        files: Mapping[str, bytes | str | Path],
        artifacts: Iterable[str],
        image: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Verdict:
        command = f"{self._exports}\n{command}"
        return super().verify(command, files=files, artifacts=artifacts, image=image, timeout=timeout)


async def observe_task(
    env: HermesAgentBaseEnv, item: CheckedItem, tools: Sequence[str], files: HarborFiles | None, *, isolated: bool
) -> Observed:
    """Run all agents on an item, one after the other. Without isolation, no cheat that uses tools."""
    seen = Observed()
    roles = list(_roles(env, item, tools if isolated else (), files, seen))
    together = [role for role in roles if files is not None and role.agent in TOGETHER]
    for role in roles:
        if role not in together:
            seen.agents.append(await _play_repeatedly(env, item, role, seen))
    if together:
        # One rollout for all; each alone only if that gained anything.
        steps = [step for role in together for step in role.script if not isinstance(step, str)]
        names = ", ".join(role.agent for role in together)
        scores = await _play(env, item, Role(f"together: {names}", AgentKind.CHEAT, [*steps, CLAIM]), seen)
        gained = scores.best is None or scores.best > max(seen.agents[0].best or 0.0, 0.0)
        seen.agents += [await _play(env, item, role, seen) for role in together] if gained else [scores]
    seen.leaks += await sandbox_leaks(env, item, tools)
    return seen


def _roles(
    env: HermesAgentBaseEnv, item: CheckedItem, tools: Sequence[str], files: HarborFiles | None, seen: Observed
) -> Iterator[Role]:
    yield Role("null", AgentKind.NULL, NULL_SCRIPT)
    with _noted(seen), hook_errors("oracle"):
        oracle = check_script(env.oracle(item.value))
        if oracle is not None:
            leak = leaked_answer(oracle, item)
            seen.leaks += [leak] if leak else []
            yield Role("oracle", AgentKind.ORACLE, oracle)
    cheats = task_cheats(item.prompt, tools, files)
    yield from (Role(name, AgentKind.CHEAT, script) for name, script in cheats.items())
    with _noted(seen), hook_errors("cheats"):
        for name, script in env.cheats(item.value).items():
            if files is not None and only_talks(script):
                continue
            own = f"{name} (own)" if name in cheats else str(name)
            yield Role(own, AgentKind.OWN_CHEAT, check_script(script) or NULL_SCRIPT)


async def _play_repeatedly(env: HermesAgentBaseEnv, item: CheckedItem, role: Role, seen: Observed) -> AgentScores:
    """Several rollouts of the null agent and the solution where one cannot be verified several times."""
    first = await _play(env, item, role, seen)
    if role.kind not in REPEATED or len(first.scores) != 1:
        return first
    others = [await _play(env, item, role, seen) for _ in range(VERIFICATIONS - 1)]
    return replace(first, scores=(*first.scores, *(other.scores[0] for other in others if other.scores)))


async def _play(env: HermesAgentBaseEnv, item: CheckedItem, role: Role, seen: Observed) -> AgentScores:
    again: list[float] = []
    elsewhere: list[float] = []

    async def score(env: Environment, value: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
        # A failed rollout is tried again.
        again.clear()
        elsewhere.clear()
        first: float | Reward = await call_reward(env, value, result, ctx)
        repeated = [ctx] * (VERIFICATIONS - 1) if role.kind in REPEATED else []
        moved = [_Elsewhere(ctx, exports) for exports in ELSEWHERE] if role.kind is AgentKind.ORACLE else []
        try:
            again.extend([await _score(env, value, result, place) for place in repeated])
            elsewhere.extend([await _score(env, value, result, place) for place in moved])
        except SandboxError:
            # A reward may close its sandbox, as those of the seeds do: then it cannot be called again.
            pass
        except Exception as error:  # noqa: BLE001 (the author's code may raise anything)
            seen.broken.append(f"compute_reward, called again on the work of {role.agent}: {describe_error(error)}")
        return first

    rollout, _ = await run_script(env, item.value, role.script, split=item.split, scoring=score)
    if rollout.score is None:
        return AgentScores(role.agent, role.kind, failure=rollout.failure)
    return AgentScores(role.agent, role.kind, (rollout.score, *again), tuple(elsewhere))


async def _score(env: Environment, value: Any, result: AgentResult, ctx: ToolContext) -> float:
    return validate_reward(await call_reward(env, value, result, ctx)).score


@contextmanager
def _noted(seen: Observed) -> Iterator[None]:
    try:
        yield
    except HookError as error:
        seen.broken.append(str(error))
