"""Hosts an environment in the process of another project's trainer.

Always true: every model call of the environment reaches the given policy as token ids, through an inference server on
loopback, and comes back with logprobs of the distribution that was sampled from.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, TypeVar

from hermes_rl.console.config_options import merge_fields
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Group, Rollout
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.environment.resolve_config import config_defaults
from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.inference.tokens.chat_format import FormatSettings
from hermes_rl.inference.tokens.tokenizer import load_tokenizer
from hermes_rl.rollout.token_requirements import require_exact_tokens
from hermes_rl.training.inference_server.config import ChatFormats, InferenceSettings
from hermes_rl.training.inference_server.server import inference_server
from hermes_rl.training.policy import Policy
from hermes_rl.training.request_batching import Window

T = TypeVar("T")
# A class, or what `hermes-rl process` takes: a bundled name, FILE.py or FILE.py:CLASS.
EnvironmentReference: TypeAlias = str | type[HermesAgentBaseEnv]


def environment_class(environment: EnvironmentReference) -> type[HermesAgentBaseEnv]:
    return load_environment(environment) if isinstance(environment, str) else environment


@asynccontextmanager
async def host_environment(
    environment: EnvironmentReference,
    policy: Policy,
    tokenizer: str,
    *,
    settings: Mapping[str, Any] | None = None,
    context_tokens: int | None = None,
    vocabulary: int | None = None,
) -> AsyncIterator[HermesAgentBaseEnv]:
    """The open environment, sampling from `policy`. `settings` are fields of its configuration.

    The policy's logprobs must be those after temperature. `tokenizer` is a name or a folder; `context_tokens` and
    `vocabulary` are the model's, None if unknown.
    """
    environment = environment_class(environment)
    formats = ChatFormats(await asyncio.to_thread(load_tokenizer, tokenizer), FormatSettings())
    # The policies of trainers batch requests themselves, and some tell rollouts apart by their seeds.
    served = InferenceSettings(tokenizer, context_tokens, vocabulary, window=Window(idle=0.0))
    async with inference_server(policy, formats, served) as url:
        endpoint = APIServerConfig(
            base_url=f"{url}/v1", model_name=tokenizer, server_type=ServerType.VLLM, logprobs_mode="processed"
        )
        async with open_environment(environment, [endpoint], settings) as env:
            yield env


@asynccontextmanager
async def open_environment(
    environment: EnvironmentReference, endpoints: Sequence[APIServerConfig], settings: Mapping[str, Any] | None = None
) -> AsyncIterator[HermesAgentBaseEnv]:
    """The open environment, sampling from endpoints that return exact tokens; ConfigError for others."""
    environment = environment_class(environment)
    config = merge_fields(config_defaults(environment)[0], {"use_wandb": False, **(settings or {})}, "env")
    require_exact_tokens(config, endpoints)
    env = environment(config, endpoints)
    async with env.opened():
        yield env


async def collect_groups(env: HermesAgentBaseEnv, count: int) -> list[Group]:
    """The groups of the next `count` items, run at once; ConfigError when the environment has no more items."""

    async def collect() -> list[Group]:
        draw = await env.next_draw()
        if draw is None:
            raise ConfigError(
                f"{env.display_name()} has no more items; let get_next_item repeat them, or train for fewer steps"
            )
        groups = await env.collect_groups(draw.item, draw.number)
        for group in groups:
            env.item_rewards.add(group.item_id, group.scores)
        env.tools.check()
        return groups

    try:
        async with asyncio.TaskGroup() as work:
            tasks = [work.create_task(collect()) for _ in range(count)]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [group for task in tasks for group in task.result()]


def first_failure(rollouts: Sequence[Rollout]) -> str:
    """Why a rollout has no score, for an error message."""
    failure = next((each.failure for each in rollouts if each.failure is not None), None)
    return "no rollout was made" if failure is None else f"{failure}: {failure.message}"


class LoopThread:
    """An event loop in a thread of its own, for trainers that are not asynchronous."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._held: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="hermes-rl", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it there and wait for the result; an exception here, such as KeyboardInterrupt, cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enter a context there; `close` leaves it."""
        return self.run(self._enter(context))

    def close(self) -> None:
        """Leave all contexts and end the thread. Idempotent."""
        if self._loop.is_closed():
            return
        self.run(self._leave())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _enter(self, context: AbstractAsyncContextManager[T]) -> T:
        entered: asyncio.Future[T] = self._loop.create_future()
        # A context must be left by the task that entered it.
        task = asyncio.create_task(self._hold(context, entered))
        await asyncio.wait((task, entered), return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            task.result()
        self._held.append(task)
        return entered.result()

    async def _hold(self, context: AbstractAsyncContextManager[T], entered: "asyncio.Future[T]") -> None:
        async with context as value:
            entered.set_result(value)
            await self._closing.wait()

    async def _leave(self) -> None:
        self._closing.set()
        await asyncio.gather(*self._held)
