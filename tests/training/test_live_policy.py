import asyncio
from collections.abc import Callable

import pytest

from hermes_rl.core.errors import ContextFullError, EndpointError
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer
from hermes_rl.training.live_policy import MAX_ATTEMPTS, SamplingPolicy
from tests.support.scripted_sampler import ScriptedSampler
from tests.support.token_servers import logprob_of

ONE = SamplingRequest.from_parameters({})


def says(*tokens: int, seconds: float = 0.0) -> ScriptedSampler:
    return ScriptedSampler(lambda *_: tokens, seconds=seconds)


def fails(error: Exception, seconds: float = 0.0) -> ScriptedSampler:
    def script(*_: object) -> list[int]:
        raise error

    return ScriptedSampler(script, seconds=seconds)


def away() -> RetryableEndpointError:
    return RetryableEndpointError("connection", "the engine is away")


def published(version: int, sampler: ScriptedSampler, patience: float = 1.0) -> SamplingPolicy:
    policy = SamplingPolicy(patience=patience)
    policy.publish(version, sampler)
    return policy


def test_there_is_no_version_before_the_first() -> None:
    assert SamplingPolicy().version is None


async def test_every_token_has_the_version_that_drew_it() -> None:
    answer = await published(3, says(5, 6, 7)).sample([1], SamplingRequest.from_parameters({"n": 2}))
    assert [one.versions for one in answer.completions] == [(3, 3, 3), (3, 3, 3)]


async def test_the_newest_weights_are_drawn_from() -> None:
    policy = published(0, says(5))
    policy.publish(4, says(6))
    [completion] = (await policy.sample([1], ONE)).completions
    assert (policy.version, completion.tokens, completion.versions) == (4, (6,), (4,))


async def test_a_request_under_way_ends_on_the_weights_it_began_with() -> None:
    policy = published(0, says(5, seconds=0.05))
    asking = asyncio.create_task(policy.sample([1], ONE))
    await asyncio.sleep(0.01)
    policy.publish(1, says(6))
    [completion] = (await asking).completions
    assert (completion.tokens, completion.versions) == ((5,), (0,))


def test_a_version_never_goes_back() -> None:
    policy = published(5, says(1))
    with pytest.raises(ValueError, match="4 was published after 5"):
        policy.publish(4, says(1))


def test_a_version_does_not_go_back_after_it_was_withdrawn() -> None:
    policy = published(5, says(1))
    policy.withdraw()
    with pytest.raises(ValueError, match="never decrease"):
        policy.publish(4, says(1))


async def test_the_same_weights_may_come_again_from_another_sampler() -> None:
    policy = published(5, says(1))
    policy.publish(5, says(2))
    assert (await policy.sample([1], ONE)).completions[0].tokens == (2,)


async def test_whoever_asks_before_the_first_weights_waits_for_them() -> None:
    policy = SamplingPolicy()
    asking = asyncio.create_task(policy.sample([1], ONE))
    await asyncio.sleep(0.02)
    policy.publish(0, says(5))
    assert (await asking).completions[0].tokens == (5,)


async def test_whoever_waits_too_long_is_told_to_ask_again() -> None:
    with pytest.raises(RetryableEndpointError) as caught:
        await SamplingPolicy(patience=0.02).sample([1], ONE)
    assert caught.value.cause == "no_weights" and caught.value.retry_after


async def test_withdrawn_weights_are_not_drawn_from() -> None:
    policy = published(0, says(5), patience=0.02)
    policy.withdraw()
    assert policy.version is None
    with pytest.raises(RetryableEndpointError):
        await policy.sample([1], ONE)


async def test_a_sampler_that_fails_is_told_to_the_owner_and_to_the_caller() -> None:
    told: list[tuple[int, EndpointError]] = []
    policy = SamplingPolicy(on_failure=lambda version, error: told.append((version, error)))
    policy.publish(7, fails(error := away()))
    with pytest.raises(RetryableEndpointError):
        await policy.sample([1], ONE)
    assert told == [(7, error)] and policy.failures == 1


def owner(act: Callable[[SamplingPolicy], None], first: ScriptedSampler) -> SamplingPolicy:
    """A policy whose owner does this when a sampler fails."""
    policy = SamplingPolicy(on_failure=lambda *_: act(policy), patience=1.0)
    policy.publish(0, first)
    return policy


async def test_a_call_that_failed_asks_the_weights_that_replaced_its_own() -> None:
    policy = owner(lambda policy: policy.publish(1, says(6)), fails(away()))
    [completion] = (await policy.sample([1], ONE)).completions
    assert (completion.tokens, completion.versions) == ((6,), (1,))


async def test_a_call_that_failed_waits_for_others_where_its_weights_were_withdrawn() -> None:
    policy = owner(SamplingPolicy.withdraw, fails(away()))
    asking = asyncio.create_task(policy.sample([1], ONE))
    await asyncio.sleep(0.02)
    policy.publish(0, says(6))
    assert (await asking).completions[0].tokens == (6,)


async def test_what_no_sampler_could_answer_is_not_asked_again() -> None:
    policy = owner(lambda policy: policy.publish(1, says(6)), fails(EndpointError("refused", "no such thing")))
    with pytest.raises(EndpointError, match="no such thing"):
        await policy.sample([1], ONE)


async def test_a_request_is_not_put_to_one_failing_sampler_after_another_forever() -> None:
    policy = owner(lambda policy: policy.publish(0, fails(away())), fails(away()))
    with pytest.raises(RetryableEndpointError):
        await policy.sample([1], ONE)
    assert policy.failures == MAX_ATTEMPTS


async def test_a_prompt_that_is_too_long_is_no_failure_of_the_sampler() -> None:
    policy = published(0, fails(ContextFullError("context_full", "too long")))
    with pytest.raises(ContextFullError):
        await policy.sample([1], ONE)
    assert policy.failures == 0


async def test_too_few_completions_are_an_error() -> None:
    class Miser(ScriptedSampler):
        async def sample(self, *_: object) -> EngineAnswer:
            return EngineAnswer(())

    with pytest.raises(RetryableEndpointError, match="0 completions instead of 1"):
        await published(0, Miser(lambda *_: ())).sample([1], ONE)


async def test_logprobs_come_with_the_version_that_found_them() -> None:
    assert await published(9, says()).logprobs([4, 5, 6]) == (9, [None, logprob_of(5), logprob_of(6)])


# --- held versions ---


async def version_of(policy: SamplingPolicy, asked: int | None = None) -> tuple[int | None, ...]:
    return (await policy.sample([1], ONE, asked)).completions[0].versions


async def test_a_held_version_is_drawn_from_beside_the_newest() -> None:
    policy = published(3, says(5))
    assert policy.hold("evaluation", None, 60) == 3
    policy.publish(4, says(6))
    policy.publish(5, says(7))
    held = (await policy.sample([1], ONE, 3)).completions[0]
    assert (held.tokens, held.versions) == ((5,), (3,))
    assert (await version_of(policy), await version_of(policy, 4)) == ((5,), (5,))


async def test_a_version_that_was_let_go_is_the_newest_with_its_own_name() -> None:
    policy = published(3, says(5))
    policy.hold("evaluation", 3, 60)
    policy.hold("evaluation", 3, 0)
    policy.publish(4, says(6))
    assert await version_of(policy, 3) == (4,)


def test_a_version_that_is_gone_cannot_be_held() -> None:
    policy = published(3, says(5))
    policy.publish(4, says(6))
    assert policy.hold("evaluation", 3, 60) is None
    assert policy.held == set()


async def test_logprobs_are_of_the_version_that_was_asked_for() -> None:
    policy = published(3, says(5))
    policy.hold("evaluation", 3, 60)
    policy.publish(4, says(6))
    assert [(await policy.logprobs([1, 2], version))[0] for version in (3, None)] == [3, 4]


async def test_a_held_version_waits_too_while_there_are_no_weights() -> None:
    policy = published(3, says(5))
    policy.hold("evaluation", 3, 60)
    policy.withdraw()
    asking = asyncio.create_task(version_of(policy, 3))
    await asyncio.sleep(0.02)
    assert not asking.done()
    policy.publish(4, says(6), {3: says(5)})
    assert await asking == (3,)
