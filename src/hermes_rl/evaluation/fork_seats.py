"""Forks of an episode of several agents: every seat repeats its recorded answers up to a turn of one of them.

Always true: until then each seat is sent what it was sent in the record, apart from `replay_noise`, and no model is
asked; from then on every seat is played by its model. The forks have no token ids.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, cast

from hermes_rl.agent.loop import ChatServer
from hermes_rl.core.errors import ConfigError, EnvironmentCodeError
from hermes_rl.core.messages import Message, content_text
from hermes_rl.core.trajectory import Group, Rollout
from hermes_rl.evaluation.replay_seats import RecordedAnswers, episodes
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.group import GroupPlan
from hermes_rl.rollout.rebuild import SHOWN, past_turns
from hermes_rl.rollout.rollout import policy_server
from hermes_rl.rollout.seats import FROZEN, SeatedEnvironment, run_episode
from hermes_rl.store.records import rollout_to_record

REFUSED = "the episode cannot be forked, because a replay differs"


@dataclass
class EpisodeFork:
    """One fork of an episode, shared by its seats: `live` once the turn is reached."""

    env: Environment
    seat: str
    turn: int
    sampling: int
    """Seed of what is sampled; that of the episode stays, since the state depends on it."""
    live: bool = False


@dataclass
class SeatServer:
    """A seat's recorded answers, and after the turn its model."""

    fork: EpisodeFork
    seat: str
    recorded: Rollout | None
    model: ChatServer
    _given: int = 0
    _answers: RecordedAnswers = field(init=False)

    def __post_init__(self) -> None:
        self._answers = RecordedAnswers(self.recorded)

    async def chat_completion(self, messages: Sequence[Message], **parameters: Any) -> Any:
        if not self.fork.live:
            self._compare(messages)
            self.fork.live = self.seat == self.fork.seat and self._given + 1 == self.fork.turn
        if self.fork.live:
            if "seed" in parameters:
                parameters["seed"] = (parameters["seed"] + self.fork.sampling) % 2**31
            return await self.model.chat_completion(messages=messages, **parameters)
        self._given += 1
        return await self._answers.chat_completion(messages, **parameters)

    def _compare(self, messages: Sequence[Message]) -> None:
        """Refuse if what the seat is sent since its last answer is not what it was sent in the record."""
        name = f"what {self.seat} is sent before its answer {self._given + 1}"
        try:
            before = past_turns(self.recorded, self._given + 1).messages if self.recorded is not None else []
        except ConfigError:
            before = []
        if not before:
            raise EnvironmentCodeError("replay", f"{REFUSED}: {name}: the record has no such answer")
        _refuse_difference(self.fork.env, name, _new_text(before), _new_text(messages))


def _refuse_difference(env: Environment, name: str, recorded: str, now: str) -> None:
    plain = [recorded, now]
    for pattern in map(re.compile, env.replay_noise):
        plain = [pattern.sub("", text) for text in plain]
    if plain[0] != plain[1]:
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*plain, strict=False)))
        at = max(same - SHOWN // 3, 0)
        shown = [repr(text[at : at + SHOWN]) for text in plain]
        raise EnvironmentCodeError("replay", f"{REFUSED}: {name}: recorded {shown[0]}, now {shown[1]}")


def _new_text(messages: Sequence[Message]) -> str:
    """Everything after the last answer: results of tools, or what others did."""
    last = max((at for at, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)
    return "\n".join(
        f"{message.get('role')}: {content_text(message.get('content'))}" for message in messages[last + 1 :]
    )


def recorded_episode(recorded: Rollout, groups: Iterable[Group]) -> Mapping[str, Rollout]:
    """The rollouts of the same episode by seat; ConfigError if the groups have only this seat of it."""
    of_episode = [
        rollout
        for group in groups
        for rollout in group.rollouts
        if rollout.seat is not None and rollout.metadata.get("episode") == recorded.metadata.get("episode")
    ]
    return next(iter(episodes(of_episode or [recorded]).values()))


async def fork_episodes(
    env: Environment, plan: GroupPlan, recorded: Rollout, episode: Mapping[str, Rollout], turn: int
) -> list[Rollout]:
    """The rollouts of the forked seat, those of the other seats in their metadata."""
    if recorded.seat not in env.seats:
        raise ConfigError(f"the rollout is of seat {recorded.seat}, which the environment does not have")
    past_turns(recorded, turn)
    return list(await asyncio.gather(*(_fork_one(env, plan, recorded, episode, turn, at) for at in range(plan.size))))


async def _fork_one(
    env: Environment, plan: GroupPlan, recorded: Rollout, episode: Mapping[str, Rollout], turn: int, index: int
) -> Rollout:
    seated, own_seat = cast("SeatedEnvironment", env), str(recorded.seat)
    planned = plan.rollout(index)
    fork = EpisodeFork(env, own_seat, turn, planned.seed)
    async with AsyncExitStack() as opened:
        servers: dict[str, ChatServer] = {}
        for seat in env.seats:
            frozen = seated.seat_servers.get(seat)
            model = frozen.session() if frozen is not None else await opened.enter_async_context(policy_server(env))
            servers[seat] = SeatServer(fork, seat, episode.get(seat), model)
        made = await run_episode(seated, replace(planned, seed=recorded.seed), servers)
    if own_seat in made:
        own = made.pop(own_seat).rollout
    else:
        # The episode failed before the seat had a turn; another has the failure.
        first = next(iter(made.values())).rollout
        own = replace(first, seat=own_seat, messages=[], tool_uses=(), turns_used=0, states=())
    others = {seat: rollout_to_record(one.rollout) for seat, one in made.items()}
    return replace(own, metadata={**own.metadata, FROZEN: others})
