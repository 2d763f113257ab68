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
