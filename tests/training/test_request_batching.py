import asyncio
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest

from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer
from hermes_rl.training.live_policy import SamplingPolicy
from hermes_rl.training.request_batching import CoalescingPolicy, Window
from tests.support.scripted_sampler import ScriptedSampler, by_chance

PROMPT = (1, 2, 3)


def wish(**parameters: Any) -> SamplingRequest:
    return SamplingRequest.from_parameters(parameters)


def coalesced(sampler: ScriptedSampler | None = None, **window: Any) -> tuple[CoalescingPolicy, ScriptedSampler]:
    sampler = sampler or ScriptedSampler(by_chance(1000))
    policy = SamplingPolicy()
    policy.publish(2, sampler)
    return CoalescingPolicy(policy, Window(**{"idle": 0.01, "max_wait": 0.05, **window})), sampler


def asking(
    policy: CoalescingPolicy, *requests: SamplingRequest, ids: Sequence[int] = PROMPT
) -> list[asyncio.Task[EngineAnswer]]:
    return [asyncio.create_task(policy.sample(ids, request)) for request in requests]


async def under_way(sampler: ScriptedSampler) -> None:
    while not sampler.asked:
        await asyncio.sleep(0.001)


def tokens(answer: EngineAnswer) -> list[tuple[int, ...]]:
    return [one.tokens for one in answer.completions]


async def test_requests_for_one_prompt_become_one_call() -> None:
    policy, sampler = coalesced()
    await asyncio.gather(*asking(policy, *[wish()] * 8))
    assert [request.n for _, request in sampler.asked] == [8]
    assert (policy.requests, policy.calls) == (8, 1)


async def test_each_gets_as_many_as_it_asked_for_and_nobody_the_same() -> None:
    policy, _ = coalesced()
    answers = await asyncio.gather(*asking(policy, *(wish(n=n) for n in (1, 3, 2))))
    assert [len(answer.completions) for answer in answers] == [1, 3, 2]
    assert len({one for answer in answers for one in tokens(answer)}) == 6


async def test_all_parts_of_a_call_have_its_version() -> None:
    policy, _ = coalesced()
    answers = await asyncio.gather(*asking(policy, *[wish()] * 3))
    assert {version for answer in answers for one in answer.completions for version in one.versions} == {2}


@pytest.mark.parametrize(
    "other",
    [
        wish(temperature=0.5),
        wish(max_tokens=5),
        wish(seed=1),
        wish(stop=("x",)),
        wish(logit_bias={3: 1.0}),
    ],
)
async def test_requests_that_are_to_be_drawn_otherwise_stay_apart(other: SamplingRequest) -> None:
    policy, sampler = coalesced()
    await asyncio.gather(*asking(policy, wish(), other))
    assert len(sampler.asked) == 2


async def test_other_prompts_stay_apart() -> None:
    policy, sampler = coalesced()
    await asyncio.gather(*asking(policy, wish()), *asking(policy, wish(), ids=(1, 2, 4)))
    assert len(sampler.asked) == 2


async def test_one_that_is_alone_is_passed_on_as_it_is() -> None:
    policy, sampler = coalesced()
    request = wish(seed=7, n=2)
    await policy.sample(PROMPT, request)
    assert sampler.asked == [(PROMPT, request)]


async def test_the_same_seeds_draw_the_same_in_whatever_order_they_come() -> None:
    drawn: list[dict[int, list[tuple[int, ...]]]] = []
    for order in permutations((11, 5, 8)):
        policy, _ = coalesced()
        answers = await asyncio.gather(*asking(policy, *(wish(seed=seed) for seed in order)))
        drawn.append({seed: tokens(answer) for seed, answer in zip(order, answers, strict=True)})
    assert all(one == drawn[0] for one in drawn)


async def test_other_seeds_draw_otherwise() -> None:
    drawn = []
    for seeds in ((1, 2), (1, 3)):
        policy, _ = coalesced()
        answers = await asyncio.gather(*asking(policy, *(wish(seed=seed) for seed in seeds)))
        drawn.append([tokens(answer) for answer in answers])
    assert drawn[0] != drawn[1]


async def test_requests_of_one_seed_are_not_given_the_same_sample() -> None:
    policy, _ = coalesced()
    first, second = await asyncio.gather(*asking(policy, *[wish(seed=4)] * 2))
    assert tokens(first) != tokens(second)


async def test_a_call_for_requests_without_a_seed_has_none() -> None:
    policy, sampler = coalesced()
    await asyncio.gather(*asking(policy, *[wish()] * 2))
    assert sampler.asked[0][1].seed is None


async def test_what_is_cancelled_before_the_call_is_not_asked_for() -> None:
    policy, sampler = coalesced()
    gone, kept = asking(policy, *[wish()] * 2)
    await asyncio.sleep(0)
    gone.cancel()
    await kept
    assert [request.n for _, request in sampler.asked] == [1]


async def test_what_is_cancelled_during_the_call_does_not_harm_the_others() -> None:
    policy, sampler = coalesced(ScriptedSampler(by_chance(1000), seconds=0.1))
    gone, kept = asking(policy, *[wish()] * 2)
    await under_way(sampler)
    gone.cancel()
    assert len((await kept).completions) == 1


async def test_a_call_that_nobody_waits_for_is_given_up() -> None:
    policy, sampler = coalesced(ScriptedSampler(by_chance(1000), seconds=60))
    gone = asking(policy, *[wish()] * 2)
    await under_way(sampler)
    for one in gone:
        one.cancel()
    async with asyncio.timeout(30):
        while not sampler.given_up:
            await asyncio.sleep(0.001)
    assert (len(sampler.asked), sampler.ended) == (1, 0)


async def test_no_call_is_made_for_requests_that_are_all_cancelled() -> None:
    policy, sampler = coalesced()
    [gone] = asking(policy, wish())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0.03)
    assert sampler.asked == [] and policy.calls == 0


async def test_an_error_reaches_all() -> None:
    def fails(*_: object) -> list[int]:
        raise RetryableEndpointError("connection", "away")

    policy, _ = coalesced(ScriptedSampler(fails))
    errors = await asyncio.gather(*asking(policy, *[wish()] * 3), return_exceptions=True)
    assert [type(error) for error in errors] == [RetryableEndpointError] * 3


async def test_no_call_asks_for_more_than_the_most() -> None:
    policy, sampler = coalesced(max_completions=4)
    await asyncio.gather(*asking(policy, *[wish(n=3)] * 3))
    assert [request.n for _, request in sampler.asked] == [3, 3, 3]


async def test_a_call_with_the_most_is_made_at_once() -> None:
    policy, _ = coalesced(max_completions=4, idle=60.0, max_wait=60.0)
    async with asyncio.timeout(30):
        await asyncio.gather(*asking(policy, *[wish()] * 4))
    assert policy.calls == 1


async def test_a_request_of_more_than_the_most_goes_alone() -> None:
    policy, sampler = coalesced(max_completions=4)
    assert len((await policy.sample(PROMPT, wish(n=9))).completions) == 9
    assert len(sampler.asked) == 1


async def test_no_request_waits_longer_than_the_longest_however_many_more_come() -> None:
    policy, _ = coalesced(idle=0.02, max_wait=0.05, max_completions=1000)
    [first] = asking(policy, wish())
    later: list[asyncio.Task[EngineAnswer]] = []
    while not first.done() and len(later) < 100:
        later += asking(policy, wish())
        await asyncio.sleep(0.005)
    assert 1 <= len(later) < 50
    await asyncio.gather(*later)


async def test_without_a_window_nothing_is_joined() -> None:
    policy, sampler = coalesced(idle=0.0)
    await asyncio.gather(*asking(policy, *[wish()] * 3))
    assert len(sampler.asked) == 3


async def test_version_and_logprobs_are_the_policys_own() -> None:
    policy, sampler = coalesced()
    assert policy.version == 2
    assert await policy.logprobs(PROMPT) == (2, await sampler.logprobs(PROMPT))
