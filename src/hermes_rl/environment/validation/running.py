"""Validation of an environment: opened with no model, played by scripted agents, opened again to see that it repeats.

A fault of the environment is a finding, whatever it raises. A ConfigError passes through when the machine or the
settings are at fault: no sandbox, an unknown field.
"""

import asyncio
import inspect
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.agent.result import AgentResult
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.preparation import without_waiting
from hermes_rl.environment.settings import Settings, resolve
from hermes_rl.environment.steps import Step, run_script, spoken
from hermes_rl.environment.validation.cheats import Script, our_cheats
from hermes_rl.environment.validation.comparison import comparison_finding
from hermes_rl.environment.validation.elsewhere import outline_elsewhere
from hermes_rl.environment.validation.inventory import (
    HookError,
    Item,
    asking,
    item_findings,
    place_of,
    repetition_findings,
    take_inventory,
)
from hermes_rl.environment.validation.leaks import leaked_answer, sandbox_leaks
from hermes_rl.environment.validation.report import Finding, Kind, Report, Severity, Trial
from hermes_rl.environment.validation.scores import score_findings
from hermes_rl.errors import SandboxError
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rewards.watchdog import Hold, Watchdog, watching
from hermes_rl.trajectory import Reward, Span, validate_reward

ITEMS = 5
AT_ONCE = 4
# Of the items, how many the null agent and the oracle play twice.
TWICE = 2
SLOW_REWARD, SLOW_SETUP = 10.0, 60.0
LOOP_HELD = 0.1
NULL: Script = [""]

Show = Callable[[int, int, str], object]
"""How far it is: rollouts done, all of them, and which was the last."""


def validate_environment(environment: type[HermesAgentBaseEnv], *, items: int = ITEMS, **config: Any) -> Report:
    """Validate an environment class. `config` goes over what its config_init gives. For plain code and tests."""
    settings = resolve(environment, None, {}, {})
    over = type(settings.env).model_validate(settings.env.model_dump() | config)
    return asyncio.run(run_validation(environment, Settings(over, settings.endpoints), items=items))


def check_environment(environment: type[HermesAgentBaseEnv], *, items: int = ITEMS, **config: Any) -> Report:
    """The report, when it has no errors; AssertionError with what was found otherwise. For an environment's tests."""
    report = validate_environment(environment, items=items, **config)
    if not report.ok:
        raise AssertionError(str(report))
    return report


async def run_validation(
    environment: type[HermesAgentBaseEnv], settings: Settings, *, items: int = ITEMS, show: Show | None = None
) -> Report:
    """Play all agents on so many items, three of training to two held out, and look at everything."""
    seen = _Seen()
    endpoints = without_waiting(settings.endpoints)
    try:
        async with _opened(environment(settings.env, endpoints), seen) as env:
            inventory = await take_inventory(env)
            seen.findings += item_findings(env, inventory)
            await _play(env, inventory.chosen(items), seen, show or _silent)
        # After the first is closed: a setup may need a port or a file for itself alone.
        second = await outline_elsewhere(environment, settings.env)
        if second is None:
            async with _opened(environment(settings.env, endpoints), _Seen()) as env:
                second = (await take_inventory(env)).outline()
        seen.findings += repetition_findings(inventory.outline(), second)
    except HookError as error:
        seen.findings.append(
            Finding(Severity.ERROR, "raised", str(error), "mend this first; what comes after it could not be looked at")
        )
    pass_score = settings.env.pass_score
    found = [*score_findings(seen.trials, pass_score), *seen.findings] if seen.trials else seen.findings
    order = list(Severity)
    return Report(
        environment=environment.display_name(),
        pass_score=pass_score,
        items={split: sum(item.split == split for item in seen.items) for split in ("train", "eval")},
        trials=tuple(seen.trials),
        findings=tuple(sorted(found, key=lambda finding: order.index(finding.severity))),
        seconds={**seen.seconds, **_timings(seen.trials)},
    )


@dataclass(slots=True)
class _Seen:
    items: list[Item] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Role:
    """An agent for an item."""

    item: Item
    agent: str
    kind: Kind
    script: Script
    ask_twice: bool = False


@asynccontextmanager
async def _opened(env: HermesAgentBaseEnv, seen: _Seen) -> AsyncIterator[HermesAgentBaseEnv]:
    setup = env.setup

    async def timed() -> None:
        began = time.monotonic()
        with asking("setup"):
            done: object = setup()
            if inspect.isawaitable(done):
                await done
        seen.seconds["setup"] = round(time.monotonic() - began, 3)

    env.setup = timed  # type: ignore[method-assign]
    async with AsyncExitStack() as opened:
        with asking("opening the environment"):
            await opened.enter_async_context(env.opened())
        yield env
    if seen.seconds.get("setup", 0.0) > SLOW_SETUP:
        seen.findings.append(
            Finding(
                Severity.NOTE,
                "slow_setup",
                f"setup took {seen.seconds['setup']:.0f} s",
                "every command waits for it; keep what it makes in a file",
            )
        )


async def _play(env: HermesAgentBaseEnv, items: Sequence[Item], seen: _Seen, show: Show) -> None:
    seen.items = list(items)
    tools = {tool.name for opened in env.tools.toolsets.values() for tool in opened.tools}
    isolated = env.tools.pool.capabilities.isolates_files
    if not isolated:
        seen.findings.append(
            Finding(
                Severity.NOTE,
                "not_isolated",
                f"the backend {env.tools.pool.backend.name} does not isolate files, so no cheat used a tool",
                "validate on bubblewrap or docker to try those too",
            )
        )
    roles: list[_Role] = []
    for place, item in enumerate(items):
        roles += _roles(env, item, tools if isolated else (), seen, twice=place < TWICE)
    turns = asyncio.Semaphore(AT_ONCE)
    done, total = 0, len(roles) + len(items)
    show(done, total, "")

    async def trial(role: _Role) -> tuple[Trial, AgentResult]:
        nonlocal done
        async with turns:
            played = await _trial(env, role)
        done += 1
        show(done, total, role.agent)
        return played

    async def leaks(item: Item) -> list[Finding]:
        nonlocal done
        async with turns:
            found = await sandbox_leaks(env, item, tools)
        done += 1
        show(done, total, "looks for leaks")
        return found

    with watching(asyncio.get_running_loop(), report=_kept, limit=LOOP_HELD) as watchdog:
        async with asyncio.TaskGroup() as work:
            trials = [work.create_task(trial(role)) for role in roles]
            leaked = [work.create_task(leaks(item)) for item in items]
    played = [task.result() for task in trials]
    seen.trials += (one for one, _ in played)
    by_code = {finding.code: finding for task in reversed(leaked) for finding in task.result()}
    seen.findings += [*by_code.values(), *_time_findings(seen.trials, watchdog)]
    for item in items:
        compared = [(one.kind, result) for one, result in played if one.item_id == item.id and one.score is not None]
        finding = await comparison_finding(env, item, compared)
        if finding is not None:
            seen.findings.append(finding)
            break


def _roles(env: HermesAgentBaseEnv, item: Item, tools: Any, seen: _Seen, *, twice: bool) -> list[_Role]:
    """Everybody who plays an item."""
    times = 2 if twice else 1
    oracle: Script | None = None
    own: dict[str, Script] = {}
    try:
        with asking(f"oracle, on item {item.id},"):
            oracle = _checked(env.oracle(item.value))
        with asking(f"cheats, on item {item.id},"):
            own = {str(name): _checked(script) or NULL for name, script in env.cheats(item.value).items()}
    except HookError as error:
        seen.findings.append(Finding(Severity.ERROR, "raised", str(error), "mend it, so that it can be played"))
    if oracle is not None and "answer_in_prompt" not in {finding.code for finding in seen.findings}:
        leak = leaked_answer(oracle, item)
        seen.findings += [leak] if leak else []
    roles = [_Role(item, "null", Kind.NULL, NULL, place == 0) for place in range(times)]
    if oracle is not None:
        roles += [_Role(item, "oracle", Kind.ORACLE, oracle, place == 0) for place in range(times)]
    roles += [_Role(item, name, Kind.CHEAT, script) for name, script in our_cheats(item.prompt, tools).items()]
    # One of the author's may have the name of one of ours.
    taken = {role.agent for role in roles}
    roles += [
        _Role(item, f"{name} (own)" if name in taken else name, Kind.OWN_CHEAT, script) for name, script in own.items()
    ]
    return roles


def _checked(script: Sequence[Step] | None) -> Script | None:
    """The script as a list; TypeError when one of its steps is none."""
    for step in script or ():
        spoken(step)
    return None if script is None else list(script)


async def _trial(env: HermesAgentBaseEnv, role: _Role) -> tuple[Trial, AgentResult]:
    again: float | str | None = None
    raised_at = ""

    async def score(env: Environment, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
        nonlocal again, raised_at
        try:
            first: float | Reward = await _asked(env, item, result, ctx)
        except Exception as error:
            raised_at = place_of(error)
            raise
        if role.ask_twice:
            again = await _asked_again(env, item, result, ctx)
        return first

    item = role.item
    rollout, result = await run_script(env, item.value, role.script, split=item.split, scoring=score)
    again = again if rollout.scored else None
    return Trial(role.agent, role.kind, item.id, len(role.script), rollout, again, raised_at), result


async def _asked_again(env: Environment, item: Any, result: AgentResult, ctx: ToolContext) -> float | str | None:
    """The score of a second call, or what it raised; None when the first closed the sandbox, as the seeds' do."""
    try:
        return validate_reward(await _asked(env, item, result, ctx)).score
    except SandboxError as error:
        return None if error.cause == "closed" else f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 (the author's code may raise anything)
        return f"{type(error).__name__}: {error}"


async def _asked(env: Environment, item: Any, result: AgentResult, ctx: ToolContext) -> Any:
    answer: object = env.compute_reward(item, result, ctx)
    return await answer if inspect.isawaitable(answer) else answer


def _silent(_done: int, _total: int, _last: str) -> None:
    pass


def _kept(_hold: Hold) -> None:
    """The watchdog remembers it; all are told at the end."""


def _time_findings(trials: Sequence[Trial], watchdog: Watchdog) -> list[Finding]:
    found = [
        Finding(
            Severity.WARNING,
            "holds_the_loop",
            f"{function} ({held.longest.file.rpartition('/')[2]}:{held.longest.line}) held the event loop {held.count} "
            f"times, up to {held.longest.seconds:.2f} s, in {held.longest.callee or 'its own code'}",
            "every other rollout waits meanwhile: use an async form with await, asyncio.to_thread, or @cpu_reward",
        )
        for (_, function), held in watchdog.places.items()
    ]
    slowest = max((seconds for seconds, _ in _spans(trials, Span.VERIFIER)), default=0.0)
    if slowest > SLOW_REWARD:
        agent = next(agent for seconds, agent in _spans(trials, Span.VERIFIER) if seconds == slowest)
        found.append(
            Finding(
                Severity.NOTE,
                "slow_reward",
                f"compute_reward took up to {slowest:.1f} s (on the rollout of: {agent})",
                "nothing to mend if it must; worker_timeout has to leave room for it",
            )
        )
    return found


def _timings(trials: Sequence[Trial]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for name, span in (("sandbox_start", Span.SANDBOX), ("compute_reward", Span.VERIFIER)):
        took = [one for one, _ in _spans(trials, span)]
        if took:
            seconds |= {f"{name}_mean": round(statistics.fmean(took), 4), f"{name}_max": round(max(took), 4)}
    return seconds


def _spans(trials: Sequence[Trial], span: Span) -> list[tuple[float, str]]:
    """What took how long, for whom. Rewards that were asked twice took twice as long."""
    return [
        (timing.seconds, trial.agent)
        for trial in trials
        if span is not Span.VERIFIER or trial.again is None
        for timing in trial.rollout.timings
        if timing.span is span
    ]
