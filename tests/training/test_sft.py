"""A run of supervised fine-tuning on a scripted engine: what is sent, what is written, and how it resumes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.shutdown import StopSignal
from hermes_rl.sinks.metrics_file import read_metrics
from hermes_rl.training import sft as sft_module
from hermes_rl.training.checkpoints import Lineage
from hermes_rl.training.config import LossAggregation, Schedule, TrainerSettings
from hermes_rl.training.engines.protocol import Adam, EngineError, Example, StepResult
from hermes_rl.training.engines.tinker import TinkerEngine
from hermes_rl.training.run_folder import RunFolder
from hermes_rl.training.sft import run_sft
from hermes_rl.training.sft_data import RolloutChoice, SftData, SftPlan, read_sft_data
from hermes_rl.training.trainer import COMPLETE, RunFailedError
from hermes_rl.training.weights.run_metadata import read_run
from tests.support.chat_models import chat_model
from tests.support.training_engine import BookEngine, Engines
from tests.training.recorded_groups import group, rollout, sequence
from tests.training.test_sft_data import written
from tests.training.training_run import Died

Sent = tuple[Sequence[Example], str, tuple[float, float] | None, Adam]


class ScoringEngine(BookEngine):
    """Says that each target has the logprob minus its place, from 1 on; keeps what it was sent."""

    sent: list[Sent]

    async def step(
        self, examples: Sequence[Example], loss: str, clip: tuple[float, float] | None, adam: Adam
    ) -> StepResult:
        result = await super().step(examples, loss, clip, adam)
        self.sent.append((examples, loss, clip, adam))
        logprobs = [-np.arange(1, len(example.targets) + 1, dtype=np.float32) for example in examples]
        return StepResult(logprobs, result.metrics)


@dataclass
class Scene:
    folder: RunFolder
    settings: TrainerSettings
    data: SftData
    engines: Engines = field(default_factory=Engines)
    sent: list[Sent] = field(default_factory=list)
    epochs: int = 2

    @property
    def plan(self) -> SftPlan:
        return SftPlan(len(self.data.rollouts), self.settings.batch_size, self.epochs, self.settings.seed)

    @property
    def lineage(self) -> Lineage:
        return Lineage(self.folder.path / "lineage.jsonl")

    async def run(self, stop: StopSignal | None = None, **callbacks: Any) -> dict[str, Any]:
        return await run_sft(self.settings, self.folder, stop or StopSignal(5.0), self.data, self.plan, **callbacks)

    def learned(self) -> tuple[int, ...]:
        """The first token of each step of the last checkpoint."""
        last = self.lineage.last
        assert last is not None
        return self.engines.checkpoints[last.state]

    def expected(self) -> tuple[int, ...]:
        firsts = [self.data.rollouts[self.plan.batch(step)[0]] for step in range(self.plan.total_steps)]
        return tuple(int(examples[0].tokens[0]) for examples in firsts)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Five rollouts, in steps of two: three steps per epoch."""
    monkeypatch.setattr(sft_module, "FIRST_RETRY_S", 0.001)
    model = tmp_path / "model"
    chat_model("chatml").save(model)
    groups = [group(rollout(1.0, sequence(".#", first=10 * place))) for place in range(1, 6)]
    data = read_sft_data([written(tmp_path, *groups)], RolloutChoice(0.5), 100)
    settings = TrainerSettings(
        base_url="http://engine", base_model=str(model), batch_size=2, step_retries=2, use_wandb=False
    )
    scene = Scene(RunFolder(tmp_path / "run"), settings, data)

    async def opened(_: object, state: str | None, **_rest: object) -> ScoringEngine:
        scene.engines.before("open")
        engine = ScoringEngine(scene.engines, list(scene.engines.checkpoints[state]) if state else [])
        engine.sent = scene.sent
        return engine

    monkeypatch.setattr(TinkerEngine, "open", opened)
    return scene


def use(scene: Scene, tmp_path: Path, *masks: str) -> None:
    """Train on rollouts with these masks instead, all in one step."""
    groups = [group(rollout(1.0, mask)) for mask in masks]
    scene.data = read_sft_data([written(tmp_path, *groups, name="masks.jsonl")], RolloutChoice(0.5), 100)
    scene.settings = scene.settings.model_copy(update={"batch_size": len(masks)})
    scene.epochs = 1


@pytest.mark.parametrize(
    ("aggregation", "weights", "loss"),
    [
        # The sampled targets have the logprobs -1 and -2, and -3: their mean is 2.
        (LossAggregation.TOKEN_MEAN, (1 / 3, 1 / 3), 2.0),
        (LossAggregation.TOKEN_SUM, (1, 1), 6.0),
        (LossAggregation.SEQUENCE_MEAN, (1 / 4, 1 / 2), 3 / 4 + 3 / 2),
        (LossAggregation.CONSTANT, (1 / 20, 1 / 20), 6 / 20),
    ],
)
async def test_weights_and_loss_by_hand(
    scene: Scene, tmp_path: Path, aggregation: LossAggregation, weights: tuple[float, float], loss: float
) -> None:
    use(scene, tmp_path, ".##.", "...#")
    changes = {"loss_aggregation": aggregation, "loss_constant": 10.0}
    scene.settings = scene.settings.model_copy(
        update=changes | ({} if aggregation == "constant" else {"loss_constant": None})
    )
    await scene.run()
    [(examples, name, clip, _)] = scene.sent
    assert (name, clip) == ("cross_entropy", None)
    rows = sorted(examples, key=lambda example: -int(example.mask[0]))
    assert rows[0].advantages.tolist() == pytest.approx([weights[0], weights[0], 0])
    assert rows[1].advantages.tolist() == pytest.approx([0, 0, weights[1]])
    [line] = read_metrics(scene.folder.metrics)
    assert line["train/loss"] == pytest.approx(loss)
    assert line["logprobs/mean_training"] == pytest.approx(-2.0)
    assert (line["tokens/trained"], line["tokens/total"], line["rollouts/used"]) == (3, 8, 2)


async def test_a_run_takes_the_steps_of_its_plan(scene: Scene) -> None:
    result = await scene.run()
    assert scene.learned() == scene.expected()
    assert (result["ended"], result["step"], result["rollouts"]) == (COMPLETE, 6, 5)
    assert [line["step"] for line in read_metrics(scene.folder.metrics)] == [1, 2, 3, 4, 5, 6]
    assert [len(sent[0]) for sent in scene.sent] == [2, 2, 1, 2, 2, 1]


async def test_the_folder_is_that_of_a_run(scene: Scene) -> None:
    await scene.run()
    state, run = scene.folder.read_state(), read_run(scene.folder.path)
    assert (state["state"], state["settings"]["total_steps"], run.environments) == (COMPLETE, 6, ("words",))
    weights = run.weights(None)
    assert (weights.step, weights.final) == (6, True)
    assert weights.state in scene.engines.checkpoints


async def test_only_the_newest_checkpoints_are_kept(scene: Scene) -> None:
    scene.settings = scene.settings.model_copy(update={"keep_checkpoints": 2})
    await scene.run()
    assert [each.step for each in scene.lineage.checkpoints if each.step not in scene.lineage.deleted] == [4, 5, 6]
    assert len(scene.engines.checkpoints) == 3


async def test_the_learning_rate_decays_over_the_steps_of_the_plan(scene: Scene) -> None:
    scene.settings = scene.settings.model_copy(update={"lr_schedule": Schedule.LINEAR, "learning_rate": 6.0})
    await scene.run()
    assert [adam.learning_rate for adam in scene.engines.adams] == pytest.approx([6, 5, 4, 3, 2, 1])
    assert {adam.grad_clip_norm for adam in scene.engines.adams} == {1.0}


async def test_more_warmup_than_steps_is_refused(scene: Scene) -> None:
    scene.settings = scene.settings.model_copy(update={"warmup_steps": 6})
    with pytest.raises(ConfigError, match="warmup_steps 6 must be less than total_steps 6"):
        await scene.run()


@pytest.mark.parametrize("every", [1, 4])
async def test_a_run_killed_at_any_moment_resumes_where_it_was(scene: Scene, tmp_path: Path, every: int) -> None:
    scene.settings = scene.settings.model_copy(update={"checkpoint_every": every})
    for moment in count():
        scene.folder = RunFolder(tmp_path / f"run-{moment}")
        passed = count()

        def before(name: str, passed: "count[int]" = passed, moment: int = moment) -> None:
            if next(passed) == moment:
                raise Died

        scene.engines.before = before
        try:
            await scene.run()
        except Died:
            scene.engines.before = lambda name: None
            assert (await scene.run())["ended"] == COMPLETE
            assert scene.learned() == scene.expected()
            assert [line["step"] for line in read_metrics(scene.folder.metrics)] == [1, 2, 3, 4, 5, 6]
        else:
            break
    assert moment > 9


async def test_a_step_that_fails_is_taken_again_from_the_checkpoint(scene: Scene) -> None:
    calls = count()

    def before(name: str) -> None:
        if name == "step" and next(calls) == 2:
            raise EngineError("the engine died")

    scene.engines.before = before
    assert (await scene.run())["ended"] == COMPLETE
    assert scene.learned() == scene.expected()


async def test_a_step_that_always_fails_fails_the_run(scene: Scene) -> None:
    def before(name: str) -> None:
        if name == "step":
            raise EngineError("no memory")

    scene.engines.before = before
    with pytest.raises(RunFailedError, match="step 1 failed 3 times: no memory; there is no checkpoint yet"):
        await scene.run()
    assert scene.folder.read_state()["state"] == "failed"


async def test_a_run_told_to_stop_keeps_what_it_learned(scene: Scene) -> None:
    scene.settings = scene.settings.model_copy(update={"checkpoint_every": 10})
    stop = StopSignal(5.0)
    result = await scene.run(stop, on_step=lambda step, _: stop.request("SIGTERM") if step == 2 else None)
    assert (result["ended"], result["step"]) == ("SIGTERM", 3)
    assert scene.learned() == scene.expected()[:3]
    assert (await scene.run())["ended"] == COMPLETE
    assert scene.learned() == scene.expected()


async def test_a_complete_run_started_again_does_not_ask_the_engine(scene: Scene) -> None:
    await scene.run()
    scene.sent.clear()
    scene.engines.before = pytest.fail
    assert (await scene.run())["ended"] == COMPLETE


async def test_more_epochs_go_on(scene: Scene) -> None:
    await scene.run()
    scene.epochs = 3
    await scene.run()
    assert scene.learned() == scene.expected()


@pytest.mark.parametrize("changed", ["data", "seed", "batch_size"])
async def test_other_batches_are_another_run(scene: Scene, tmp_path: Path, changed: str) -> None:
    await scene.run()
    if changed == "data":
        use(scene, tmp_path, "..#")
        scene.settings = scene.settings.model_copy(update={"batch_size": 2})
    else:
        scene.settings = scene.settings.model_copy(update={changed: 3})
    with pytest.raises(ConfigError, match="other rollouts, another batch size or another seed; choose another run"):
        await scene.run()


async def test_a_run_of_the_other_kind_is_not_resumed(scene: Scene) -> None:
    await scene.run()
    with pytest.raises(ConfigError, match="is a run of `hermes-rl trainer sft`"), scene.folder.acquire(scene.settings):
        pass


async def test_a_step_with_non_finite_logprobs_has_failed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: object, examples: Sequence[Example], *_: object) -> StepResult:
        return StepResult([np.full(len(example.targets), np.nan, np.float32) for example in examples])

    monkeypatch.setattr(ScoringEngine, "step", broken)
    with pytest.raises(RunFailedError, match="non-finite logprobs"):
        await scene.run()
