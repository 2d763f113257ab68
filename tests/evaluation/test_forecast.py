"""The forecast's formulae on cases computed by hand, and the coverage of its intervals."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.core.trajectory import Group, Provenance, Rollout, StopReason, Usage
from hermes_rl.evaluation.forecast import RunPlan, forecast
from hermes_rl.evaluation.forecast_check import check, first_steps
from hermes_rl.evaluation.group_signal import ItemModel, item_models, pass_rate, signal_share
from hermes_rl.evaluation.prediction import Range, mean_prediction, product

PLAN = RunPlan(group_size=4, batch_size=16, steps=20)


FAILURE = Failure(FailureSource.ENDPOINT, "down", "it is down")


def groups(
    scores: Sequence[Sequence[float | None]], usage: Usage | None = None, stop: StopReason = StopReason.NATURAL
) -> list[Group]:
    return [
        Group(
            id=str(number),
            item_id=str(number),
            item=number,
            rollouts=tuple(
                Rollout(
                    item_id=str(number),
                    index=index,
                    seed=0,
                    messages=[],
                    score=None if score is None else float(score),
                    failure=FAILURE if score is None else None,
                    stop_reason=stop,
                    usage=usage or Usage(),
                    seconds=1.0,
                )
                for index, score in enumerate(item)
            ),
            provenance=Provenance("env", "", "", {}),
        )
        for number, item in enumerate(scores)
    ]


def test_two_equal_draws_of_a_dirichlet_multinomial_by_hand() -> None:
    # P(2 passes) = 1/2 * (1 + 1) / (2 + 1) = 1/3 with concentration 2 and shares of 1/2; the same for 2 failures.
    assert ItemModel({0.0: 0.5, 1.0: 0.5}, 2.0).equal_scores(2) == pytest.approx(2 / 3)


@pytest.mark.parametrize(("size", "signal"), [(2, 1 / 3), (4, 3 / 5), (8, 7 / 9), (16, 15 / 17), (32, 31 / 33)])
def test_signal_of_uniform_pass_rates_is_known_exactly(size: int, signal: float) -> None:
    # Pass rates of Beta(1, 1): the integral of p^n is 1 / (n + 1), twice, so that (n - 1) / (n + 1) remain.
    assert 1 - ItemModel({0.0: 0.5, 1.0: 0.5}, 2.0).equal_scores(size) == pytest.approx(signal)


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.6), (4.0, 0.5), (2.5, 2.5)])
def test_equal_scores_are_a_quotient_of_beta_functions(a: float, b: float) -> None:
    def log_beta(one: float, other: float) -> float:
        return math.lgamma(one) + math.lgamma(other) - math.lgamma(one + other)

    # E[p^8] = B(a + 8, b) / B(a, b) for p of Beta(a, b), and E[(1 - p)^8] the other way round.
    passed, failed = math.exp(log_beta(a + 8, b) - log_beta(a, b)), math.exp(log_beta(a, b + 8) - log_beta(a, b))
    model = ItemModel({1.0: a / (a + b), 0.0: b / (a + b)}, a + b)
    assert model.equal_scores(8) == pytest.approx(passed + failed)


def test_independent_draws_are_the_limit_of_a_large_concentration() -> None:
    assert ItemModel({0.0: 0.75, 1.0: 0.25}, 1e9).equal_scores(4) == pytest.approx(0.75**4 + 0.25**4, rel=1e-6)


def test_three_scores_by_hand() -> None:
    # Independent draws: all alike with 1/2^2 + 1/4^2 + 1/4^2.
    assert ItemModel({0.0: 0.5, 0.5: 0.25, 1.0: 0.25}, 1e9).equal_scores(2) == pytest.approx(0.375, rel=1e-6)


def test_the_mean_of_later_items_is_predicted_with_students_t() -> None:
    # Means 1 and 3: middle 2, standard deviation √2, t of 1 degree for 80% 3.0777; 2 items more: √(1/2 + 1/2) = 1.
    found = mean_prediction([[1.0], [2.0, 4.0]], later=2)
    assert found == pytest.approx((2.0, 0.0, 2 + 3.0777 * math.sqrt(2)), abs=1e-3)
    # The mean itself, without new items, is known better: √(1/2).
    assert mean_prediction([[1.0], [2.0, 4.0]]).high == pytest.approx(2 + 3.0777, abs=1e-3)


def test_one_item_promises_no_upper_end() -> None:
    assert mean_prediction([[5.0, 7.0]]) == (6.0, 0.0, math.inf)


def test_relative_deviations_of_a_product_add_in_squares() -> None:
    found = product(Range(10, 7, 13), Range(2, 1.2, 2.8), 3)
    # 30% and 40% make 50% of 60.
    assert found == pytest.approx((60, 30, 90))


def test_more_rollouts_per_group_give_more_signal() -> None:
    found = forecast(groups([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0]] * 5), PLAN, seconds=40)
    estimates = [share.estimate for share in found.signal.values()]
    assert estimates == sorted(estimates)
    assert found.never_solved == 0.5


@pytest.mark.parametrize(
    ("scores", "verdict", "said"),
    [
        ([[1, 0, 1, 0]] * 25, "go", "different scores"),
        ([[0, 0, 0, 0]] * 50, "no-go", "too hard"),
        ([[1, 1, 1, 1]] * 49 + [[1, 1, 1, 0]], "no-go", "too easy"),
        ([[None, 1, None, 0]] * 25, "no-go", "no score"),
        ([[1, 0, 0, 0]] * 1 + [[0, 0, 0, 0]] * 5, "uncertain", "--budget"),
    ],
)
def test_the_verdict_names_its_reason_or_the_remedy(scores: list[list[float | None]], verdict: str, said: str) -> None:
    found = forecast(groups(scores), PLAN, seconds=10)
    assert found.verdict == verdict
    assert said in " ".join((*found.reasons, *found.advice))


def test_rounding_does_not_keep_a_score_from_passing() -> None:
    found = forecast(groups([[0.1 + 0.7] * 4, [0.0] * 4]), PLAN, seconds=8, pass_score=0.8)
    assert 0.1 + 0.7 < 0.8
    assert (found.never_solved, found.always_solved) == (0.5, 0.5)


def test_cut_off_rollouts_are_named_with_their_setting() -> None:
    found = forecast(groups([[1, 0, 1, 0]] * 10, stop=StopReason.MAX_TURNS), PLAN, seconds=10)
    assert any("--env.max_agent_turns" in line for line in found.advice)


def test_time_and_cost_grow_with_the_groups_that_are_dropped() -> None:
    usage = Usage(prompt_tokens=1000, completion_tokens=100)
    half = groups([[1, 0, 1, 0], [0, 0, 0, 0]] * 20, usage=usage)
    kept = RunPlan(4, 16, 20, drops_equal=False, prompt_price=1.0, completion_price=10.0)
    dropped = RunPlan(4, 16, 20, drops_equal=True, prompt_price=1.0, completion_price=10.0)
    one, other = (forecast(half, plan, seconds=160) for plan in (kept, dropped))
    # 160 rollouts in 160 s: a step of 16 takes 16 s. A rollout costs 1000 * 1 + 100 * 10 millionths.
    assert one.step_seconds.estimate == pytest.approx(16)
    assert one.cost.estimate == pytest.approx(20 * 16 * 2000 / 1e6)
    assert other.step_seconds.estimate == pytest.approx(16 / other.signal[4].estimate)
    assert other.step_tokens.estimate == pytest.approx(16 * 1100)
    assert one.step_tokens.estimate == pytest.approx(16 * 1100 * one.signal[4].estimate)


def test_without_any_signal_nothing_is_promised() -> None:
    found = forecast(groups([[0, 0, 0, 0]] * 50), PLAN, seconds=10)
    assert found.signal[4].high < 0.1
    assert math.isfinite(found.signal[4].low)


def test_eighty_percent_intervals_hold_what_is_observed() -> None:
    rng, a, b = Random(1), 0.3, 0.6
    signal_held = rate_held = 0
    for _ in range(20):
        sample = [[float(rng.random() < p) for _ in range(4)] for p in (rng.betavariate(a, b) for _ in range(30))]
        models = item_models(sample, rng)
        signal = signal_share(models, 8, 40, rng)
        rate = pass_rate(models, sample, 1.0, 8, 40, rng)
        later = [[rng.random() < p for _ in range(8)] for p in (rng.betavariate(a, b) for _ in range(40))]
        signal_held += signal.holds(sum(len(set(seen)) > 1 for seen in later) / len(later))
        rate_held += rate.holds(sum(map(sum, later)) / 320)
    # 16 of 20 expected; 11 or fewer has a probability of 0.01.
    assert signal_held > 11
    assert rate_held > 11


def test_a_rate_that_was_never_seen_is_not_excluded() -> None:
    found = forecast(groups([[0, 0, 0, 0]] * 20), PLAN, seconds=10)
    assert found.pass_rate.estimate == found.pass_rate.low == 0
    # One item in twenty may well be solvable.
    assert 0.01 < found.pass_rate.high < 0.2


def test_groups_of_the_same_item_are_one_item() -> None:
    first, second = groups([[1, 0], [1, 1]])
    found = forecast([first, replace(second, item_id=first.item_id)], PLAN, seconds=4)
    assert (found.items, found.rollouts, found.by_item[0].scores) == (1, 4, (1.0, 0.0, 1.0, 1.0))


def test_nothing_of_something_endless_is_nothing() -> None:
    assert product(Range(5, 0, math.inf), Range(2, 1, math.inf), 0) == (0, 0, 0)


def test_each_item_has_its_rate_and_spread() -> None:
    found = forecast(groups([[1, 0, 0, 0], [1, 1, 1, 1]]), PLAN, seconds=8)
    hard, easy = found.by_item
    # The exact 80% interval of 4 of 4: its lower end has 0.1 = p^4.
    assert list(easy.pass_rate) == pytest.approx([1.0, 0.1**0.25, 1.0])
    assert (hard.pass_rate.estimate, easy.spread) == (0.25, 0.0)
    assert hard.spread == pytest.approx(0.5)
    assert found.reward_spread is not None
    assert found.reward_spread.estimate == pytest.approx(0.25)


def ended(made: list[Group], *seconds: float) -> list[Group]:
    begin = datetime(2026, 11, 19, tzinfo=UTC)
    times = [(begin + timedelta(seconds=at)).isoformat(timespec="milliseconds") for at in seconds]
    return [replace(group, created_at=at) for group, at in zip(made, times, strict=True)]


def test_time_per_step_varies_as_the_pace_of_the_sample_did() -> None:
    sample = groups([[1, 0, 1, 0]] * 10)
    plan = RunPlan(4, 16, 20, drops_equal=False)
    steady = forecast(ended(sample, *range(1, 11)), plan, seconds=10).step_seconds
    # 40 rollouts in 10 s, always at the same pace.
    assert steady == pytest.approx((4.0, 4.0, 4.0))
    slower = forecast(ended(sample, 1, 1, 2, 2, 3, 3, 5, 5, 10, 10), plan, seconds=10).step_seconds
    # Stretches of 1, 1, 1, 2 and 5 s: mean 2, standard deviation √3, t of 4 degrees 1.533, 80 more groups in 40.
    assert slower.estimate == pytest.approx(4.0)
    assert slower.high == pytest.approx(4 * (1 + 1.5332 * math.sqrt(3) / 2 * math.sqrt(1 / 5 + 1 / 40)), rel=1e-3)


def test_the_time_of_the_optimizer_is_added() -> None:
    plan = RunPlan(4, 16, 20, drops_equal=False, optimizer_seconds=30.0)
    assert forecast(ended(groups([[1, 0, 1, 0]] * 10), *range(1, 11)), plan, seconds=10).step_seconds.low == 34


def test_a_conversation_is_not_counted_once_for_each_turn() -> None:
    # Three turns, whose prompts were 100, 200 and 300 tokens long, and answers of 60 together.
    (group,) = groups([[1, 0]], usage=Usage(prompt_tokens=600, completion_tokens=60))
    group = replace(group, rollouts=tuple(replace(rollout, turns_used=3) for rollout in group.rollouts))
    found = forecast([group], PLAN, seconds=1)
    assert (found.rollout_tokens.estimate, found.longest_tokens) == (260, 260)


def test_a_passing_rollout_at_the_turn_limit_is_not_cut_off() -> None:
    found = forecast(groups([[1, 1, 1, 1]] * 10, stop=StopReason.MAX_TURNS), PLAN, seconds=10)
    assert not any("max_agent_turns" in line for line in found.advice)


TRAINER = [
    {
        "time": 10.0 * step, "groups/total": 4, "groups/zero_signal": 1, "tokens/total": 500, "time/step": 2.0,
        "time/wait": 1.5,
    }
    for step in range(1, 31)
]  # fmt: skip
ENVIRONMENT = [
    {"time": 100.0, "train/groups": 100, "train/withheld_groups/equal_scores": 30},
    {"time": 999.0, "train/groups": 100, "train/withheld_groups/equal_scores": 100},
]


def saved(optimizer_seconds: float = 0.0, step_seconds: Sequence[float | None] = (2, 1, 3)) -> dict[str, object]:
    return {
        "plan": {"optimizer_seconds": optimizer_seconds},
        "zero_signal": [0.4, 0.3, 0.6],
        "step_tokens": [1000, 800, 1200],
        "step_seconds": step_seconds,
    }


def test_a_run_is_compared_with_its_forecast() -> None:
    observed = first_steps(TRAINER, ENVIRONMENT, 20)
    assert observed == {"zero_signal": 0.5, "step_tokens": 500, "step_seconds": 2.0, "wait_seconds": 1.5}
    found = check(saved(), observed)
    assert [one.inside for one in found] == [True, False, True]
    assert [one.error for one in found] == pytest.approx([0.1, -0.5, -0.25])


def test_time_is_compared_with_the_whole_step_if_the_optimizer_was_forecast() -> None:
    *_, seconds = check(saved(optimizer_seconds=0.5), first_steps(TRAINER, ENVIRONMENT, 20))
    assert seconds.observed == 2.0


def test_a_forecast_of_no_equal_groups_is_compared_too() -> None:
    zero, *_ = check({**saved(), "zero_signal": [0.0, 0.0, 0.0]}, first_steps(TRAINER, ENVIRONMENT, 20))
    assert (zero.inside, zero.error) == (False, 0.5)


def test_what_was_not_predicted_is_not_compared() -> None:
    observed = first_steps(TRAINER, ENVIRONMENT, 20)
    assert [one.name for one in check(saved(step_seconds=(0, 0, 0)), observed)] == ["zero_signal", "step_tokens"]
    # Infinity, as JSON has it.
    assert check(saved(step_seconds=(2, 1, None)), observed)[-1].inside
