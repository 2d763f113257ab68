"""RolloutHost: single rollouts of one environment, for trainers that ask for them one by one.

Always true: each model call of a rollout reaches the sampler that was given for that rollout, and no other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Sequence as TokenSequence
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer, Finish, Sampled
from hermes_rl.interop.trainers.environment_host import EnvironmentReference, host_environment
from hermes_rl.rollout.group import plan_group
from hermes_rl.rollout.rollout import FinishedRollout, RolloutPlan, run_rollout

# The next tokens after these ids.
Sampler: TypeAlias = Callable[[Sequence[int], SamplingRequest], Awaitable[Sampled]]
# Each turn of a rollout has the seed after that of the turn before.
MAX_TURNS, SEEDS = 2**16, 2**31


class RoutedPolicy:
    """A policy that tells rollouts apart by the seeds of their requests, and asks the sampler of each."""

    version = 0
    """The trainer knows the versions; nothing here is told apart by them."""

    def __init__(self) -> None:
        self._routes: dict[int, Sampler] = {}

    def hold(self, holder: str, version: int | None, seconds: float) -> int | None:
        return None

    async def logprobs(self, ids: Sequence[int], version: int | None = None) -> tuple[int, list[float | None]]:
        raise ConfigError("this server samples only; it does not score given tokens")

    @contextmanager
    def route(self, seed: int, sampler: Sampler) -> Iterator[None]:
        """Inside this block, requests of the rollout with this seed go to `sampler`."""
        self._routes[seed] = sampler
        try:
            yield
        finally:
            del self._routes[seed]

    async def sample(self, ids: Sequence[int], request: SamplingRequest, version: int | None = None) -> EngineAnswer:
        turns = {} if request.seed is None else {(request.seed - seed) % SEEDS: seed for seed in self._routes}
        if not turns or min(turns) >= MAX_TURNS or request.n != 1:
            raise ConfigError("only the model calls of a rollout's own agent can be sampled here")
        sampled = await self._routes[turns[min(turns)]](ids, request)
        return EngineAnswer((sampled,), tuple(ids), len(ids))


class RolloutHost:
    """Opens the environment on first use and on the event loop that uses it; closed by `close` or with that loop.

    `settings` are fields of the environment's configuration. It can be pickled: the copy opens an environment of its
    own.
    """

    def __init__(
        self,
        environment: EnvironmentReference,
        tokenizer: str,
        *,
        settings: Mapping[str, Any] | None = None,
        context_tokens: int | None = None,
    ) -> None:
        self.environment, self.tokenizer = environment, tokenizer
        self.settings, self.context_tokens = dict(settings or {}), context_tokens
        self._forget()

    def _forget(self) -> None:
        self._policy = RoutedPolicy()
        self._draws = count()
        self._ready: asyncio.Future[HermesAgentBaseEnv] | None = None
        self._lifetime: asyncio.Task[None] | None = None
        self._closing: asyncio.Event | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    async def opened(self) -> HermesAgentBaseEnv:
        """The environment; ConfigError for one whose rollouts cannot be made one by one."""
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._closing = asyncio.Event()
            self._lifetime = asyncio.create_task(self._live(self._ready, self._closing))
        return await asyncio.shield(self._ready)

    async def items(self) -> Sequence[Any]:
        """The training items; ConfigError if the environment only hands them out one after the other."""
        env = await self.opened()
        items = env.train_items()
        if items is None:
            raise ConfigError(f"{env.display_name()} needs train_items(): this trainer chooses items by their number")
        return items

    def plan(self, env: HermesAgentBaseEnv, item: Any, size: int) -> list[RolloutPlan]:
        """Rollouts of one item, with the same tools and seeds of their own."""
        planned = plan_group(env, item, size=size, draw=next(self._draws))
        return [planned.rollout(index) for index in range(size)]

    async def rollout(self, plan: RolloutPlan, sampler: Sampler, *, retry: bool = True) -> FinishedRollout:
        """Run a rollout whose tokens come from `sampler`; retry it as the environment's rules say."""
        env, tries = await self.opened(), 0
        while True:
            tries += 1
            with self._policy.route(plan.seed, sampler):
                finished = await run_rollout(env, plan)
            if not retry or not env.group_rules().retries.should_retry(finished.rollout.failure, tries):
                return finished

    async def close(self) -> None:
        """Close the environment. Idempotent."""
        if self._lifetime is not None and self._closing is not None:
            self._closing.set()
            await self._lifetime
        self._forget()

    async def _live(self, ready: "asyncio.Future[HermesAgentBaseEnv]", closing: asyncio.Event) -> None:
        """Hold the environment open: contexts must be left by the task that entered them."""
        hosting = host_environment(
            self.environment,
            self._policy,
            self.tokenizer,
            settings=self.settings,
            context_tokens=self.context_tokens,
        )
        try:
            async with hosting as env:
                if env.seats or env.makes_own_rollouts or env.config.external_agent:
                    raise ConfigError(
                        f"{env.display_name()} has several agents, makes its own rollouts or runs an agent of others, "
                        "so its model calls cannot be told apart here; train it with `hermes-rl train` or through TRL"
                    )
                if env.config.group_strategy != "flat":
                    raise ConfigError(
                        f"group_strategy {env.config.group_strategy} makes whole groups, and this trainer asks for one "
                        "rollout after another; set it to flat, or train with `hermes-rl train` or through TRL"
                    )
                ready.set_result(env)
                await closing.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)


class OneSequence(NamedTuple):
    """A rollout for trainers that take one sequence each: what came before the first sampled token, and the rest."""

    prompt: list[int]
    response: list[int]
    mask: list[int]
    logprobs: list[float]


def one_sequence(sequences: Sequence[TokenSequence], trainer: str) -> OneSequence:
    """The only sequence of a rollout; ConfigError if there are several."""
    if len(sequences) != 1:
        raise ConfigError(
            f"a rollout has {len(sequences)} sequences (context shortened, or reasoning removed), and {trainer} "
            "takes one; use TRL or tinker-cookbook, or set thinking_mode and compaction so that nothing is removed"
        )
    [sequence] = sequences
    begin = max(sequence.mask.index(1), 1)
    return OneSequence(
        list(sequence.tokens[:begin]),
        list(sequence.tokens[begin:]),
        list(sequence.mask[begin:]),
        [logprob or 0.0 for logprob in sequence.logprobs[begin:]],
    )


def finished_by(tokens: Sequence[int], request: SamplingRequest, *, limited: bool) -> Finish:
    """Why an engine ended a completion that it says was `limited` by length, or not."""
    if not limited:
        return Finish.STOP
    return Finish.LENGTH if len(tokens) == request.max_tokens else Finish.CONTEXT
