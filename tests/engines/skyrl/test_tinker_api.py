"""Our adapter of the tinker SDK against a real SkyRL: what is sampled, what a step does, what a checkpoint holds."""

import gc
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import numpy as np
import pytest

from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import Finish, Sampled
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import Adam, EngineError, Example
from hermes_rl.training.engines.tinker import TinkerEngine
from hermes_rl.training.utilization import BusyTimer
from tests.support.skyrl_engine import SkyrlEngine

PROMPT = (5, 6, 7, 8)
REQUEST = SamplingRequest.from_parameters({"max_tokens": 8, "n": 4, "seed": 1})
# A name is taken for good, and the SDK asks for five minutes whether it still is.
NUMBERS = count()
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def settings(skyrl_engine: SkyrlEngine) -> TrainerSettings:
    return TrainerSettings(base_url=skyrl_engine.url, base_model=skyrl_engine.model, lora_rank=8, engine_patience=60)


@contextmanager
def sdk_leaks() -> Iterator[None]:
    """The SDK never closes the connection by which it asks for its settings, once for training and once for REST."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


async def opened(settings: TrainerSettings, state: str | None = None) -> TinkerEngine:
    with sdk_leaks():
        return await TinkerEngine.open(settings, state, busy=BusyTimer(), decode=spelled, context=64)


def spelled(ids: Sequence[int]) -> str:
    return "".join(f"<{one}>" for one in ids)


@pytest.fixture
async def engine(settings: TrainerSettings) -> AsyncIterator[TinkerEngine]:
    engine = await opened(settings)
    yield engine
    await engine.close()


async def sampled(engine: TinkerEngine, request: SamplingRequest = REQUEST) -> tuple[Sampled, ...]:
    sampler = await engine.sampler(await engine.save_sampler(f"now-{next(NUMBERS)}"))
    return (await sampler.sample(PROMPT, request)).completions


def example(completion: Sampled, advantage: float) -> Example:
    ids = np.array([*PROMPT, *completion.tokens], np.int64)
    before = np.zeros(len(PROMPT) - 1)
    mask = np.concatenate([before, np.ones(len(completion.tokens))]).astype(np.float32)
    logprobs = np.concatenate([before, completion.logprobs]).astype(np.float32)
    return Example(ids[:-1], ids[1:], logprobs, np.float32(advantage) * mask, mask)


async def test_the_trainer_finds_the_logprobs_that_the_sampler_gave(engine: TinkerEngine) -> None:
    examples = [example(one, 1.0) for one in await sampled(engine)]
    found = await engine.logprobs(examples)
    apart = max(float(np.abs((now - one.logprobs) * one.mask).max()) for now, one in zip(found, examples, strict=True))
    print(f"largest difference {apart:.2e}")
    assert apart < 1e-4


async def test_probability_moves_with_the_sign_of_the_advantage(engine: TinkerEngine) -> None:
    completions = await sampled(engine)
    examples = [example(one, advantage) for one, advantage in zip(completions, (1, -1, 1, -1), strict=True)]
    before = await engine.logprobs(examples)
    await engine.step(examples, "importance_sampling", None, Adam(1e-3))
    after = await engine.logprobs(examples)
    moved = [float(((b - a) * one.mask).sum()) for a, b, one in zip(before, after, examples, strict=True)]
    print("moved by " + " ".join(f"{one:+.4f}" for one in moved))
    assert [one > 0 for one in moved] == [True, False, True, False]


@pytest.mark.parametrize("loss", ["ppo", "cispo"])
async def test_losses_that_clip_take_a_step_too(engine: TinkerEngine, loss: str) -> None:
    examples = [example(one, 1.0) for one in await sampled(engine)]
    before = await engine.logprobs(examples)
    stepped = await engine.step(examples, loss, (0.8, 1.2), Adam(1e-3))
    after = await engine.logprobs(examples)
    assert stepped.metrics["skyrl.ai/grad_norm"] > 0
    assert sum(float(((b - a) * one.mask).sum()) for a, b, one in zip(before, after, examples, strict=True)) > 0


async def test_a_policy_from_a_checkpoint_goes_on_exactly(engine: TinkerEngine, settings: TrainerSettings) -> None:
    """The second step depends on the optimizer's state after the first."""
    examples = [example(one, 1.0) for one in await sampled(engine)]
    await engine.step(examples, "importance_sampling", None, Adam(1e-3))
    other = await opened(settings, (await engine.save("first")).state)
    for one in (engine, other):
        await one.step(examples, "importance_sampling", None, Adam(1e-3))
    here, there = await engine.logprobs(examples), await other.logprobs(examples)
    await other.close()
    assert all(np.array_equal(a, b) for a, b in zip(here, there, strict=True))


async def test_an_older_sampler_is_unmoved_by_training(engine: TinkerEngine) -> None:
    old = await engine.sampler(await engine.save_sampler("old"))
    examples = [example(one, 1.0) for one in await sampled(engine)]
    before = await old.logprobs([*PROMPT, 9])
    await engine.step(examples, "importance_sampling", None, Adam(1e-2))
    new = await engine.sampler(await engine.save_sampler("new"))
    assert await new.logprobs([*PROMPT, 9]) != before
    assert await old.logprobs([*PROMPT, 9]) == before


async def test_a_completion_cut_by_its_length_says_so(engine: TinkerEngine) -> None:
    assert {one.finish for one in await sampled(engine)} <= {Finish.LENGTH, Finish.STOP}
    assert Finish.LENGTH in {one.finish for one in await sampled(engine)}


async def test_a_stop_string_ends_a_completion_at_the_token_that_completes_it(engine: TinkerEngine) -> None:
    [first, *_] = await sampled(engine)
    stop = SamplingRequest.from_parameters({"max_tokens": 8, "n": 4, "seed": 1, "stop": [f"<{first.tokens[2]}>"]})
    [cut, *_] = await sampled(engine, stop)
    assert (cut.tokens, cut.finish) == (first.tokens[:3], Finish.STOP)
    assert cut.logprobs == pytest.approx(first.logprobs[:3])


async def test_a_stop_token_ends_a_completion_and_is_in_it(engine: TinkerEngine) -> None:
    [first, *_] = await sampled(engine)
    stop = SamplingRequest.from_parameters({"max_tokens": 8, "n": 4, "seed": 1}, [first.tokens[1]])
    [cut, *_] = await sampled(engine, stop)
    assert (cut.tokens, cut.finish) == (first.tokens[:2], Finish.STOP)


async def test_a_deleted_checkpoint_is_gone(engine: TinkerEngine, settings: TrainerSettings) -> None:
    saved = await engine.save("gone")
    with sdk_leaks():
        await engine.delete(saved)
    with pytest.raises(EngineError):
        await opened(settings, saved.state)


async def test_the_base_model_can_be_asked_for_logprobs(engine: TinkerEngine) -> None:
    examples = [example(one, 1.0) for one in await sampled(engine)]
    base = await engine.sampler(None)
    before = await base.logprobs([*PROMPT, 9])
    await engine.step(examples, "importance_sampling", None, Adam(1e-2))
    assert await base.logprobs([*PROMPT, 9]) == before
