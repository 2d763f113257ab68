"""One episode of an environment with several seats: a conversation for each seat over one shared state.

Always true: one seat works at a time, in the order that the environment gives; each seat has its own session, tools and
recorded tokens; an episode has a score for every seat that took a turn, or for none of them.
"""

import asyncio
import hashlib
import inspect
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from hermes_rl import tracing
from hermes_rl.agent.loop import ChatServer, HermesAgentLoop
from hermes_rl.agent.result import AgentResult
from hermes_rl.core.author_code import describe_error
from hermes_rl.core.errors import (
    DeadlineError,
    EnvironmentCodeError,
    Failure,
    InfrastructureError,
    JudgeError,
    VerifierError,
    failure_of,
)
from hermes_rl.core.failure_causes import Evidence, evidence_for
from hermes_rl.core.messages import Message, content_text, tool_name
from hermes_rl.core.trajectory import Reward, Span, StopReason, validate_reward
from hermes_rl.inference.managed_server import ManagedServer
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.inference.tokens.token_check import Checked
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.rollout import (
    POLICY_SHARE,
    FinishedRollout,
    RolloutPlan,
    agent_limits,
    agent_loop,
    annotate_span,
    begin_session,
    check_turns,
    policy_seconds,
    policy_server,
    record_of,
)
from hermes_rl.store.records import rollout_to_record
from hermes_rl.tools.session import ToolSession

FROZEN = "frozen_seats"
"""Key of `Rollout.metadata`: the rollouts of the episode's frozen seats, by seat."""


class SeatAnswer(NamedTuple):
    """What a seat said in its turn."""

    seat: str
    text: str


class EpisodeContext(ToolContext):
    """Access of `compute_seat_rewards` to the state, to the sandbox of each seat, and to one that no seat had."""

    def __init__(self, task_id: str, seats: Mapping[str, ToolContext]) -> None:
        super().__init__(task_id)
        self.seats = seats


class SeatedEnvironment(Environment, Protocol):
    """The part of HermesMultiAgentEnv that runs episodes; its docstrings say what each method does."""

    seat_servers: Mapping[str, ServerManager]

    def seat_prompt(self, item: Any, seat: str) -> str: ...
    def seat_messages(self, item: Any, seat: str) -> list[Message]: ...
    def seat_tools(self, seat: str) -> Collection[str] | None: ...
    def next_seat(self, item: Any, state: Any, last: SeatAnswer | None) -> Any: ...
    def observation(self, item: Any, seat: str, state: Any, heard: Sequence[SeatAnswer]) -> Any: ...
    async def compute_seat_rewards(
        self, item: Any, results: Mapping[str, AgentResult], ctx: EpisodeContext
    ) -> Mapping[str, float | Reward]: ...


class SeatPlayer:
    """A seat's agent loop, which waits for its next turn where another would wait for its simulated user."""

    def __init__(self, seat: str, plan: RolloutPlan, session: ToolSession) -> None:
        self.seat, self.plan, self.session = seat, plan, session
        self.result = AgentResult(messages=[])
        self.tokens = Checked()
        self.frozen = False
        self._loop: HermesAgentLoop
        self._prompt: list[Message] = []
        self._work: asyncio.Task[None] | None = None
        self._observation: asyncio.Future[str | None]
        self._answer: asyncio.Future[str | None]

    def sit_down(self, env: SeatedEnvironment, server: ChatServer, context_tokens: int | None) -> None:
        """Get ready to play; nothing is asked before the first turn."""
        self._prompt = seat_messages(env, self.plan.item, self.seat)
        limits = agent_limits(env.config, context_tokens)
        # Together the seats have the time of one rollout.
        limits = replace(limits, deadline=(limits.deadline or env.config.worker_timeout) / len(env.seats))
        self._loop = agent_loop(
            env, self.plan, self.session, server, limits=limits, next_user_message=self._wait_for_turn
        )
        self.result = self._loop.result

    @property
    def began(self) -> bool:
        """Whether it was given a turn."""
        return self._work is not None

    @property
    def played(self) -> bool:
        """Whether it answered."""
        return self.result.turns_used > 0

    async def turn(self, observation: str | None) -> str | None:
        """The seat's answer to what it is told; None when its work ended instead. Told None, it ends where it waits."""
        self._answer = asyncio.get_running_loop().create_future()
        if self._work is None:
            self._work = asyncio.create_task(self._run(observation or ""))
        else:
            self._observation.set_result(observation)
        return await self._answer

    async def leave(self, reason: str) -> None:
        """End the work of a seat that waits for its turn."""
        if self._work is not None and not self._work.done():
            self.session.end(reason)
            await self.turn(None)

    async def stop(self) -> None:
        """Cancel what is still running, and keep the tokens."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        if self.began and isinstance(self._loop.server, ManagedServer):
            self.tokens = self._loop.server.checked()

    async def _run(self, observation: str) -> None:
        try:
            await self._loop.run(with_observation(self._prompt, observation))
        except Exception as error:  # noqa: BLE001 (raised again where the turn is awaited)
            if not self._answer.done():
                self._answer.set_exception(error)
        finally:
            if not self._answer.done():
                self._answer.set_result(None)

    async def _wait_for_turn(self, messages: list[Message]) -> str | None:
        self._observation = asyncio.get_running_loop().create_future()
        self._answer.set_result(content_text(messages[-1].get("content")))
        return await self._observation


@dataclass
class Episode:
    """The sessions of an episode: one for each seat, and one of nobody's for the state and the reward."""

    env: SeatedEnvironment
    plan: RolloutPlan
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def __post_init__(self) -> None:
        tools = self.env.tools
        self.table = tools.session(self.id)
        self.players = {
            seat: SeatPlayer(seat, seat_plan(self.env, self.plan, seat), tools.session(f"{self.id}-{seat}"))
            for seat in self.env.seats
        }

    async def begin(self) -> None:
        """Make the state, which all seats share."""
        await begin_session(self.env, self.table, self.plan.item, self.plan.seed)
        for seat, player in self.players.items():
            session = player.session
            session.seat, session.item, session.spec = seat, self.table.item, self.table.spec
            session.seed, session.state = player.plan.seed, self.table.state
            session.stateful = self.table.stateful
            session.note_state()

    async def play(self) -> None:
        """Give turns until the environment or a seat ends the episode."""
        reason = await self._give_turns()
        for player in self.players.values():
            await player.leave(reason)
        if not any(player.played for player in self.policy):
            raise EnvironmentCodeError("seat", "the episode ended before a seat of the policy had a turn")

    async def _give_turns(self) -> str:
        """Why the episode ended."""
        env, item, table = self.env, self.plan.item, self.table
        heard: dict[str, list[SeatAnswer]] = {seat: [] for seat in self.players}
        last: SeatAnswer | None = None
        while (seat := await call_hook(env, "next_seat", item, table.state, last)) is not None:
            if last is not None:
                # As the answer left it.
                self.players[last.seat].session.note_state()
            if seat not in self.players:
                raise EnvironmentCodeError(
                    "seat", f"next_seat returned {seat!r}; return one of {', '.join(env.seats)}, or None to end"
                )
            player = self.players[seat]
            observation = await call_hook(env, "observation", item, seat, table.state, tuple(heard[seat]))
            if not isinstance(observation, str):
                raise EnvironmentCodeError("seat", f"observation returned {type(observation).__name__}; return a str")
            heard[seat].clear()
            player.session.state = table.state
            answer = await player.turn(observation)
            table.state = player.session.state
            if answer is None:
                return player.session.end_reason or f"{seat} stopped: {player.result.stop_reason}"
            last = SeatAnswer(seat, answer)
            for other, unheard in heard.items():
                if other != seat:
                    unheard.append(last)
        if last is not None:
            self.players[last.seat].session.note_state()
        return "done"

    @property
    def policy(self) -> list[SeatPlayer]:
        """The players that are trained."""
        return [player for player in self.players.values() if not player.frozen]

    async def end_policy(self) -> None:
        for player in self.players.values():
            await player.session.end_policy()
            player.result.state = self.table.state
        await self.table.end_policy()

    async def close(self) -> None:
        """Close every session, also if one cannot be closed."""
        async with AsyncExitStack() as closing:
            for session in (self.table, *(player.session for player in self.players.values())):
                closing.push_async_callback(self.env.tools.close_session, session.task_id)


async def run_episode(
    env: SeatedEnvironment, plan: RolloutPlan, servers: Mapping[str, ChatServer] | None = None
) -> dict[str, FinishedRollout]:
    """The rollouts of one episode by seat, of the seats of the policy that took a turn. Only cancellation propagates.

    `servers` answer in place of the policy and of frozen endpoints; every seat is then one of the policy.
    """
    with tracing.span("rollout") as span:
        finished = await _run_episode(env, plan, servers)
        if span.on:
            annotate_span(span, env, next(iter(finished.values())).rollout)
        return finished


async def _run_episode(
    env: SeatedEnvironment, plan: RolloutPlan, servers: Mapping[str, ChatServer] | None
) -> dict[str, FinishedRollout]:
    began = time.monotonic()
    episode = Episode(env, plan)
    rewards: Mapping[str, Reward] = {}
    failure: Failure | None = None
    fault: Exception | None = None
    ended = False
    deadline = asyncio.timeout(env.config.worker_timeout)
    try:
        try:
            async with deadline, AsyncExitStack() as opened:
                await episode.begin()
                for player in episode.players.values():
                    await _sit_down(env, player, servers, opened)
                try:
                    await episode.play()
                finally:
                    for player in episode.players.values():
                        await player.stop()
                await episode.end_policy()
                ended = True
                rewards = await _judged_rewards(episode)
        except Exception as error:  # noqa: BLE001 (every error becomes a Failure here)
            if isinstance(error, TimeoutError) and deadline.expired():
                error = DeadlineError(
                    "worker_timeout",
                    f"the episode did not finish within {env.config.worker_timeout:g} s (worker_timeout)",
                )
            if await _is_charged(episode, error, ended=ended):
                rewards = _charge(episode, late=deadline.expired())
            else:
                failure = failure_of(error)
                fault = error
    finally:
        await asyncio.shield(episode.close())
    env.tools.faults.add(fault)
    return _rollouts(episode, rewards, failure, time.monotonic() - began)


async def _sit_down(
    env: SeatedEnvironment, player: SeatPlayer, servers: Mapping[str, ChatServer] | None, opened: AsyncExitStack
) -> None:
    if servers is not None:
        player.sit_down(env, servers[player.seat], None)
    elif (frozen := env.seat_servers.get(player.seat)) is not None:
        player.frozen = True
        player.sit_down(env, frozen.session(), frozen.context_tokens)
    else:
        player.sit_down(env, await opened.enter_async_context(policy_server(env)), env.server.context_tokens)


def _charge(episode: Episode, *, late: bool) -> dict[str, Reward]:
    """The failing score for each seat that took a turn: whose work it was is not known."""
    reward = Reward(episode.env.config.failing_score)
    charged = [player for player in episode.players.values() if player.played]
    for player in charged:
        player.result.reward = reward
        player.result.stop_reason = player.result.stop_reason or (StopReason.DEADLINE if late else StopReason.CRASHED)
    return {player.seat: reward for player in charged}


async def _is_charged(episode: Episode, error: Exception, *, ended: bool) -> bool:
    """Whether the policy can have caused what ended the episode, as for a single rollout."""
    players = [player for player in episode.policy if player.played]
    if not players:
        return False
    failure = failure_of(error)
    evidence = evidence_for(failure)
    if evidence is Evidence.CLOCK:
        limit: float = episode.env.config.worker_timeout * POLICY_SHARE
        used = sum(policy_seconds(player.result, player.session) for player in players)
        charged = used + episode.table.reward_seconds > limit
    else:
        # Before the reward, each seat's own loop has decided for its own tools and sandbox.
        reward_failed = ended and evidence in {Evidence.CONTROL, Evidence.ALWAYS, Evidence.HOST}
        charged = reward_failed and await _rewards_work_untouched(episode.env, episode.plan)
    if charged:
        for player in players:
            player.session.charged.append(failure)
    return charged


async def _rewards_work_untouched(env: SeatedEnvironment, plan: RolloutPlan) -> bool:
    """Whether the reward works for an episode in which every seat gave an empty answer."""
    control = Episode(env, plan, f"control-{uuid.uuid4()}")
    try:
        async with asyncio.timeout(env.config.worker_timeout):
            await control.begin()
            for player in control.players.values():
                prompt = with_observation(seat_messages(env, plan.item, player.seat), "")
                player.result = AgentResult(
                    messages=[*prompt, {"role": "assistant", "content": ""}],
                    turns_used=1,
                    finished_naturally=True,
                    reasoning_per_turn=[None],
                    stop_reason=StopReason.NATURAL,
                    prompt_length=len(prompt),
                )
            await control.end_policy()
            await compute_rewards(control)
    except Exception:  # noqa: BLE001 (what raises here would raise on anything)
        return False
    finally:
        await asyncio.shield(control.close())
    return True


async def _judged_rewards(episode: Episode) -> Mapping[str, Reward]:
    """The rewards; a judge whose verdict cannot be used is asked again, as for a single rollout."""
    try:
        return await compute_rewards(episode)
    except JudgeError as error:
        if evidence_for(error.failure) is not Evidence.CONTROL:
            raise
        return await compute_rewards(episode)


async def compute_rewards(episode: Episode) -> dict[str, Reward]:
    """The rewards from `compute_seat_rewards`, of each seat that took a turn; an InfrastructureError when it fails."""
    env, players = episode.env, episode.players

    async def call_author(ctx: EpisodeContext) -> object:
        results = {seat: player.result for seat, player in players.items()}
        returned: object = env.compute_seat_rewards(episode.plan.item, results, ctx)
        return await returned if inspect.isawaitable(returned) else returned

    began = time.monotonic()
    with tracing.span("reward"):
        try:
            with env.running():
                ctx = EpisodeContext(
                    episode.id, {seat: ToolContext(player.session.task_id) for seat, player in players.items()}
                )
                return _checked_rewards(episode, await bridged(call_author(ctx)))
        except InfrastructureError:
            raise
        except Exception as error:
            raise VerifierError("raised", f"compute_seat_rewards raised {describe_error(error)}") from error
        finally:
            episode.table.record_timing(Span.VERIFIER, "compute_seat_rewards", began)


def _checked_rewards(episode: Episode, returned: object) -> dict[str, Reward]:
    played = [seat for seat, player in episode.players.items() if player.played]
    if not isinstance(returned, Mapping):
        raise VerifierError(
            "seat_rewards", f"compute_seat_rewards returned {type(returned).__name__}; return a reward for each seat"
        )
    missing = [seat for seat in played if seat not in returned]
    unknown = [str(seat) for seat in returned if seat not in episode.players]
    if missing or unknown:
        wrong = f"no reward for {', '.join(missing)}" if missing else f"a reward for {', '.join(unknown)}"
        raise VerifierError(
            "seat_rewards",
            f"compute_seat_rewards returned {wrong}; return one for each seat that took a turn: {', '.join(played)}",
        )
    rewards = {seat: validate_reward(returned[seat]) for seat in played}
    for seat, reward in rewards.items():
        check_turns(reward, episode.players[seat].result)
        episode.players[seat].result.reward = reward
    return rewards


def _rollouts(
    episode: Episode, rewards: Mapping[str, Reward], failure: Failure | None, seconds: float
) -> dict[str, FinishedRollout]:
    """The rollouts of the policy's seats that had a turn; of all of them when the episode failed before."""
    players = [player for player in episode.policy if player.began] or episode.policy
    made = {}
    for player in (*players, *(player for player in episode.players.values() if player.frozen)):
        reward = None if failure else rewards.get(player.seat)
        unscored = failure or (None if reward else _not_reached(player))
        rollout = record_of(episode.env, player.plan, player.session, player.result, reward, unscored, player.tokens)
        made[player.seat] = replace(
            rollout,
            seat=player.seat,
            # The seed of the episode, which a replay needs.
            seed=episode.plan.seed,
            seconds=round(seconds, 6),
            timings=tuple(sorted((*rollout.timings, *episode.table.timings), key=lambda timing: timing.start)),
            metadata={**rollout.metadata, "episode": episode.id},
        )
    frozen = {player.seat: rollout_to_record(made[player.seat]) for player in episode.players.values() if player.frozen}
    if frozen:
        first = players[0].seat
        made[first] = replace(made[first], metadata={**made[first].metadata, FROZEN: frozen})
    return {player.seat: FinishedRollout(made[player.seat], player.result) for player in players}


def _not_reached(player: SeatPlayer) -> Failure:
    return EnvironmentCodeError("seat", f"{player.seat} had no turn").failure


def seat_plan(env: SeatedEnvironment, plan: RolloutPlan, seat: str) -> RolloutPlan:
    """The plan of a seat: its tools, and a seed of its own, so that equal prompts get different answers."""
    allowed = env.seat_tools(seat)
    names = [name for name in plan.valid_tool_names if allowed is None or name in allowed]
    digest = hashlib.sha256(f"{plan.seed}/{seat}".encode()).digest()
    return replace(
        plan,
        seed=int.from_bytes(digest[:8]) % 2**31,
        tool_schemas=[schema for schema in plan.tool_schemas if tool_name(schema) in names],
        valid_tool_names=frozenset(names),
    )


def seat_messages(env: SeatedEnvironment, item: Any, seat: str) -> list[Message]:
    try:
        return list(env.seat_messages(item, seat))
    except Exception as error:
        raise EnvironmentCodeError("prompt", f"building the prompt of {seat} raised {describe_error(error)}") from error


def with_observation(prompt: Sequence[Message], observation: str) -> list[Message]:
    """The prompt and the first observation, in one user message: chat templates refuse two in a row."""
    if not observation:
        return list(prompt)
    if not prompt or prompt[-1].get("role") != "user" or not isinstance(prompt[-1].get("content"), str):
        return [*prompt, {"role": "user", "content": observation}]
    text = "\n\n".join(filter(None, (prompt[-1]["content"], observation)))
    return [*prompt[:-1], {**prompt[-1], "content": text}]


async def call_hook(env: SeatedEnvironment, hook: str, *arguments: Any) -> Any:
    """Call an author's method, a coroutine or not; what it raises is the environment's failure."""
    try:
        with env.running():
            value = getattr(env, hook)(*arguments)
            return await bridged(_awaited(value)) if inspect.isawaitable(value) else value
    except InfrastructureError:
        raise
    except Exception as error:
        raise EnvironmentCodeError("seat", f"{hook} raised {describe_error(error)}") from error


async def _awaited(value: Any) -> Any:
    return await value
