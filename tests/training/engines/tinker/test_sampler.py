"""What is asked of the SDK; tests/engines/skyrl asks a real engine."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import tinker

from hermes_rl.core.errors import ConfigError, ContextFullError
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import Finish
from hermes_rl.training.engines.tinker import Calls, TinkerSampler
from hermes_rl.training.utilization import BusyTimer


class Client:
    """The SDK's sampling client, which keeps what it was asked."""

    def __init__(self, tokens: tuple[int, ...] = (1, 2), stop_reason: str = "length") -> None:
        self.asked: list[tinker.SamplingParams] = []
        self._sequence = SimpleNamespace(tokens=tokens, logprobs=[-0.5] * len(tokens), stop_reason=stop_reason)

    async def sample_async(self, prompt: Any, count: int, parameters: tinker.SamplingParams) -> Any:
        self.asked.append(parameters)
        return SimpleNamespace(sequences=[self._sequence] * count)


def sampler(client: Client, context: int = 16) -> TinkerSampler:
    calls = Calls(None, 5.0, BusyTimer())
    return TinkerSampler(cast("tinker.SamplingClient", client), calls, lambda ids: "".join(map(chr, ids)), context)


async def test_where_no_stop_is_asked_for_the_models_own_end_counts() -> None:
    """An empty list would disable it too, on SDK 0.36."""
    client = Client()
    await sampler(client).sample([1], SamplingRequest.from_parameters({"max_tokens": 2}))
    assert client.asked[0].stop is None


async def test_stop_tokens_are_passed_on() -> None:
    client = Client()
    await sampler(client).sample([1], SamplingRequest.from_parameters({"max_tokens": 2}, [7]))
    assert client.asked[0].stop == [7]


async def test_a_prompt_that_fills_the_context_is_refused() -> None:
    with pytest.raises(ContextFullError, match="context length is 2"):
        await sampler(Client(), context=2).sample([1, 2], SamplingRequest.from_parameters({}))


async def test_a_completion_is_no_longer_than_the_context_has_room() -> None:
    client = Client()
    answer = await sampler(client, context=4).sample([1, 2], SamplingRequest.from_parameters({"max_tokens": 9}))
    assert client.asked[0].max_tokens == 2
    assert answer.completions[0].finish is Finish.CONTEXT


async def test_what_tinker_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="min_p"):
        await sampler(Client()).sample([1], SamplingRequest.from_parameters({"min_p": 0.1}))
