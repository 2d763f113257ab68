"""HermesAgentBaseEnv: the class authors subclass to define items, prompts and the reward.

An environment owns its server, tool host and buffers and shares nothing with other environments in the process.
`async with env.opened()` runs `setup` on entry and closes everything on exit.
"""

import asyncio
import random
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from contextvars import ContextVar
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, cast, get_args, get_origin

from typing_extensions import TypeVar

from hermes_rl.agent.compaction import Compaction, DropOldResults
from hermes_rl.agent.result import AgentResult
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.keys import load_keys
from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import Group, Reward
from hermes_rl.environment.eval_copy import copy_back, copy_for_evaluation
from hermes_rl.environment.isolation import warn_about_isolation
from hermes_rl.environment.scripted_policy import Step
from hermes_rl.environment.simulated_user import SimulatedUser, User, UserServers, next_reply
from hermes_rl.evaluation.evaluate import EvaluationResult, evaluate_items, held_out_items, write_evaluation
from hermes_rl.evaluation.evaluated_policy import evaluated_policy, version_metrics
from hermes_rl.evaluation.output_folder import evaluation_folder
from hermes_rl.inference.config import APIServerConfig, ServerBaseline
from hermes_rl.inference.endpoint_file import follow_endpoint_file
from hermes_rl.inference.meter import metered
from hermes_rl.inference.reasoning import Reasoning
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.parsers import get_parser
from hermes_rl.rewards.cpu_reward import CpuWorkers
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rewards.watchdog import Watchdog
from hermes_rl.rollout.concurrency import engine_limiter_config
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.rollout.display import ProgressReporter, progress
from hermes_rl.rollout.external.program import install_packages, with_agent
from hermes_rl.rollout.external.service import Service
from hermes_rl.rollout.filters import DistinctScores, GroupRules, MinViableGroup, Retries, SequenceLimit
from hermes_rl.rollout.group import collect_own_group, collect_rollout, plan_group, run_group, run_groups
from hermes_rl.rollout.in_flight import RolloutsInFlight
from hermes_rl.rollout.item_rewards import ItemRewards
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.rollout.own_files import environment_files
from hermes_rl.rollout.sampler import Draw, ItemStream, Sampler, content_id, dataset_hash, get_sampler
from hermes_rl.rollout.token_requirements import load_run_tokenizer
from hermes_rl.rollout.transcript import transcript
from hermes_rl.sandbox.backends.registry import open_backends
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import Backend
from hermes_rl.sandbox.reaper import reap_periodically
from hermes_rl.sandbox.spec import Limits, SandboxSpec, resolve_spec
from hermes_rl.sinks.run_sinks import MetricsRun, Sinks, open_sinks
from hermes_rl.sinks.selection import SinkConfig
from hermes_rl.sinks.serialize import public_config
from hermes_rl.store.records import atropos_columns, atropos_item
from hermes_rl.tools.distributions import toolset_probabilities
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import all_tools, open_toolsets
from hermes_rl.tools.selection import OWN_TOOLS, ToolsetSelection
from hermes_rl.tools.session import call_with_session, current_session
from hermes_rl.tools.tool import Tool, tools_of
from hermes_rl.tools.toolset import OpenToolset

if TYPE_CHECKING:
    from hermes_rl.gateway.server import GatewayServer

T = TypeVar("T")
Item = TypeVar("Item", default=Any)
Config = TypeVar("Config", bound=HermesAgentEnvConfig, default=Any)

# Schemas and names.
GroupTools: TypeAlias = tuple[list[dict[str, Any]], set[str]]
# The environment whose group runs in this context, with the group's tools.
_group_tools: ContextVar[tuple[object, GroupTools | None]] = ContextVar("group_tools", default=(None, None))


class HermesAgentBaseEnv(ABC, Generic[Item, Config]):
    """Base class of environments: define the items, the prompt of an item, and the reward of a rollout.

    `HermesAgentBaseEnv[MyItem, MyConfig]` types items and `self.config`, and sets `env_config_cls`.
    """

    name: ClassVar[str | None] = None
    env_config_cls: ClassVar[type[HermesAgentEnvConfig]] = HermesAgentEnvConfig
    default_toolsets: ClassVar[Sequence[str]] = ()
    """The toolsets that an agent gets unless the configuration names others; none by default."""
    replay_noise: ClassVar[Sequence[str]] = ()
    """Patterns of what differs in tool results each time, such as times; `hermes-rl fork` compares without it."""
    seats: ClassVar[Sequence[str]] = ()
    """The agents of an episode, in the order of their turns; only of a HermesMultiAgentEnv."""
    own_tools: ClassVar[Sequence[Tool]] = ()
    """Functions decorated with `@tool`; every group gets them in addition to its toolsets.

    Methods decorated with `@tool` need not be named here.
    """

    user: ClassVar[Any] = None
    """Whom the agent talks to: a SimulatedUser or a ScriptedUser. Without one, its first answer ends the rollout."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in getattr(cls, "__orig_bases__", ()):
            origin = get_origin(base)
            generic = isinstance(origin, type) and issubclass(origin, HermesAgentBaseEnv)
            arguments = get_args(base) if generic else ()
            given = arguments[1] if len(arguments) == 2 else None
            if "env_config_cls" in vars(cls) or not isinstance(given, type):
                continue
            # `Any`, the default, is a type too.
            if issubclass(given, HermesAgentEnvConfig):
                cls.env_config_cls = given

    def __init__(
        self,
        config: Config,
        server_configs: ServerBaseline | Sequence[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        self.config: Config = config
        if slurm or testing:
            # Imported late because `import hermes_rl` loads no click.
            from hermes_rl.console.config_options import refuse_atropos_endpoints

            refuse_atropos_endpoints(slurm=slurm, testing=testing)
        self.server = ServerManager(
            [] if isinstance(server_configs, ServerBaseline) else server_configs,
            limiter_config=engine_limiter_config(config),
            reasoning=requested_reasoning(config),
        )
        self.user_server: ServerManager | None = None
        """The model server of `user_endpoint`, set when open."""
        self.user_servers = UserServers()
        self.stand_in_user: User | None = None
        """Replaces a simulated user that has no model, for scripted agents."""
        get_parser(config.tool_call_parser)
        self.server.tool_parser = config.tool_call_parser
        self.tokenizer: Any = None
        """Set when open; None in chat mode, unless the environment makes its own rollouts and the settings name one."""
        self.gateway: GatewayServer | None = None
        """Model endpoint of an external agent, set when open; None for our loop."""
        self.rollouts_for_wandb: list[list[tuple[str, float]]] = []
        self.metrics_path: Path | None = None
        self.artifacts_folder: Path | None = None
        """Where files of external agents are kept (`agent_artifacts`), beside the records that name them."""
        self.sinks: Sinks | None = None
        self.watchdog: Watchdog | None = None
        self.last_evaluation: dict[str, Any] | None = None
        self.resume_evaluation = False
        self.policy_version: int | None = None
        """The policy version that an evaluation in serve is due for; None elsewhere."""
        self.__current_result: EvaluationResult | None = None
        self.item_rewards = ItemRewards()
        self.in_flight = RolloutsInFlight()
        self.dataset_hash: str | None = None
        self._tool_error_buffer: list[dict[str, Any]] = []
        self.__tools: ToolHost | None = None
        self.__cpu_workers = CpuWorkers()
        self.__exit_stack: AsyncExitStack | None = None
        self.__stream: ItemStream | None = None
        chances = toolset_probabilities(config.distribution, config.toolset_distributions)
        self.toolset_selection = ToolsetSelection(
            enabled=config.enabled_toolsets,
            disabled=config.disabled_toolsets or (),
            distribution=chances,
            default=self.default_toolsets,
            own=[tool.name for tool in tools_of(self, self.own_tools)],
        )
        self.__groups_sampled = self._groups_collected = 0
        self.__group_key: object = None

    # --- defined by the author ---

    async def setup(self) -> None:
        """Load the items. Called once; global random and numpy are seeded around it."""

    def train_items(self) -> Sequence[Item] | None:
        """The training items, drawn by `sampler`; None when they come from `get_next_item`."""
        return None

    async def get_next_item(self) -> Item | None:
        """The next training item; None when there are no more. Not needed with `train_items`."""
        if self.train_items() is None:
            raise ConfigError(f"{type(self).__name__} has no training items: define train_items() or get_next_item()")
        draw = await self.next_draw()
        return None if draw is None else draw.item

    @abstractmethod
    def format_prompt(self, item: Item) -> str:
        """The user message for an item."""

    @abstractmethod
    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> float | Reward:
        """Score a rollout by its messages (`result`) and the state of its sandbox (`ctx`)."""

    async def compute_group_rewards(
        self, item: Item, results: Sequence[AgentResult]
    ) -> Sequence[float | Reward] | None:
        """Rewards that compare rollouts, one per scored result; None keeps each `result.reward`."""
        return None

    async def audit_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> float | Reward:
        """A second score of a rollout, never trained on: how much of the trained reward holds up to it is a metric.

        Optional. It is called after `compute_reward` on the best rollouts of a training group (`audit_share`);
        `result.reward` is the trained reward.
        """
        raise NotImplementedError("the environment has no audit_reward")

    def oracle(self, item: Item) -> Sequence[Step] | None:
        """A solution of the item, for `validate`: tool calls as (name, arguments), then the final answer."""
        return None

    def cheats(self, item: Item) -> Mapping[str, Sequence[Step]]:
        """Named attempts to score without solving the item; `validate` tries them in addition to its own."""
        return {}

    def initial_state(self, item: Item) -> Any:
        """The state of one rollout, made before its prompt; it may be a coroutine. None, the default, is no state.

        Tools get it as `session.state`, the reward as `ctx.state` and `result.state`.
        """
        return None

    def initial_messages(self, item: Item) -> list[Message]:
        """The conversation a rollout starts with; override it to put worked examples before the prompt."""
        prompt = "\n\n".join(filter(None, (self.config.custom_thinking_prompt, self.config.system_prompt)))
        system = [{"role": "system", "content": prompt}] if prompt else []
        return [*system, {"role": "user", "content": call_with_session(self, "format_prompt", item)}]

    def simulated_user(self, item: Item) -> User | None:
        """The user of an item, by default the class's `user`; None for an item without a conversation."""
        # An author may use this name for something else.
        return self.user if callable(getattr(self.user, "reply", None)) else None

    async def next_user_message(self, item: Item, messages: list[Message]) -> str | None:
        """The next user message after the agent's answer, by default from the simulated user; None ends the rollout.

        An override may take the session too, as a parameter `session`.
        """
        user = self.simulated_user(item)
        if isinstance(user, SimulatedUser) and self.user_servers.get(user.endpoint) is None:
            user = self.stand_in_user or user
        return None if user is None else await next_reply(user, self.user_servers, item, messages, current_session())

    def turn_limit(self, item: Item) -> int:
        """Maximum model calls of a rollout. Override it to make the limit depend on the item."""
        return int(self.config.max_agent_turns)

    def sandbox_spec(self, item: Item) -> SandboxSpec:
        """The sandbox of an item's rollouts. Override it to make image, files, setup or limits depend on the item."""
        config = self.config
        return SandboxSpec(
            image=config.sandbox_image,
            limits=Limits(
                memory_mb=config.sandbox_memory_mb,
                cpus=config.sandbox_cpus,
                processes=config.sandbox_processes,
                disk_mb=config.sandbox_disk_mb,
            ),
            network=config.sandbox_network,
        )

    def sampler(self) -> Sampler:
        """How training items are drawn; override it to use your own sampler."""
        return get_sampler(self.config.item_sampler)

    def group_rules(self) -> GroupRules:
        """When a rollout is retried and which groups are trained on; override it to use your own rules."""
        config = self.config
        distinct = (DistinctScores(),) if config.ensure_scores_are_not_same and config.group_size > 1 else ()
        return GroupRules(
            Retries(config.rollout_retries),
            SequenceLimit(config.max_sequence_tokens) if config.max_sequence_tokens else None,
            (MinViableGroup(config.min_group_share), *distinct),
        )

    def compaction(self) -> Compaction | None:
        """How a conversation is shortened when the context is full; override it to use your own strategy."""
        return DropOldResults() if self.config.compaction == "drop_results" else None

    def eval_items(self) -> Sequence[Item]:
        """The held-out items; by default `self._eval_items`, as in the seeds."""
        return getattr(self, "_eval_items", [])

    def item_id(self, item: Item) -> str:
        """The id of an item: by default the hash of its JSON. Override it if items have ids."""
        return content_id(item)

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, Sequence[APIServerConfig]]:
        """Defaults of this environment; YAML and command line override them. Without an endpoint, the user is asked."""
        return cls.env_config_cls(), []

    # --- running ---

    @property
    def tools(self) -> ToolHost:
        """The opened toolsets."""
        if self.__tools is None:
            raise RuntimeError("the environment is not open; use `async with env.opened()`")
        return self.__tools

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside this block, ToolContext and `@cpu_reward` use this environment's tools and workers.

        The requests of a server or judge that is created inside it count as this environment's.
        """
        with self.tools.running(), self.__cpu_workers.running(), metered(self.server.meter):
            yield

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Wait for the endpoint, probe the sandbox backend and run `setup`; on exit close everything."""
        config = self.config
        async with self.owning_resources() as opened:
            if self.metrics_path is not None:
                run = MetricsRun(
                    group=self.display_name(),
                    folder=self.metrics_path.parent,
                    name=config.wandb_name,
                    file=self.metrics_path.name,
                    config=public_config(config),
                )
                self.sinks = await opened.enter_async_context(open_sinks(run, SinkConfig.from_config(config, "env")))
            opened.push_async_callback(self.server.close)
            if config.engines_file:
                await opened.enter_async_context(follow_endpoint_file(self.server, Path(config.engines_file)))
            if config.user_endpoint is not None:
                with metered(self.server.meter):
                    self.user_server = await opened.enter_async_context(ServerManager([config.user_endpoint]))
            self.user_servers = UserServers(self.user_server)
            opened.push_async_callback(self.user_servers.close)
            if self.server.returns_tokens or self.makes_own_rollouts:
                self.tokenizer = await asyncio.to_thread(load_run_tokenizer, config, self.server)
            await self.server.wait_until_ready(max(endpoint.ready_timeout for endpoint in self.server.configs))
            if self.user_server is not None and any(endpoint.health_check for endpoint in self.server.configs):
                await self.user_server.wait_until_ready(self.user_server.configs[0].ready_timeout)
            toolsets = await opened.enter_async_context(
                open_toolsets(self.toolset_selection.candidates(), config.tool_settings)
            )
            await install_packages(config)
            default_spec = with_agent(HermesAgentBaseEnv.sandbox_spec(self, cast("Item", None)), config)

            async def open_sandboxes() -> list[Backend]:
                backends = await open_backends(config.terminal_backend, config.sandbox_settings)
                warn_about_isolation(config, backends[0].name)
                if not self.overrides("sandbox_spec"):
                    # The spec is the same for every item, so unsupported limits are rejected before the first rollout.
                    resolve_spec(default_spec, backends[0].name, backends[0].capabilities)
                return backends

            toolsets[OWN_TOOLS] = OpenToolset(tools_of(self, self.own_tools))
            pool = SandboxPool(
                opening=open_sandboxes,
                max_live=config.max_live_sandboxes,
                max_starting=config.max_starting_sandboxes,
                start_timeout=config.sandbox_start_timeout,
                hidden=await asyncio.to_thread(environment_files, type(self), config),
            )
            tools = (tool for toolset in toolsets.values() for tool in toolset.tools)
            if config.agent_command or self.overrides("sandbox_spec") or any(tool.sandboxed for tool in tools):
                # Else only the reward can need a sandbox, and it may need none.
                await pool.open()
            self.__tools = ToolHost(
                all_tools(),
                pool,
                calls_in_flight=config.tool_pool_size,
                terminal_timeout=config.terminal_timeout,
                max_command_seconds=config.max_terminal_timeout,
                sandbox_lifetime=config.terminal_lifetime,
                toolsets=toolsets,
                spec=default_spec,
            )
            opened.push_async_callback(self.__tools.close)
            if config.agent_command:
                with_agent(SandboxSpec(), config)
                # Imported late because uvicorn is slow to import. It needs no port: each sandbox has its own listener.
                from hermes_rl.gateway.server import GatewayServer

                self.gateway = GatewayServer()
            if config.agent_url:
                Service.from_config(config)
                from hermes_rl.gateway.server import GatewayServer

                server = GatewayServer(host=config.gateway_host, port=config.gateway_port)
                self.gateway = await opened.enter_async_context(server)
            self.__cpu_workers = await opened.enter_async_context(CpuWorkers())
            await opened.enter_async_context(reap_periodically())
            with self.running(), seeded(config.seed):
                await bridged(self.setup())
            self.__stream = self._new_stream()
            yield
        self.__tools = self.__stream = self.sinks = self.gateway = None

    @asynccontextmanager
    async def owning_resources(self) -> AsyncIterator[AsyncExitStack]:
        """Close what `enter` opens inside this block when it ends."""
        async with AsyncExitStack() as opened:
            self.__exit_stack = opened
            yield opened
        self.__exit_stack = None

    async def enter(self, resource: AbstractAsyncContextManager[T]) -> T:
        """Open a resource (judge, server, client) in `setup`; it is closed with the environment."""
        if self.__exit_stack is None:
            raise RuntimeError("the environment is not open; call enter in setup or later")
        return await self.__exit_stack.enter_async_context(resource)

    def _new_stream(self) -> ItemStream:
        config, items = self.config, self.train_items()
        held_out = frozenset(map(self.item_id, self.eval_items()))
        self.dataset_hash = dataset_hash(map(self.item_id, items or ()), held_out)
        return ItemStream(
            item_id=self.item_id,
            next_item=self._author_next_item,
            items=items,
            sampler=self.sampler(),
            seed=config.seed,
            rewards=self.item_rewards,
            held_out=held_out,
            shard=config.shard,
            shards=config.shards,
            allows_backlog=self.makes_own_rollouts,
        )

    async def _author_next_item(self) -> Any:
        with self.running():
            return await bridged(self.get_next_item())

    def progress(
        self, what: str, total: int, tally: RolloutCounts, done: int = 0
    ) -> AbstractContextManager[ProgressReporter]:
        """Show the progress of a command; callers with their own display replace this."""
        title = f"{what} · {self.display_name()}"
        return progress(
            what, total, tally, done, title=title, waiting=self.server.waiting_text, in_flight=self.in_flight
        )

    async def next_draw(self, done: Mapping[int, str | None] | None = None) -> Draw | None:
        """The next training item, skipping draws in `done`; None when there are no more."""
        if self.__stream is None:
            raise RuntimeError("the environment is not open; use `async with env.opened()`")
        return await self.__stream.next(done)

    @property
    def has_backlog(self) -> bool:
        """Whether items of a backlog are waiting to be drawn."""
        return self.__stream is not None and self.__stream.has_backlog

    @property
    def uses_item_rewards(self) -> bool:
        """Whether the sampler may draw items by the scores of earlier groups."""
        return self.__stream is not None and self.__stream.uses_rewards

    @property
    def held_out_ids(self) -> frozenset[str]:
        """Ids of the items that are never drawn for training."""
        return self.__stream.held_out if self.__stream else frozenset()

    async def run_evaluate(self) -> None:
        """Run `evaluate` on a copy of the environment, so that it cannot change what training collects.

        All of it samples from one policy version, if the endpoints can hold one.
        """
        duplicate = copy_for_evaluation(self)
        async with self.server.pinned(self.policy_version) as duplicate.server:
            with self.running():
                await bridged(duplicate.evaluate())
        copy_back(duplicate, self)

    async def collect_groups(self, item: Any, draw: int | None = None) -> list[Group]:
        """Run the rollouts of an item. Without a draw number, groups are numbered in order.

        There is one group, unless the environment's own `collect_trajectories` returns several.
        """
        return await run_groups(self, plan_group(self, item, size=self.config.group_size, draw=self._number(draw)))

    async def collect_group(self, item: Any, draw: int | None = None) -> Group:
        """As `collect_groups`, with all rollouts in one group."""
        return await run_group(self, item, size=self.config.group_size, draw=self._number(draw))

    def _number(self, draw: int | None) -> int:
        if draw is None:
            draw, self._groups_collected = self._groups_collected, self._groups_collected + 1
        return draw

    async def collect_trajectories(self, item: Any) -> tuple[Any, list[Any]]:
        """A group's scored rollouts in Atropos' format and an empty backlog; None when none was scored.

        Override it, or `collect_trajectory`, to run the rollouts of an item yourself.
        """
        group = await collect_own_group(self, item)
        return (atropos_columns(group) if group.scored else None), []

    async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
        """One rollout in Atropos' format and an empty backlog; None when it has no score."""
        return atropos_item(await collect_rollout(self, item)), []

    def overrides(self, method: str) -> bool:
        """Whether the environment has its own version of a method of this class."""
        return getattr(type(self), method) is not getattr(HermesAgentBaseEnv, method)

    @property
    def makes_own_rollouts(self) -> bool:
        """Whether the environment overrides `collect_trajectory` or `collect_trajectories`."""
        return self.overrides("collect_trajectories") or self.overrides("collect_trajectory")

    @property
    def has_reward(self) -> bool:
        """Whether `compute_reward` scores a rollout; not if the environment's own rollouts come with their scores."""
        return True

    def add_to_backlog(self, items: Sequence[Any]) -> None:
        """Draw these items before any new one."""
        if self.__stream is None:
            raise RuntimeError("the environment is not open; use `async with env.opened()`")
        self.__stream.add_to_backlog(items)

    def group_tools(self, key: object = None) -> GroupTools:
        """Schemas and names of one group's tools, determined by the seed and the key."""
        self.__group_key = key
        try:
            tools = self._current_group_tools = self._resolve_tools_for_group()
        finally:
            self.__group_key = None
        return tools

    def _resolve_tools_for_group(self) -> GroupTools:
        """The tools of the next group. An override, as in the seeds, decides the tools of every rollout."""
        key = self.__group_key
        if key is None:
            key, self.__groups_sampled = self.__groups_sampled, self.__groups_sampled + 1
        if self.config.external_agent:
            return [], set()
        random = Random(f"{self.config.seed}/toolsets/{key}")
        toolsets, own = self.toolset_selection.sample(random)
        chosen = [tool for name in toolsets for tool in self.tools.toolsets[name].tools]
        known = self.toolset_selection.own
        # Some adapters learn their tools only when they are open, so a selection cannot name them.
        chosen += [tool for tool in self.tools.toolsets[OWN_TOOLS].tools if tool.name in own or tool.name not in known]
        return [tool.schema for tool in chosen], {tool.name for tool in chosen}

    @property
    def _current_group_tools(self) -> GroupTools | None:
        """The tools of the group that this code belongs to; None outside of groups.

        The seeds keep them on the environment, where groups that run at once overwrite each other's.
        """
        owner, tools = _group_tools.get()
        return tools if owner is self else None

    @_current_group_tools.setter
    def _current_group_tools(self, tools: GroupTools | None) -> None:
        _group_tools.set((self, tools))

    def set_group_tools(self, schemas: list[dict[str, Any]], names: set[str]) -> None:
        """Set the tools of the group that this code belongs to, for a copy of the environment."""
        self._current_group_tools = schemas, names

    def _use_managed_server(self) -> bool:
        """Whether the endpoints return exact tokens, which rollouts then record."""
        return self.server.returns_tokens

    # --- evaluation and metrics ---

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Run the agent `eval_samples` times on each held-out item and log the results."""
        held, began = held_out_items(self), time.time()
        with evaluation_folder(self) as folder:
            self.__current_result = done = await evaluate_items(self, held, folder)
            end = time.time()
            metrics = {**done.evaluation.metrics(end - began), **done.figures}
            try:
                await self.evaluate_log(metrics=metrics, samples=done.samples, start_time=began, end_time=end)
            finally:
                self.__current_result = None

    async def evaluate_log(
        self,
        metrics: dict[str, Any],
        task_name: str | None = None,
        model_name: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        generation_parameters: dict[str, Any] | None = None,
        samples: Sequence[dict[str, Any]] | None = None,
        verbose: bool = True,
    ) -> None:
        """Write metrics.json and samples.jsonl, print the table, and send the metrics to the run's sinks."""
        await write_evaluation(
            self,
            metrics,
            () if samples is None else samples,
            measured=self.__current_result,
            task_name=task_name,
            model_name=model_name,
            start_time=start_time,
            end_time=end_time,
            generation_parameters=generation_parameters,
            verbose=verbose,
        )
        if self.sinks is not None:
            self.sinks.log({**metrics, **version_metrics(evaluated_policy(self))})

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Write one line of metrics to the run's sinks. Subclasses add theirs and call super()."""
        metrics = {**(wandb_metrics or {}), **self.server.latency_metrics()}
        metrics |= self.watchdog.metrics() if self.watchdog else {}
        errors, self._tool_error_buffer = self._tool_error_buffer, []
        metrics["train/tool_errors_count"] = len(errors)
        if errors:
            metrics["train/tool_error_details"] = "\n".join(
                f"[turn {error['turn']}] {error['tool']}({error['args'][:80]}) -> {error['error'][:150]}"
                for error in errors
            )
        if self.sinks is not None:
            self.sinks.log(metrics)
            self.sinks.rollouts(row for group in self.rollouts_for_wandb for row in group)
            self.rollouts_for_wandb.clear()

    async def add_rollouts_for_wandb(self, scored_data: dict[str, Any], item: Any = None) -> None:
        """Store some rollouts of a group as readable text for display."""
        config = self.config
        keep = config.num_rollouts_per_group_for_logging
        scores = scored_data["scores"] if keep == -1 else scored_data["scores"][:keep]
        self.rollouts_for_wandb.append(
            [(self._display_text(scored_data, row), score) for row, score in enumerate(scores)]
        )
        del self.rollouts_for_wandb[: -config.num_rollouts_to_keep or None]

    def _display_text(self, scored_data: Mapping[str, Any], row: int) -> str:
        """A row as its messages, else as its decoded tokens."""
        for column, show in (("messages", self._format_trajectory_for_display), ("tokens", self._decode)):
            values = scored_data.get(column) or ()
            if row < len(values) and values[row]:
                return show(values[row])
        return "(no data)"

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens)) if self.tokenizer is not None else "(no data)"

    @staticmethod
    def _format_trajectory_for_display(messages: Sequence[Message]) -> str:
        """A conversation as text, for `add_rollouts_for_wandb`; override it to use your own format."""
        return transcript(messages)

    def note_tool_errors(self, group: Group) -> None:
        """Collect a group's tool errors for the next line of metrics."""
        self._tool_error_buffer += [
            {
                "turn": use.turn,
                "tool": use.name,
                "args": use.arguments[:150],
                "error": use.error[:300],
                "result": use.result[:300],
            }
            for rollout in group.rollouts
            for use in rollout.tool_uses
            if use.error is not None
        ]

    @classmethod
    def display_name(cls) -> str:
        """`name`, or the class name."""
        return cls.name or cls.__name__

    @classmethod
    def cli(cls) -> None:
        """The command line of this environment: process, evaluate and serve."""
        from hermes_rl.console.live_display import warn
        from hermes_rl.environment.command import run_command

        load_keys(warn)
        sys.exit(run_command(cls))


def requested_reasoning(config: HermesAgentEnvConfig) -> Reasoning | None:
    """What chat requests ask of a model that reasons; None when they ask nothing."""
    asked = config.thinking_mode or config.reasoning_effort or config.max_reasoning_tokens
    return Reasoning(config.reasoning_effort, config.max_reasoning_tokens) if asked else None


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global random and numpy generators inside the block, and restore their state after it."""
    numpy: Any = sys.modules.get("numpy")
    before = random.getstate()
    numpy_before = numpy.random.get_state() if numpy else None
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        if numpy:
            numpy.random.set_state(numpy_before)
