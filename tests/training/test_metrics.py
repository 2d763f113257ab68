import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hermes_rl.core.trajectory import AuditedReward, Group, Rollout
from hermes_rl.extensions import OBJECTIVES
from hermes_rl.store.codec import encode
from hermes_rl.training.batch import ExclusionReason, TrainingBatch, training_batch
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.metrics import batch_metrics, step_metrics
from hermes_rl.training.objectives import TrainedSequence, get_objective, trained_sequence
from tests.training.recorded_groups import SOURCE, group, groups, rollout, sequence

SEED_NAMES = {
    "train/loss",
    "train/learning_rate",
    "reward/mean",
    "logprobs/mean",
    "logprobs/mean_training",
    "logprobs/diff",
    "advantages/mean",
    "advantages/std",
}
# Logprobs -0.51 and -0.52 in the better one, -0.51 in the worse one; one token of context before each.
PAIR = group(rollout(1.0, ".##"), rollout(0.0, ".#"))


def batch(*recorded: Group, version: int = 0, **given: Any) -> TrainingBatch:
    return training_batch([encode(one) for one in recorded], TrainerSettings(**given), version)


def before(*recorded: Group, **given: Any) -> dict[str, float]:
    return batch_metrics(batch(*recorded, **given))


def shifted(made: TrainingBatch, by: float) -> list[NDArray[np.float32]]:
    """Logprobs that differ from the sampled ones by so much, and are -7 where nothing was sampled."""
    return [np.where(one.mask != 0, one.logprobs + by, -7.0).astype(np.float32) for one in made.examples]


def after(made: TrainingBatch, logprobs: list[NDArray[np.float32]], **given: Any) -> dict[str, float]:
    objective = get_objective(TrainerSettings(**given))
    return step_metrics(trained(made, logprobs), objective, [-0.25, 0.75], 1e-4)


def trained(made: TrainingBatch, logprobs: list[NDArray[np.float32]]) -> list[TrainedSequence]:
    pairs = zip(made.examples, logprobs, strict=True)
    return [trained_sequence(example, now, group=0, rollout=0, score=0.0) for example, now in pairs]


def test_every_name_of_the_seed_is_there() -> None:
    made = batch(PAIR)
    assert {*batch_metrics(made), *after(made, shifted(made, 0.0))} >= SEED_NAMES


@settings(deadline=None)
@given(st.lists(groups(), max_size=3), st.floats(-1000, 1000, width=32), st.sampled_from(sorted(OBJECTIVES.builtin)))
def test_every_value_is_a_finite_float(recorded: list[Group], by: float, loss: str) -> None:
    made = batch(*recorded)
    measures = batch_metrics(made)
    if made.examples:
        measures |= after(made, shifted(made, by), loss=loss)
    assert all(type(value) is float and math.isfinite(value) for value in measures.values())


def test_what_an_engine_could_not_compute_is_absent() -> None:
    made = batch(PAIR)
    measures = after(made, [np.full_like(one.logprobs, np.nan) for one in made.examples])
    assert "logprobs/mean_training" not in measures
    assert "logprobs/mean" in measures


def test_a_batch_with_nothing_to_train_on_still_has_its_rewards() -> None:
    measures = before(group(rollout(1.0, ".#"), rollout(1.0, ".#")))
    assert measures["reward/mean"] == 1.0
    assert "advantages/mean" not in measures


def test_rewards_of_groups_without_a_signal_count() -> None:
    measures = before(PAIR, group(rollout(1.0, ".#"), rollout(1.0, ".#")))
    assert measures["reward/mean"] == 0.75


def test_rewards_have_a_spread() -> None:
    measures = before(group(*[rollout(score, ".#") for score in (0.0, 1.0, 2.0)]))
    assert (measures["reward/min"], measures["reward/max"]) == (0.0, 2.0)
    assert measures["reward/std"] == pytest.approx(math.sqrt(2 / 3))


def test_unscored_and_withheld_rollouts_are_in_no_reward() -> None:
    measures = before(group(rollout(None, ".#"), rollout(9.0, ".#", withheld="why"), rollout(1.0, ".#")))
    assert measures["reward/mean"] == 1.0


def test_rewards_that_add_up_to_infinity_have_no_mean() -> None:
    measures = before(group(rollout(1.7e308, ".#"), rollout(1.6e308, ".#")))
    assert "reward/mean" not in measures
    assert measures["reward/max"] == 1.7e308


def test_a_component_is_the_mean_of_the_rollouts_that_have_it() -> None:
    first, second = (
        rollout(1.0, ".#", components={"tests": 1.0}),
        rollout(0.0, ".#", components={"tests": 0.5, "style": 0.2}),
    )
    measures = before(group(first, second))
    assert (measures["reward/component/tests"], measures["reward/component/style"]) == (0.75, 0.2)


def test_several_environments_have_their_rewards_apart() -> None:
    other = replace(
        PAIR, provenance=replace(SOURCE, environment="sums"), rollouts=(rollout(3.0, ".#"), rollout(0.0, ".#"))
    )
    measures = before(PAIR, other)
    assert (measures["reward/environment/words"], measures["reward/environment/sums"]) == (0.5, 1.5)


def test_each_seat_has_its_reward_apart() -> None:
    first = replace(PAIR, rollouts=tuple(replace(each, seat="X") for each in PAIR.rollouts))
    second = replace(PAIR, rollouts=(rollout(3.0, ".#", seat="O"), rollout(0.0, ".#", seat="O")))
    measures = before(first, second)
    assert (measures["reward/seat/X"], measures["reward/seat/O"]) == (0.5, 1.5)


def test_one_environment_alone_is_not_named() -> None:
    assert not [name for name in before(PAIR) if name.startswith("reward/environment")]


def test_an_advantage_counts_once_a_sequence_however_long() -> None:
    measures = before(PAIR)
    assert (measures["advantages/mean"], measures["advantages/std"]) == (0.0, 0.5)


def test_what_was_left_out_is_counted_by_cause() -> None:
    measures = before(PAIR, group(rollout(1.0, ".#"), rollout(None, ".#")))
    assert (measures["groups/zero_signal"], measures["rollouts/unscored"]) == (1.0, 1.0)


def test_a_cause_that_did_not_happen_is_zero() -> None:
    measures = before(PAIR)
    assert [measures[cause] for cause in ExclusionReason] == [0.0] * len(ExclusionReason)


def test_groups_rollouts_sequences_and_tokens_are_counted() -> None:
    measures = before(PAIR, group(rollout(1.0, ".#"), rollout(1.0, ".#")))
    counted = {
        "groups/total": 2,
        "groups/used": 1,
        "rollouts/scored": 4,
        "sequences/used": 2,
        "tokens/trained": 3,
        "tokens/total": 5,
        "sequences/tokens/mean": 2.5,
        "sequences/tokens/max": 3,
    }
    assert {name: measures[name] for name in counted} == counted


def test_turns_are_those_that_were_sampled() -> None:
    assert before(group(rollout(1.0, ".#.#", ".#"), rollout(0.0, ".#")))["turns/mean"] == 2.0


def test_staleness_is_shown() -> None:
    recorded = group(rollout(1.0, sequence(".#", version=4)), rollout(0.0, sequence(".#", version=7)))
    measures = batch_metrics(batch(recorded, version=7))
    assert (measures["staleness/mean"], measures["staleness/max"]) == (1.5, 3.0)


def test_logprobs_are_those_of_sampled_tokens_only() -> None:
    made = batch(group(rollout(1.0, "..#"), rollout(0.0, "..#")))
    measures = after(made, shifted(made, -0.1))
    assert measures["logprobs/mean"] == pytest.approx(-0.52)
    assert measures["logprobs/mean_training"] == pytest.approx(-0.62)


def test_a_sampled_token_without_an_advantage_counts_in_logprobs() -> None:
    even = rollout(0.5, sequence(".#", logprob=-8.99))
    made = batch(group(rollout(1.0, ".#"), even, rollout(0.0, ".#")))
    assert after(made, shifted(made, 0.0))["logprobs/mean"] == pytest.approx((-0.51 - 9.0 - 0.51) / 3)


def test_drift_is_the_sampled_logprobs_less_those_in_training() -> None:
    made = batch(PAIR)
    logprobs = shifted(made, 0.0)
    logprobs[0][0] -= 0.3
    measures = after(made, logprobs)
    assert measures["logprobs/diff"] == pytest.approx(0.1)
    assert measures["logprobs/diff_max"] == pytest.approx(0.3)


def test_the_divergence_between_sampler_and_trainer_has_two_estimates() -> None:
    made = batch(PAIR)
    logprobs = shifted(made, 0.0)
    logprobs[0][0] -= 0.3
    measures = after(made, logprobs)
    assert measures["kl/sample_train_k1"] == pytest.approx(0.1)
    assert measures["kl/sample_train_k3"] == pytest.approx((math.exp(-0.3) - 1 + 0.3) / 3)


@given(st.floats(-5, 5))
def test_the_third_estimator_is_never_negative(by: float) -> None:
    made = batch(PAIR)
    assert after(made, shifted(made, by))["kl/sample_train_k3"] >= 0


def test_entropy_is_estimated_from_what_was_sampled() -> None:
    made = batch(PAIR)
    assert after(made, shifted(made, -1.0))["entropy"] == pytest.approx((0.51 + 0.52 + 0.51) / 3)


def test_the_loss_is_the_mean_over_the_substeps() -> None:
    made = batch(PAIR)
    assert after(made, shifted(made, 0.0))["train/loss"] == 0.25


def test_the_learning_rate_is_the_one_of_the_step() -> None:
    made = batch(PAIR)
    assert after(made, shifted(made, 0.0))["train/learning_rate"] == 1e-4


def test_ratios_are_shown() -> None:
    made = batch(PAIR)
    logprobs = shifted(made, 0.0)
    logprobs[0][0] += math.log(4.0)
    measures = after(made, logprobs)
    assert measures["ratio/mean"] == pytest.approx(2.0)
    assert measures["ratio/max"] == pytest.approx(4.0)


@pytest.mark.parametrize("loss", ["ppo", "cispo"])
def test_the_share_of_clipped_tokens_is_shown(loss: str) -> None:
    made = batch(PAIR)
    logprobs = shifted(made, 0.0)
    logprobs[0][0] += 1.0
    logprobs[1][0] -= 1.0
    assert after(made, logprobs, loss=loss)["ratio/clipped"] == pytest.approx(2 / 3)


def test_nothing_is_said_to_be_clipped_where_nothing_clips() -> None:
    made = batch(PAIR)
    assert "ratio/clipped" not in after(made, shifted(made, 1.0))


def test_the_share_of_truncated_ratios_is_shown() -> None:
    made = batch(PAIR)
    logprobs = shifted(made, 0.0)
    logprobs[0][0] += 1.0
    assert after(made, logprobs, loss="ppo")["ratio/truncated"] == pytest.approx(1 / 3)


def test_the_divergence_from_a_reference_is_shown_where_there_is_one() -> None:
    made = batch(PAIR)
    objective = get_objective(TrainerSettings())
    measures = step_metrics(trained(made, shifted(made, 0.0)), objective, [0.0], 1e-4, shifted(made, -0.2))
    assert measures["kl/reference_k1"] == pytest.approx(0.2)
    assert measures["kl/reference_k3"] == pytest.approx(math.exp(-0.2) - 1 + 0.2)


def test_without_a_reference_there_is_no_divergence_from_it() -> None:
    made = batch(PAIR)
    assert "kl/reference_k1" not in after(made, shifted(made, 0.0))


def audited(score: float, by: float | None) -> Rollout:
    error = "raised" if by is None else None
    return rollout(score, ".#", audit=AuditedReward(by, error=error))


def test_the_audit_gap_is_trained_minus_audited_reward_with_groups_as_independent() -> None:
    # Eight groups with a gap of 1 each: Clopper-Pearson's lower end of 8 out of 8 is 0.025 ** (1 / 8).
    groups = [group(audited(1.0, 0.0), rollout(0.0, ".#")) for _ in range(8)]
    measures = before(*groups)
    assert {name: value for name, value in measures.items() if name.startswith("audit/")} == pytest.approx(
        {
            "audit/gap": 1.0,
            "audit/gap_low": 0.025 ** (1 / 8),
            "audit/gap_high": 1.0,
            "audit/rollouts": 8.0,
            "audit/errors": 0.0,
        }
    )
    # Two audited rollouts of one group say less than those of two groups.
    pair = before(group(audited(1.0, 0.0), audited(1.0, 0.0)))
    assert pair["audit/gap_low"] == pytest.approx(0.025)


def test_a_failed_audit_is_counted_and_in_no_gap() -> None:
    measures = before(group(audited(1.0, 0.5), audited(1.0, None)))
    assert (measures["audit/gap"], measures["audit/rollouts"], measures["audit/errors"]) == (0.5, 1.0, 1.0)
    only = before(group(audited(1.0, None), rollout(0.0, ".#")))
    assert (only["audit/errors"], "audit/gap" in only) == (1.0, False)


def test_a_run_without_audits_has_no_audit_metrics() -> None:
    assert not [name for name in before(PAIR) if name.startswith("audit/")]
