"""The forecast's formulae on cases computed by hand, and the coverage of its intervals."""

import math
from collections.abc import Sequence
from random import Random

import pytest

from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.core.trajectory import Group, Provenance, Rollout, StopReason, Usage
from hermes_rl.evaluation.forecast import RunPlan, equal_scores, forecast, signal_shares
from hermes_rl.evaluation.forecast_check import check, first_steps

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
    assert equal_scores({0.0: 0.5, 1.0: 0.5}, 2.0, 2) == pytest.approx(2 / 3)


def test_independent_draws_are_the_limit_of_a_large_concentration() -> None:
    assert equal_scores({0.0: 0.75, 1.0: 0.25}, 1e9, 4) == pytest.approx(0.75**4 + 0.25**4, rel=1e-6)


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
    held = 0
    for _ in range(20):
        sample = [[float(rng.random() < p) for _ in range(4)] for p in (rng.betavariate(a, b) for _ in range(30))]
        share = signal_shares(sample, [8], rng, groups_seen=80)[8]
        later = [{rng.random() < p for _ in range(8)} for p in (rng.betavariate(a, b) for _ in range(80))]
        held += share.holds(sum(len(seen) > 1 for seen in later) / len(later))
    # 16 of 20 expected; 11 or fewer has a probability of 0.01.
    assert held > 11


def test_a_run_is_compared_with_its_forecast() -> None:
    trainer = [
        {"time": 10.0 * step, "groups/total": 4, "groups/zero_signal": 1, "tokens/total": 500, "time/step": 2.0}
        for step in range(1, 31)
    ]
    environment = [{"time": 100.0, "train/groups": 100, "train/withheld_groups/equal_scores": 30}]
    environment += [{"time": 999.0, "train/groups": 100, "train/withheld_groups/equal_scores": 100}]
    observed = first_steps(trainer, environment, 20)
    assert observed == {"zero_signal": 0.5, "step_tokens": 500, "step_seconds": 2.0}
    saved = {"zero_signal": [0.4, 0.3, 0.6], "step_tokens": [900, 800, 1000], "step_seconds": [2, 1, 3]}
    assert [one.inside for one in check(saved, observed)] == [True, False, True]
