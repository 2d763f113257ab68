"""Environments behind an OpenEnv server: its MCP tools, or one tool that takes its actions; its rewards are the score.

Always true: a rollout has a connection of its own, from its first action to its reward, and a reset with its item's
seed begins it; `done` ends the rollout.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, ClassVar, Literal

import aiohttp
from pydantic import Field

from hermes_rl.agent.result import AgentResult
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.secrets import resolve_secret
from hermes_rl.core.trajectory import Reward
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.text_game import Episode
from hermes_rl.interop.openenv.client import Connection, Observed, OpenEnvClient
from hermes_rl.interop.openenv.server import running_server
from hermes_rl.interop.package_error import PackageError, PackageFault
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import Tool, ToolUseError

Item = dict[str, Any]

RESOURCE = "openenv"
ACT = "act"
TEXT_FIELDS = ("prompt", "message", "text", "content", "question", "instruction")
# Fields of every observation, which are not shown to the model.
FRAME = ("reward", "done", "metadata")


class OpenEnvConfig(HermesAgentEnvConfig):
    server_url: str | None = Field(default=None, description="URL of a running OpenEnv server.")
    server_command: list[str] | None = Field(
        default=None, description="Program that starts the server, with its arguments; {port} is replaced."
    )
    server_env: dict[str, str] = Field(
        default_factory=dict, description="Environment variables of the program; env:NAME or file:PATH for secrets."
    )
    server_timeout: float = Field(default=60.0, gt=0, description="Maximum seconds for the server to answer.")
    server_start_timeout: float = Field(default=60.0, gt=0, description="Maximum seconds for the program to start.")
    train_seeds: int = Field(default=64, ge=0, description="Number of training items: resets with the seeds 0, 1, 2 …")
    eval_seeds: int = Field(default=16, ge=0, description="Number of held-out items: resets with the seeds after them.")
    reset_arguments: dict[str, Any] = Field(default_factory=dict, description="More arguments of every reset.")
    task_prompt: str | None = Field(
        default=None, description="Prompt of every item. Default: what the environment shows after the reset."
    )
    episode_score: Literal["sum", "last", "max"] = Field(
        default="sum", description="The score of an episode: the sum, the last or the highest of its rewards."
    )


class OpenEnvEnv(HermesAgentBaseEnv[Item, OpenEnvConfig]):
    """An environment behind an OpenEnv server, given by its URL or as a program to start."""

    name = "openenv"
    env_config_cls = OpenEnvConfig
    url: ClassVar[str | None] = None
    """The server, if the settings name none."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Reach the server first, since it says which tools there are."""
        config = self.config
        if config.external_agent:
            raise ConfigError("an OpenEnv server's actions are tools of our loop: leave out agent_command, agent_url")
        async with AsyncExitStack() as stack:
            url = config.server_url or self.url
            if config.server_command:
                variables = {
                    name: resolve_secret(value, f"server_env.{name}") for name, value in config.server_env.items()
                }
                url = await stack.enter_async_context(
                    running_server(config.server_command, variables, config.server_start_timeout)
                )
            if not url:
                raise ConfigError("no OpenEnv server: pass openenv:URL, --env.server_url or --env.server_command")
            http = await stack.enter_async_context(aiohttp.ClientSession())
            self.client = OpenEnvClient(url, http, config.server_timeout)
            try:
                await self._load()
            except PackageError as error:
                raise ConfigError(f"the OpenEnv server failed: {error}") from error
            async with super().opened():
                yield

    async def _load(self) -> None:
        """Ask for the tools, and for what each seed begins with."""
        config = self.config
        seeds = range(config.train_seeds + config.eval_seeds)
        async with self.client.connected() as connection:
            items = []
            for seed in seeds:
                observed = await connection.reset({"seed": seed, **config.reset_arguments})
                items.append({"seed": seed, "prompt": config.task_prompt or shown(observed)})
            # The tools of a class are known before it is open, these only now; an instance's own hide its class's.
            vars(self)["own_tools"] = await self._tools(connection)
        self.train, self.held_out = items[: config.train_seeds], items[config.train_seeds :]

    async def _tools(self, connection: Connection) -> list[Tool]:
        """The server's MCP tools; one that takes its actions if it has none."""
        try:
            listed = (await connection.step({"type": "list_tools"})).observation.get("tools")
        except (ToolUseError, PackageError):
            listed = None
        if listed:
            return [
                Tool(
                    one["name"],
                    one.get("description") or "",
                    one.get("input_schema") or {"type": "object", "properties": {}},
                    dict,
                    partial(self._call_tool, one["name"]),
                    False,
                )
                for one in listed
            ]
        action = dict((await self.client.get("/schema")).get("action") or {})
        properties = {name: one for name, one in (action.get("properties") or {}).items() if name != "metadata"}
        if not properties:
            raise PackageError(PackageFault.UNSUPPORTED, "it has neither MCP tools nor an action schema with fields")
        schema = {**action, "properties": properties}
        return [Tool(ACT, action.get("description") or "Take an action.", schema, dict, self._act, False)]

    def train_items(self) -> Sequence[Item] | None:
        return self.train or None

    def eval_items(self) -> Sequence[Item]:
        return self.held_out

    def item_id(self, item: Item) -> str:
        return f"seed-{item['seed']}"

    def format_prompt(self, item: Item) -> str:
        return str(item["prompt"])

    async def _call_tool(self, name: str, session: ToolSession, /, **arguments: Any) -> str:
        observed = await self._step(session, {"type": "call_tool", "tool_name": name, "arguments": arguments})
        error = observed.observation.get("error")
        if error:
            raise ToolUseError(str(error.get("message", error) if isinstance(error, dict) else error))
        return tool_text(observed.observation.get("result"))

    async def _act(self, session: ToolSession, /, **action: Any) -> str:
        return shown(await self._step(session, action))

    async def _step(self, session: ToolSession, action: Mapping[str, Any]) -> Observed:
        episode: Episode = await session.resource(RESOURCE, lambda: self._begun(session.item))
        observed: Observed = await episode.step(session, action)
        return observed

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> Reward:
        rewards = [step.value for step in result.steps] or [0.0]
        scores = {"sum": sum(rewards), "max": max(rewards), "last": rewards[-1]}
        return Reward(
            scores[self.config.episode_score], {"steps": float(len(result.steps)), "last_reward": rewards[-1]}
        )

    @asynccontextmanager
    async def _begun(self, item: Item) -> AsyncIterator[Episode]:
        async with self.client.connected() as connection:
            game = ServerGame(connection, self.config.reset_arguments)
            episode = Episode(_game=game)
            observed = episode.begin(await game.reset(seed=item["seed"]))
            if not self.config.task_prompt and shown(observed) != item["prompt"]:
                raise PackageError(
                    PackageFault.UNSUPPORTED,
                    f"the seed {item['seed']} gave another beginning than before, so the prompt does not fit; "
                    "set --env.task_prompt",
                )
            yield episode


class ServerGame:
    """One environment of the server in Gymnasium's form; an action is what a `step` message carries."""

    def __init__(self, connection: Connection, reset_arguments: Mapping[str, Any]) -> None:
        self._connection, self._arguments = connection, reset_arguments

    async def reset(self, *, seed: int | None = None) -> tuple[Observed, Mapping[str, Any]]:
        observed = await self._connection.reset({"seed": seed, **self._arguments})
        return observed, observed.metadata

    async def step(self, action: Mapping[str, Any]) -> tuple[Observed, float, bool, bool, Mapping[str, Any]]:
        observed = await self._connection.step(action)
        return observed, observed.reward or 0.0, observed.done, False, observed.metadata


def environment_class(url: str) -> type[HermesAgentBaseEnv]:
    """The environment at this URL; without one, the settings name it."""
    if url and not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"openenv:{url} is not a URL; pass openenv:http://HOST:PORT, or openenv: with --env.server_command"
        )
    return type(
        "OpenEnvEnv", (OpenEnvEnv,), {"url": url or None, "__module__": __name__, "__doc__": OpenEnvEnv.__doc__}
    )


def shown(observed: Observed) -> str:
    """An observation as text: its prompt or message if it has one, else all of its fields as JSON."""
    own = {name: value for name, value in observed.observation.items() if name not in FRAME and value is not None}
    for source in (observed.metadata, own):
        for name in TEXT_FIELDS:
            if isinstance(text := source.get(name), str) and text:
                return text
    return fast_json.dumps(own).decode()


def tool_text(result: Any) -> str:
    """The text of an MCP result."""
    if not isinstance(result, dict):
        return result if isinstance(result, str) else fast_json.dumps(result).decode()
    texts = [part.get("text") for part in result.get("content") or () if isinstance(part, dict)]
    if result.get("is_error"):
        raise ToolUseError("\n".join(filter(None, texts)) or "the tool failed")
    return "\n".join(filter(None, texts)) or fast_json.dumps(result.get("data")).decode()
