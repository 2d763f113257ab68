"""One rollout, from item to score: prompt, the agent's work, end of the policy's processes, reward, sandbox closed.

`run_rollout` gives a rollout for anything that happens, with a score or with a Failure; only cancellation passes
through, and the sandbox is closed then too.
"""

import asyncio
import inspect
import time
import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from hermes_rl import tracing
from hermes_rl.agent.limits import AgentLimits, ResultBudget
from hermes_rl.agent.loop import ChatServer, HermesAgentLoop
from hermes_rl.agent.result import AgentResult
from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.exactness import format_settings
from hermes_rl.environment.group_rules import Withheld
from hermes_rl.environment.outside.program import Program, with_agent
from hermes_rl.environment.outside.running import OutsideAgent, Terms, Work
from hermes_rl.errors import AuthorError, ConfigError, DeadlineError, Failure, VerifierError, WorldError, failure_of
from hermes_rl.gateway.rollout import RunSampling
from hermes_rl.inference.managed_server import ManagedServer
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.sandbox.spec import SandboxSpec, settled
from hermes_rl.tokens.invariant import Checked
from hermes_rl.tools.session import ToolSession
from hermes_rl.trajectory import Reward, Rollout, Span, Timing, validate_reward

# Beyond the longest time a tool may take by itself, before it counts as hanging.
TOOL_GRACE = 300.0
# Of `worker_timeout`, for the policy's own work; the rest is for queues, the sandbox and scoring.
POLICY_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What is settled before a rollout starts. Handed down as a value, so that groups cannot see each other's."""

    item: Any
    item_id: str
    index: int
    seed: int
    tool_schemas: Sequence[Mapping[str, Any]]
    valid_tool_names: Collection[str]
    temperature: float
    split: str


class Finished(NamedTuple):
    """A rollout for the record, and the result its reward saw."""

    rollout: Rollout
    result: AgentResult


async def run_rollout(env: Environment, plan: RolloutPlan) -> Finished:
    with tracing.span("rollout") as span:
        finished = await _run_rollout(env, plan)
        if span.on:
            note_rollout(span, env, finished.rollout)
        return finished


def note_rollout(span: tracing.TracedSpan, env: Environment, rollout: Rollout) -> None:
    """What a trace says of it: enough to find it in the records."""
    span.error = None if rollout.failure is None else str(rollout.failure)
    span.note(
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


async def _run_rollout(env: Environment, plan: RolloutPlan) -> Finished:
    task_id = str(uuid.uuid4())
    session = env.tools.session(task_id)
    result = AgentResult(messages=[])
    reward: Reward | None = None
    failure: Failure | None = None
    tokens = Checked()
    deadline = asyncio.timeout(env.config.worker_timeout)
    try:
        async with deadline:
            session.spec = spec_for(env, plan.item)
            async with _policy(env) as server:
                work = _work(env, plan, task_id, session, server)
                result = work.result
                await work.run(await _prompt(env, plan.item))
                if isinstance(server, ManagedServer):
                    tokens = server.checked()
            await session.end_policy()
            reward = result.reward = await reward_for(env, plan.item, result, task_id, session)
    except TimeoutError as error:
        if not deadline.expired():
            failure = failure_of(error)
        else:
            failure = DeadlineError(
                "worker_timeout", f"the rollout was not done after {env.config.worker_timeout:g} s (worker_timeout)"
            ).failure
    except Exception as error:  # noqa: BLE001 (here every error becomes a Failure)
        failure = failure_of(error)
    finally:
        await asyncio.shield(env.tools.close_session(task_id))
    rollout = Rollout(
        item_id=plan.item_id,
        index=plan.index,
        seed=plan.seed,
        messages=result.messages,
        score=reward.score if reward else None,
        components=reward.components if reward else {},
        turn_scores=reward.turns if reward else (),
        stop_reason=result.stop_reason,
        failure=failure,
        turns_used=result.turns_used,
        tool_uses=tuple(result.tool_uses),
        usage=result.usage,
        timings=_in_order((*result.timings, *session.timings)),
        seconds=round(time.monotonic() - session.started_at, 6),
        sequences=tokens.sequences,
        withheld=str(Withheld.NO_TOKENS) if reward and tokens.breaches and not tokens.sequences else None,
        metadata={
            "task_id": task_id,
            "tool_errors": len(result.tool_errors),
            "prompt_length": result.prompt_length,
            **({"breaches": [breach._asdict() for breach in tokens.breaches]} if tokens.breaches else {}),
            **({"program": asdict(result.program)} if result.program else {}),
        },
    )
    return Finished(rollout, result)


@asynccontextmanager
async def _policy(env: Environment) -> AsyncIterator[ChatServer]:
    """What the agent talks to: a server that keeps its tokens where the endpoints give them, else a plain session."""
    if env.tokenizer is None:
        yield env.server.session()
    else:
        async with env.server.managed_server(env.tokenizer, settings=format_settings(env.config)) as managed:
            yield managed


def _in_order(timings: Iterable[Timing]) -> tuple[Timing, ...]:
    """By their beginning, to the microsecond: more digits say nothing and cost room in every record."""
    return tuple(
        Timing(timing.span, timing.name, round(timing.start, 6), round(timing.seconds, 6))
        for timing in sorted(timings, key=lambda timing: timing.start)
    )


def _work(env: Environment, plan: RolloutPlan, task_id: str, session: ToolSession, server: ChatServer) -> Work:
    """Our loop, or the program that is the agent."""
    if env.gateway is None:
        return _agent_loop(env, plan, task_id, session, server)
    config = env.config
    limits = agent_limits(config, env.server.context_tokens)
    terms = Terms(
        RunSampling(plan.temperature, config.max_token_length, config.extra_body, plan.seed, plan.split),
        calls=_turn_limit(env, plan.item),
        deadline=limits.deadline or config.worker_timeout,
        worker_timeout=config.worker_timeout,
        seconds_per_token=limits.seconds_per_token,
        model=env.server.configs[0].model_name,
        context_tokens=limits.context_tokens,
    )
    return OutsideAgent(Program.of(config), terms, gateway=env.gateway, policy=server, session=session)


def _agent_loop(
    env: Environment, plan: RolloutPlan, task_id: str, session: ToolSession, server: ChatServer
) -> HermesAgentLoop:
    config = env.config
    return HermesAgentLoop(
        server=server,
        tool_schemas=plan.tool_schemas,
        valid_tool_names=plan.valid_tool_names,
        max_turns=_turn_limit(env, plan.item),
        task_id=task_id,
        temperature=plan.temperature,
        max_tokens=config.max_token_length,
        extra_body=config.extra_body,
        session=session,
        tool_call_parser=config.tool_call_parser,
        seed=plan.seed,
        split=plan.split,
        limits=agent_limits(config, env.server.context_tokens),
        next_user_message=lambda messages: _next_user_message(env, plan.item, messages),
        compaction=env.compaction(),
    )


def agent_limits(config: HermesAgentEnvConfig, endpoint_context: int | None) -> AgentLimits:
    return AgentLimits(
        max_tool_calls=config.max_tool_calls,
        max_repeated_calls=config.max_repeated_calls,
        deadline=config.rollout_deadline or config.worker_timeout * POLICY_SHARE,
        context_tokens=config.max_context_tokens or endpoint_context,
        tool_deadline=config.max_terminal_timeout + TOOL_GRACE,
        results=ResultBudget(
            per_result=config.default_result_size_chars,
            per_turn=config.turn_budget_chars,
            preview=config.preview_size_chars,
            overrides={"read_file": None, **config.tool_result_overrides},
        ),
    )


def _turn_limit(env: Environment, item: Any) -> int:
    try:
        return env.turn_limit(item)
    except Exception as error:
        raise AuthorError("turn_limit", f"turn_limit raised {type(error).__name__}: {error}") from error


async def _next_user_message(env: Environment, item: Any, messages: list[dict[str, Any]]) -> str | None:
    try:
        with env.running():
            return await bridged(env.next_user_message(item, messages))
    except WorldError:
        raise
    except Exception as error:
        raise AuthorError("user", f"next_user_message raised {type(error).__name__}: {error}") from error


def spec_for(env: Environment, item: Any) -> SandboxSpec:
    """The item's machine; AuthorError when it cannot be told or the backend cannot hold it."""
    pool = env.tools.pool
    try:
        spec = with_agent(env.sandbox_spec(item), env.config)
        settled(spec, pool.backend.name, pool.capabilities)
    except ConfigError as error:
        raise AuthorError("sandbox_spec", str(error)) from error
    except Exception as error:
        raise AuthorError("sandbox_spec", f"sandbox_spec raised {type(error).__name__}: {error}") from error
    return spec


async def _prompt(env: Environment, item: Any) -> list[dict[str, Any]]:
    try:
        return list(env.initial_messages(item))
    except Exception as error:
        raise AuthorError("prompt", f"making the prompt raised {type(error).__name__}: {error}") from error


async def reward_for(env: Environment, item: Any, result: AgentResult, task_id: str, session: ToolSession) -> Reward:
    """What `compute_reward` gives; a WorldError for anything else."""

    async def ask() -> object:
        answer: object = env.compute_reward(item, result, ToolContext(task_id))
        return await answer if inspect.isawaitable(answer) else answer

    began = time.monotonic()
    with tracing.span("reward") as span:
        try:
            with env.running():
                reward = validate_reward(await bridged(ask()))
            if span.on:
                span.note(score=reward.score)
            return reward
        except WorldError:
            raise
        except Exception as error:
            raise VerifierError("raised", f"compute_reward raised {type(error).__name__}: {error}") from error
        finally:
            session.note(Span.VERIFIER, "compute_reward", began)
