"""HermesMultiAgentEnv: the class authors subclass when several agents act in one episode.

An episode has one state and a conversation for each seat. Every seat is played by the policy, unless `seat_endpoints`
names another endpoint for it. The rollouts of a seat are a group of their own.
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar, final

from hermes_rl.agent.result import AgentResult
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import Reward
from hermes_rl.environment.base import Config, HermesAgentBaseEnv, Item
from hermes_rl.environment.scripted_policy import Step
from hermes_rl.inference.config import APIServerConfig, ServerBaseline
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rollout.seats import EpisodeContext, SeatAnswer

# Methods of one agent, and what several agents have in their place.
REPLACED = {
    "initial_messages": "seat_messages",
    "oracle": "seat_oracle",
    "cheats": "seat_oracle",
    "compute_group_rewards": "compute_seat_rewards",
    "next_user_message": "observation",
    "simulated_user": "a seat with an endpoint of its own (seat_endpoints)",
    "user": "a seat with an endpoint of its own (seat_endpoints)",
    "collect_trajectory": "next_seat",
    "collect_trajectories": "next_seat",
}


class HermesMultiAgentEnv(HermesAgentBaseEnv[Item, Config]):
    """Base class of environments with several agents: name the seats, their prompts, and their rewards.

    Without more, the seats take turns in order, and each is told what the others said since its last turn.
    """

    seats: ClassVar[Sequence[str]] = ()

    def __init__(
        self, config: Config, server_configs: ServerBaseline | Sequence[APIServerConfig], **options: Any
    ) -> None:
        name = type(self).__name__
        if len(set(self.seats)) < max(len(self.seats), 1) or isinstance(self.seats, str):
            raise ConfigError(f'{name}: seats = {self.seats!r}; name each agent once: seats = ("buyer", "seller")')
        if config.external_agent:
            raise ConfigError(f"{name} has several agents; unset agent_command and agent_url, which are one")
        if wrong := [method for method in REPLACED if self._has_own(method)]:
            raise ConfigError(
                f"{name}.{wrong[0]} would have no effect: an environment with seats uses {REPLACED[wrong[0]]}"
            )
        if unknown := sorted(config.seat_endpoints.keys() - set(self.seats)):
            raise ConfigError(f"seat_endpoints names {unknown[0]!r}; the seats are {', '.join(self.seats)}")
        if not config.seat_endpoints.keys() ^ set(self.seats):
            raise ConfigError("seat_endpoints names every seat, so nothing is trained; leave one out")
        super().__init__(config, server_configs, **options)
        self.seat_servers: dict[str, ServerManager] = {}
        """The endpoints of frozen seats, set when open."""

    @classmethod
    def _has_own(cls, method: str) -> bool:
        return getattr(cls, method) not in (getattr(HermesMultiAgentEnv, method), getattr(HermesAgentBaseEnv, method))

    # --- defined by the author ---

    @abstractmethod
    def seat_prompt(self, item: Item, seat: str) -> str:
        """The user message that a seat's conversation begins with; its first observation is appended."""

    @abstractmethod
    async def compute_seat_rewards(
        self, item: Item, results: Mapping[str, AgentResult], ctx: EpisodeContext
    ) -> Mapping[str, float | Reward]:
        """A reward for each seat that took a turn, from the state (`ctx.state`) and what each did (`results[seat]`).

        `ctx.seats[seat]` is the sandbox of a seat; `ctx` itself is one that no seat had.
        """

    def next_seat(self, item: Item, state: Any, last: SeatAnswer | None) -> str | None:
        """Who takes the next turn; None ends the episode. By default the seats take turns in order.

        Called before the first turn, with `last` None, and after each answer: the place where an answer that is a move
        changes the state. It may be a coroutine. An episode also ends when a seat stops (a limit, or `session.end()`).
        """
        return self.seats[0 if last is None else (self.seats.index(last.seat) + 1) % len(self.seats)]

    def observation(self, item: Item, seat: str, state: Any, heard: Sequence[SeatAnswer]) -> str:
        """What a seat is told before its turn; by default `heard`: what the others said since its last turn."""
        if len(self.seats) == 2:
            return "\n\n".join(answer.text for answer in heard)
        return "\n\n".join(f"{answer.seat}: {answer.text}" for answer in heard)

    def seat_tools(self, seat: str) -> Collection[str] | None:
        """The names of the tools that a seat has, of those of its group; None, the default, is all of them."""
        return None

    def seat_messages(self, item: Item, seat: str) -> list[Message]:
        """The conversation a seat starts with; override it to put worked examples before the prompt."""
        prompt = "\n\n".join(filter(None, (self.config.custom_thinking_prompt, self.config.system_prompt)))
        system = [{"role": "system", "content": prompt}] if prompt else []
        return [*system, {"role": "user", "content": self.seat_prompt(item, seat)}]

    def seat_oracle(self, item: Item, seat: str) -> Mapping[str, Sequence[Step]] | None:
        """An episode that this seat passes, for `validate`: the steps of every seat in it, one a turn."""
        return None

    # --- running ---

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as opened:
            for seat, endpoint in self.config.seat_endpoints.items():
                server = self.seat_servers[seat] = await opened.enter_async_context(ServerManager([endpoint]))
                # As for the policy's endpoints: a command that asks no model waits for none.
                if any(config.health_check for config in self.server.configs):
                    await server.wait_until_ready(endpoint.ready_timeout)
            await opened.enter_async_context(super().opened())
            for seat in self.seats:
                if unknown := sorted(set(self.seat_tools(seat) or ()) - self.tools.tools.keys()):
                    raise ConfigError(f"seat_tools({seat!r}) names {unknown[0]!r}, which is not a tool")
            yield
        self.seat_servers = {}

    @final
    def format_prompt(self, item: Item) -> str:
        """The prompt of the first seat, for what shows one prompt per item."""
        return self.seat_prompt(item, self.seats[0])

    def initial_messages(self, item: Item) -> list[Message]:
        return self.seat_messages(item, self.seats[0])

    @final
    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> float | Reward:
        raise ConfigError(f"{type(self).__name__} scores the seats of an episode together: compute_seat_rewards")
