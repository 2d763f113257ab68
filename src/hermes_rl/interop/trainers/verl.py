"""verl 0.9.1: an AgentLoopBase whose trajectories are rollouts of an environment.

Always true: the response ids are those that the rollout recorded, the response mask is 1 on sampled tokens. A rollout
that infrastructure left without a score raises: verl knows no row without a reward.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.trajectory import Span
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import Sampled
from hermes_rl.interop.trainers.rollout_host import RolloutHost, finished_by, one_sequence

# The column of the dataset that names an item by its number in `train_items()`.
ITEM = "hermes_item"


class HermesAgentLoop(AgentLoopBase):
    """One rollout of `environment`, sampled by verl's servers with verl's parameters.

    `settings` are fields of the environment's configuration.
    """

    # verl makes an agent loop for each rollout; the environment is open as long as the worker's client of the servers.
    _hosts: ClassVar[MutableMapping[Any, RolloutHost]] = WeakKeyDictionary()

    def __init__(self, *args: Any, environment: str, settings: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        host = self._hosts.get(self.server_manager)
        if host is None:
            host = RolloutHost(environment, self.tokenizer.name_or_path, settings=dict(settings or {}))
            self._hosts[self.server_manager] = host
        self.host = host

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        if ITEM not in kwargs:
            raise ConfigError(f"the dataset needs a column {ITEM} with the number of an item in train_items()")
        env, items = await self.host.opened(), await self.host.items()
        if env.overrides("compute_group_rewards"):
            raise ConfigError(f"{env.display_name()} compares the rollouts of a group, which verl makes one by one")
        [plan] = self.host.plan(env, items[int(kwargs[ITEM])], 1)

        async def sample(ids: Sequence[int], request: SamplingRequest) -> Sampled:
            own = {**sampling_params, "stop_token_ids": list(request.stop_token_ids), "logprobs": True}
            if request.max_tokens is not None:
                own["max_tokens"] = request.max_tokens
            answer = await self.server_manager.generate(
                request_id=str(plan.seed), prompt_ids=list(ids), sampling_params=own
            )
            tokens = tuple(answer.token_ids)
            if answer.log_probs is None or len(answer.log_probs) != len(tokens):
                raise ConfigError("verl's server returned no logprobs; set rollout.calculate_log_probs")
            limited = not tokens or tokens[-1] not in request.stop_token_ids
            finish = finished_by(tokens, request, limited=limited)
            return Sampled(tokens, tuple(answer.log_probs), (0,) * len(tokens), finish)

        rollout = (await self.host.rollout(plan, sample)).rollout
        if rollout.score is None:
            reason = "unknown" if rollout.failure is None else f"{rollout.failure}: {rollout.failure.message}"
            raise HermesRLError(f"a rollout of item {rollout.item_id} has no score: {reason}")
        row, limit = one_sequence(rollout.sequences, "verl"), int(self.rollout_config.response_length)
        seconds = {span: sum(each.seconds for each in rollout.timings if each.span is span) for span in Span}
        return AgentLoopOutput(
            prompt_ids=row.prompt,
            response_ids=row.response[:limit],
            response_mask=row.mask[:limit],
            response_logprobs=row.logprobs[:limit],
            reward_score=rollout.score,
            num_turns=rollout.turns_used,
            metrics=AgentLoopMetrics(
                generate_sequences=seconds[Span.MODEL],
                tool_calls=seconds[Span.TOOL],
                compute_score=seconds[Span.VERIFIER],
            ),
            extra_fields={"turn_scores": list(rollout.turn_scores), "tool_rewards": []},
        )
