"""HermesAgentBaseEnv: what an author subclasses. Items, prompts and the reward are the author's; the rest is here.

An environment owns its server, its tool host and its buffers; nothing of it is shared with another one in the same
process. Use `async with env.opened()`: it is set up inside, and everything it started is gone after.
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
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from hermes_rl.agent.compaction import Compaction, DropOldResults
from hermes_rl.agent.result import AgentResult
from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.environment.display import Advancing, progress
from hermes_rl.environment.evaluation.folder import evaluation_folder
from hermes_rl.environment.evaluation.running import Measured, evaluate_items, held_out, write_evaluation
from hermes_rl.environment.exactness import ready_tokenizer
from hermes_rl.environment.group_rules import DistinctScores, GroupRules, MinViableGroup, Retries, SequenceLimit
from hermes_rl.environment.groups import run_group
from hermes_rl.environment.items import SAMPLERS, Draw, ItemStream, PassRates, Sampler, content_id, dataset_hash
from hermes_rl.environment.metrics import Tally
from hermes_rl.environment.outside.program import with_agent
from hermes_rl.environment.slots import engine_law
from hermes_rl.environment.steps import Step
from hermes_rl.environment.transcript import transcript
from hermes_rl.environment.twins import evaluation_twin, give_back
from hermes_rl.errors import ConfigError
from hermes_rl.inference.config import APIServerConfig, ServerBaseline
from hermes_rl.inference.roster import following
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.messages import Message
from hermes_rl.rewards.cpu_process import CpuWorkers
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rewards.watchdog import Watchdog
from hermes_rl.sandbox.backends import open_backends
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.reaper import reaping
from hermes_rl.sandbox.spec import Limits, SandboxSpec, settled
from hermes_rl.sinks.choice import Asked
from hermes_rl.sinks.opening import MetricsRun, Sinks, open_sinks
from hermes_rl.sinks.values import saved_config
from hermes_rl.store.records import atropos_columns
from hermes_rl.tools.choice import ToolChoice
from hermes_rl.tools.distributions import chances_of
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.tool import Tool
from hermes_rl.tools.toolset import OpenToolset
from hermes_rl.tools.toolsets import all_tools, open_toolsets
from hermes_rl.trajectory import Group, Reward

if TYPE_CHECKING:
    from hermes_rl.gateway.server import GatewayServer

T = TypeVar("T")


class HermesAgentBaseEnv(ABC):
    """An environment: subclass it, say where items come from, how one becomes a prompt, and how a rollout is scored."""

    name: ClassVar[str | None] = None
    env_config_cls: ClassVar[type[HermesAgentEnvConfig]] = HermesAgentEnvConfig
    default_toolsets: ClassVar[Sequence[str]] = ()
    own_tools: ClassVar[Sequence[Tool]] = ()
    """The author's own, made with `@tool`; every group has them besides its toolsets."""

    def __init__(
        self,
        config: HermesAgentEnvConfig,
        server_configs: ServerBaseline | Sequence[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        self.config: Any = config
        self.slurm, self.testing = slurm, testing
        self.server = ServerManager(
            [] if isinstance(server_configs, ServerBaseline) else server_configs, law=engine_law(config)
        )
        self.user_server: ServerManager | None = None
        self.server.tool_parser = config.tool_call_parser
        self.tokenizer: Any = None
        """The model's, once open, where its endpoints give exact tokens; None in chat mode."""
        self.gateway: GatewayServer | None = None
        """Where the agent asks the model, once open, when it is a program of its own; None for our loop."""
        self.rollouts_for_wandb: list[list[tuple[str, float]]] = []
        self.metrics_path: Path | None = None
        self.sinks: Sinks | None = None
        self.watchdog: Watchdog | None = None
        self.last_evaluation: dict[str, Any] | None = None
        self.resume_evaluation = False
        self.policy_version: int | None = None
        """Of the policy that is evaluated, in serve; None where nobody counts them."""
        self._measured: Measured | None = None
        self.pass_rates = PassRates(config.pass_score)
        self.dataset_hash: str | None = None
        self._tool_error_buffer: list[dict[str, Any]] = []
        self._tools: ToolHost | None = None
        self._workers = CpuWorkers()
        self._opened: AsyncExitStack | None = None
        self._stream: ItemStream | None = None
        chances = chances_of(config.distribution, config.toolset_distributions)
        # A program that is the agent has tools of its own.
        only_own = bool(self.own_tools or config.agent_command) and not self.default_toolsets and chances is None
        self.tool_choice = ToolChoice(
            enabled=[] if only_own and config.enabled_toolsets is None else config.enabled_toolsets,
            disabled=config.disabled_toolsets or (),
            distribution=chances,
            default=self.default_toolsets,
        )
        self._groups_sampled = self._groups_collected = 0

    # --- the author's part ---

    async def setup(self) -> None:  # noqa: B027 (many environments need none)
        """Load the items. Called once; global random and numpy are seeded around it."""

    def train_items(self) -> Sequence[Any] | None:
        """The training items, to be drawn by `sampler`; None when they come from `get_next_item`."""
        return None

    async def get_next_item(self) -> Any:
        """The next item to roll out; None when there are no more. Not needed when there are `train_items`."""
        if self.train_items() is None:
            raise ConfigError(f"{type(self).__name__} has no training items: define train_items() or get_next_item()")
        draw = await self.next_draw()
        return None if draw is None else draw.item

    @abstractmethod
    def format_prompt(self, item: Any) -> str:
        """The user message for an item."""

    @abstractmethod
    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
        """Score a rollout by what it said (`result`) and what it left in its sandbox (`ctx`)."""

    async def compute_group_rewards(self, item: Any, results: Sequence[AgentResult]) -> Sequence[float | Reward] | None:
        """Rewards by comparison, one for each scored result (`result.reward` is its own); None keeps those."""
        return None

    def oracle(self, item: Any) -> Sequence[Step] | None:
        """A solution of the item, for `validate`: tool calls as (name, arguments), and what is said at the end."""
        return None

    def cheats(self, item: Any) -> Mapping[str, Sequence[Step]]:
        """Ways to get a score without solving the item, by name, for `validate` to try besides its own."""
        return {}

    def initial_messages(self, item: Any) -> list[Message]:
        """The conversation a rollout starts with; override it to put worked examples before the prompt."""
        system = [{"role": "system", "content": self.config.system_prompt}] if self.config.system_prompt else []
        return [*system, {"role": "user", "content": self.format_prompt(item)}]

    async def next_user_message(self, item: Any, messages: list[Message]) -> str | None:
        """What a simulated user says to the agent's answer; None ends the rollout. Override it to have one."""
        return None

    def turn_limit(self, item: Any) -> int:
        """Model calls of one rollout at most. Override it to let them depend on the item."""
        return int(self.config.max_agent_turns)

    def sandbox_spec(self, item: Any) -> SandboxSpec:
        """The machine of an item's rollouts. Override it to let image, files, setup or limits depend on the item."""
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
        """How training items are drawn; override it for a strategy of your own."""
        return SAMPLERS[self.config.item_sampler]

    def group_rules(self) -> GroupRules:
        """When a rollout is tried again, and which groups are fit for training; override it for rules of your own."""
        config = self.config
        distinct = (DistinctScores(),) if config.ensure_scores_are_not_same and config.group_size > 1 else ()
        return GroupRules(
            Retries(config.rollout_retries),
            SequenceLimit(config.max_sequence_tokens) if config.max_sequence_tokens else None,
            (MinViableGroup(config.min_group_share), *distinct),
        )

    def compaction(self) -> Compaction | None:
        """How a conversation that outgrows the context is shortened; override it for a strategy of your own."""
        return DropOldResults() if self.config.compaction == "drop_results" else None

    def eval_items(self) -> Sequence[Any]:
        """The held-out items; the seeds keep them in `self._eval_items`."""
        return getattr(self, "_eval_items", [])

    def item_id(self, item: Any) -> str:
        """What an item is known by: the hash of its JSON. Override it where items have an id of their own."""
        return content_id(item)

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, Sequence[APIServerConfig]]:
        """The defaults of this environment; command line and YAML go over them. No endpoint means: ask the user."""
        return cls.env_config_cls(), []

    # --- running ---

    @property
    def tools(self) -> ToolHost:
        """The opened toolsets."""
        if self._tools is None:
            raise RuntimeError("the environment is not open; use `async with env.opened()`")
        return self._tools

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within this block ToolContext and `@cpu_reward` find what is this environment's."""
        with self.tools.running(), self._workers.running():
            yield

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Wait for the endpoint, probe the sandbox backend, run `setup`; at the end close all that was started."""
        config = self.config
        async with self.holding() as opened:
            if self.metrics_path is not None:
                run = MetricsRun(
                    group=self.display_name(),
                    folder=self.metrics_path.parent,
                    name=config.wandb_name,
                    file=self.metrics_path.name,
                    config=saved_config(config),
                )
                self.sinks = await opened.enter_async_context(open_sinks(run, Asked.by(config, "env")))
            opened.push_async_callback(self.server.close)
            if config.engines_file:
                await opened.enter_async_context(following(self.server, Path(config.engines_file)))
            if config.user_endpoint is not None:
                self.user_server = await opened.enter_async_context(ServerManager([config.user_endpoint]))
            if self.server.gives_tokens:
                self.tokenizer = await asyncio.to_thread(ready_tokenizer, config, self.server)
            await self.server.wait_until_ready(max(one.ready_timeout for one in self.server.configs))
            toolsets = await opened.enter_async_context(
                open_toolsets(self.tool_choice.possible(), config.tool_settings)
            )
            pool = SandboxPool(
                await open_backends(config.terminal_backend, config.sandbox_settings),
                max_live=config.max_live_sandboxes,
                max_starting=config.max_starting_sandboxes,
                start_timeout=config.sandbox_start_timeout,
            )
            if type(self).sandbox_spec is HermesAgentBaseEnv.sandbox_spec:
                # It is the same for every item, so what cannot be held is refused before the first rollout.
                settled(with_agent(self.sandbox_spec(None), config), pool.backend.name, pool.capabilities)
            self._tools = ToolHost(
                all_tools(),
                pool,
                calls_in_flight=config.tool_pool_size,
                terminal_timeout=config.terminal_timeout,
                longest_command=config.max_terminal_timeout,
                toolsets={**toolsets, "own_tools": OpenToolset(tuple(self.own_tools))},
            )
            opened.push_async_callback(self._tools.close)
            if config.agent_command:
                with_agent(SandboxSpec(), config)
                # Only here, as uvicorn takes long to import. Without its port: sandboxes come through doors.
                from hermes_rl.gateway.server import GatewayServer

                self.gateway = GatewayServer()
            self._workers = await opened.enter_async_context(CpuWorkers())
            await opened.enter_async_context(reaping())
            with self.running(), seeded(config.seed):
                await bridged(self.setup())
            self._stream = self._new_stream()
            yield
        self._tools = self._stream = self.sinks = self.gateway = None

    @asynccontextmanager
    async def holding(self) -> AsyncIterator[AsyncExitStack]:
        """What `enter` opens within this block is closed at its end."""
        async with AsyncExitStack() as opened:
            self._opened = opened
            yield opened
        self._opened = None

    async def enter(self, resource: AbstractAsyncContextManager[T]) -> T:
        """Open something in `setup` that is closed with the environment: a judge, a server, a client."""
        if self._opened is None:
            raise RuntimeError("the environment is not open; call enter in setup or later")
        return await self._opened.enter_async_context(resource)

    def _new_stream(self) -> ItemStream:
        config, items = self.config, self.train_items()
        held_out = frozenset(map(self.item_id, self.eval_items()))
        self.dataset_hash = dataset_hash(map(self.item_id, items or ()), held_out)
        return ItemStream(
            item_id=self.item_id,
            next_item=self._own_next_item,
            items=items,
            sampler=self.sampler(),
            seed=config.seed,
            rates=self.pass_rates,
            held_out=held_out,
            shard=config.shard,
            shards=config.shards,
        )

    async def _own_next_item(self) -> Any:
        with self.running():
            return await bridged(self.get_next_item())

    def progress(self, what: str, total: int, tally: Tally, done: int = 0) -> AbstractContextManager[Advancing]:
        """How the modes show their progress; a caller with a display of its own replaces it."""
        return progress(what, total, tally, done, title=f"{what} · {self.display_name()}")

    async def next_draw(self, done: Mapping[int, str | None] | None = None) -> Draw | None:
        """The next training item; those `done` in an earlier run are past. None when there are no more."""
        if self._stream is None:
            raise RuntimeError("the environment is not open; use `async with env.opened()`")
        return await self._stream.next(done)

    @property
    def held_out_ids(self) -> frozenset[str]:
        """The ids of the items that are never drawn for training."""
        return self._stream.held_out if self._stream else frozenset()

    async def run_evaluate(self) -> None:
        """`evaluate`, the default or the author's, on a twin, so that it cannot touch what training collects."""
        twin = evaluation_twin(self)
        with self.running():
            await bridged(twin.evaluate())
        give_back(twin, self)

    async def collect_group(self, item: Any, draw: int | None = None) -> Group:
        """The rollouts of an item, scored and unscored. Without a draw's number, groups are counted as they come."""
        if draw is None:
            draw, self._groups_collected = self._groups_collected, self._groups_collected + 1
        return await run_group(self, item, size=self.config.group_size, draw=draw)

    async def collect_trajectories(self, item: Any) -> tuple[dict[str, Any] | None, list[Any]]:
        """A group in Atropos' form (its scored rollouts), and no backlog; None when none was scored."""
        group = await self.collect_group(item)
        return (atropos_columns(group) if group.scored else None), []

    async def collect_trajectory(self, item: Any) -> tuple[dict[str, Any] | None, list[Any]]:
        """One rollout in Atropos' form; None when it has no score."""
        group = await run_group(self, item, size=1)
        if not group.scored:
            return None, []
        columns = atropos_columns(group)
        return {
            "tokens": columns["tokens"] and columns["tokens"][0],
            "masks": columns["masks"] and columns["masks"][0],
            "scores": columns["scores"][0],
            "messages": columns["messages"][0],
        }, []

    def group_tools(self, key: object = None) -> tuple[list[dict[str, Any]], set[str]]:
        """The tools of one group: their schemas and their names. A key of a seed always gives the same."""
        if key is None:
            key, self._groups_sampled = self._groups_sampled, self._groups_sampled + 1
        if self.config.agent_command:
            return [], set()
        random = Random(f"{self.config.seed}/toolsets/{key}")
        chosen = [tool for name in self.tool_choice.sample(random) for tool in self.tools.toolsets[name].tools]
        chosen += self.own_tools
        return [tool.schema for tool in chosen], {tool.name for tool in chosen}

    def _resolve_tools_for_group(self) -> tuple[list[dict[str, Any]], set[str]]:
        """The seeds' name: the tools of the next group."""
        return self.group_tools()

    # --- evaluation and metrics ---

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Run the agent `eval_samples` times on each held-out item and log what came of it."""
        held, began = held_out(self), time.time()
        with evaluation_folder(self) as folder:
            self._measured = done = await evaluate_items(self, held, folder)
            end = time.time()
            metrics = {**done.evaluation.metrics(end - began), **done.figures}
            try:
                await self.evaluate_log(metrics=metrics, samples=done.samples, start_time=began, end_time=end)
            finally:
                self._measured = None

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
            measured=self._measured,
            task_name=task_name,
            model_name=model_name,
            start_time=start_time,
            end_time=end_time,
            generation_parameters=generation_parameters,
            verbose=verbose,
        )
        if self.sinks is not None:
            version = {} if self.policy_version is None else {"eval/version": self.policy_version}
            self.sinks.log({**metrics, **version})

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Write a line of metrics to the run's sinks, its file first. Subclasses add theirs and call super()."""
        metrics = {**(wandb_metrics or {}), **(self.watchdog.metrics() if self.watchdog else {})}
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
        """Keep some rollouts of a group as readable text for display."""
        config = self.config
        keep = config.num_rollouts_per_group_for_logging
        rows = list(zip(scored_data.get("messages") or [], scored_data["scores"], strict=False))
        self.rollouts_for_wandb.append(
            [(transcript(messages), score) for messages, score in (rows if keep == -1 else rows[:keep])]
        )
        del self.rollouts_for_wandb[: -config.num_rollouts_to_keep or None]

    def note_tool_errors(self, group: Group) -> None:
        """Remember a group's tool errors for the next line of metrics."""
        self._tool_error_buffer += [
            {"turn": use.turn, "tool": use.name, "args": use.arguments[:150], "error": use.error[:300]}
            for rollout in group.rollouts
            for use in rollout.tool_uses
            if use.error is not None
        ]

    @classmethod
    def display_name(cls) -> str:
        """`name`, or the class's."""
        return cls.name or cls.__name__

    @classmethod
    def cli(cls) -> None:
        """The command line of this environment: process, evaluate and serve."""
        from hermes_rl.environment.command import run_command

        sys.exit(run_command(cls))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators that authors shuffle with, and give them back as they were."""
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
