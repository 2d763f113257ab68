"""TRL 1.16's AsyncGRPOTrainer on rollouts of an environment.

Always true: the tokens, mask and sampling logprobs of a `RolloutSample` are those that the rollout recorded, and its
version is that of its oldest sampled token. TRL drops what is older than `max_staleness` versions.
"""

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any, TypeAlias

import aiohttp
import numpy as np
import torch
from transformers import AutoModelForCausalLM
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.trajectory import Group
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.inference.endpoint import Endpoint
from hermes_rl.inference.managed_server import generate
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer, Sampled
from hermes_rl.interop.trainers.environment_host import (
    EnvironmentReference,
    collect_groups,
    first_failure,
    host_environment,
)
from hermes_rl.interop.trainers.model_policy import ModelPolicy, Row
from hermes_rl.store.codec import encode
from hermes_rl.training.batch import ExclusionReason, training_batch
from hermes_rl.training.config import TrainerSettings

# TRL drops stale samples itself.
ANY_AGE = 2**31
ANY_LENGTH = 2**31 - 1
DEFAULT_CONTEXT = 4096
REQUEST_TIMEOUT_S = 600.0
POLL_S = 0.05
STOP_TIMEOUT_S = 60.0
# Groups in a row of which infrastructure left every rollout without a score.
MAX_UNSCORED_GROUPS = 8
# Why a group of scored rollouts teaches nothing; TRL trains on it with advantage 0.
NO_SIGNAL = (ExclusionReason.ZERO_SIGNAL, ExclusionReason.GROUP_WITHHELD)


class LocalWeights(ModelPolicy):
    """A copy of the model in this process, and the `weight_transfer` that keeps it up to date: no vLLM is needed.

    Each version counts one above the last, as TRL counts them.
    """

    def __init__(self, model: str, **options: Any) -> None:
        # Its methods have no types.
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, **options)
        self._copy = loaded.eval()
        text = self._copy.config.get_text_config()
        self.vocabulary: int = text.vocab_size
        super().__init__(
            lambda: self._copy, context_tokens=int(getattr(text, "max_position_embeddings", None) or DEFAULT_CONTEXT)
        )
        self._whole = threading.Lock()
        """Held while a batch is sampled, and from `pause` to `resume`."""
        self._paused = False

    def init_weight_transfer(self) -> None:
        """Nothing to set up."""

    def pause(self) -> None:
        self._whole.acquire()
        self._paused = True

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        own = dict(self._copy.named_parameters())
        with torch.no_grad():
            for name, value in iterator:
                if name not in own:
                    raise ConfigError(f"the trained model has the parameter {name}, and its copy has not")
                own[name].copy_(value)
        self.version += 1

    def resume(self) -> None:
        """Idempotent: TRL does not resume after a transfer that failed."""
        if self._paused:
            self._paused = False
            self._whole.release()

    def destroy(self) -> None:
        """Nothing to release."""

    def _draw(self, rows: list[Row]) -> list[Sampled]:
        with self._whole:
            return super()._draw(rows)


class ServerPolicy:
    """Samples from TRL's vLLM server. A token's version is the one that was live when its request was sent.

    TRL replaces the server's weights, also under running requests, so a token may be newer than its version.
    """

    def __init__(self, base_url: str, model: str) -> None:
        self.version = 0
        self.config = APIServerConfig(
            base_url=base_url.rstrip("/").removesuffix("/v1") + "/v1",
            model_name=model,
            server_type=ServerType.VLLM,
            logprobs_mode="processed",
        )
        self.endpoint: Endpoint | None = None

    def hold(self, holder: str, version: int | None, seconds: float) -> int | None:
        return None

    async def logprobs(self, ids: Sequence[int], version: int | None = None) -> tuple[int, list[float | None]]:
        raise ConfigError("this server samples only; it does not score given tokens")

    async def sample(self, ids: Sequence[int], request: SamplingRequest, version: int | None = None) -> EngineAnswer:
        if self.endpoint is None:
            raise ConfigError("the environment is not open")
        live = self.version
        answer = await generate(self.endpoint, ids, request, None, "train", REQUEST_TIMEOUT_S)
        return answer._replace(
            completions=tuple(each._replace(versions=(live,) * len(each.tokens)) for each in answer.completions)
        )


AsyncPolicy: TypeAlias = LocalWeights | ServerPolicy


class HermesRolloutWorker:
    """The `rollout_worker` of an AsyncGRPOTrainer: groups of `environment`, `groups_at_once` at a time.

    `policy` is `LocalWeights`, which is also the trainer's `weight_transfer`, or `ServerPolicy`. A rollout of several
    sequences becomes several samples with its advantage. No group begins while `max_queued` samples wait. `settings`
    are fields of the environment's configuration, `selection` fields of the trainer's settings that choose what is
    trained on, such as `mask_truncated` and `length_penalty`.
    """

    def __init__(
        self,
        environment: EnvironmentReference,
        policy: AsyncPolicy,
        tokenizer: str,
        *,
        groups_at_once: int = 4,
        max_queued: int = 64,
        settings: Mapping[str, Any] | None = None,
        selection: Mapping[str, Any] | None = None,
    ) -> None:
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue()
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._environment, self._policy, self._tokenizer = environment, policy, tokenizer
        self._at_once, self._max_queued = groups_at_once, max_queued
        self._settings = dict(settings or {})
        self._selection = TrainerSettings.model_validate(
            {
                "advantage": "mean_std",
                "max_token_trainer_length": ANY_LENGTH,
                **(selection or {}),
                "max_staleness": ANY_AGE,
            }
        )
        if self._selection.per_turn:
            raise ConfigError("per_turn: AsyncGRPOTrainer takes one advantage for each sequence; use HermesGRPOTrainer")
        self._numbers = count()
        self._unscored = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._heartbeat = time.monotonic()

    def start(self) -> None:
        """Begin; the environment opens in a thread of its own."""
        self._error, self._heartbeat = None, time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._work = self._loop.create_task(self._produce())
        self._thread = threading.Thread(target=self._run, name="hermes-rl", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Cancel the running rollouts and close the environment. Idempotent."""
        if self._thread is None or self._loop is None or self._work is None:
            return
        if isinstance(self._policy, LocalWeights):
            self._policy.resume()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._work.cancel)
            self._thread.join(STOP_TIMEOUT_S)
        self._thread = None

    def update_model_version(self, model_version: int) -> None:
        self._policy.version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raise what ended the rollouts, or HermesRLError if no group was finished for `stale_after_s` seconds."""
        if self._error is not None:
            raise HermesRLError(f"the rollouts ended: {type(self._error).__name__}: {self._error}") from self._error
        if time.monotonic() - self._heartbeat > stale_after_s:
            raise HermesRLError(f"no group was finished in {stale_after_s:g} s")

    def _run(self) -> None:
        if self._loop is None or self._work is None:
            return
        try:
            self._loop.run_until_complete(self._work)
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 (check_health raises it where the trainer waits)
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self._error = error
        finally:
            # What the rollouts left behind, such as the sampling of a batch.
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _produce(self) -> None:
        async with self._opened() as env, asyncio.TaskGroup() as work:
            for _ in range(self._at_once):
                work.create_task(self._collect(env))

    async def _collect(self, env: HermesAgentBaseEnv) -> None:
        while True:
            while self.rollout_buffer.qsize() >= self._max_queued:
                self._heartbeat = time.monotonic()
                await asyncio.sleep(POLL_S)
            for group in await collect_groups(env, 1):
                self._put(group)

    def _put(self, group: Group) -> None:
        self._unscored = 0 if group.scored else self._unscored + 1
        if self._unscored == MAX_UNSCORED_GROUPS:
            raise HermesRLError(
                f"{self._unscored} groups in a row have no scored rollout, the last: {first_failure(group.rollouts)}"
            )
        self._heartbeat = time.monotonic()
        number = next(self._numbers)
        for sample in rollout_samples(group, self._selection, number):
            self.rollout_buffer.put(replace(sample, enqueued_at=time.time()))
        self.metrics_queue.put({"hermes/unscored_total": float(len(group.rollouts) - len(group.scored))})

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[HermesAgentBaseEnv]:
        policy = self._policy
        local = policy if isinstance(policy, LocalWeights) else None
        async with aiohttp.ClientSession() as session:
            if isinstance(policy, ServerPolicy):
                policy.endpoint = Endpoint(policy.config, session)
            hosting = host_environment(
                self._environment,
                policy,
                self._tokenizer,
                settings=self._settings,
                context_tokens=local.context_tokens if local else None,
                vocabulary=local.vocabulary if local else None,
            )
            async with hosting as env:
                yield env


def rollout_samples(group: Group, selection: TrainerSettings, number: int) -> list[RolloutSample]:
    """What TRL trains on of a group: a sample for each sequence, with the rollout's advantage.

    If all scores are equal, samples with advantage 0: TRL's own worker sends them too, so that a trainer whose task is
    mastered goes on.
    """
    batch = training_batch([encode(group)], selection, 0)
    advantages: dict[tuple[int, int], float] = {}
    for example, origin in zip(batch.examples, batch.origins, strict=True):
        own = set(example.advantages[example.mask > 0].tolist())
        if len(own) > 1:
            raise ConfigError(
                "the turns of a rollout that branches have advantages of their own, and AsyncGRPOTrainer takes one for "
                "each sequence; use HermesGRPOTrainer, or group_strategy flat"
            )
        advantages[origin.outcome.rollout, origin.sequence] = own.pop()
    if any(reason in batch.excluded for reason in NO_SIGNAL):
        advantages = {
            (index, place): 0.0
            for index, rollout in enumerate(group.rollouts)
            if rollout.scored and rollout.withheld is None
            for place, sequence in enumerate(rollout.sequences)
            if any(sequence.mask[1:])
        }
    spread = float(np.std(group.scores)) if group.scores else 0.0
    samples = []
    for (index, place), advantage in advantages.items():
        rollout = group.rollouts[index]
        sequence = rollout.sequences[place]
        metrics = {"reward": rollout.score, "reward_std": spread, "hermes/turns": float(rollout.turns_used)}
        samples.append(
            RolloutSample(
                prompt=[],
                completion=[],
                input_ids=np.array(sequence.tokens, np.int64),
                completion_mask=np.array(sequence.mask, np.int64),
                old_log_probs=np.array([each or 0.0 for each in sequence.logprobs], np.float32),
                advantage=advantage,
                model_version=min(each for each in sequence.versions if each is not None),
                group_id=number,
                metrics={name: value for name, value in metrics.items() if value is not None},
            )
        )
    return samples
