"""One rollout from item to score: prompt, agent, end of the policy's processes, reward, sandbox closed.

`run_rollout` always returns a rollout, with a score or a Failure. A Failure is something that the policy cannot have
caused (`core/failure_causes.py`); for all others it is charged, and has a score. Only cancellation propagates, and the
sandbox is closed then too.
"""

import asyncio
import inspect
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from hermes_rl import tracing
from hermes_rl.agent.limits import AgentLimits
from hermes_rl.agent.loop import ChatServer, HermesAgentLoop, NextUserMessage
from hermes_rl.agent.result import AgentResult
from hermes_rl.core.author_code import describe_error
from hermes_rl.core.errors import (
    ConfigError,
    DeadlineError,
    EnvironmentCodeError,
    Failure,
    FailureSource,
    InfrastructureError,
    JudgeError,
    VerifierError,
    failure_of,
)
from hermes_rl.core.failure_causes import Evidence, evidence_for
from hermes_rl.core.trajectory import (
    TOOL_SCHEMAS,
    AuditedReward,
    Reward,
    Rollout,
    Span,
    StopReason,
    Timing,
    Usage,
    validate_reward,
)
from hermes_rl.gateway.rollout import RunSampling
from hermes_rl.inference.managed_server import ManagedServer
from hermes_rl.inference.tokens.recorder import Opening
from hermes_rl.inference.tokens.token_check import Checked
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rollout.audits import GroupAudits, audit_rollout
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.external.artifacts import keep_artifacts
from hermes_rl.rollout.external.program import Program, with_agent
from hermes_rl.rollout.external.run import AgentRun, ExternalAgent, RunLimits
from hermes_rl.rollout.external.service import Service, ServiceAgent
from hermes_rl.rollout.filters import Withheld
from hermes_rl.rollout.own_files import item_files
from hermes_rl.rollout.token_requirements import format_settings
from hermes_rl.sandbox.spec import SandboxSpec, resolve_spec
from hermes_rl.tools.session import ToolSession, call_with_session, session_in_use, takes_session

# Seconds beyond the maximum command timeout before a tool call counts as hanging.
TOOL_GRACE = 300.0
# Fraction of `worker_timeout` for the policy; the rest is for queues, the sandbox and scoring.
POLICY_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Start:
    """Begins a rollout after recorded turns instead of at its prompt.

    `replay` brings the session to where these turns left it; `seed` is that of the recorded rollout. With an `opening`
    the model's first prompt has its ids.
    """

    seed: int
    past: AgentResult
    replay: Callable[[ToolSession], Awaitable[None]]
    opening: Opening | None = None


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """Everything fixed before a rollout starts. An immutable value, so groups cannot affect each other."""

    item: Any
    item_id: str
    index: int
    seed: int
    tool_schemas: Sequence[Mapping[str, Any]]
    valid_tool_names: Collection[str]
    temperature: float
    split: str
    start: Start | None = None
    audits: GroupAudits | None = None
    """Which rollouts of the group the withheld verifier sees; None: none."""


class FinishedRollout(NamedTuple):
    """The rollout to record, and the result its reward was computed from."""

    rollout: Rollout
    result: AgentResult


async def run_rollout(env: Environment, plan: RolloutPlan) -> FinishedRollout:
    with tracing.span("rollout") as span:
        finished = await _run_rollout(env, plan)
        if span.on:
            annotate_span(span, env, finished.rollout)
        return finished


def annotate_span(span: tracing.TracedSpan, env: Environment, rollout: Rollout) -> None:
    """Add what identifies the rollout in the records to its span."""
    span.error = None if rollout.failure is None else str(rollout.failure)
    span.set_attributes(
        agent=env.display_name(),
        conversation=rollout.metadata["task_id"],
        item=rollout.item_id,
        rollout=rollout.index,
        seed=rollout.seed,
        score=rollout.score,
        stop_reason=rollout.stop_reason,
        turns=rollout.turns_used,
        tool_calls=len(rollout.tool_uses),
        input_tokens=rollout.usage.prompt_tokens,
        output_tokens=rollout.usage.completion_tokens,
    )


async def _run_rollout(env: Environment, plan: RolloutPlan) -> FinishedRollout:
    task_id = str(uuid.uuid4())
    session = env.tools.session(task_id)
    result = AgentResult(messages=[])
    reward: Reward | None = None
    failure: Failure | None = None
    fault: Exception | None = None
    tokens = Checked()
    audit: AuditedReward | None = None
    deadline = asyncio.timeout(env.config.worker_timeout)
    try:
        try:
            async with deadline:
                start = plan.start
                await begin_session(env, session, plan.item, plan.seed if start is None else start.seed)
                if start is not None:
                    await start.replay(session)
                async with policy_server(env) as server:
                    agent = _make_agent(env, plan, session, server)
                    result = agent.result
                    env.in_flight.begin(plan, result)
                    if start is not None and start.opening is not None and isinstance(server, ManagedServer):
                        server.begin_with(start.opening)
                    try:
                        await agent.run(start.past.messages if start else initial_messages(env, plan.item, session))
                    finally:
                        if isinstance(server, ManagedServer):
                            tokens = server.checked()
                await session.end_policy()
                await _keep_artifacts(env, session)
                reward = result.reward = await _judged_reward(env, plan.item, result, task_id, session)
        except Exception as error:  # noqa: BLE001 (every error becomes a Failure here)
            if isinstance(error, TimeoutError) and deadline.expired():
                error = DeadlineError(
                    "worker_timeout",
                    f"the rollout did not finish within {env.config.worker_timeout:g} s (worker_timeout)",
                )
            if result.turns_used and await _is_charged(env, plan, result, session, error):
                reward = result.reward = Reward(env.config.failing_score)
                late = StopReason.DEADLINE if deadline.expired() else StopReason.CRASHED
                result.stop_reason = result.stop_reason or late
            else:
                failure = failure_of(error)
                fault = error
        else:
            # Outside the deadline: however long an audit takes, it is no fault of the policy's.
            if plan.audits is not None and plan.audits.wants(plan.seed, reward.score):
                audit = await audit_rollout(env, plan.item, result, task_id, session)
    finally:
        env.in_flight.end(plan)
        await asyncio.shield(env.tools.close_session(task_id))
    env.tools.faults.add(fault)
    rollout = record_of(env, plan, session, result, reward, failure, tokens)
    return FinishedRollout(rollout if audit is None else replace(rollout, audit=audit), result)


def record_of(
    env: Environment,
    plan: RolloutPlan,
    session: ToolSession,
    result: AgentResult,
    reward: Reward | None,
    failure: Failure | None,
    tokens: Checked,
) -> Rollout:
    """What is recorded of a finished rollout."""
    if result.stop_reason is None:
        tokens = Checked()
    notes = dict(reward.notes) if reward else {}
    if session.state_problem is not None:
        notes["state"] = f"not recorded: {session.state_problem}"
        env.tools.warn_once("state", f"the state is not in the records: {session.state_problem}")
    return Rollout(
        item_id=plan.item_id,
        index=plan.index,
        seed=plan.seed,
        messages=result.messages,
        score=reward.score if reward else None,
        components=reward.components if reward else {},
        turn_scores=tuple(reward.turns) if reward else (),
        stop_reason=result.stop_reason,
        failure=failure,
        turns_used=result.turns_used,
        tool_uses=tuple(result.tool_uses),
        usage=result.usage - (plan.start.past.usage if plan.start and result.turns_used else Usage()),
        timings=_sorted_timings((*result.timings, *session.timings)),
        seconds=round(time.monotonic() - session.started_at, 6),
        sequences=tokens.sequences,
        withheld=str(Withheld.NO_TOKENS) if reward and tokens.breaches and not tokens.sequences else None,
        states=session.states(),
        notes=notes,
        metadata={
            "task_id": session.task_id,
            "tool_errors": len(result.tool_errors),
            "prompt_length": result.prompt_length,
            **session.metadata,
            **({"breaches": [breach._asdict() for breach in tokens.breaches]} if tokens.breaches else {}),
            **({"program": asdict(result.program)} if result.program else {}),
            **({TOOL_SCHEMAS: result.tool_schemas} if result.tool_schemas else {}),
            **({"end_reason": session.end_reason} if session.end_reason is not None else {}),
            **({"step_rewards": [step._asdict() for step in session.steps]} if session.steps else {}),
            **({"charged": {str(one): one.message for one in session.charged}} if session.charged else {}),
        },
    )


async def _keep_artifacts(env: Environment, session: ToolSession) -> None:
    names, folder = env.config.agent_artifacts, env.artifacts_folder
    if names and folder is not None and env.gateway is not None:
        problem = await keep_artifacts(session, names, folder)
        if problem is not None:
            env.tools.warn_once("artifacts", f"files of an agent were not kept: {problem}")


async def _is_charged(
    env: Environment, plan: RolloutPlan, result: AgentResult, session: ToolSession, error: Exception
) -> bool:
    """Whether the policy can have caused what ended its rollout: then it gets the failing score."""
    failure = failure_of(error)
    evidence = evidence_for(failure)
    if evidence is Evidence.CONTROL or (evidence is Evidence.ALWAYS and session.policy_ended):
        charged = await _works_untouched(env, plan, failure.whose)
    elif evidence is Evidence.CLOCK:
        charged = policy_seconds(result, session) > env.config.worker_timeout * POLICY_SHARE
    else:
        return await session.charge(error)
    if charged:
        session.charged.append(failure)
    return charged


def policy_seconds(result: AgentResult, session: ToolSession) -> float:
    """The time of the policy's tools and tokens, and of a reward that waited for what it left."""
    tools = sum(timing.seconds for timing in session.timings if timing.span is Span.TOOL)
    return tools + (result.usage.completion_tokens or 0) * AgentLimits().seconds_per_token + session.reward_seconds


async def _works_untouched(env: Environment, plan: RolloutPlan, whose: FailureSource) -> bool:
    """Whether the reward, or the simulated user, works with a sandbox that no policy had and an empty answer."""
    task_id = f"control-{uuid.uuid4()}"
    session = env.tools.session(task_id)
    try:
        async with asyncio.timeout(env.config.worker_timeout):
            await begin_session(env, session, plan.item, plan.seed)
            prompt = initial_messages(env, plan.item, session)
            nothing = AgentResult(
                messages=[*prompt, {"role": "assistant", "content": ""}],
                turns_used=1,
                finished_naturally=True,
                reasoning_per_turn=[None],
                stop_reason=StopReason.NATURAL,
                prompt_length=len(prompt),
            )
            if whose is FailureSource.ENVIRONMENT:
                await next_user_message(env, session, nothing.messages)
            else:
                await compute_rollout_reward(env, plan.item, nothing, task_id, session)
    except Exception:  # noqa: BLE001 (what raises here would raise on anything)
        return False
    finally:
        await asyncio.shield(env.tools.close_session(task_id))
    return True


@asynccontextmanager
async def policy_server(env: Environment) -> AsyncIterator[ChatServer]:
    """The server the agent talks to: one that records tokens if the endpoints return them, else a plain session."""
    if not env.server.returns_tokens:
        yield env.server.session()
    else:
        async with env.server.managed_server(env.tokenizer, settings=format_settings(env.config)) as managed:
            yield managed


def _sorted_timings(timings: Iterable[Timing]) -> tuple[Timing, ...]:
    """Sorted by start, rounded to the microsecond: more digits only take space in every record."""
    return tuple(
        Timing(timing.span, timing.name, round(timing.start, 6), round(timing.seconds, 6))
        for timing in sorted(timings, key=lambda timing: timing.start)
    )


def _make_agent(env: Environment, plan: RolloutPlan, session: ToolSession, server: ChatServer) -> AgentRun:
    """Our agent loop, or the external program that replaces it."""
    if env.gateway is None:
        return agent_loop(
            env,
            plan,
            session,
            server,
            limits=agent_limits(env.config, env.server.context_tokens),
            next_user_message=lambda messages: next_user_message(env, session, messages),
        )
    config = env.config
    limits = agent_limits(config, env.server.context_tokens)
    run_limits = RunLimits(
        RunSampling(plan.temperature, config.max_token_length, config.extra_body, plan.seed, plan.split),
        calls=_turn_limit(env, plan.item),
        deadline=limits.deadline or config.worker_timeout,
        worker_timeout=config.worker_timeout,
        seconds_per_token=limits.seconds_per_token,
        model=env.server.configs[0].model_name,
        context_tokens=limits.context_tokens,
    )
    options: dict[str, Any] = {"gateway": env.gateway, "policy": server, "session": session}
    if config.agent_url:
        return ServiceAgent(Service.from_config(config), run_limits, **options)
    return ExternalAgent(Program.from_config(config), run_limits, **options)


def agent_loop(
    env: Environment,
    plan: RolloutPlan,
    session: ToolSession,
    server: ChatServer,
    *,
    limits: AgentLimits,
    next_user_message: NextUserMessage,
) -> HermesAgentLoop:
    config = env.config
    return HermesAgentLoop(
        server=server,
        tool_schemas=plan.tool_schemas,
        valid_tool_names=plan.valid_tool_names,
        max_turns=_turn_limit(env, plan.item),
        task_id=session.task_id,
        temperature=plan.temperature,
        max_tokens=config.max_token_length,
        extra_body=config.extra_body,
        session=session,
        tool_call_parser=config.tool_call_parser,
        seed=plan.seed,
        split=plan.split,
        limits=limits,
        next_user_message=next_user_message,
        compaction=env.compaction(),
        raise_failures=True,
        past=None if plan.start is None else plan.start.past,
    )


def agent_limits(config: HermesAgentEnvConfig, endpoint_context: int | None) -> AgentLimits:
    return AgentLimits(
        max_tool_calls=config.max_tool_calls,
        max_repeated_calls=config.max_repeated_calls,
        deadline=config.rollout_deadline or config.worker_timeout * POLICY_SHARE,
        context_tokens=config.max_context_tokens or endpoint_context,
        tool_deadline=config.max_terminal_timeout + TOOL_GRACE,
        results=config.build_budget_config(),
    )


def _turn_limit(env: Environment, item: Any) -> int:
    try:
        return env.turn_limit(item)
    except Exception as error:
        raise EnvironmentCodeError("turn_limit", f"turn_limit raised {describe_error(error)}") from error


async def next_user_message(env: Environment, session: ToolSession, messages: list[dict[str, Any]]) -> str | None:
    try:
        with env.running(), session_in_use(session):
            answer: str | None = await bridged(
                call_with_session(env, "next_user_message", session.item, messages, session=session)
            )
            return answer
    except InfrastructureError:
        raise
    except Exception as error:
        raise EnvironmentCodeError("user", f"next_user_message raised {describe_error(error)}") from error


def spec_for(env: Environment, item: Any) -> SandboxSpec:
    """The item's sandbox spec; EnvironmentCodeError when sandbox_spec fails or the backend does not support it."""
    pool = env.tools.pool
    try:
        spec = with_agent(env.sandbox_spec(item), env.config)
        spec = replace(spec, hidden=(*spec.hidden, *item_files(item)))
        if pool.is_open:
            resolve_spec(spec, pool.backend.name, pool.capabilities)
    except ConfigError as error:
        raise EnvironmentCodeError("sandbox_spec", str(error)) from error
    except Exception as error:
        raise EnvironmentCodeError("sandbox_spec", f"sandbox_spec raised {describe_error(error)}") from error
    return spec


async def prompt_of(env: Environment, item: Any) -> list[dict[str, Any]]:
    """The messages that a rollout of the item would start with, for those who only read them."""
    if not any(takes_session(env, name) for name in ("initial_messages", "format_prompt")):
        return list(env.initial_messages(item))
    task_id = f"prompt-{uuid.uuid4()}"
    session = env.tools.session(task_id)
    try:
        await begin_session(env, session, item, env.config.seed)
        return initial_messages(env, item, session)
    finally:
        await env.tools.close_session(task_id)


async def begin_session(env: Environment, session: ToolSession, item: Any, seed: int) -> None:
    """Give a rollout's session its item, its sandbox spec and a new state."""
    session.spec = spec_for(env, item)
    session.item, session.seed = item, seed
    if not env.overrides("initial_state"):
        return

    async def call_author() -> object:
        state: object = call_with_session(env, "initial_state", item, session=session)
        return await state if inspect.isawaitable(state) else state

    try:
        with env.running():
            session.state = await bridged(call_author())
    except InfrastructureError:
        raise
    except Exception as error:
        raise EnvironmentCodeError("state", f"initial_state raised {describe_error(error)}") from error
    session.stateful = True
    session.note_state()


def initial_messages(env: Environment, item: Any, session: ToolSession) -> list[dict[str, Any]]:
    try:
        return list(call_with_session(env, "initial_messages", item, session=session))
    except Exception as error:
        raise EnvironmentCodeError("prompt", f"building the prompt raised {describe_error(error)}") from error


def check_turns(reward: Reward, result: AgentResult) -> None:
    """VerifierError when there are rewards for answers that the model never gave."""
    if result.program is None and len(reward.turns) > result.turns_used:
        raise VerifierError(
            "turns",
            f"Reward.turns has {len(reward.turns)} numbers for {result.turns_used} answers of the model; give one for "
            "each answer, that of the first answer first",
        )


async def _judged_reward(
    env: Environment, item: Any, result: AgentResult, task_id: str, session: ToolSession
) -> Reward:
    """The reward; a judge whose verdict cannot be used is asked again, since its rollout will not be retried."""
    try:
        return await compute_rollout_reward(env, item, result, task_id, session)
    except JudgeError as error:
        if evidence_for(error.failure) is not Evidence.CONTROL:
            raise
        return await compute_rollout_reward(env, item, result, task_id, session)


async def compute_rollout_reward(
    env: Environment, item: Any, result: AgentResult, task_id: str, session: ToolSession
) -> Reward:
    """The reward from `compute_reward`; an InfrastructureError when it fails."""
    result.state = session.state

    async def call_author() -> object:
        returned: object = env.compute_reward(item, result, ToolContext(task_id))
        return await returned if inspect.isawaitable(returned) else returned

    started_at = time.monotonic()
    with tracing.span("reward") as span:
        try:
            with env.running():
                reward = validate_reward(await bridged(call_author()))
            check_turns(reward, result)
            if span.on:
                span.set_attributes(score=reward.score)
            return reward
        except InfrastructureError:
            raise
        except Exception as error:
            raise VerifierError("raised", f"compute_reward raised {describe_error(error)}") from error
        finally:
            session.record_timing(Span.VERIFIER, "compute_reward", started_at)
