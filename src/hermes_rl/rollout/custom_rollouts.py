"""Runs an environment's own `collect_trajectory` or `collect_trajectories`, in the forms of Atropos.

The promises are those of our own rollouts: a deadline, failures by cause, one sandbox per task id, everything closed at
the end. A row is trained on only with tokens that a managed server recorded while the method ran; any other row keeps
its score for records and evaluations. A failure outside the policy is never a score, also if the author's code caught
it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from operator import add
from typing import Any, NamedTuple

from hermes_rl.agent.loop import HermesAgentLoop
from hermes_rl.agent.result import AgentResult
from hermes_rl.core.author_code import describe_error
from hermes_rl.core.errors import (
    DeadlineError,
    EnvironmentCodeError,
    Failure,
    FailureSource,
    InfrastructureError,
    failure_of,
)
from hermes_rl.core.observation import ObservedFailure, observe, observing
from hermes_rl.core.trajectory import Rollout, StopReason, Usage, validate_score
from hermes_rl.core.trajectory import Sequence as TokenSequence
from hermes_rl.inference.managed_server import ManagedServer
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.filters import Withheld
from hermes_rl.rollout.rollout import FinishedRollout, RolloutPlan, run_rollout, spec_for
from hermes_rl.tools.session import ToolSession

Row = Mapping[str, Any]

ROLLOUT_KEYS = frozenset({"tokens", "masks", "scores", "messages", "inference_logprobs", "ref_logprobs"})
GROUP_KEYS = frozenset({"group_overrides", "generation_params", "env_id"})


class PlanSource:
    """Hands out the plans of the rollouts that author code starts with `super().collect_trajectory(item)`."""

    def __init__(self, make: Callable[[int], RolloutPlan]) -> None:
        self._make = make
        self._taken = count()

    def take(self, item: Any) -> RolloutPlan:
        return replace(self._make(next(self._taken)), item=item)


current_plans: ContextVar[PlanSource | None] = ContextVar("current_plans", default=None)


class CollectedRows(NamedTuple):
    """One group of rows as the author returned them, with its `group_overrides`."""

    rows: list[Row]
    overrides: Mapping[str, Any]


class Collection(NamedTuple):
    """What the author's method returned, and which of our parts it used."""

    groups: list[CollectedRows]
    backlog: list[Any]
    parts: "Parts"
    failure: Failure | None


async def own_rollout(env: Environment, plan: RolloutPlan) -> FinishedRollout:
    """Run our rollout inside author code and report it to the caller of that code."""
    with observing():
        finished = await run_rollout(env, plan)
    observe(finished)
    return finished


async def run_custom_rollout(env: Environment, plan: RolloutPlan) -> FinishedRollout:
    """One rollout by the environment's own `collect_trajectory`."""
    seeds = PlanSource(lambda number: replace(plan, seed=(plan.seed + number) % 2**31))
    collected = await call_author(env, env.collect_trajectory, plan.item, seeds, env.config.worker_timeout)
    rows = [row for group in collected.groups for row in group.rows]
    parts, failure = collected.parts, collected.failure
    if failure is None and len(rows) > 1:
        failure = EnvironmentCodeError(
            "collect_trajectory", f"collect_trajectory returned {len(rows)} scored items; return one"
        ).failure
    if failure is None and rows:
        finished = parts.finish(env, plan, rows[0])
    else:
        finished = parts.unfinished(plan, failure, "collect_trajectory")
    rollout = replace(finished.rollout, usage=parts.usage(), seconds=parts.seconds)
    if collected.backlog and plan.split != "eval":
        env.add_to_backlog(collected.backlog)
    return FinishedRollout(rollout, finished.result)


async def call_author(
    env: Environment,
    method: Callable[[Any], Awaitable[Any]],
    item: Any,
    plans: PlanSource,
    seconds: float,
) -> Collection:
    """Call the author's method with a deadline, and close the sandboxes it used. Only cancellation propagates."""
    name = getattr(method, "__name__", "collect_trajectory")
    groups: list[CollectedRows] = []
    backlog: list[Any] = []
    failure: Failure | None = None
    started = time.monotonic()
    deadline = asyncio.timeout(seconds)
    token = current_plans.set(plans)
    try:
        with observing() as observed:
            try:
                async with deadline:
                    with env.running(), env.tools.using_spec(spec_for(env, item)):
                        groups, backlog = parse_returned(name, await bridged(_awaited(method(item))))
            except TimeoutError as error:
                failure = failure_of(error) if not deadline.expired() else _deadline_failure(name, seconds)
            except InfrastructureError as error:
                failure = error.failure
            except Exception as error:  # noqa: BLE001 (author code may raise anything)
                failure = EnvironmentCodeError(name, f"{name} raised {describe_error(error)}").failure
            finally:
                for session in [part for part in observed if isinstance(part, ToolSession)]:
                    await asyncio.shield(env.tools.close_session(session.task_id))
    finally:
        current_plans.reset(token)
    parts = Parts.sort(observed, time.monotonic() - started)
    return Collection(groups, backlog, parts, failure and parts.explain(failure))


async def _awaited(returned: Any) -> Any:
    return await returned


def _deadline_failure(name: str, seconds: float) -> Failure:
    return DeadlineError("worker_timeout", f"{name} did not finish within {seconds:g} s (worker_timeout)").failure


def parse_returned(name: str, returned: Any) -> tuple[list[CollectedRows], list[Any]]:
    """The groups and the backlog of `(ScoredDataItem or ScoredDataGroup or a list of them or None, backlog)`."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise EnvironmentCodeError(
            name, f"{name} returned {type(returned).__name__}; return (scored data, list of items to run later)"
        )
    data, backlog = returned
    parts = [part for part in (data if isinstance(data, list) else [data]) if part is not None]
    for part in parts:
        if not isinstance(part, Mapping) or "scores" not in part:
            raise EnvironmentCodeError(
                name, f"{name} returned {str(part)[:80]!r}; return a ScoredDataItem or a ScoredDataGroup"
            )
    if parts and all(isinstance(part["scores"], Sequence) for part in parts):
        return [CollectedRows(list(_rows(part)), part.get("group_overrides") or {}) for part in parts], list(backlog)
    return [CollectedRows(parts, {})] if parts else [], list(backlog)


def _rows(group: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a ScoredDataGroup; a column that is missing or too short has no value for a row."""
    columns = {name: values for name, values in group.items() if name not in GROUP_KEYS and values is not None}
    for index in range(len(group["scores"])):
        yield {
            name: values[index]
            for name, values in columns.items()
            if isinstance(values, Sequence) and index < len(values)
        }


@dataclass(slots=True)
class Parts:
    """The parts that author code used: our rollouts, agent loops, token recorders, sandboxes."""

    seconds: float
    finished: list[FinishedRollout] = field(default_factory=list)
    loops: list[HermesAgentLoop] = field(default_factory=list)
    servers: list[ManagedServer] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    failures: dict[str, Failure] = field(default_factory=dict)
    _used: set[int] = field(default_factory=set)

    @classmethod
    def sort(cls, observed: Sequence[object], seconds: float) -> "Parts":
        parts = cls(seconds)
        for part in observed:
            match part:
                case FinishedRollout():
                    parts.finished.append(part)
                case HermesAgentLoop():
                    parts.loops.append(part)
                case ManagedServer():
                    parts.servers.append(part)
                case Usage():
                    parts.usages.append(part)
                case ObservedFailure(task_id, failure):
                    parts.failures.setdefault(task_id, failure)
        return parts

    def usage(self) -> Usage:
        """The tokens of every model call, whichever part made it."""
        return reduce(add, [*self.usages, *(finished.rollout.usage for finished in self.finished)], Usage())

    def unattributed_usage(self) -> Usage:
        """The tokens of model calls that no returned row's agent made."""
        by_agents = [loop.result.usage for loop in self.loops if id(loop) in self._used]
        spent, counted = reduce(add, self.usages, Usage()), reduce(add, by_agents, Usage())
        return Usage(
            _minus(spent.prompt_tokens, counted.prompt_tokens),
            _minus(spent.completion_tokens, counted.completion_tokens),
        )

    def explain(self, failure: Failure) -> Failure:
        """An exception of author code that was not written for a failed endpoint or sandbox is that failure."""
        if failure.whose is not FailureSource.ENVIRONMENT:
            return failure
        failed = (finished.rollout.failure for finished in self.finished if finished.rollout.failure is not None)
        first = self._first_failure() or next(failed, None)
        return failure if first is None else replace(first, message=f"{first.message}; then {failure.message}")

    def finish(self, env: Environment, plan: RolloutPlan, row: Row) -> FinishedRollout:
        """The rollout of a returned row, with what is known of it from our parts."""
        base = self._take_finished(row)
        loop = None if base else self._take_loop(row)
        result = base.result if base else loop.result if loop else _plain_result(row)
        failure = None if base else self._failure(loop)
        if failure is not None:
            return self._failed(plan, failure, result)
        try:
            score = validate_score(row["scores"])
        except InfrastructureError as error:
            return self._failed(plan, error.failure, result)
        rollout = base.rollout if base else self._rollout(plan, result, score)
        if not base or base.rollout.sequences == () or not _same_tokens(row, base.rollout.sequences):
            sequences = self._recorded(row)
            no_tokens = not sequences and env.server.returns_tokens
            rollout = replace(
                rollout,
                sequences=sequences,
                withheld=rollout.withheld or (str(Withheld.NO_TOKENS) if no_tokens else None),
            )
        messages = row.get("messages") or rollout.messages
        extra = {
            name: value for name, value in row.items() if name not in ROLLOUT_KEYS | GROUP_KEYS and value is not None
        }
        rollout = replace(
            rollout,
            index=plan.index,
            score=score,
            messages=list(messages),
            metadata={**rollout.metadata, **({"returned": extra} if extra else {})},
        )
        return FinishedRollout(rollout, result)

    def unfinished(self, plan: RolloutPlan, failure: Failure | None, name: str) -> FinishedRollout:
        """The rollout when the method failed or returned nothing."""
        if failure is None and self.finished:
            latest = self.finished[-1]
            kept = latest.rollout
            dropped = replace(kept, withheld=str(Withheld.NOT_RETURNED)) if kept.scored else kept
            return FinishedRollout(dropped, latest.result)
        known = failure or self._first_failure()
        loop = self.loops[-1].result if self.loops else None
        return self._failed(plan, known or _returned_nothing(name), loop)

    def leftovers(self) -> list[Rollout]:
        """Our rollouts that no returned row belongs to: failed ones, and those that the author dropped."""
        return [
            replace(rollout, withheld=rollout.withheld or str(Withheld.NOT_RETURNED)) if rollout.scored else rollout
            for rollout, _ in self.finished
            if id(rollout) not in self._used
        ]

    def _take_finished(self, row: Row) -> FinishedRollout | None:
        free = [
            finished for finished in self.finished if finished.rollout.scored and id(finished.rollout) not in self._used
        ]
        messages = row.get("messages")
        chosen = next((finished for finished in free if finished.rollout.messages is messages), None) or next(
            (finished for finished in free if messages and finished.rollout.messages == messages), None
        )
        if chosen is None and not messages:
            chosen = next((finished for finished in free if _same_tokens(row, finished.rollout.sequences)), None)
        if chosen is not None:
            self._used.add(id(chosen.rollout))
        return chosen

    def _take_loop(self, row: Row) -> HermesAgentLoop | None:
        free = [loop for loop in self.loops if id(loop) not in self._used]
        messages = row.get("messages")
        chosen = next((loop for loop in free if loop.result.messages is messages), None) or next(
            (loop for loop in free if messages and loop.result.messages == messages), None
        )
        if chosen is not None:
            self._used.add(id(chosen))
        return chosen

    def _failure(self, loop: HermesAgentLoop | None) -> Failure | None:
        """The failure of a row's agent or sandbox; of any, when the row's agent is not known."""
        if loop is not None:
            return loop.result.failure or self.failures.get(loop.task_id)
        known = {other.task_id for other in self.loops if id(other) in self._used}
        return self._first_failure(known)

    def _first_failure(self, except_for: AbstractSet[str] = frozenset()) -> Failure | None:
        of_loops = {loop.task_id: loop.result.failure for loop in self.loops if loop.result.failure is not None}
        failures = {**of_loops, **self.failures}
        return next((failure for task_id, failure in failures.items() if task_id not in except_for), None)

    def _rollout(self, plan: RolloutPlan, result: AgentResult, score: float) -> Rollout:
        return Rollout(
            item_id=plan.item_id,
            index=plan.index,
            seed=plan.seed,
            messages=result.messages,
            score=score,
            stop_reason=result.stop_reason or StopReason.NATURAL,
            turns_used=result.turns_used,
            tool_uses=tuple(result.tool_uses),
            usage=result.usage,
            seconds=round(self.seconds, 6),
            metadata={"tool_errors": len(result.tool_errors), "prompt_length": result.prompt_length},
        )

    def _failed(self, plan: RolloutPlan, failure: Failure, result: AgentResult | None) -> FinishedRollout:
        result = result or AgentResult(messages=[])
        scored = self._rollout(plan, result, 0.0)
        return FinishedRollout(replace(scored, score=None, stop_reason=result.stop_reason, failure=failure), result)

    def _recorded(self, row: Row) -> tuple[TokenSequence, ...]:
        """The recorded sequence with the row's tokens; empty when there is none, or the row trains on other tokens."""
        tokens, masks = row.get("tokens"), row.get("masks")
        if not tokens or masks is None or len(masks) != len(tokens):
            return ()
        for server in self.servers:
            for sequence in server.checked().sequences:
                if list(sequence.tokens) == list(tokens):
                    return _narrowed(sequence, masks)
        return ()


def _narrowed(sequence: TokenSequence, masks: Sequence[int]) -> tuple[TokenSequence, ...]:
    """The sequence with the author's mask, which may leave sampled tokens out but add none."""
    wanted = [mask not in (-100, 0) for mask in masks]
    if any(want and not sampled for want, sampled in zip(wanted, sequence.mask, strict=True)):
        return ()
    return (
        replace(
            sequence,
            mask=tuple(int(want) for want in wanted),
            logprobs=tuple(value if want else None for value, want in zip(sequence.logprobs, wanted, strict=True)),
            versions=tuple(value if want else None for value, want in zip(sequence.versions, wanted, strict=True)),
        ),
    )


def _same_tokens(row: Row, sequences: Sequence[TokenSequence]) -> bool:
    """Whether a row has the tokens and masks that our rollout returned; a rollout of several sequences returns none."""
    tokens, masks = row.get("tokens") or (), row.get("masks") or ()
    if len(sequences) != 1:
        return bool(sequences) and not tokens
    [sequence] = sequences
    return tuple(tokens) == sequence.tokens and list(masks) == sequence.atropos_mask()


def _minus(one: int | None, other: int | None) -> int | None:
    return None if one is None else one - (other or 0)


def _plain_result(row: Row) -> AgentResult:
    messages = list(row.get("messages") or [])
    turns = sum(message.get("role") == "assistant" for message in messages)
    prompt = next((at for at, message in enumerate(messages) if message.get("role") == "assistant"), len(messages))
    return AgentResult(messages=messages, turns_used=turns, prompt_length=prompt)


def _returned_nothing(name: str) -> Failure:
    return EnvironmentCodeError("returned_nothing", f"{name} returned no scored data for this item").failure
