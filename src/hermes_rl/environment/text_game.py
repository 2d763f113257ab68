"""TextGameEnv: any object with Gymnasium's `reset` and `step` as an environment, with the model's text as the action.

Always true: each rollout has a game of its own, reset with the seed of its item and closed when the rollout ends; the
score is the sum of the rewards of its steps.
"""

import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, cast
from zlib import crc32

from pydantic import Field
from typing_extensions import TypeVar

from hermes_rl.agent.result import AgentResult
from hermes_rl.core.errors import ConfigError, EnvironmentCodeError
from hermes_rl.core.messages import Message, content_text
from hermes_rl.core.trajectory import Reward
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import ToolUseError, tool

Item = TypeVar("Item", default=int)

MAX_SHOWN = 200


class TextGame(Protocol):
    """The part of Gymnasium's `Env` that is used, and `close` if there is one. Each method may be a coroutine.

    `reset` returns (observation, info), `step` (observation, reward, terminated, truncated, info).
    """

    def reset(self, *, seed: int | None = None) -> Any: ...
    def step(self, action: Any, /) -> Any: ...


@dataclass(slots=True, kw_only=True)
class Episode:
    """A rollout's game. The fields without an underscore are recorded turn by turn."""

    _game: TextGame
    _first: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 0
    score: float = 0.0
    terminated: bool = False
    truncated: bool = False

    @property
    def game(self) -> TextGame:
        return self._game

    def begin(self, returned: Any) -> Any:
        """Take what `reset` returned; the first observation."""
        self._first, info = self._parts(returned, "reset", "observation, info")
        self.info = dict(info)
        return self._first

    async def step(self, session: ToolSession, action: Any) -> Any:
        """Take an action; the observation. Its turn is rewarded, and the rollout ends with the game."""
        if self.terminated or self.truncated:
            raise ToolUseError("the game is over")
        returned = await _awaited(self._game.step(action))
        parts = self._parts(returned, "step", "observation, reward, terminated, truncated, info")
        observation, reward, terminated, truncated, info = parts
        self.steps += 1
        self.score += float(reward)
        self.terminated, self.truncated, self.info = bool(terminated), bool(truncated), dict(info)
        session.reward(float(reward))
        if self.terminated or self.truncated:
            session.end("terminated" if self.terminated else "truncated")
        return observation

    def _parts(self, returned: Any, method: str, wanted: str) -> tuple[Any, ...]:
        if isinstance(returned, tuple) and len(returned) == wanted.count(",") + 1:
            return returned
        name, shown = type(self._game).__name__, repr(returned)[:MAX_SHOWN]
        raise EnvironmentCodeError("game", f"{name}.{method} returned {shown}; return ({wanted}), as in Gymnasium")


@dataclass(slots=True, kw_only=True)
class TextEpisode(Episode):
    """A game whose actions and observations are text to the model."""

    _env: "TextGameEnv[Any]"

    @property
    def opening(self) -> str:
        """What the game showed first."""
        return self._env.show(self._first)

    async def play(self, session: ToolSession, text: str) -> str:
        """Take the action of an answer; what the game shows then."""
        return self._env.show(await self.step(session, self._env.action(text)))


class TextGameConfig(HermesAgentEnvConfig):
    train_seeds: int = Field(default=64, ge=1, description="Number of training items: games with the seeds 0, 1, 2 …")
    eval_seeds: int = Field(default=16, ge=0, description="Number of held-out items: games with the seeds after them.")


class TextGameEnv(HermesAgentBaseEnv[Item, TextGameConfig]):
    """A game that is played in plain text: each answer of the model is an action, each observation a user message.

    Set `game`, or define `new_game` where a game depends on its item. With `own_tools = (act,)` a model plays by calls
    of one tool instead.
    """

    game: ClassVar[type[TextGame] | None] = None
    """A class with `reset` and `step`, made anew for each rollout."""
    instructions: ClassVar[str] = ""
    """Put before the first observation: the rules, and how to write an action."""

    def new_game(self, item: Item) -> TextGame:
        """The game of a rollout, before its `reset`. By default items are seeds."""
        if self.game is None:
            raise ConfigError(f"{type(self).__name__} has no game: set `game` to a class, or define new_game(item)")
        return self.game()

    def action(self, text: str) -> Any:
        """The action in an answer of the model. Raise ToolUseError to tell the model why there is none."""
        return text.strip()

    def show(self, observation: Any) -> str:
        """An observation as the model reads it."""
        return str(observation)

    def game_seed(self, item: Item) -> int:
        """The seed of an item's game: the item if it is a number, else one made from its id."""
        return item if isinstance(item, int) else crc32(self.item_id(item).encode())

    def train_items(self) -> Sequence[Item] | None:
        return cast("Sequence[Item]", list(range(self.config.train_seeds)))

    def eval_items(self) -> Sequence[Item]:
        first = self.config.train_seeds
        return cast("Sequence[Item]", list(range(first, first + self.config.eval_seeds)))

    async def initial_state(self, item: Item, session: ToolSession | None = None) -> TextEpisode:
        episode = TextEpisode(_game=self.new_game(item), _env=self)
        if session is not None:
            await session.resource("game", lambda: _closing(episode.game))
        episode.begin(await _awaited(episode.game.reset(seed=self.game_seed(item))))
        return episode

    def format_prompt(self, item: Item, session: ToolSession[TextEpisode] | None = None) -> str:
        if session is None:
            raise ConfigError("a game shows its prompt in a rollout only: await prompt_of(env, item) begins one")
        return "\n\n".join(filter(None, (self.instructions, session.state.opening)))

    async def next_user_message(
        self, item: Item, messages: list[Message], session: ToolSession[TextEpisode] | None = None
    ) -> str | None:
        if session is None or act in self.own_tools:
            return None
        try:
            return await session.state.play(session, content_text(messages[-1].get("content")))
        except ToolUseError as error:
            return str(error)

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> float | Reward:
        return result.step_reward


@tool(sandboxed=False)
async def act(session: ToolSession[TextEpisode], text: str) -> str:
    """Take an action in the game, and see what happens.

    Args:
        text: The action.
    """
    return await session.state.play(session, text)


@asynccontextmanager
async def _closing(game: TextGame) -> AsyncIterator[None]:
    try:
        yield
    finally:
        close = getattr(game, "close", None)
        await _awaited(close() if callable(close) else None)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
