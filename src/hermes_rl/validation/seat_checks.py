"""Scripted episodes of an environment with several agents: nobody does anything, and each seat plays its oracle.

In a game one seat's loss is another's win, so an episode without an answer is judged by its lowest score.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from hermes_rl.environment.scripted_policy import Step, parse_step, run_seat_scripts
from hermes_rl.environment.seats import HermesMultiAgentEnv
from hermes_rl.rollout.seats import SeatedEnvironment
from hermes_rl.validation.item_checks import CheckedItem, HookError, hook_errors
from hermes_rl.validation.report import AgentKind, ScriptedRollout, Severity, ValidationFinding

CONCURRENT_EPISODES = 4
# Number of items on which every episode is played twice.
REPEATED_ITEMS = 2


@dataclass(frozen=True, slots=True)
class _Role:
    """A scripted episode for an item. `seat` is the one that has to pass; None when nobody does anything."""

    item: CheckedItem
    seat: str | None
    scripts: Mapping[str, Sequence[Step]] = field(default_factory=dict)


async def run_seat_agents(
    env: HermesMultiAgentEnv, items: Sequence[CheckedItem], show: Callable[[int, int, str], object]
) -> tuple[list[ScriptedRollout], list[ValidationFinding]]:
    """Play the scripted episodes of the items."""
    findings = []
    if any(tool.sandboxed for opened in env.tools.toolsets.values() for tool in opened.tools):
        findings.append(
            ValidationFinding(
                Severity.NOTE,
                "several_agents",
                "the built-in cheats, the leak checks and the search of sandboxes play one agent, so they were not run",
                "test what a seat could exploit with scripted episodes of your own",
            )
        )
    roles = [role for number, item in enumerate(items) for role in _roles(env, item, number, findings)]
    slots, done = asyncio.Semaphore(CONCURRENT_EPISODES), 0
    show(done, len(roles), "")

    async def play(role: _Role) -> ScriptedRollout | None:
        nonlocal done
        async with slots:
            trial = await _trial(env, role)
        done += 1
        show(done, len(roles), "null" if role.seat is None else f"oracle of {role.seat}")
        return trial

    async with asyncio.TaskGroup() as work:
        tasks = [work.create_task(play(role)) for role in roles]
    idle = {role.seat: role.item.id for role, task in zip(roles, tasks, strict=True) if task.result() is None}
    findings += [
        ValidationFinding(
            Severity.ERROR,
            "no_turn",
            f"{seat} has no turn in the episode of seat_oracle(item, {seat!r}), on item {item_id}",
            "let next_seat give it one, or return None from seat_oracle for this seat",
        )
        for seat, item_id in idle.items()
    ]
    return [trial for task in tasks if (trial := task.result()) is not None], findings


def _roles(
    env: HermesMultiAgentEnv, item: CheckedItem, number: int, findings: list[ValidationFinding]
) -> Iterator[_Role]:
    for _ in range(2 if number < REPEATED_ITEMS else 1):
        yield _Role(item, None)
        for seat in env.seats:
            try:
                with hook_errors(f"seat_oracle, on item {item.id},"):
                    scripts = env.seat_oracle(item.value, seat)
                    for step in (step for script in (scripts or {}).values() for step in script):
                        if not callable(step):
                            parse_step(step)
            except HookError as error:
                findings.append(ValidationFinding(Severity.ERROR, "raised", str(error), "fix it, so that it can run"))
                return
            if scripts is not None:
                yield _Role(item, seat, scripts)


async def _trial(env: HermesMultiAgentEnv, role: _Role) -> ScriptedRollout | None:
    """The rollout that is judged; None when its seat had no turn."""
    item = role.item
    made = await run_seat_scripts(cast("SeatedEnvironment", env), item.value, role.scripts, split=item.split)
    rollouts = [rollout for rollout, _ in made.values()]
    if role.seat is None:
        lowest = min(rollouts, key=lambda rollout: rollout.score or 0.0)
        return ScriptedRollout("null", AgentKind.NULL, item.id, 1, lowest)
    if role.seat not in made and rollouts[0].failure is None:
        return None
    rollout = made[role.seat].rollout if role.seat in made else rollouts[0]
    steps = len(role.scripts.get(role.seat, ()))
    return ScriptedRollout(f"oracle of {role.seat}", AgentKind.ORACLE, f"{item.id} ({role.seat})", steps, rollout)
