"""slime: a custom generate function whose samples are rollouts of an environment.

Written against the source of THUDM/slime at commit 624b824a898ab0ec1fcb4d373004c7f3852bf515 (2026-08-21), whose package
has no usable release. Nothing of slime is imported: its `Sample` comes with each call. Always true: the tokens and
logprobs of a sample are those that slime's router returned, the loss mask is 1 on sampled tokens. A rollout that
infrastructure left without a score raises: slime knows no sample without a reward.
"""

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import aiohttp
import numpy as np

from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.trajectory import Rollout, StopReason
from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.inference.endpoint import Endpoint
from hermes_rl.inference.managed_server import generate
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import Sampled
from hermes_rl.interop.trainers.environment_host import EnvironmentReference
from hermes_rl.interop.trainers.rollout_host import RolloutHost, Sampler

# Key of a sample's metadata that names an item by its number in `train_items()`.
ITEM = "hermes_item"
REQUEST_TIMEOUT_S = 3600.0
TRUNCATED = (StopReason.LENGTH, StopReason.CONTEXT_FULL, StopReason.MAX_TURNS)
# slime's own addition to the standard deviation of a group.
EPSILON = 1e-6


class HermesGenerate:
    """One rollout of `environment` for each call; `settings` are fields of the environment's configuration.

    An instance in a module of yours is what `--custom-generate-function-path MODULE.NAME` names. slime's
    temperature and its limit of response tokens apply to each model call. A rollout of several sequences becomes
    several samples with one `rollout_id`; use `group_rewards` with it.
    """

    def __init__(
        self, environment: EnvironmentReference, tokenizer: str, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.host = RolloutHost(environment, tokenizer, settings=settings)

    async def __call__(
        self,
        args: Any,
        sample: Any,
        sampling_params: Mapping[str, Any],
        evaluation: bool = False,
    ) -> Any:
        number = (sample.metadata or {}).get(ITEM)
        if number is None:
            raise ConfigError(f"the dataset's metadata needs {ITEM}, the number of an item; see dataset_rows")
        if sampling_params.get("top_p", 1.0) != 1.0:
            raise ConfigError("rollout_top_p: slime needs the tokens that it left out, which no rollout records; set 1")
        env = await self.host.opened()
        if env.overrides("compute_group_rewards"):
            raise ConfigError(f"{env.display_name()} compares the rollouts of a group, which slime makes one by one")
        items = env.eval_items() if evaluation else await self.host.items()
        [plan] = self.host.plan(env, items[int(number)], 1)
        async with aiohttp.ClientSession() as session:
            router = Endpoint(_router(args), session)
            finished = await self.host.rollout(plan, _sampler(router, _headers(args, sample), sampling_params))
        rollout = finished.rollout
        if rollout.score is None:
            reason = "unknown" if rollout.failure is None else f"{rollout.failure}: {rollout.failure.message}"
            raise HermesRLError(f"a rollout of item {rollout.item_id} has no score: {reason}")
        samples = rollout_samples(sample, rollout, finished.result.final_response)
        return samples[0] if len(samples) == 1 else samples


async def dataset_rows(generate: HermesGenerate) -> list[dict[str, Any]]:
    """A row of slime's prompt data for each training item, for `--input-key prompt --metadata-key metadata`."""
    items = await generate.host.items()
    env = await generate.host.opened()
    return [{"prompt": env.item_id(item), "metadata": {ITEM: number}} for number, item in enumerate(items)]


def rollout_samples(sample: Any, rollout: Rollout, response: str) -> list[Any]:
    """Slime's samples of one rollout, made from the pending one: one for each sequence with a sampled token."""
    status = type(sample).Status
    trained = [sequence for sequence in rollout.sequences if any(sequence.mask[1:])]
    if not trained:
        raise HermesRLError(f"a rollout of item {rollout.item_id} has no sampled token")
    samples = []
    for sequence in trained:
        begin = max(sequence.mask.index(1), 1)
        own = copy.copy(sample)
        own.tokens = list(sequence.tokens)
        own.response = response
        own.response_length = len(sequence.tokens) - begin
        own.loss_mask = list(sequence.mask[begin:])
        own.rollout_log_probs = [logprob or 0.0 for logprob in sequence.logprobs[begin:]]
        own.weight_versions = [str(version) for version in dict.fromkeys(sequence.versions) if version is not None]
        own.reward = rollout.score
        own.status = status.TRUNCATED if rollout.stop_reason in TRUNCATED else status.COMPLETED
        own.remove_sample = rollout.withheld is not None
        own.rollout_id = sample.index if sample.rollout_id is None else sample.rollout_id
        own.metadata = {**(sample.metadata or {}), "hermes_rl": dict(rollout.components)}
        samples.append(own)
    return samples


def group_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """For `--custom-reward-post-process-path`: rewards against the mean of their group, each rollout counted once.

    slime's own compares all samples of the step with each other as soon as a rollout has two.
    """
    scores: dict[Any, dict[Any, float]] = defaultdict(dict)
    for sample in samples:
        scores[sample.group_index][_rollout(sample)] = float(sample.get_reward_value(args))
    raw = [float(sample.get_reward_value(args)) for sample in samples]
    result = []
    for sample, reward in zip(samples, raw, strict=True):
        group = np.array(list(scores[sample.group_index].values()))
        spread = float(group.std(ddof=1)) if len(group) > 1 and args.grpo_std_normalization else None
        advantage = reward - float(group.mean())
        result.append(advantage if spread is None else advantage / (spread + EPSILON))
    return raw, result


def _rollout(sample: Any) -> Any:
    return sample.index if sample.rollout_id is None else sample.rollout_id


def _router(args: Any) -> APIServerConfig:
    return APIServerConfig(
        base_url=f"http://{args.sglang_router_ip}:{args.sglang_router_port}/v1",
        model_name="default",
        server_type=ServerType.SGLANG,
        num_max_requests_at_once=1024,
    )


def _headers(args: Any, sample: Any) -> dict[str, str] | None:
    """Keeps the calls of a rollout on one engine, with its prefix cache."""
    if sample.session_id and getattr(args, "router_policy", None) == "consistent_hashing":
        return {"X-SMG-Routing-Key": sample.session_id}
    return None


def _sampler(router: Endpoint, headers: Mapping[str, str] | None, parameters: Mapping[str, Any]) -> Sampler:
    async def sample(ids: Sequence[int], request: SamplingRequest) -> Sampled:
        limits = [limit for limit in (request.max_tokens, parameters.get("max_new_tokens")) if limit is not None]
        own = replace(
            request,
            temperature=float(parameters.get("temperature", request.temperature)),
            top_k=max(int(parameters.get("top_k", 0)), 0),
            max_tokens=min(limits, default=None),
            # slime's seed makes the groups of a deterministic run; ours only names the rollout here.
            seed=parameters.get("sampling_seed"),
        )
        answer = await generate(router, ids, own, None, "train", REQUEST_TIMEOUT_S, headers)
        return answer.completions[0]

    return sample
