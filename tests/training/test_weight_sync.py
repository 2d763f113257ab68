"""The watch over an engine that samples; what vLLM servers are given is in test_vllm_publishing.py."""

import asyncio
from collections.abc import Sequence

import pytest

from hermes_rl.core.errors import ContextFullError, EndpointError
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer
from hermes_rl.training.engines.protocol import EngineError
from hermes_rl.training.weight_sync import EngineWeightSync
from tests.support.training_engine import BookEngine, Engines, OneToken

REQUEST = SamplingRequest.from_parameters({"max_tokens": 4})


class Failing(OneToken):
    """Fails as often as it is told, each time with this error."""

    def __init__(self, times: int, error: EndpointError) -> None:
        self.left, self.error = times, error

    async def sample(self, ids: Sequence[int], request: SamplingRequest) -> EngineAnswer:
        if self.left:
            self.left -= 1
            raise self.error
        return await super().sample(ids, request)


class OneEngine(BookEngine):
    def __init__(self, sampler: OneToken) -> None:
        super().__init__(Engines(), [])
        self._sampler = sampler

    async def sampler(self, path: str | None) -> OneToken:
        return self._sampler


async def lost_after(sampler: OneToken) -> list[EngineError]:
    """What the trainer hears when a request has failed."""
    publishing, lost = EngineWeightSync(0.2), list[EngineError]()
    publishing.on_lost = lost.append
    await publishing.publish(1, OneEngine(sampler), "path")
    with pytest.raises(EndpointError):
        await publishing.policy.sample([1], REQUEST)
    await asyncio.sleep(0.05)
    return lost


async def test_an_engine_that_cannot_sample_any_more_is_lost() -> None:
    [error] = await lost_after(Failing(9, RetryableEndpointError("engine", "the model is not loaded")))
    assert "not loaded" in str(error)


async def test_one_failure_is_not_the_end_of_an_engine() -> None:
    assert await lost_after(Failing(1, RetryableEndpointError("engine", "a moment"))) == []


async def test_a_request_that_cannot_be_answered_says_nothing_of_the_engine() -> None:
    assert await lost_after(Failing(9, ContextFullError("context_full", "too long"))) == []


async def test_withdrawn_weights_are_waited_for() -> None:
    publishing = EngineWeightSync(5.0)
    await publishing.publish(1, OneEngine(OneToken()), "path")
    publishing.withdraw()
    assert publishing.policy.version is None
    asked = asyncio.create_task(publishing.policy.sample([1], REQUEST))
    await asyncio.sleep(0.02)
    await publishing.publish(1, OneEngine(OneToken()), "path")
    assert (await asked).completions[0].versions == (1,)


# --- held versions ---


class Reopened(BookEngine):
    """Its samplers by path; another path is unknown."""

    def __init__(self, **samplers: OneToken) -> None:
        super().__init__(Engines(), [])
        self.samplers = samplers

    async def sampler(self, path: str | None) -> OneToken:
        if path not in self.samplers:
            raise EngineError(f"there is no {path}")
        return self.samplers[path]


async def holding(engine: Reopened) -> EngineWeightSync:
    """Version 1 is held, and 2 is the newest."""
    publishing = EngineWeightSync(0.2)
    await publishing.publish(1, engine, "one")
    assert publishing.policy.hold("evaluation", None, 60) == 1
    await publishing.publish(2, engine, "two")
    return publishing


async def version_asked(publishing: EngineWeightSync, version: int) -> tuple[int | None, ...]:
    return (await publishing.policy.sample([1], REQUEST, version)).completions[0].versions


async def test_the_sampler_of_a_held_version_is_in_use() -> None:
    publishing = await holding(Reopened(one=OneToken(), two=OneToken(), three=OneToken()))
    assert publishing.samplers_in_use() == {"one"}
    publishing.policy.hold("evaluation", 1, 0)
    assert publishing.samplers_in_use() == set()


async def test_a_held_version_goes_on_at_an_engine_that_was_opened_again() -> None:
    publishing = await holding(Reopened(one=OneToken(), two=OneToken()))
    publishing.withdraw()
    await publishing.publish(3, Reopened(one=OneToken(), three=OneToken()), "three")
    assert await version_asked(publishing, 1) == (1,)


async def test_a_held_version_that_the_engine_has_lost_is_not_held() -> None:
    publishing = await holding(Reopened(one=OneToken(), two=OneToken()))
    publishing.withdraw()
    await publishing.publish(3, Reopened(three=OneToken()), "three")
    assert await version_asked(publishing, 1) == (3,)
    assert publishing.policy.hold("evaluation", 1, 60) is None


async def test_a_held_version_that_fails_alone_does_not_take_the_engine_with_it() -> None:
    failing = Failing(9, RetryableEndpointError("engine", "its file is gone"))
    publishing, lost = await holding(Reopened(one=failing, two=OneToken())), list[EngineError]()
    publishing.on_lost = lost.append
    with pytest.raises(EndpointError, match="gone"):
        await version_asked(publishing, 1)
    await asyncio.sleep(0.05)
    assert await version_asked(publishing, 1) == (2,)
    assert lost == []
