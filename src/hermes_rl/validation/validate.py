"""Validate an environment without a model: run scripted agents on it, then open it again to check that it repeats.

Any error of the environment's code becomes a finding. A ConfigError about the machine or the settings, such as a
missing sandbox or an unknown field, is raised.
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
from hermes_rl.console.config_options import ConfigSections
from hermes_rl.core.errors import SandboxError
from hermes_rl.core.trajectory import Reward, Span, validate_reward
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.prebuild import without_health_checks
from hermes_rl.environment.resolve_config import Settings, resolve_settings
from hermes_rl.environment.scripted_policy import Step, parse_step, run_script
from hermes_rl.environment.seats import HermesMultiAgentEnv
from hermes_rl.rewards.missing_program import MissingProgram
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rewards.watchdog import Watchdog, watch_loop
from hermes_rl.rollout.audits import PassingAudits, audit_function
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.validation.cheats import Script, builtin_cheats
from hermes_rl.validation.determinism_check import outline_in_subprocess
from hermes_rl.validation.group_reward_check import comparison_finding
from hermes_rl.validation.item_checks import (
    CheckedItem,
    HookError,
    has_user_turns,
    hook_errors,
    item_findings,
    repetition_findings,
    take_inventory,
)
from hermes_rl.validation.leaks import leaked_answer, sandbox_leaks
from hermes_rl.validation.report import AgentKind, ScriptedRollout, Severity, ValidationFinding, ValidationReport
from hermes_rl.validation.sandbox_search import search_sandboxes
from hermes_rl.validation.scores import score_findings
from hermes_rl.validation.seat_checks import run_seat_agents
from hermes_rl.validation.tool_checks import tool_findings

ITEMS = 5
CONCURRENT_ROLLOUTS = 4
# Number of items on which the null agent and the oracle run twice.
REPEATED_ITEMS = 2
SLOW_REWARD, SLOW_SETUP = 10.0, 60.0
LOOP_BLOCKED_SECONDS = 0.1
NULL_SCRIPT: Script = [""]

Progress = Callable[[int, int, str], object]
"""Called with the rollouts done, the total, and the name of the last agent."""


def validate_environment(
    environment: type[HermesAgentBaseEnv],
    *,
    items: int = ITEMS,
    search_seconds: int = 0,
    max_cheat_score: float | None = None,
    **config: Any,
) -> ValidationReport:
    """Validate an environment class; `config` overrides its config_init. For synchronous code and tests."""
    settings = resolve_settings(environment, ConfigSections(), {}, {})
    env_config = type(settings.env).model_validate(settings.env.model_dump() | config)
    resolved = Settings(env_config, settings.endpoints)
    return asyncio.run(
        run_validation(
            environment, resolved, items=items, search_seconds=search_seconds, max_cheat_score=max_cheat_score
        )
    )


def check_environment(
    environment: type[HermesAgentBaseEnv],
    *,
    items: int = ITEMS,
    max_cheat_score: float | None = None,
    **config: Any,
) -> ValidationReport:
    """The report if it has no errors, else an AssertionError with it. For an environment's tests."""
    report = validate_environment(environment, items=items, max_cheat_score=max_cheat_score, **config)
    if not report.ok:
        raise AssertionError(str(report))
    return report


async def run_validation(
    environment: type[HermesAgentBaseEnv],
    settings: Settings,
    *,
    items: int = ITEMS,
    search_seconds: int = 0,
    max_cheat_score: float | None = None,
    show: Progress | None = None,
) -> ValidationReport:
    """Run all agents on `items` items, three training items to two held-out ones, and all other checks.

    `search_seconds` is the time for the search of whole sandboxes for answers; 0 searches the usual folders only.
    `max_cheat_score` is the score up to which the author accepts what a cheat earns.
    """
    seen = _Observations(max_cheat_score=max_cheat_score)
    endpoints = without_health_checks(settings.endpoints)
    try:
        async with _opened(environment(settings.env, endpoints), seen) as env:
            seen.findings += _own_rollouts_finding(env)
            if not env.has_reward:
                return _report(environment, settings, seen)
            inventory = await take_inventory(env)
            seen.findings += await item_findings(env, inventory)
            chosen, show = inventory.chosen(items), show or (lambda *_: None)
            if isinstance(env, HermesMultiAgentEnv):
                trials, findings = await run_seat_agents(env, chosen, show)
                seen.items, seen.trials, seen.findings = chosen, trials, [*seen.findings, *findings]
            else:
                await _run_agents(env, chosen, seen, show)
            seen.findings += await tool_findings(env, chosen)
            if not env.seats:
                await _search(env, seen, search_seconds)
        # After the first is closed: a setup may need exclusive use of a port or a file.
        second = await outline_in_subprocess(environment, settings.env)
        if second is None:
            async with _opened(environment(settings.env, endpoints), _Observations()) as env:
                second = (await take_inventory(env)).outline()
        seen.findings += repetition_findings(inventory.outline(), second)
    except HookError as error:
        seen.findings.append(
            ValidationFinding(Severity.ERROR, "raised", str(error), "fix this first; the checks after it could not run")
        )
    return _report(environment, settings, seen)


def _own_rollouts_finding(env: HermesAgentBaseEnv) -> list[ValidationFinding]:
    methods = [name for name in ("collect_trajectories", "collect_trajectory") if env.overrides(name)]
    if not methods:
        return []
    ran = (
        "the scripted agents use our loop and compute_reward"
        if env.has_reward
        else "without compute_reward there is no reward to test with scripted agents"
    )
    return [
        ValidationFinding(
            Severity.WARNING,
            "own_rollouts",
            f"the environment has its own {' and '.join(methods)}, which validate does not run: {ran}",
            "check it with a few groups: `hermes-rl process FILE --env.total_steps 2`, then `hermes-rl view`",
        )
    ]


def _report(environment: type[HermesAgentBaseEnv], settings: Settings, seen: "_Observations") -> ValidationReport:
    pass_score = settings.env.pass_score
    found = seen.findings
    if seen.trials:
        found = [*score_findings(seen.trials, pass_score, seen.max_cheat_score), *found]
    order = list(Severity)
    return ValidationReport(
        environment=environment.display_name(),
        pass_score=pass_score,
        items={split: sum(item.split == split for item in seen.items) for split in ("train", "eval")},
        trials=tuple(seen.trials),
        findings=tuple(sorted(found, key=lambda finding: order.index(finding.severity))),
        seconds={**seen.seconds, **_timings(seen.trials)},
        search=seen.search,
    )


@dataclass(slots=True)
class _Observations:
    max_cheat_score: float | None = None
    items: list[CheckedItem] = field(default_factory=list)
    trials: list[ScriptedRollout] = field(default_factory=list)
    findings: list[ValidationFinding] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    search: str = ""


@dataclass(frozen=True, slots=True)
class _Role:
    """A scripted agent for an item."""

    item: CheckedItem
    agent: str
    kind: AgentKind
    script: Script
    score_twice: bool = False


@asynccontextmanager
async def _opened(env: HermesAgentBaseEnv, seen: _Observations) -> AsyncIterator[HermesAgentBaseEnv]:
    setup = env.setup

    async def timed() -> None:
        began = time.monotonic()
        with hook_errors("setup"):
            done: object = setup()
            if inspect.isawaitable(done):
                await done
        seen.seconds["setup"] = round(time.monotonic() - began, 3)

    env.setup = timed  # type: ignore[method-assign]
    async with AsyncExitStack() as opened:
        with hook_errors("opening the environment"):
            await opened.enter_async_context(env.opened())
        yield env
    if seen.seconds.get("setup", 0.0) > SLOW_SETUP:
        seen.findings.append(
            ValidationFinding(
                Severity.NOTE,
                "slow_setup",
                f"setup took {seen.seconds['setup']:.0f} s",
                "every command waits for setup; cache its result in a file",
            )
        )


async def _search(env: HermesAgentBaseEnv, seen: "_Observations", seconds: int) -> None:
    """After the agents, whose timings it would distort."""
    began = time.monotonic()
    tools = {tool.name for opened in env.tools.toolsets.values() for tool in opened.tools}
    isolated = env.tools.pool.isolates_files
    result = await search_sandboxes(env, seen.items, tools, seconds if isolated else 0)
    seen.findings += result.findings
    if result.coverage:
        seen.search = result.coverage
        seen.seconds["search"] = round(time.monotonic() - began, 3)


async def _run_agents(
    env: HermesAgentBaseEnv, items: Sequence[CheckedItem], seen: _Observations, show: Progress
) -> None:
    seen.items = list(items)
    # Findings report the same.
    env.tools.report = lambda _: None
    tools = {tool.name for opened in env.tools.toolsets.values() for tool in opened.tools}
    isolated = env.tools.pool.isolates_files
    if not isolated:
        seen.findings.append(
            ValidationFinding(
                Severity.NOTE,
                "not_isolated",
                f"the backend {env.tools.pool.backend.name} does not isolate files, so cheats with tools were skipped",
                "validate on bubblewrap or docker to run those too",
            )
        )
    roles: list[_Role] = []
    for index, item in enumerate(items):
        roles += _build_roles(env, item, tools if isolated else (), seen, repeat=index < REPEATED_ITEMS)
    slots = asyncio.Semaphore(CONCURRENT_ROLLOUTS)
    done, total = 0, len(roles) + len(items)
    show(done, total, "")

    async def trial(role: _Role) -> tuple[ScriptedRollout, AgentResult]:
        nonlocal done
        async with slots:
            finished = await _trial(env, role)
        done += 1
        show(done, total, role.agent)
        return finished

    async def leaks(item: CheckedItem) -> list[ValidationFinding]:
        nonlocal done
        async with slots:
            found = await sandbox_leaks(env, item, tools)
        done += 1
        show(done, total, "leak check")
        return found

    with watch_loop(asyncio.get_running_loop(), report=lambda _: None, limit=LOOP_BLOCKED_SECONDS) as watchdog:
        async with asyncio.TaskGroup() as work:
            trials = [work.create_task(trial(role)) for role in roles]
            leaked = [work.create_task(leaks(item)) for item in items]
    finished = [task.result() for task in trials]
    seen.trials += (scripted for scripted, _ in finished)
    by_code = {finding.code: finding for task in reversed(leaked) for finding in task.result()}
    seen.findings += [*by_code.values(), *_time_findings(seen.trials, watchdog)]
    for item in items:
        compared = [
            (scripted.kind, result)
            for scripted, result in finished
            if scripted.item_id == item.id and scripted.score is not None
        ]
        finding = await comparison_finding(env, item, compared)
        if finding is not None:
            seen.findings.append(finding)
            break


def _build_roles(
    env: HermesAgentBaseEnv, item: CheckedItem, tools: Any, seen: _Observations, *, repeat: bool
) -> list[_Role]:
    """All agents for an item."""
    times = 2 if repeat else 1
    oracle: Script | None = None
    own: dict[str, Script] = {}
    try:
        with hook_errors(f"oracle, on item {item.id},"):
            oracle = check_script(env.oracle(item.value))
        with hook_errors(f"cheats, on item {item.id},"):
            own = {str(name): check_script(script) or NULL_SCRIPT for name, script in env.cheats(item.value).items()}
    except HookError as error:
        seen.findings.append(ValidationFinding(Severity.ERROR, "raised", str(error), "fix it, so that its script runs"))
    # In a game or a conversation the first answer is a move, which the prompt may name.
    answers = not has_user_turns(env)
    if oracle is not None and answers and "answer_in_prompt" not in {finding.code for finding in seen.findings}:
        leak = leaked_answer(oracle, item)
        seen.findings += [leak] if leak else []
    roles = [_Role(item, "null", AgentKind.NULL, NULL_SCRIPT, number == 0) for number in range(times)]
    if oracle is not None:
        roles += [_Role(item, "oracle", AgentKind.ORACLE, oracle, number == 0) for number in range(times)]
    roles += [_Role(item, name, AgentKind.CHEAT, script) for name, script in builtin_cheats(item.prompt, tools).items()]
    # An author's cheat may have a built-in one's name.
    taken = {role.agent for role in roles}
    roles += [
        _Role(item, f"{name} (own)" if name in taken else name, AgentKind.OWN_CHEAT, script)
        for name, script in own.items()
    ]
    return roles


def check_script(script: Sequence[Step] | None) -> Script | None:
    """The script as a list; TypeError for an invalid step."""
    for step in script or ():
        if not callable(step):
            parse_step(step)
    return None if script is None else list(script)


async def _trial(env: HermesAgentBaseEnv, role: _Role) -> tuple[ScriptedRollout, AgentResult]:
    again: float | str | None = None
    missing: list[MissingProgram] = []

    async def score(env: Environment, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
        nonlocal again
        try:
            first: float | Reward = await call_reward(env, item, result, ctx)
        finally:
            missing[:] = ctx.missing_programs
        if role.score_twice:
            again = await _call_reward_again(env, item, result, ctx)
        return first

    item = role.item
    # A solution passes the audit too; otherwise training would show a gap that is not there.
    audited = role.kind is AgentKind.ORACLE and audit_function(env) is not None
    audits = PassingAudits(env.config.pass_score) if audited else None
    rollout, result = await run_script(env, item.value, role.script, split=item.split, scoring=score, audits=audits)
    again = again if rollout.scored else None
    return ScriptedRollout(role.agent, role.kind, item.id, len(role.script), rollout, again, missing), result


async def _call_reward_again(env: Environment, item: Any, result: AgentResult, ctx: ToolContext) -> float | str | None:
    """The score of a second call, or its error; None when the first closed the sandbox, as the seeds' rewards do."""
    try:
        return validate_reward(await call_reward(env, item, result, ctx)).score
    except SandboxError as error:
        return None if error.cause == "closed" else f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 (the author's code may raise anything)
        return f"{type(error).__name__}: {error}"


async def call_reward(env: Environment, item: Any, result: AgentResult, ctx: ToolContext) -> Any:
    """The value of compute_reward, whether it is a coroutine or not."""
    reward: object = env.compute_reward(item, result, ctx)
    return await reward if inspect.isawaitable(reward) else reward


def _time_findings(trials: Sequence[ScriptedRollout], watchdog: Watchdog) -> list[ValidationFinding]:
    found = [
        ValidationFinding(
            Severity.WARNING,
            "holds_the_loop",
            f"{function} ({held.longest.file.rpartition('/')[2]}:{held.longest.line}) held the event loop {held.count} "
            f"times, up to {held.longest.seconds:.2f} s, in {held.longest.callee or 'its own code'}",
            "all other rollouts wait meanwhile: use an async call with await, asyncio.to_thread, or @cpu_reward",
        )
        for (_, function), held in watchdog.holds.items()
    ]
    slowest = max((seconds for seconds, _ in _span_seconds(trials, Span.VERIFIER)), default=0.0)
    if slowest > SLOW_REWARD:
        agent = next(agent for seconds, agent in _span_seconds(trials, Span.VERIFIER) if seconds == slowest)
        found.append(
            ValidationFinding(
                Severity.NOTE,
                "slow_reward",
                f"compute_reward took up to {slowest:.1f} s (on the rollout of: {agent})",
                "nothing to fix if that is necessary; worker_timeout must allow for it",
            )
        )
    return found


def _timings(trials: Sequence[ScriptedRollout]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for name, span in (("sandbox_start", Span.SANDBOX), ("compute_reward", Span.VERIFIER)):
        durations = [duration for duration, _ in _span_seconds(trials, span)]
        if durations:
            seconds |= {f"{name}_mean": round(statistics.fmean(durations), 4), f"{name}_max": round(max(durations), 4)}
    return seconds


def _span_seconds(trials: Sequence[ScriptedRollout], span: Span) -> list[tuple[float, str]]:
    """The duration of a span with its agent. Rewards that were called twice took twice as long and are skipped."""
    return [
        (timing.seconds, trial.agent)
        for trial in trials
        if span is not Span.VERIFIER or trial.again is None
        for timing in trial.rollout.timings
        if timing.span is span
    ]
