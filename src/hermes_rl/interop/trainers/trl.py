"""TRL 1.16's GRPOTrainer on rollouts of an environment.

Always true: the tokens, masks and sampling logprobs of a training row are those that the rollout recorded, and the
importance ratio is taken against the recorded logprobs. Only the weights in training are sampled from.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.trajectory import Group, Rollout
from hermes_rl.interop.trainers.environment_host import (
    EnvironmentReference,
    LoopThread,
    collect_groups,
    first_failure,
    host_environment,
)
from hermes_rl.interop.trainers.model_policy import ModelPolicy
from hermes_rl.store.codec import encode
from hermes_rl.training.batch import TrainingBatch, training_batch
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import Example

log = logging.getLogger(__name__)

# Context of a model whose configuration names none.
DEFAULT_CONTEXT = 4096
# Records may be of any age: their logprobs correct for it.
ANY_AGE = 2**31
# TRL's names of what the rewards are divided by, and our advantages.
ADVANTAGES = {"group": "mean_std", "none": "mean"}
# Their weights are spread over the processes, so that one process alone cannot sample.
SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")


class HermesGRPOTrainer(GRPOTrainer):
    """A GRPOTrainer whose batches are rollouts of `environment`, or `groups` that were recorded.

    `num_generations` is the group size, and the rollouts of a step are `per_device_train_batch_size *
    steps_per_generation` in each process. A rollout of several sequences becomes several rows. `settings` are fields of
    the environment's configuration; `selection` are fields of the trainer's settings that choose what is trained on,
    such as `per_turn`, `mask_truncated` and `length_penalty`.
    """

    def __init__(
        self,
        model: Any,
        *,
        environment: EnvironmentReference | None = None,
        groups: Iterable[Group] | None = None,
        args: GRPOConfig,
        settings: Mapping[str, Any] | None = None,
        selection: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if (environment is None) == (groups is None):
            raise ConfigError("pass environment=… to sample rollouts, or groups=… to train on recorded ones")
        _check_arguments(args)
        self._environment = environment
        self._records: Iterator[Group] | None = None if groups is None else iter(groups)
        self._environment_settings = dict(settings or {})
        self._hosted: HostedModel | None = None
        super().__init__(
            model,
            reward_funcs=unused_reward,
            args=args,
            train_dataset=placeholder_dataset(args.generation_batch_size),
            **options,
        )
        self._selection = TrainerSettings.model_validate(
            {
                "advantage": ADVANTAGES[self.scale_rewards],
                "max_staleness": 0 if groups is None else ANY_AGE,
                "max_token_trainer_length": context_tokens(self.model),
                **(selection or {}),
            }
        )

    def train(self, *args: Any, **options: Any) -> Any:
        try:
            return super().train(*args, **options)
        finally:
            if self._hosted is not None:
                self._hosted.close()
            self._hosted = None

    def _generate_and_score_completions(self, inputs: Sequence[Any]) -> dict[str, Any]:
        count, remainder = divmod(len(inputs), self.args.num_generations)
        if remainder or not count:
            raise ConfigError(
                f"each process makes whole groups: per_device_train_batch_size * steps_per_generation ({len(inputs)}) "
                f"must be a multiple of num_generations ({self.args.num_generations})"
            )
        groups = self._groups(count)
        batch = training_batch(map(encode, groups), self._selection, self.state.global_step)
        # Not by what is trained on: a group of equal scores is withheld, and that is no failure.
        if not any(group.scored for group in groups):
            failure = first_failure([rollout for group in groups for rollout in group.rollouts])
            raise HermesRLError(f"no rollout of step {self.state.global_step} has a score: {failure}")
        self._note(groups, batch)
        columns = training_columns(batch.examples, self._row_count(len(batch.examples)), self._tokenizer.pad_token_id)
        tensors = {name: torch.from_numpy(column).to(self.accelerator.device) for name, column in columns.items()}
        tensors["num_items_in_batch"] = self.accelerator.gather(tensors["tool_mask"].sum()).sum()
        return tensors

    def _groups(self, count: int) -> list[Group]:
        if self._records is not None:
            groups = list(islice(self._records, count))
            if len(groups) < count:
                raise ConfigError(f"the records ended in step {self.state.global_step}; lower max_steps or repeat them")
            return groups
        if self._hosted is None:
            self._hosted = self._host()
        return self._hosted.groups(count, self.state.global_step)

    def _host(self) -> "HostedModel":
        kind = str(self.accelerator.distributed_type.value)
        if kind in SHARDED:
            raise ConfigError(
                f"with {kind} no process has all the weights to sample from; train on recorded groups (groups=…)"
            )
        shards = {"shard": self.accelerator.process_index, "shards": self.accelerator.num_processes}
        return HostedModel(self, self._environment or "", {**shards, **self._environment_settings})

    def _row_count(self, rows: int) -> int:
        """Rows in each process: TRL drops those beyond a multiple of `steps_per_generation` without a word."""
        most = int(self.accelerator.gather(torch.tensor([rows], device=self.accelerator.device)).max())
        step: int = self.args.steps_per_generation
        return max(most + -most % step, step)

    def _note(self, groups: Sequence[Group], batch: TrainingBatch) -> None:
        scores = np.array([score for group in groups for score in group.scores])
        rollouts = sum(len(group.rollouts) for group in groups)
        noted = {
            "reward": float(scores.mean()),
            "reward_std": float(scores.std()),
            "hermes/rows": len(batch.examples),
            "hermes/unscored": rollouts - sum(len(group.scored) for group in groups),
            **{f"hermes/excluded/{reason.value}": count for reason, count in batch.excluded.items()},
        }
        for name, value in noted.items():
            self._metrics["train"][name].append(value)


class OneSequenceRollouts:
    """A `rollout_func` for TRL's own GRPOTrainer, for environments whose rollouts have one sequence each.

    Use with `train_dataset=placeholder_dataset(n)` and `reward_funcs=score_reward`. TRL ignores the sampling logprobs
    unless it samples with vLLM; HermesGRPOTrainer does not. ConfigError for a rollout of several sequences.
    """

    def __init__(self, environment: EnvironmentReference, settings: Mapping[str, Any] | None = None) -> None:
        self._environment = environment
        self._settings = dict(settings or {})
        self._hosted: HostedModel | None = None

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        sizes = {len(list(same)) for _, same in groupby(prompts)}
        if sizes != {trainer.args.num_generations}:
            raise ConfigError("each process makes whole groups: let num_generations divide its batch")
        if self._hosted is None:
            self._hosted = HostedModel(trainer, self._environment, self._settings)
        groups = self._hosted.groups(len(prompts) // trainer.args.num_generations, trainer.state.global_step)
        if any(rollout.seat is not None for group in groups for rollout in group.rollouts):
            raise ConfigError(
                "each seat of an environment with several agents is a group of its own, and a rollout_func returns "
                "one for each prompt; use HermesGRPOTrainer"
            )
        if any(rollout.branch is not None for group in groups for rollout in group.rollouts):
            raise ConfigError(
                "TRL compares all rollouts of a prompt with each other, also those that branch from others; use "
                "HermesGRPOTrainer, or group_strategy flat"
            )
        rows = [one_sequence_row(rollout) for group in groups for rollout in group.rollouts]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def close(self) -> None:
        """Close the environment."""
        if self._hosted is not None:
            self._hosted.close()
        self._hosted = None


class HostedModel:
    """An environment that samples from the model of a GRPOTrainer in this process."""

    def __init__(self, trainer: Any, environment: EnvironmentReference, settings: Mapping[str, Any]) -> None:
        args, context = trainer.args, context_tokens(trainer.model)
        own = {"group_size": args.num_generations, "agent_temperature": args.temperature}
        self._policy = ModelPolicy(lambda: trainer.model, context_tokens=context)
        hosting = host_environment(
            environment,
            self._policy,
            trainer.processing_class.name_or_path,
            settings={**own, **settings},
            context_tokens=context,
            vocabulary=trainer.model.config.get_text_config().vocab_size,
        )
        self._thread = LoopThread()
        try:
            self._env = self._thread.enter(hosting)
        except BaseException:
            self._thread.close()
            raise

    def groups(self, count: int, version: int) -> list[Group]:
        """The next groups, sampled from the weights as they are now."""
        self._policy.version = version
        return self._thread.run(collect_groups(self._env, count))

    def close(self) -> None:
        self._thread.close()


def one_sequence_row(rollout: Rollout) -> dict[str, Any]:
    """What a `rollout_func` returns for one rollout; nothing to train on if it has no score."""
    if len(rollout.sequences) > 1:
        raise ConfigError(
            f"a rollout has {len(rollout.sequences)} sequences (its context was shortened, or reasoning removed), and "
            "a rollout_func returns one; use HermesGRPOTrainer, which trains on all of them"
        )
    if rollout.score is None or rollout.withheld is not None or not rollout.sequences:
        return {"prompt_ids": [0], "completion_ids": [0], "logprobs": [0.0], "env_mask": [0], "score": rollout.score}
    [sequence] = rollout.sequences
    begin = max(sequence.mask.index(1), 1)
    return {
        "prompt_ids": list(sequence.tokens[:begin]),
        "completion_ids": list(sequence.tokens[begin:]),
        "logprobs": [logprob or 0.0 for logprob in sequence.logprobs[begin:]],
        "env_mask": list(sequence.mask[begin:]),
        "score": rollout.score,
    }


def score_reward(completions: Sequence[Any], score: Sequence[float | None], **_: Any) -> list[float | None]:  # noqa: ARG001 (called by name)
    """The reward function that goes with OneSequenceRollouts: the environment's own score."""
    return list(score)


def unused_reward(completions: Sequence[Any], **_: Any) -> list[float]:
    """Required by GRPOTrainer; the scores come with the rollouts."""
    return [0.0] * len(completions)


def placeholder_dataset(rows: int) -> Dataset:
    """A dataset that only counts groups: the environment draws the items."""
    return Dataset.from_list([{"prompt": str(number)} for number in range(rows)])


def training_columns(examples: Sequence[Example], rows: int, padding: int) -> dict[str, np.ndarray[Any, Any]]:
    """What TRL's loss needs, as right-padded columns; rows beyond the examples have nothing to train on.

    All that comes before the first sampled token of any row is the prompt, which TRL computes no logits for.
    """
    # TRL has no logits for the first token, so a row needs two.
    length = max((len(each.targets) for each in examples), default=1)
    cut = min((int(each.mask.argmax()) for each in examples), default=0)
    tokens = np.full((rows, length + 1), padding, np.int64)
    there = np.zeros((rows, length + 1), np.int64)
    there[:, : cut + 1] = 1
    mask = np.zeros((rows, length), np.int64)
    old, advantages = np.zeros((rows, length), np.float32), np.zeros((rows, length), np.float32)
    for row, each in enumerate(examples):
        end = len(each.targets)
        tokens[row, 0], tokens[row, 1 : end + 1], there[row, : end + 1] = each.tokens[0], each.targets, 1
        mask[row, :end], old[row, :end], advantages[row, :end] = each.mask, each.logprobs, each.advantages
    return {
        "prompt_ids": tokens[:, : cut + 1],
        "prompt_mask": there[:, : cut + 1],
        "completion_ids": tokens[:, cut + 1 :],
        "completion_mask": there[:, cut + 1 :],
        "tool_mask": mask[:, cut:],
        "old_per_token_logps": old[:, cut:],
        "advantages": advantages[:, cut:],
    }


def context_tokens(model: Any) -> int:
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or DEFAULT_CONTEXT)


def _check_arguments(args: GRPOConfig) -> None:
    """ConfigError for settings that would be ignored or change the result without a word."""
    problems = (
        (args.use_vllm, "use_vllm: the rollouts sample from the model in training; leave it off"),
        (args.beta != 0, "beta: no reference logprobs are computed for rollouts; set beta=0"),
        (
            args.scale_rewards not in ADVANTAGES,
            f"scale_rewards={args.scale_rewards!r}: use 'group' or 'none'",
        ),
        (args.max_steps <= 0, "max_steps: the environment has no epochs; set the number of optimizer steps"),
        (
            args.top_p != 1 or args.top_k > 0 or bool(args.min_p),
            "top_p, top_k and min_p exclude tokens; leave them out",
        ),
    )
    for wrong, message in problems:
        if wrong:
            raise ConfigError(message)
