"""Environments that a verifiers package defines: its rows, tools, user turns and rewards, with our loop in between.

Always true: each rollout has one state in the package's process, which sees every answer of the policy in order, and
hears of a turn's tool calls once; scores are those that the package computes from that state.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any, ClassVar

from pydantic import Field

from hermes_rl.agent.result import AgentResult
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError, InfrastructureError
from hermes_rl.core.messages import Message
from hermes_rl.core.secrets import resolve_secret
from hermes_rl.core.trajectory import Reward
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.interop.live_rollout import LiveRollout
from hermes_rl.interop.package_error import PackageError, PackageFault
from hermes_rl.interop.verifiers.packages import environment_file, installed
from hermes_rl.interop.verifiers.process import PackageProcess
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.sandbox.spec import Limits, SandboxSpec
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import Tool

Row = dict[str, Any]

RESOURCE = "verifiers"
ROWS_PER_REQUEST = 500
EPISODE_OVER = "The episode is over."


class VerifiersConfig(HermesAgentEnvConfig):
    package_args: dict[str, Any] = Field(
        default_factory=dict,
        description="Arguments of the package's load_environment, or settings of its taskset (v1).",
    )
    package_env: dict[str, str] = Field(
        default_factory=dict,
        description="Environment variables of the package's process; env:NAME or file:PATH for secrets.",
    )
    package_timeout: float = Field(
        default=600.0, gt=0, description="Maximum seconds for the package to answer a turn or to score a rollout."
    )
    package_start_timeout: float = Field(
        default=600.0, gt=0, description="Maximum seconds for the package to load its dataset."
    )
    held_out_every: int = Field(
        default=5, ge=2, description="Hold out every N-th item if the package has no held-out items of its own."
    )


class VerifiersEnv(HermesAgentBaseEnv[Row, VerifiersConfig]):
    """A verifiers package, v0 or v1, that `hermes-rl env install` installed."""

    package: ClassVar[str] = ""
    env_config_cls = VerifiersConfig

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the package first, since it says which tools there are."""
        config, package = self.config, installed(self.package)
        variables = {name: resolve_secret(value, f"package_env.{name}") for name, value in config.package_env.items()}
        self.host = PackageProcess(
            package.python,
            self.package,
            config.package_args,
            variables=variables,
            timeout=config.package_timeout,
            start_timeout=config.package_start_timeout,
        )
        self.scored_states = ScoredStates()
        try:
            async with self.host.running():
                await self._load()
                async with super().opened():
                    yield
        except PackageError as error:
            raise ConfigError(f"the verifiers package {self.package} failed to open: {error}") from error

    async def _load(self) -> None:
        about, config = self.host.about, self.config
        if about["refused"]:
            raise ConfigError(f"{self.package} needs what hermes-rl does not do: {'; '.join(about['refused'])}")
        if config.external_agent and (about["tools"] or about["multi_turn"]):
            raise ConfigError(
                f"{self.package} has tools or user turns, which need our loop: leave out agent_command and agent_url"
            )
        # The tools of a class are known before it is open, these only now; an instance's own hide its class's.
        vars(self)["own_tools"] = [
            Tool(one["name"], one["description"], one["parameters"], dict, partial(self._call, one["name"]), False)
            for one in about["tools"]
        ]
        train, held = await self._rows("train"), await self._rows("eval")
        if not held and not about["infinite"]:
            every = config.held_out_every
            held = train[every - 1 :: every]
            train = [row for at, row in enumerate(train) if (at + 1) % every]
        self.train_rows, self.eval_rows = train, held
        if about["timeout"] and config.rollout_deadline is None:
            self.config = config.model_copy(update={"rollout_deadline": float(about["timeout"])})

    async def _rows(self, split: str) -> list[Row]:
        size = self.host.about["sizes"][split]
        pages = [
            await self.host.ask("rows", split=split, begin=begin, count=ROWS_PER_REQUEST)
            for begin in range(0, size, ROWS_PER_REQUEST)
        ]
        return list(chain.from_iterable(pages))

    def train_items(self) -> Sequence[Row] | None:
        return self.train_rows or None

    def eval_items(self) -> Sequence[Row]:
        return self.eval_rows

    async def get_next_item(self) -> Row | None:
        if not self.host.about["infinite"]:
            return await super().get_next_item()
        row: list[Row] = await self.host.ask("rows", split="train", begin=0, count=1)
        return row[0] if row else None

    def format_prompt(self, item: Row) -> str:
        return "\n\n".join(str(message["content"]) for message in self._prompt(item) if message["role"] == "user")

    def initial_messages(self, item: Row) -> list[Message]:
        LiveRollout.begin()
        prompt = self._prompt(item)
        if self.config.system_prompt and prompt[0]["role"] != "system":
            prompt.insert(0, {"role": "system", "content": self.config.system_prompt})
        return prompt

    def _prompt(self, item: Row) -> list[Message]:
        # A column of a v0 row may have that name; the package has already put its prompt together.
        return _prompt(item["prompt"], item.get("system_prompt") if self.host.about["kind"] == "v1" else None)

    def turn_limit(self, item: Row) -> int:
        ours, theirs = self.config.max_agent_turns, int(self.host.about["max_turns"])
        return min(ours, theirs) if theirs and "max_agent_turns" in self.config.model_fields_set else theirs or ours

    def sandbox_spec(self, item: Row) -> SandboxSpec:
        spec = super().sandbox_spec(item)
        if not item or self.host.about["kind"] == "v0":
            return spec
        config, asked = self.config, item.get("resources") or {}
        limits = Limits(
            memory_mb=config.sandbox_memory_mb or _megabytes(asked.get("memory")),
            cpus=config.sandbox_cpus or asked.get("cpu"),
            processes=config.sandbox_processes,
            disk_mb=config.sandbox_disk_mb or _megabytes(asked.get("disk")),
        )
        return SandboxSpec(image=item.get("image") or spec.image, limits=limits, network=spec.network)

    async def next_user_message(
        self, item: Row, messages: list[Message], session: ToolSession | None = None
    ) -> str | None:
        if not self.host.about["multi_turn"]:
            return None
        live = LiveRollout.current()
        if live is None or live.loop is None:
            raise PackageError(PackageFault.UNSUPPORTED, f"{self.package} was asked for a user turn outside our loop")
        conversation = await self._conversation(live.loop.task_id, item)
        answer = await conversation.turn(live.as_written(), live.prompt_length)
        if answer["done"]:
            return None
        said = answer["messages"]
        if len(said) != 1 or said[0]["role"] != "user":
            roles = ", ".join(message["role"] for message in said) or "nothing"
            raise PackageError(
                PackageFault.UNSUPPORTED,
                f"{self.package}: env_response answered with {roles}; one user message is supported",
            )
        return str(said[0]["content"])

    async def _call(self, name: str, session: ToolSession, /, **arguments: Any) -> str:
        """One tool call of a turn; the package hears of all calls of the turn with the first."""
        live = LiveRollout.current()
        if live is None or live.loop is None:
            raise PackageError(PackageFault.UNSUPPORTED, f"{self.package}: {name} was called outside our loop")
        conversation = await self._conversation(session.task_id, session.item)
        answer = await conversation.turn(live.as_written(), live.prompt_length)
        if answer["done"]:
            session.end()
        return conversation.result(name, arguments)

    async def compute_reward(self, item: Row, result: AgentResult, ctx: ToolContext) -> Reward:
        await self._conversation(ctx.task_id, item)
        scored = await self._ask_score(ctx.task_id, item, result)
        if self.host.about["group_rewards"]:
            self.scored_states.add(result, ctx.task_id)
        return Reward(scored["score"], scored["components"])

    async def _ask_score(self, task_id: str, item: Row, result: AgentResult) -> Mapping[str, Any]:
        live = LiveRollout.current()
        own = live is not None and live.loop is not None and live.loop.result is result
        messages = live.as_written() if live is not None and own else result.messages
        scored: Mapping[str, Any] = await self.host.ask(
            "score", rollout=task_id, item=item, messages=messages, prompt_length=result.prompt_length
        )
        return scored

    async def compute_group_rewards(self, item: Row, results: Sequence[AgentResult]) -> Sequence[Reward] | None:
        if not self.host.about["group_rewards"]:
            return None
        scored = await self.host.ask("score_group", rollouts=[self.scored_states.take(result) for result in results])
        return [Reward(one["score"], one["components"]) for one in scored]

    async def _conversation(self, task_id: str, item: Row) -> "Conversation":
        return await self.tools.session(task_id).resource(
            RESOURCE, lambda: Conversation.opened(self.host, task_id, item)
        )


class Conversation:
    """One rollout as its package sees it: a request a turn, whose answer all tool calls of the turn share."""

    def __init__(self, host: PackageProcess, task_id: str, item: Row) -> None:
        self._host, self._task_id, self._item = host, task_id, item
        self._lock = asyncio.Lock()
        self._known = 0
        self._answer: dict[str, Any] = {}
        self._calls: list[Mapping[str, Any]] = []

    @classmethod
    @asynccontextmanager
    async def opened(cls, host: PackageProcess, task_id: str, item: Row) -> AsyncIterator["Conversation"]:
        try:
            yield cls(host, task_id, item)
        finally:
            # Where the process ended, the state did too.
            with suppress(InfrastructureError):
                await host.ask("drop", rollout=task_id)

    async def turn(self, messages: Sequence[Message], prompt_length: int) -> Mapping[str, Any]:
        """What the package says to the last message."""
        async with self._lock:
            if self._known != len(messages):
                self._answer = await self._host.ask(
                    "step",
                    rollout=self._task_id,
                    item=self._item,
                    messages=list(messages),
                    prompt_length=prompt_length,
                )
                self._known, self._calls = len(messages), list(messages[-1].get("tool_calls") or ())
        return self._answer

    def result(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The result of a call of this turn. Calls that are alike get their results in their order."""
        at = next(at for at, call in enumerate(self._calls) if _is_call(call, name, arguments))
        call_id = self._calls.pop(at)["id"]
        said = self._answer["messages"]
        others = [message["role"] for message in said if message["role"] != "tool"]
        if others:
            raise PackageError(
                PackageFault.UNSUPPORTED, f"env_response added {', '.join(others)} messages to the results of tools"
            )
        results = [message["content"] for message in said if message["tool_call_id"] == call_id]
        return results[0] if results else EPISODE_OVER


class ScoredStates:
    """Which state belongs to which result, from the reward of a rollout to the reward of its group."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[AgentResult, str]] = {}

    def add(self, result: AgentResult, task_id: str) -> None:
        self._kept[id(result)] = (result, task_id)

    def take(self, result: AgentResult) -> str:
        return self._kept.pop(id(result))[1]


def package_environment(name: str) -> type[VerifiersEnv]:
    """The base class of the environment of an installed package."""
    return type(
        "PackageEnv", (VerifiersEnv,), {"package": name, "__module__": __name__, "__doc__": VerifiersEnv.__doc__}
    )


def environment_class(name: str) -> type[HermesAgentBaseEnv]:
    """The environment of an installed package; ConfigError with the next step when it is not installed."""
    installed(name)
    return load_environment(str(environment_file(name)))


def _prompt(prompt: str | Sequence[Message], system_prompt: str | None) -> list[Message]:
    """The messages that a row begins with, in OpenAI's form; ConfigError for parts that are not text."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(one) for one in prompt]
    if system_prompt:
        messages.insert(0, {"role": "system", "content": system_prompt})
    for message in messages:
        for name in [name for name, value in message.items() if value is None]:
            del message[name]
        content = message.get("content", "")
        if not isinstance(content, str):
            if any(part.get("type") != "text" for part in content):
                raise ConfigError("the prompt has parts that are not text")
            message["content"] = "".join(part["text"] for part in content)
    return messages


def _is_call(call: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> bool:
    function = call["function"]
    if function["name"] != name:
        return False
    try:
        sent = fast_json.loads(function["arguments"]) if function["arguments"].strip() else {}
    except ValueError:
        return False
    return bool(sent == arguments)


def _megabytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else int(gigabytes * 1024)
