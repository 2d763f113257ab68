"""tinker-cookbook 0.5.8: an RLDatasetBuilder whose groups are rollouts of an environment.

The cookbook's own loop samples: an Env passes on each model call of the environment's agent as an observation, and its
action back as the answer. Always true: the cookbook's trajectory holds the very ids that the agent saw and was given.
A call that does not extend the one before, after compaction for instance, begins a new datum there.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import chz
import tinker
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Metrics,
    Observation,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
    Trajectory,
)

from hermes_rl.core.errors import ConfigError, ContextFullError, HermesRLError
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import Sampled
from hermes_rl.interop.trainers.rollout_host import RolloutHost, finished_by
from hermes_rl.rollout.group import apply_group_rewards
from hermes_rl.rollout.rollout import FinishedRollout, RolloutPlan


class HermesEnv(Env):
    """One rollout. Its reward comes with the group's, from `HermesEnvGroupBuilder.compute_group_rewards`."""

    def __init__(self, host: RolloutHost, plan: RolloutPlan) -> None:
        self._calls: asyncio.Queue[tuple[Sequence[int], SamplingRequest]] = asyncio.Queue()
        self._request: SamplingRequest | None = None
        self._answer: asyncio.Future[Sampled] | None = None
        self._ended = False
        # The cookbook's strategies decide about retries.
        self._work = asyncio.create_task(host.rollout(plan, self._ask, retry=False))

    async def initial_observation(self) -> tuple[Observation, StopCondition]:
        call = await self._next_call()
        if call is None:
            failure = self._work.result().rollout.failure
            raise HermesRLError(f"the rollout ended before its first model call: {failure}")
        return call

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        if self._answer is None or self._request is None:
            raise RuntimeError("step needs an observation to act on")
        limited = (extra or {}).get("stop_reason") == "length"
        # The cookbook keeps the logprobs itself.
        sampled = Sampled(
            tuple(action), (0.0,) * len(action), (0,) * len(action), finished_by(action, self._request, limited=limited)
        )
        self._answer.set_result(sampled)
        self._answer = None
        call = await self._next_call()
        if call is not None:
            return StepResult(0.0, episode_done=False, next_observation=call[0], next_stop_condition=call[1])
        rollout = self._work.result().rollout
        if rollout.failure is not None:
            raise HermesRLError(f"the rollout has no score: {rollout.failure}: {rollout.failure.message}")
        return StepResult(
            0.0,
            episode_done=True,
            next_observation=tinker.ModelInput.empty(),
            next_stop_condition=[],
            metrics={"turns": rollout.turns_used},
            logs={"stop_reason": str(rollout.stop_reason)},
        )

    async def finished(self) -> FinishedRollout:
        """The finished rollout; one that the cookbook stopped is ended as if its context were full."""
        self._ended = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(stopped())
        return await self._work

    async def cancel(self) -> None:
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    async def _ask(self, ids: Sequence[int], request: SamplingRequest) -> Sampled:
        if self._ended:
            raise stopped()
        self._answer = asyncio.get_running_loop().create_future()
        self._calls.put_nowait((ids, request))
        return await self._answer

    async def _next_call(self) -> tuple[Observation, StopCondition] | None:
        """The next model call as an observation; None when the rollout has ended."""
        waiting = asyncio.create_task(self._calls.get())
        await asyncio.wait((waiting, self._work), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            return None
        ids, self._request = waiting.result()
        if self._request.stop:
            raise ConfigError("the environment sets stop strings, and the cookbook takes them or stop tokens, not both")
        return tinker.ModelInput.from_ints(list(ids)), list(self._request.stop_token_ids)


@dataclass
class HermesEnvGroupBuilder(EnvGroupBuilder):
    """The rollouts of one item."""

    host: RolloutHost
    item: Any
    size: int

    def __post_init__(self) -> None:
        self._envs: list[HermesEnv] = []

    async def make_envs(self) -> Sequence[Env]:
        env = await self.host.opened()
        made = [HermesEnv(self.host, plan) for plan in self.host.plan(env, self.item, self.size)]
        # A strategy may make a group a second time.
        self._envs += made
        return made

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        env = await self.host.opened()
        finished = [await each.finished() for each in env_group if isinstance(each, HermesEnv)]
        rollouts = await apply_group_rewards(env, self.item, finished)
        failure = next((each.failure for each in rollouts if each.failure is not None), None)
        if failure is not None:
            raise HermesRLError(f"a rollout of the group has no score: {failure}: {failure.message}")
        return [(each.score or 0.0, dict(each.components)) for each in rollouts]

    async def cleanup(self) -> None:
        envs, self._envs = self._envs, []
        await asyncio.gather(*(each.cancel() for each in envs))

    def logging_tags(self) -> list[str]:
        return [str(self.host.environment)]


class HermesDataset(RLDataset):
    """The items in their order, `groups` at a time."""

    def __init__(self, host: RolloutHost, items: Sequence[Any], *, group_size: int, groups: int, batches: int) -> None:
        self._host, self._items = host, items
        self._group_size, self._groups, self._batches = group_size, groups, batches

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        numbers = range(index * self._groups, (index + 1) * self._groups)
        items = [self._items[number % len(self._items)] for number in numbers]
        return [HermesEnvGroupBuilder(self._host, item, self._group_size) for item in items]

    def __len__(self) -> int:
        return self._batches


@chz.chz
class HermesDatasetBuilder(RLDatasetBuilder):
    """For `tinker_cookbook.rl.train.Config(dataset_builder=…)`. The environment closes with the training's loop.

    `environment` is a bundled name, FILE.py or FILE.py:CLASS; `settings` are fields of its configuration. Sampling uses
    the cookbook's `max_tokens` and `temperature`, not the environment's.
    """

    environment: str
    tokenizer: str
    batches: int
    groups_per_batch: int = 8
    group_size: int = 8
    context_tokens: int | None = None
    settings: Mapping[str, Any] = chz.field(default_factory=dict)

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        host = RolloutHost(self.environment, self.tokenizer, settings=self.settings, context_tokens=self.context_tokens)
        dataset = HermesDataset(
            host,
            await host.items(),
            group_size=self.group_size,
            groups=self.groups_per_batch,
            batches=self.batches,
        )
        return dataset, None


def stopped() -> ContextFullError:
    return ContextFullError("context_full", "the trainer ended the rollout: one of its limits was reached")
