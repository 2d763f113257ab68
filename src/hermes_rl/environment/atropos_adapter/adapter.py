"""An atroposlib BaseEnv that takes its items, rollouts, evaluation and metrics from our environment."""

import asyncio
import importlib
import logging
import os
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from _hermes_rl_imports import is_alias
from hermes_rl.api.client.atropos_destination import add_missing_content, withhold_reason
from hermes_rl.console.config_options import refuse_atropos_endpoints
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.messages import Message
from hermes_rl.core.paths import rl_home
from hermes_rl.core.trajectory import Group
from hermes_rl.environment.atropos_adapter.config import (
    config_class,
    endpoint_values,
    rollout_endpoints,
    rollout_settings,
)
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.resolve_config import config_defaults
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.rollout.budget import Budget
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.rollout.generate import log_metrics, report_group
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.rollout.sampler import Draw
from hermes_rl.rollout.token_requirements import require_exact_tokens, tokenizer_name
from hermes_rl.sinks.run_sinks import Sinks
from hermes_rl.sinks.serialize import flatten
from hermes_rl.sinks.wandb_sink import wandb_is_set_up
from hermes_rl.sinks.worker import Row
from hermes_rl.store.records import atropos_columns


class RecordingSinks:
    """Wraps an environment's sinks; `take` returns the metrics since the last call, for atroposlib's wandb run."""

    def __init__(self) -> None:
        self.sinks: Sinks | None = None
        self._metrics: dict[str, Any] = {}

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self._metrics.update(flatten(metrics))
        if self.sinks is not None:
            self.sinks.log(metrics, step)

    def rollouts(self, rows: Iterable[Row]) -> None:
        if self.sinks is not None:
            self.sinks.rollouts(rows)

    def take(self) -> dict[str, Any]:
        taken, self._metrics = self._metrics, {}
        return {name: value for name, value in taken.items() if value is not None}


INSTALL = "pip install 'hermes-rl[atropos,tokens]'"
# atroposlib's `process` retries forever; it is stopped after this many consecutive withheld groups.
MAX_EMPTY_GROUPS = 10
# Seconds a group gets beyond all attempts of its rollouts before atroposlib cancels it.
GROUP_GRACE = 60.0
NO_KEY = "none"

logger = logging.getLogger(__name__)

if TYPE_CHECKING:

    class _BaseEnv:
        """The part of atroposlib's BaseEnv used here; atroposlib is untyped and optional."""

        name: ClassVar[str]
        env_config_cls: ClassVar[type[Any]]
        config: Any
        workers: set[asyncio.Task[Any]]
        eval_runner: asyncio.Task[Any] | None
        max_token_len: int

        def __init__(self, config: Any, server_configs: Sequence[Any]) -> None: ...
        async def wandb_log(self, wandb_metrics: Mapping[str, Any] | None = None) -> None: ...
        async def env_manager(self) -> None: ...
        async def process_manager(self) -> None: ...
        async def _run_evaluate(self) -> None: ...
else:
    _BaseEnv = object


def atropos_environment(environment: type[HermesAgentBaseEnv]) -> type[Any]:
    """A subclass of `atroposlib.envs.base.BaseEnv` that runs the environment's rollouts."""
    base, server = _import_atroposlib()
    config, endpoints = config_defaults(environment)
    return type(
        f"Atropos{environment.__name__}",
        (AdaptedEnvironment, base.BaseEnv),
        {
            "__doc__": environment.__doc__,
            "name": environment.display_name(),
            "env_config_cls": config_class(type(config), base.BaseEnvConfig),
            # The only server class that loads no tokenizer when constructed. Rollouts do not use it.
            "server_cls": server.OpenAIServer,
            "environment": environment,
            "own_config": config,
            "own_endpoints": endpoints,
            "endpoint_cls": server.APIServerConfig,
        },
    )


class AdaptedEnvironment(_BaseEnv):
    """Mixin placed before atroposlib's BaseEnv."""

    environment: ClassVar[type[HermesAgentBaseEnv]]
    own_config: ClassVar[HermesAgentEnvConfig]
    own_endpoints: ClassVar[Sequence[APIServerConfig]]
    endpoint_cls: ClassVar[type[Any]]

    def __init__(self, config: Any, server_configs: Any, slurm: bool = False, testing: bool = False) -> None:
        refuse_atropos_endpoints(slurm=slurm, testing=testing)
        endpoints = rollout_endpoints(server_configs, self.own_endpoints)
        settings = rollout_settings(type(self.own_config), config)
        require_exact_tokens(settings, endpoints)
        self.hermes = self.environment(settings, endpoints)
        self.hermes.metrics_path = rl_home() / "atropos" / f"{self.name}.metrics.jsonl"
        self.tally = RolloutCounts(budget=Budget.from_config(settings, endpoints), pass_score=settings.pass_score)
        self.withheld: Counter[str] = Counter()
        self._consecutive_empty = 0
        self._recorded = RecordingSinks()
        self._lifetime: asyncio.Task[None] | None = None
        timeout, attempts = config.worker_timeout, 1 + settings.rollout_retries
        changed = {
            # atroposlib always loads it.
            "tokenizer_name": tokenizer_name(settings, endpoints),
            # atroposlib's commands turn wandb on regardless of the environment.
            "use_wandb": config.use_wandb and wandb_is_set_up(os.environ),
            # run-api requires a name to register.
            "wandb_name": config.wandb_name or self.name,
            # With the timeout of a single rollout, atroposlib would cancel the whole group for one late rollout.
            "worker_timeout": timeout * attempts + GROUP_GRACE if timeout > 0 else timeout,
        }
        super().__init__(
            config.model_copy(update=changed), [self._atropos_endpoint(endpoint) for endpoint in endpoints]
        )

    @classmethod
    def config_init(cls) -> tuple[Any, list[Any]]:
        # Not ServerBaseline: with it, `process` ignores the endpoint flags.
        endpoints = [cls.endpoint_cls(**endpoint_values(own, cls.endpoint_cls)) for own in cls.own_endpoints]
        config = cls.env_config_cls.model_validate(cls.own_config.model_dump())
        return config, endpoints or [cls.endpoint_cls()]

    @classmethod
    def _atropos_endpoint(cls, endpoint: APIServerConfig) -> Any:
        key = endpoint.resolved_key() or NO_KEY
        return cls.endpoint_cls(**(endpoint_values(endpoint, cls.endpoint_cls) | {"api_key": key}))

    async def setup(self) -> None:
        ready = asyncio.Event()
        self._lifetime = asyncio.create_task(self._keep_open(ready))
        opening = asyncio.create_task(ready.wait())
        await asyncio.wait((self._lifetime, opening), return_when=asyncio.FIRST_COMPLETED)
        if not ready.is_set():
            opening.cancel()
            self._lifetime.result()

    async def _keep_open(self, ready: asyncio.Event) -> None:
        """Keep the environment open while this task runs: contexts must be closed in the task that opened them."""
        async with self.hermes.opened():
            self._recorded.sinks, self.hermes.sinks = self.hermes.sinks, cast("Sinks", self._recorded)
            ready.set()
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Cancel running tasks and close the environment. The loops call this when they end."""
        for tasks in ([*self.workers, self.eval_runner], [self._lifetime]):
            running = [task for task in tasks if task is not None]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def get_next_item(self) -> Draw | None:
        """The next item with its draw number, so that its group does not depend on atroposlib's schedule."""
        if limit := self.tally.budget.reached_limit():
            if self.tally.limit is None:
                logger.warning("no new groups are started: %s", limit)
            self.tally.limit = limit
            return None
        return await self.hermes.next_draw()

    async def collect_trajectories(self, item: Any) -> tuple[Any, list[Any]]:
        """The groups of an item in Atropos' format and an empty backlog; None when all of them are withheld."""
        draw = (item.item, item.number) if isinstance(item, Draw) else (item, None)
        sent = [await self._report(group) for group in await self.hermes.collect_groups(*draw)]
        self.hermes.tools.check()
        kept = [columns for columns in sent if columns is not None]
        return (kept[0] if len(kept) == 1 else kept or None), []

    async def _report(self, group: Group) -> dict[str, Any] | None:
        """Count a group; its columns, or None when it is withheld."""
        columns = atropos_columns(group)
        self.tally.add(group)
        self.hermes.item_rewards.add(group.item_id, group.scores)
        await report_group(self.hermes, group, columns if group.scored else None)
        cause = withhold_reason(group, self.config.group_size, self.max_token_len if self.max_token_len > 0 else None)
        if cause is not None:
            self._withhold(group, cause)
            return None
        self._consecutive_empty = 0
        return columns | {"messages": self._outgoing_messages(columns["messages"])}

    def _outgoing_messages(self, messages: Sequence[Sequence[Message]]) -> list[list[Message]] | None:
        return add_missing_content(messages) if self.config.include_messages else None

    def _withhold(self, group: Group, cause: str) -> None:
        self.withheld[cause] += 1
        self._consecutive_empty += 1
        logger.warning("the group of item %s is withheld: %s", group.item_id, cause)
        if getattr(self, "process_mode", False) and self._consecutive_empty >= MAX_EMPTY_GROUPS:
            failures = "; ".join(f"{failure}: {message}" for failure, message in self.tally.examples.items())
            raise HermesRLError(
                f"{MAX_EMPTY_GROUPS} consecutive groups were withheld, by cause: {dict(self.withheld)}"
                + (f". Rollout failures: {failures}" if failures else "")
            )

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        await self.hermes.run_evaluate()

    async def wandb_log(self, wandb_metrics: Mapping[str, Any] | None = None) -> None:
        """Log the environment's metrics and group counts to its file and to atroposlib's wandb."""
        counted = {f"train/{name}": value for name, value in self.tally.summary().items()}
        withheld = {"train/withheld_from_atropos": dict(self.withheld)}
        await log_metrics(self.hermes, {**(wandb_metrics or {}), **counted, **withheld})
        metrics = self._recorded.take()
        # In atroposlib's wandb run this is the name of a table.
        metrics.pop("train/rollouts", None)
        await super().wandb_log(metrics)

    async def env_manager(self) -> None:
        await self._run_then_close(super().env_manager())

    async def process_manager(self) -> None:
        await self._run_then_close(super().process_manager())

    async def _run_evaluate(self) -> None:
        await self._run_then_close(super()._run_evaluate())

    async def _run_then_close(self, loop: Coroutine[Any, Any, None]) -> None:
        try:
            await loop
        finally:
            await self.close()


def _import_atroposlib() -> tuple[Any, Any]:
    try:
        base = importlib.import_module("atroposlib.envs.base")
        if is_alias(base.__spec__):
            raise ImportError("atroposlib is not installed")
        return base, importlib.import_module("atroposlib.envs.server_handling.openai_server")
    except ImportError as error:
        raise ConfigError(f"an Atropos environment needs the atropos extra ({error}); run: {INSTALL}") from error
