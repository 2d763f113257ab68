"""SkyRL 0.3.0: a GeneratorInterface whose trajectories are rollouts of an environment.

Always true: the prompt and response ids are those that the rollout recorded, the loss mask is 1 on sampled tokens, and
the output is in the order of the input. A rollout that infrastructure left without a score has no token to train on,
and the mean reward of its group, so that the baseline of the others stays as it is.
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput, TrajectoryID

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Rollout
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import Sampled
from hermes_rl.interop.trainers.environment_host import EnvironmentReference
from hermes_rl.interop.trainers.rollout_host import OneSequence, RolloutHost, Sampler, finished_by, one_sequence
from hermes_rl.rollout.group import apply_group_rewards
from hermes_rl.rollout.rollout import prompt_of

# The column of the dataset that names an item by its number in `train_items()`.
ITEM = "hermes_item"


class HermesGenerator(GeneratorInterface):
    """Rollouts of `environment`, sampled by SkyRL's inference engines.

    Each row of SkyRL's dataset has the number of an item in the column `hermes_item`; `dataset_rows` makes them. The
    repetitions of one instance follow each other, as SkyRL sends them, and are one group. Sampling uses SkyRL's
    parameters, not the environment's; `settings` are fields of the environment's configuration.
    """

    def __init__(
        self,
        environment: EnvironmentReference,
        tokenizer: str,
        inference_engine: Any,
        *,
        settings: Mapping[str, Any] | None = None,
        context_tokens: int | None = None,
    ) -> None:
        self.host = RolloutHost(environment, tokenizer, settings=settings, context_tokens=context_tokens)
        self._engine = inference_engine

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        items = await self.host.items()
        extras, ids = input_batch["env_extras"], input_batch["trajectory_ids"]
        if extras is None or any(ITEM not in extra for extra in extras):
            raise ConfigError(f"the dataset needs a column {ITEM} with the number of an item; see dataset_rows")
        names = [str(place) for place in range(len(extras))] if ids is None else [each.instance_id for each in ids]
        parameters = dict(input_batch["sampling_params"] or {})
        async with asyncio.TaskGroup() as work:
            groups = [
                work.create_task(self._group(items[extras[places[0]][ITEM]], len(places), parameters))
                for places in (
                    [place for place, _ in same]
                    for _, same in groupby(enumerate(names), key=lambda numbered: numbered[1])
                )
            ]
        return generator_output([group.result() for group in groups], ids)

    async def _group(self, item: Any, size: int, parameters: Mapping[str, Any]) -> list[Rollout]:
        env = await self.host.opened()
        plans = self.host.plan(env, item, size)
        async with asyncio.TaskGroup() as work:
            tasks = [
                work.create_task(self.host.rollout(plan, self._sampler(str(plan.seed), parameters))) for plan in plans
            ]
        return await apply_group_rewards(env, item, [task.result() for task in tasks])

    def _sampler(self, session: str, parameters: Mapping[str, Any]) -> Sampler:
        async def sample(ids: Sequence[int], request: SamplingRequest) -> Sampled:
            limit = min(filter(None, (request.max_tokens, parameters.get("max_tokens"))), default=None)
            own = {"logprobs": 1, **parameters, "stop_token_ids": list(request.stop_token_ids), "max_tokens": limit}
            output = await self._engine.generate(
                {"prompt_token_ids": [list(ids)], "sampling_params": own, "session_ids": [session]}
            )
            [tokens], logprobs = output["response_ids"], output["response_logprobs"]
            if logprobs is None:
                raise ConfigError("SkyRL's engine returned no logprobs; set generator.sampling_params.logprobs to 1")
            limited = output["stop_reasons"][0] == "length"
            finish = finished_by(tokens, request, limited=limited)
            return Sampled(tuple(tokens), tuple(logprobs[0]), (0,) * len(tokens), finish)

        return sample


def generator_output(groups: Sequence[Sequence[Rollout]], ids: "list[TrajectoryID] | None") -> GeneratorOutput:
    """All rollouts as SkyRL's columns."""
    rows = [_row(rollout) for group in groups for rollout in group]
    rewards = [reward for group in groups for reward in _rewards(group)]
    rollouts = [rollout for group in groups for rollout in group]
    return GeneratorOutput(
        prompt_token_ids=[row.prompt for row in rows],
        response_ids=[row.response for row in rows],
        rewards=rewards,
        loss_masks=[row.mask for row in rows],
        stop_reasons=[str(rollout.stop_reason or rollout.failure) for rollout in rollouts],
        rollout_metrics={
            "hermes/unscored": sum(not rollout.scored for rollout in rollouts),
            "hermes/turns": sum(rollout.turns_used for rollout in rollouts) / len(rollouts),
        },
        rollout_logprobs=[row.logprobs for row in rows],
        trajectory_ids=ids,
        trajectory_generation_times=[rollout.seconds for rollout in rollouts],
        rollout_expert_indices=None,
        is_last_step=None,
        env_metrics=[dict(rollout.components) for rollout in rollouts],
        pixel_values=None,
        image_grid_thw=None,
    )


async def dataset_rows(generator: HermesGenerator) -> list[dict[str, Any]]:
    """A row of SkyRL's dataset for each training item."""
    env, items = await generator.host.opened(), await generator.host.items()
    return [
        {"prompt": await prompt_of(env, item), "env_class": "hermes", ITEM: number} for number, item in enumerate(items)
    ]


def _row(rollout: Rollout) -> OneSequence:
    if rollout.scored and rollout.withheld is None:
        return one_sequence(rollout.sequences, "SkyRL")
    # SkyRL refuses empty prompts and responses.
    return OneSequence([0], [0], [0], [0.0])


def _rewards(group: Sequence[Rollout]) -> list[float]:
    scores = [rollout.score for rollout in group if rollout.score is not None]
    mean = sum(scores) / len(scores) if scores else 0.0
    return [mean if rollout.score is None else rollout.score for rollout in group]
