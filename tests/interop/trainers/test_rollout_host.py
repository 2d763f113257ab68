"""What the adapters share: the loop in a thread, rollouts told apart by their seeds, the one sequence of a rollout."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Sampling
from hermes_rl.core.trajectory import Sequence as TokenSequence
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import Finish, Sampled
from hermes_rl.interop.trainers.environment_host import LoopThread
from hermes_rl.interop.trainers.rollout_host import RoutedPolicy, Sampler, finished_by, one_sequence

SEQUENCE = TokenSequence(
    (5, 6, 7, 8, 9), (0, 0, 1, 0, 1), (None, None, -0.5, None, -0.25), (None, None, 0, None, 0), Sampling(1.0)
)


def saying(token: int) -> Sampler:
    async def sample(ids: Sequence[int], request: SamplingRequest) -> Sampled:
        return Sampled((token,), (-1.0,), (0,), Finish.STOP)

    return sample


async def said(policy: RoutedPolicy, seed: int | None) -> int:
    answer = await policy.sample([1, 2], SamplingRequest(seed=seed))
    return answer.completions[0].tokens[0]


async def test_each_turn_of_a_rollout_reaches_its_own_sampler() -> None:
    policy = RoutedPolicy()
    with policy.route(1_000_000, saying(3)), policy.route(2**31 - 1, saying(4)):
        assert [await said(policy, seed) for seed in (1_000_000, 1_000_007, 2**31 - 1, 0)] == [3, 3, 4, 4]


@pytest.mark.parametrize("seed", [None, 999_999, 2_000_000])
async def test_a_call_that_belongs_to_no_rollout_is_refused(seed: int | None) -> None:
    policy = RoutedPolicy()
    with policy.route(1_000_000, saying(3)), pytest.raises(ConfigError, match="own agent"):
        await said(policy, seed)


async def test_the_calls_of_an_ended_rollout_are_refused() -> None:
    policy = RoutedPolicy()
    with policy.route(1_000_000, saying(3)):
        pass
    with pytest.raises(ConfigError, match="own agent"):
        await said(policy, 1_000_000)


def test_one_sequence_is_cut_before_the_first_sampled_token() -> None:
    assert one_sequence([SEQUENCE], "verl") == ([5, 6], [7, 8, 9], [1, 0, 1], [-0.5, 0.0, -0.25])


def test_several_sequences_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="SkyRL takes one"):
        one_sequence([SEQUENCE, SEQUENCE], "SkyRL")


def test_an_engine_that_stopped_before_the_requested_length_had_a_full_context() -> None:
    request = SamplingRequest(max_tokens=3)
    assert finished_by([1, 2, 3], request, limited=True) is Finish.LENGTH
    assert finished_by([1, 2], request, limited=True) is Finish.CONTEXT
    assert finished_by([1, 2], request, limited=False) is Finish.STOP


def test_a_context_is_left_in_the_thread_that_entered_it() -> None:
    seen: list[tuple[str, int, object]] = []

    @asynccontextmanager
    async def watched() -> AsyncIterator[str]:
        seen.append(("entered", threading.get_ident(), asyncio.current_task()))
        yield "value"
        seen.append(("left", threading.get_ident(), asyncio.current_task()))

    thread = LoopThread()
    assert thread.enter(watched()) == "value"
    assert [what for what, _, _ in seen] == ["entered"]
    thread.close()
    thread.close()
    (_, *entered), (what, *left) = seen
    assert what == "left"
    assert entered == left
    assert entered[0] != threading.get_ident()


def test_an_error_at_entering_is_raised_to_the_caller() -> None:
    class Failing(AbstractAsyncContextManager[None]):
        async def __aenter__(self) -> None:
            raise ConfigError("no model")

        async def __aexit__(self, *_: object) -> None: ...

    thread = LoopThread()
    with pytest.raises(ConfigError, match="no model"):
        thread.enter(Failing())
    thread.close()
