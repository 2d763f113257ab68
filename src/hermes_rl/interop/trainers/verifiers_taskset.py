"""verifiers 0.4: an environment as a v1 taskset with its harness, which is also the way into prime-rl.

Always true: every model call of a rollout goes to the endpoint that verifiers gave for it, where its tokens are
recorded; the reward is the environment's own score. A rollout that infrastructure left without a score raises, and
verifiers records an error instead of a reward.
"""

import asyncio
import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import verifiers.v1 as vf
from verifiers.v1.harness import Harness

from hermes_rl.console.config_options import merge_fields
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.messages import Message
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.resolve_config import config_defaults
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.interop.trainers.environment_host import EnvironmentReference, LoopThread, environment_class
from hermes_rl.interop.trainers.rollout_host import RolloutHost
from hermes_rl.rollout.rollout import prompt_of, run_rollout

# Key of a trace's `info`.
INFO = "hermes_rl"


class HermesData(vf.TaskData):
    """`item` is the number of an item in `train_items()`, or with `held_out` in `eval_items()`."""

    item: int
    held_out: bool = False


class HermesTask(vf.Task[HermesData]):
    # verifiers is not installed where types are checked.
    @vf.reward(weight=1.0)  # type: ignore[untyped-decorator]
    async def environment_score(self, trace: vf.Trace) -> float:
        return float(trace.info[INFO]["score"])


class HermesTasksetConfig(vf.TasksetConfig):
    held_out: bool = False
    """Whether the tasks are the environment's evaluation items."""


class HermesTaskset(vf.Taskset[HermesTask, HermesTasksetConfig]):
    """A subclass names `environment`, and in `settings` fields of its configuration."""

    environment: ClassVar[EnvironmentReference]
    settings: ClassVar[Mapping[str, Any]] = {}

    def load(self) -> Iterable[HermesTask]:
        thread = LoopThread()
        try:
            data = thread.run(self._data())
        finally:
            thread.close()
        return [HermesTask(each, self.config.task) for each in data]

    async def _data(self) -> list[HermesData]:
        host, held_out = ChatHost(self.environment, self.settings), self.config.held_out
        try:
            env, items = await host.opened(), await host.chosen(held_out=held_out)
            return [
                HermesData(
                    id=env.item_id(item),
                    prompt=_text(await prompt_of(env, item)),
                    item=number,
                    held_out=held_out,
                )
                for number, item in enumerate(items)
            ]
        finally:
            await host.close()


class HermesHarness(Harness[vf.HarnessConfig]):
    """Plays a task with the environment's own agent loop, tools and sandboxes, in the process of verifiers."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    environment: ClassVar[EnvironmentReference]
    settings: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, config: vf.HarnessConfig) -> None:
        super().__init__(config)
        self.host = ChatHost(self.environment, self.settings)

    async def launch(
        self,
        ctx: Any,
        trace: vf.Trace,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        env, items = await self.host.opened(), await self.host.chosen(held_out=data.held_out)
        item = items[data.item]
        if env.item_id(item) != data.id:
            raise ConfigError(
                f"item {data.item} is {env.item_id(item)} here and {data.id} in the taskset; both need the same version"
            )
        [plan] = self.host.plan(env, item, 1)
        model = APIServerConfig(base_url=endpoint, model_name=ctx.model, api_key=secret, health_check=False)
        own = copy.copy(env)
        with env.running():
            async with ServerManager([model], reasoning=env.server.reasoning) as own.server:
                rollout = (await run_rollout(own, plan)).rollout
        if rollout.score is None:
            reason = "unknown" if rollout.failure is None else f"{rollout.failure}: {rollout.failure.message}"
            raise HermesRLError(f"a rollout of item {rollout.item_id} has no score: {reason}")
        trace.info[INFO] = {
            "score": rollout.score,
            "components": dict(rollout.components),
            "stop_reason": str(rollout.stop_reason),
            "turns": rollout.turns_used,
        }
        return vf.ProgramResult(exit_code=0, stdout=json.dumps(trace.info[INFO]), stderr="")


class ChatHost(RolloutHost):
    """Opens the environment without a model; each rollout brings the endpoint of its own."""

    def __init__(self, environment: EnvironmentReference, settings: Mapping[str, Any]) -> None:
        super().__init__(environment, "", settings=settings)

    async def chosen(self, *, held_out: bool) -> Sequence[Any]:
        return (await self.opened()).eval_items() if held_out else await self.items()

    async def _live(self, ready: "asyncio.Future[HermesAgentBaseEnv]", closing: asyncio.Event) -> None:
        try:
            kind = environment_class(self.environment)
            config = merge_fields(config_defaults(kind)[0], {"use_wandb": False, **self.settings}, "env")
            env = kind(config, [NO_MODEL])
            if env.seats or env.makes_own_rollouts or env.config.external_agent:
                raise ConfigError(
                    f"{env.display_name()} has several agents, makes its own rollouts or runs an agent of others; a "
                    "taskset has one agent"
                )
            if env.overrides("compute_group_rewards") or env.config.group_strategy != "flat":
                raise ConfigError(f"{env.display_name()} makes whole groups, and verifiers runs one rollout at a time")
            async with env.opened():
                ready.set_result(env)
                await closing.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)


def _text(messages: Sequence[Message]) -> str:
    """What a task shows as its prompt; the environment makes the messages itself."""
    parts = [message.get("content") for message in messages if message.get("role") == "user"]
    return "\n\n".join(part for part in parts if isinstance(part, str))
