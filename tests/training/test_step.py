"""From a batch to a step: what the engine is asked, and when it is not."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from hermes_rl.training.config import LossAggregation, Schedule, TrainerSettings
from hermes_rl.training.engines.protocol import Adam, EngineError, Example, StepResult
from hermes_rl.training.step import GRPOStep
from tests.support.training_engine import BookEngine, Engines, OneToken
from tests.training.training_run import batch_group

SETTINGS = TrainerSettings(base_url="http://engine", total_steps=4, learning_rate=1e-3)
GROUPS = [batch_group(10), batch_group(11)]


class Asked(BookEngine):
    """Keeps what each step was asked with, and answers with the logprobs it is told."""

    def __init__(self) -> None:
        super().__init__(Engines(), [])
        self.steps: list[tuple[Sequence[Example], str, tuple[float, float] | None, Adam]] = []
        self.moved = 0.0
        self.grad_norm = 1.0

    async def step(
        self, examples: Sequence[Example], loss: str, clip: tuple[float, float] | None, adam: Adam
    ) -> StepResult:
        self.steps.append((examples, loss, clip, adam))
        return StepResult(await self.logprobs(examples), {"grad_norm": self.grad_norm})

    async def logprobs(self, examples: Sequence[Example]) -> Sequence[NDArray[np.float32]]:
        return [(example.logprobs + np.float32(self.moved)) * example.mask for example in examples]


async def learned(engine: Asked, settings: TrainerSettings = SETTINGS, step: int = 0) -> dict[str, float]:
    return (await GRPOStep(settings).run(engine, GROUPS, step=step, version=0)).metrics


async def test_every_rollout_is_an_example_of_one_step() -> None:
    engine = Asked()
    metrics = await learned(engine)
    [(examples, loss, clip, adam)] = engine.steps
    assert (len(examples), loss, clip, adam) == (4, "cispo", (0.0, 2.0), Adam(1e-3, grad_clip_norm=1.0))
    assert metrics["engine/grad_norm"] == 1.0


async def test_a_batch_without_signal_asks_the_engine_nothing() -> None:
    engine = Asked()
    groups = [batch_group(10, scores=(1.0, 1.0))]
    metrics, changed = await GRPOStep(SETTINGS).run(engine, groups, step=0, version=0)
    assert engine.steps == [] and not changed
    assert metrics["groups/zero_signal"] == 1


async def test_losses_that_clip_are_given_their_bounds() -> None:
    engine = Asked()
    settings = {"loss": "ppo", "clip_low": 0.7, "clip_high": 1.4, "max_importance_weight": None}
    await learned(engine, SETTINGS.model_copy(update=settings))
    assert engine.steps[0][1:3] == ("ppo", (0.7, 1.4))


async def test_the_engine_sums_the_mean_over_the_tokens_of_the_step() -> None:
    engine = Asked()
    await learned(engine)
    # Four rollouts of two tokens; the advantages of two are -0.5 and 0.5.
    assert [example.advantages.tolist() for example in engine.steps[0][0]] == [[-0.0625] * 2, [0.0625] * 2] * 2


async def test_a_constant_is_the_longest_sequence_that_is_trained_on_unless_told_otherwise() -> None:
    engine = Asked()
    settings = {"loss_aggregation": LossAggregation.CONSTANT, "max_token_trainer_length": 100}
    await learned(engine, SETTINGS.model_copy(update=settings))
    await learned(engine, SETTINGS.model_copy(update=settings | {"loss_constant": 50.0}))
    first, second = (step[0][1].advantages[0] for step in engine.steps)
    assert (first, second) == (pytest.approx(0.5 / 400), pytest.approx(0.5 / 200))


@pytest.mark.parametrize(("aggregation", "divisor"), [("token_sum", 1), ("token_mean", 8), ("sequence_mean", 8)])
async def test_the_loss_is_the_aggregated_one(aggregation: str, divisor: int) -> None:
    engine = Asked()
    engine.moved = 0.5
    settings = {"loss": "ppo", "max_importance_weight": None, "loss_aggregation": LossAggregation(aggregation)}
    metrics = await learned(engine, SETTINGS.model_copy(update=settings))
    # Two groups of two rollouts of two tokens, advantages 0.5 and -0.5: only the first one's ratio exp(0.5) is clipped.
    due = 2 * 2 * 0.5 * (math.exp(0.5) - 1.2)
    assert metrics["train/loss"] == pytest.approx(due / divisor, rel=1e-6)


async def test_several_substeps_share_the_groups_of_a_batch() -> None:
    engine = Asked()
    await learned(engine, SETTINGS.model_copy(update={"num_substeps": 2}))
    assert [len(step[0]) for step in engine.steps] == [2, 2]
    # The mean is over the tokens of the substep: four.
    assert engine.steps[0][0][1].advantages.tolist() == [0.125, 0.125]


async def test_a_batch_with_fewer_groups_than_substeps_has_a_step_for_each() -> None:
    engine = Asked()
    await learned(engine, SETTINGS.model_copy(update={"num_substeps": 5}))
    assert [len(step[0]) for step in engine.steps] == [2, 2]


async def test_the_learning_rate_follows_its_schedule() -> None:
    engine = Asked()
    await learned(engine, SETTINGS.model_copy(update={"lr_schedule": Schedule.LINEAR}), step=2)
    assert engine.steps[0][3].learning_rate == pytest.approx(5e-4)


async def test_weights_are_sent_with_the_logprobs_of_the_weights_in_training() -> None:
    engine = Asked()
    engine.moved = 1.0
    settings = {"loss": "ppo", "loss_aggregation": LossAggregation.TOKEN_SUM}
    await learned(engine, SETTINGS.model_copy(update=settings))
    examples, loss, clip, _ = engine.steps[0]
    assert (loss, clip) == ("importance_sampling", None)
    assert examples[0].logprobs.tolist() == [0.5, 0.5]
    # exp(1) is more than 2; the advantage of the worse of two is -0.5. The better one is clipped.
    assert examples[0].advantages.tolist() == [-1.0, -1.0]
    assert examples[1].advantages.tolist() == [0.0, 0.0]


async def test_a_penalty_asks_the_reference() -> None:
    metrics = await learned(Asked(), SETTINGS.model_copy(update={"kl_coef": 0.1}))
    # The reference says -0.1 of every token, and -0.5 were sampled.
    assert metrics["kl/reference_k1"] == pytest.approx(-0.4, abs=1e-6)


async def test_a_reference_that_fails_is_a_failed_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from hermes_rl.core.errors import EndpointError

    async def fails(self: OneToken, ids: Sequence[int]) -> list[float | None]:
        raise EndpointError("engine", "gone")

    monkeypatch.setattr(OneToken, "logprobs", fails)
    with pytest.raises(EngineError, match="gone"):
        await learned(Asked(), SETTINGS.model_copy(update={"kl_coef": 0.1}))


@pytest.mark.parametrize("field", ["moved", "grad_norm"])
async def test_a_step_of_no_numbers_has_failed(field: str) -> None:
    engine = Asked()
    setattr(engine, field, float("nan"))
    with pytest.raises(EngineError, match="non-finite"):
        await learned(engine)
