"""The adapted environment: atroposlib's BaseEnv, with its rollouts, items, evaluation and metrics taken from ours."""

import asyncio
import importlib
import logging
import os
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from hermes_rl.api.client.atropos_dialect import why_withheld, with_content
from hermes_rl.environment.atropos_adapter.heard import HeardSinks
from hermes_rl.environment.atropos_adapter.settings import (
    config_class,
    endpoint_values,
    rollout_endpoints,
    rollout_settings,
)
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.budget import Budget
from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.environment.exactness import require_exact_tokens, tokenizer_name
from hermes_rl.environment.generation import note_group
from hermes_rl.environment.items import Draw
from hermes_rl.environment.metrics import Tally
from hermes_rl.environment.settings import defaults
from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.home import rl_home
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.messages import Message
from hermes_rl.sinks.opening import Sinks
from hermes_rl.sinks.wandb_run import wandb_is_set_up
from hermes_rl.store.records import atropos_columns
from hermes_rl.trajectory import Group

INSTALL = "pip install 'hermes-rl[atropos,tokens]'"
# atroposlib's `process` tries for ever to get a group; after this many in a row that came to nothing it is ended.
EMPTY_IN_A_ROW = 10
# Seconds a group has beyond all the tries of its rollouts, before atroposlib's loop cancels it whole.
GROUP_GRACE = 60.0
NO_KEY = "none"

logger = logging.getLogger(__name__)

if TYPE_CHECKING:

    class _BaseEnv:
        """What is used here of atroposlib's BaseEnv, which has no types and is in an extra that few install."""

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
    """The subclass of `atroposlib.envs.base.BaseEnv` whose rollouts are the environment's."""
    base, server = _atroposlib()
    config, endpoints = defaults(environment)
    return type(
        f"Atropos{environment.__name__}",
        (AdaptedEnvironment, base.BaseEnv),
        {
            "__doc__": environment.__doc__,
            "name": environment.display_name(),
            "env_config_cls": config_class(type(config), base.BaseEnvConfig),
            # The one of its servers that loads no tokenizer when it is made. Rollouts do not go by it.
            "server_cls": server.OpenAIServer,
            "environment": environment,
            "own_config": config,
            "own_endpoints": endpoints,
            "endpoint_cls": server.APIServerConfig,
        },
    )


class AdaptedEnvironment(_BaseEnv):
    """What stands before atroposlib's BaseEnv in the bases of such a subclass."""

    environment: ClassVar[type[HermesAgentBaseEnv]]
    own_config: ClassVar[HermesAgentEnvConfig]
    own_endpoints: ClassVar[Sequence[APIServerConfig]]
    endpoint_cls: ClassVar[type[Any]]

    def __init__(self, config: Any, server_configs: Any, slurm: bool = False, testing: bool = False) -> None:
        if slurm or testing:
            raise ConfigError(
                "atroposlib's --slurm and --testing choose endpoints of their own, which rollouts do not go to; "
                "name the endpoints in the openai section"
            )
        endpoints = rollout_endpoints(server_configs, self.own_endpoints)
        settings = rollout_settings(type(self.own_config), config)
        require_exact_tokens(settings, endpoints)
        self.hermes = self.environment(settings, endpoints)
        self.hermes.metrics_path = rl_home() / "atropos" / f"{self.name}.metrics.jsonl"
        self.tally = Tally(budget=Budget.of(settings, endpoints), pass_score=settings.pass_score)
        self.withheld: Counter[str] = Counter()
        self._empty_in_a_row = 0
        self._heard = HeardSinks()
        self._held_open: asyncio.Task[None] | None = None
        timeout, tries = config.worker_timeout, 1 + settings.rollout_retries
        changed = {
            # atroposlib loads it at once, whether or not anything needs it.
            "tokenizer_name": tokenizer_name(settings, endpoints),
            # Its commands switch wandb on over whatever the environment says.
            "use_wandb": config.use_wandb and wandb_is_set_up(os.environ),
            # run-api registers no environment without a name.
            "wandb_name": config.wandb_name or self.name,
            # With a rollout's own timeout it would cancel the whole group for the one that is late.
            "worker_timeout": timeout * tries + GROUP_GRACE if timeout > 0 else timeout,
        }
        super().__init__(config.model_copy(update=changed), [self._known_to_atropos(one) for one in endpoints])

    @classmethod
    def config_init(cls) -> tuple[Any, list[Any]]:
        # Never its ServerBaseline, with which `process` ignores the flags of the endpoint.
        endpoints = [cls.endpoint_cls(**endpoint_values(one, cls.endpoint_cls)) for one in cls.own_endpoints]
        config = cls.env_config_cls.model_validate(cls.own_config.model_dump())
        return config, endpoints or [cls.endpoint_cls()]

    @classmethod
    def _known_to_atropos(cls, endpoint: APIServerConfig) -> Any:
        key = endpoint.resolved_key() or NO_KEY
        return cls.endpoint_cls(**(endpoint_values(endpoint, cls.endpoint_cls) | {"api_key": key}))

    async def setup(self) -> None:
        ready = asyncio.Event()
        self._held_open = asyncio.create_task(self._hold_open(ready))
        opening = asyncio.create_task(ready.wait())
        await asyncio.wait((self._held_open, opening), return_when=asyncio.FIRST_COMPLETED)
        if not ready.is_set():
            opening.cancel()
            self._held_open.result()

    async def _hold_open(self, ready: asyncio.Event) -> None:
        """The environment, open as long as this task: what was opened in a task has to be closed in it."""
        async with self.hermes.opened():
            self._heard.sinks, self.hermes.sinks = self.hermes.sinks, cast("Sinks", self._heard)
            ready.set()
            await asyncio.Event().wait()

    async def close(self) -> None:
        """End what still runs and close what `setup` opened. The loops do it themselves at their end."""
        for tasks in ([*self.workers, self.eval_runner], [self._held_open]):
            running = [task for task in tasks if task is not None]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def get_next_item(self) -> Draw | None:
        """An item and its number, by which its group is the same whenever atroposlib gets to it."""
        if limit := self.tally.budget.reached():
            if self.tally.limit is None:
                logger.warning("nothing new is begun: %s", limit)
            self.tally.limit = limit
            return None
        return await self.hermes.next_draw()

    async def collect_trajectories(self, item: Any) -> tuple[dict[str, Any] | None, list[Any]]:
        """A group in Atropos' form and no backlog; None for a group that does not have it."""
        drawn = (item.item, item.number) if isinstance(item, Draw) else (item, None)
        group = await self.hermes.collect_group(*drawn)
        columns = atropos_columns(group)
        self.tally.add(group)
        await note_group(self.hermes, group, columns if group.scored else None)
        cause = why_withheld(group, self.config.group_size, self.max_token_len if self.max_token_len > 0 else None)
        if cause is None:
            self._empty_in_a_row = 0
            return columns | {"messages": self._sent(columns["messages"])}, []
        self._withhold(group, cause)
        return None, []

    def _sent(self, messages: Sequence[Sequence[Message]]) -> list[list[Message]] | None:
        return with_content(messages) if self.config.include_messages else None

    def _withhold(self, group: Group, cause: str) -> None:
        self.withheld[cause] += 1
        self._empty_in_a_row += 1
        logger.warning("the group of item %s is withheld: %s", group.item_id, cause)
        if getattr(self, "process_mode", False) and self._empty_in_a_row >= EMPTY_IN_A_ROW:
            failures = "; ".join(f"{failure}: {message}" for failure, message in self.tally.examples.items())
            raise HermesRLError(
                f"{EMPTY_IN_A_ROW} groups in a row came to nothing, withheld by cause: {dict(self.withheld)}"
                + (f". Failures of their rollouts: {failures}" if failures else "")
            )

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        await self.hermes.run_evaluate()

    async def wandb_log(self, wandb_metrics: Mapping[str, Any] | None = None) -> None:
        """The environment's own metrics and the counts of its groups, to its file and to atroposlib's wandb."""
        counted = {f"train/{name}": value for name, value in self.tally.summary().items()}
        withheld = {"train/withheld_from_atropos": dict(self.withheld)}
        await self.hermes.wandb_log({**(wandb_metrics or {}), **counted, **withheld})
        metrics = self._heard.take()
        # There it is the name of a table.
        metrics.pop("train/rollouts", None)
        await super().wandb_log(metrics)

    async def env_manager(self) -> None:
        await self._to_its_end(super().env_manager())

    async def process_manager(self) -> None:
        await self._to_its_end(super().process_manager())

    async def _run_evaluate(self) -> None:
        await self._to_its_end(super()._run_evaluate())

    async def _to_its_end(self, loop: Coroutine[Any, Any, None]) -> None:
        try:
            await loop
        finally:
            await self.close()


def _atroposlib() -> tuple[Any, Any]:
    """Its base module and the one of its servers."""
    try:
        base = importlib.import_module("atroposlib.envs.base")
        return base, importlib.import_module("atroposlib.envs.server_handling.openai_server")
    except ImportError as error:
        raise ConfigError(f"an Atropos environment needs the atropos extra ({error}); run: {INSTALL}") from error
