"""The statistics of `evaluate` and `compare`, against scipy, statsmodels, brute force and simulation."""

import itertools
import json
import math
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from statsmodels.stats.contingency_tables import mcnemar as mcnemar_elsewhere
from statsmodels.stats.proportion import proportion_confint

from hermes_rl.core.errors import ConfigError
from hermes_rl.evaluation.statistics.distributions import beta_cdf, beta_quantile, clopper_pearson, student_t_quantile
from hermes_rl.evaluation.statistics.intervals import Bounds, Interval, mean_interval
from hermes_rl.evaluation.statistics.paired import MONTE_CARLO_DRAWS, mcnemar, paired_test, sign_flip
from hermes_rl.evaluation.statistics.pass_at_k import pass_at_k, pass_hat_k

ROOT = Path(__file__).parents[2]

sizes = st.floats(1e-2, 1e5)
binary_items = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=6), min_size=1, max_size=40)
partial_items = st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=1, max_size=30)


def the_interval(scores: Sequence[Sequence[float]], bounds: Bounds | None = None) -> Interval:
    interval = mean_interval(scores, bounds=bounds)
    assert interval is not None
    return interval


def ends(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    return interval.low, interval.high


def beta_binomial(seed: int, items: int, k: int, mean: float, correlation: float) -> list[list[float]]:
    draw = np.random.default_rng(seed)
    total = 1 / correlation - 1
    rates = draw.beta(mean * total, (1 - mean) * total, items)
    return [[float(draw.random() < rate) for _ in range(k)] for rate in rates]


# Distributions


@given(st.floats(1e-4, 1 - 1e-4), sizes, sizes)
@settings(max_examples=400, deadline=None)
def test_beta_quantiles_agree_with_scipy(probability: float, a: float, b: float) -> None:
    assert beta_quantile(probability, a, b) == pytest.approx(special.betaincinv(a, b, probability), abs=1e-9)


@given(st.sampled_from([0.0, 1.0]) | st.floats(1e-9, 1), sizes, sizes)
@settings(max_examples=400, deadline=None)
def test_the_beta_distribution_function_agrees_with_scipy(x: float, a: float, b: float) -> None:
    assert beta_cdf(x, a, b) == pytest.approx(special.betainc(a, b, x), abs=1e-9)


@given(st.floats(0.55, 0.9995), st.floats(0.5, 1e6))
@settings(max_examples=400, deadline=None)
def test_student_quantiles_agree_with_scipy(probability: float, freedom: float) -> None:
    assert student_t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9)


@pytest.mark.parametrize("arguments", [(0.0, 1, 1), (1.0, 1, 1), (0.5, 0, 1), (0.5, 1, -1)])
def test_a_quantile_that_does_not_exist_is_refused(arguments: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="need a probability inside"):
        beta_quantile(*arguments)


@pytest.mark.parametrize("size", [1, 7, 20, 300, 20_000])
def test_exact_intervals_agree_with_statsmodels(size: int) -> None:
    for successes in {0, 1, size // 7, size // 2, size - 1, size}:
        theirs = proportion_confint(successes, size, alpha=0.05, method="beta")
        assert clopper_pearson(successes, size, 0.95) == pytest.approx(theirs, abs=1e-9)


# The mean


@pytest.mark.parametrize(("passed", "items"), [(0, 20), (1, 20), (13, 20), (50, 50), (3, 400)])
def test_one_binary_sample_an_item_has_the_exact_interval(passed: int, items: int) -> None:
    interval = the_interval([[1.0]] * passed + [[0.0]] * (items - passed))
    assert interval.method == "exact (Clopper-Pearson)"
    assert ends(interval) == pytest.approx(proportion_confint(passed, items, method="beta"), abs=1e-9)
    assert (interval.estimate, interval.n_items, interval.n_samples) == (passed / items, items, items)


@pytest.mark.parametrize("ragged", [False, True])
def test_the_standard_error_is_the_cluster_robust_one_of_statsmodels(ragged: bool) -> None:
    scores = beta_binomial(1, 40, 5, 0.6, 0.4)
    if ragged:
        scores = [item[: 1 + number % 5] for number, item in enumerate(scores)]
    flat = list(itertools.chain.from_iterable(scores))
    owner = [number for number, item in enumerate(scores) for _ in item]
    # Every item counts the same, so a sample weighs less where an item has more of them.
    weights = [1 / len(item) for item in scores for _ in item]
    fit = sm.WLS(flat, np.ones(len(flat)), weights=weights).fit(cov_type="cluster", cov_kwds={"groups": owner})
    interval = the_interval(scores)
    assert interval.estimate == pytest.approx(fit.params[0])
    assert interval.standard_error == pytest.approx(fit.bse[0])


def test_items_count_the_same_however_many_samples_were_scored() -> None:
    assert the_interval([[1.0] * 9, [0.0]] * 10).estimate == 0.5


def test_unscored_items_are_left_out() -> None:
    assert mean_interval([[1.0], [], [0.0], []] * 10) == mean_interval([[1.0], [0.0]] * 10)


def test_nothing_scored_has_no_interval() -> None:
    assert mean_interval([]) is None
    assert mean_interval([[], []]) is None


def test_samples_that_repeat_each_other_add_nothing() -> None:
    once = [[1.0]] * 12 + [[0.0]] * 18
    repeated = the_interval([item * 8 for item in once])
    assert ends(repeated) == pytest.approx(ends(the_interval(once)))
    assert repeated.item_correlation == pytest.approx(1)
    assert repeated.design_effect == pytest.approx(8, rel=0.05)


def test_independent_samples_count_nearly_in_full() -> None:
    draw = random.Random(0)
    interval = the_interval([[float(draw.random() < 0.4) for _ in range(8)] for _ in range(300)])
    assert 1800 < interval.effective_size <= 2400
    assert interval.item_correlation == pytest.approx(0, abs=0.03)
    assert interval.design_effect == pytest.approx(1, abs=0.2)


def test_the_item_correlation_is_found_again() -> None:
    interval = the_interval(beta_binomial(3, 4000, 6, 0.3, 0.5))
    assert interval.item_correlation == pytest.approx(0.5, abs=0.03)
    assert interval.design_effect == pytest.approx(1 + 5 * 0.5, abs=0.2)


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_a_spotless_result_is_as_sure_as_its_items_are_many(score: float) -> None:
    theirs = proportion_confint(score * 30, 30, method="beta")
    assert ends(the_interval([[score] * 16] * 30)) == pytest.approx(theirs, abs=1e-9)


def test_repeats_do_not_make_up_for_a_handful_of_items() -> None:
    interval = the_interval([[1.0] * 60 + [0.0] * 4] * 5)
    assert interval.effective_size == 5
    assert interval.low < 0.5


@given(binary_items | partial_items)
@settings(max_examples=200, deadline=None)
def test_the_interval_holds_the_estimate_and_stays_in_range(scores: list[list[float]]) -> None:
    interval = the_interval(scores)
    assert 0 <= interval.low <= interval.estimate + 1e-9
    assert interval.estimate - 1e-9 <= interval.high <= 1
    assert len(scores) <= interval.effective_size + 1e-9


@given(binary_items | partial_items)
@settings(max_examples=100, deadline=None)
def test_failures_counted_for_passes_mirror_the_interval(scores: list[list[float]]) -> None:
    low, high = ends(the_interval(scores))
    mirrored = the_interval([[1 - score for score in item] for item in scores])
    assert ends(mirrored) == pytest.approx((1 - high, 1 - low), abs=1e-6)


def test_a_stated_range_scales_the_interval_with_it() -> None:
    scores = beta_binomial(5, 60, 4, 0.3, 0.5)
    low, high = ends(the_interval(scores))
    scaled = the_interval([[20 * score - 10 for score in item] for item in scores], bounds=(-10.0, 10.0))
    assert ends(scaled) == pytest.approx((20 * low - 10, 20 * high - 10))


def test_a_score_outside_the_stated_range_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"from -1\.0 to 1\.0, outside the given range 0\.0 to 1\.0; give the lowest"):
        mean_interval([[-1.0], [1.0]], bounds=(0.0, 1.0))


def test_scores_of_unknown_range_have_at_least_the_interval_of_student() -> None:
    for items in (2, 5, 20, 200):
        values = [float(value) for value in np.random.default_rng(items).normal(7, 3, items)]
        interval = the_interval([[value] for value in values])
        low, high = stats.t.interval(0.95, items - 1, np.mean(values), stats.sem(values))
        assert interval.method.endswith("range unknown")
        assert interval.low <= low + 1e-9
        assert interval.high >= high - 1e-9
        assert interval.high - interval.low < 1.3 * (high - low)


@pytest.mark.parametrize("scores", [[[7.0, 8.0]], [[7.0]] * 30])
def test_one_item_or_equal_ones_of_unknown_range_tell_nothing_of_others(scores: list[list[float]]) -> None:
    assert ends(mean_interval(scores)) == (-math.inf, math.inf)


def test_a_range_without_width_is_refused() -> None:
    with pytest.raises(ConfigError, match="give the lowest first, then the highest"):
        mean_interval([[1.0]], bounds=(1.0, 1.0))


def test_a_score_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="non-finite score"):
        mean_interval([[1.0, math.nan]])


@pytest.mark.parametrize("tiny", [5e-324, 1e-300, 1e-100, 1e-81, 1e-17])
@pytest.mark.parametrize("best", [0.0, 1.0])
def test_a_negligible_score_among_equal_ones_changes_nothing(tiny: float, best: float) -> None:
    scores = [[abs(best - tiny)], *[[best]] * 29]
    assert ends(mean_interval(scores)) == pytest.approx(ends(mean_interval([[best]] * 30)))


@pytest.mark.parametrize("unit", [1e-320, 1e-100, 1e100, 1e307])
def test_the_unit_of_the_scores_scales_the_interval_with_it(unit: float) -> None:
    scores = [[float(value)] for value in np.random.default_rng(2).normal(0, 1, 20)]
    scaled = the_interval([[score * unit for score in item] for item in scores])
    # A score of 1e-320 has three digits.
    assert [end / unit for end in ends(scaled)] == pytest.approx(ends(the_interval(scores)), rel=1e-2)


# pass@k and pass^k


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_rates_are_those_of_every_choice_of_k_samples(k: int) -> None:
    scores = [item[: 5 + number % 3] for number, item in enumerate(beta_binomial(7, 25, 7, 0.5, 0.4))]
    chosen = [list(itertools.combinations(item, k)) for item in scores]
    at, hat = pass_at_k(scores, k).interval, pass_hat_k(scores, k).interval
    assert at is not None and hat is not None
    assert at.estimate == pytest.approx(np.mean([np.mean([any(some) for some in item]) for item in chosen]))
    assert hat.estimate == pytest.approx(np.mean([np.mean([all(some) for some in item]) for item in chosen]))


def test_pass_rates_are_unbiased() -> None:
    rates, k = (0.1, 0.5, 0.9), 3
    runs = [
        [[float(draw.random() < rate) for _ in range(6)] for rate in rates] for draw in map(random.Random, range(3000))
    ]
    at = [interval.estimate for run in runs if (interval := pass_at_k(run, k).interval)]
    hat = [interval.estimate for run in runs if (interval := pass_hat_k(run, k).interval)]
    assert np.mean(at) == pytest.approx(np.mean([1 - (1 - rate) ** k for rate in rates]), abs=0.01)
    assert np.mean(hat) == pytest.approx(np.mean([rate**k for rate in rates]), abs=0.01)


def test_items_with_too_few_samples_are_left_out_and_counted() -> None:
    rate = pass_at_k([[1.0, 0.0], [0.0], [], [0.0, 0.0]], 2)
    assert rate.left_out == 2
    assert rate.interval is not None
    assert (rate.interval.estimate, rate.interval.n_items, rate.interval.n_samples) == (0.5, 2, 4)
    assert pass_at_k([[1.0], []], 2) == pass_hat_k([[1.0], []], 2)
    assert pass_at_k([[1.0], []], 2).interval is None


def test_with_k_samples_an_item_the_interval_is_exact() -> None:
    interval = pass_hat_k([[1.0] * 4] * 7 + [[1.0, 1.0, 1.0, 0.0]] * 18, 4).interval
    assert interval is not None
    assert interval.method == "exact (Clopper-Pearson)"
    assert ends(interval) == pytest.approx(proportion_confint(7, 25, method="beta"), abs=1e-9)


def test_pass_at_1_is_the_mean_of_binary_scores_in_no_narrower_interval() -> None:
    scores = [item[: 1 + number % 4] for number, item in enumerate(beta_binomial(9, 50, 4, 0.3, 0.5))]
    mean, at, hat = the_interval(scores), pass_at_k(scores, 1).interval, pass_hat_k(scores, 1).interval
    assert at is not None and at == hat
    assert at.estimate == mean.estimate
    assert at.low <= mean.low and mean.high <= at.high


def test_partial_credit_passes_from_the_stated_score_on() -> None:
    scores = [[0.5, 0.8]] * 10
    assert [
        rate.interval.estimate for rate in (pass_at_k(scores, 1), pass_at_k(scores, 1, passing=0.6)) if rate.interval
    ] == [
        0.0,
        0.5,
    ]


def test_a_k_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        pass_at_k([[1.0]], 0)


# Two evaluations


def scored(*scores: Sequence[float]) -> dict[str, Sequence[float]]:
    return {f"item-{number}": item for number, item in enumerate(scores)}


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (9, 2), (5, 5), (30, 50), (400, 320)])
def test_mcnemar_agrees_with_scipy_and_statsmodels(wins: int, losses: int) -> None:
    theirs = mcnemar_elsewhere([[3, wins], [losses, 4]], exact=True).pvalue
    assert mcnemar(wins, losses) == pytest.approx(theirs)
    if wins + losses:
        assert mcnemar(wins, losses) == pytest.approx(stats.binomtest(wins, wins + losses).pvalue)


def test_single_binary_samples_are_compared_by_mcnemar() -> None:
    first = scored(*[[0.0]] * 9, *[[1.0]] * 2, *[[1.0]] * 7)
    second = scored(*[[1.0]] * 9, *[[0.0]] * 2, *[[1.0]] * 7)
    comparison = paired_test(first, second)
    assert comparison.method == "exact McNemar"
    assert (comparison.wins, comparison.losses, comparison.ties) == (9, 2, 7)
    assert comparison.p_value == pytest.approx(stats.binomtest(9, 11).pvalue)
    assert comparison.difference.estimate == pytest.approx(7 / 18)
    assert (comparison.first_mean, comparison.second_mean) == pytest.approx((9 / 18, 16 / 18))


def elsewhere(differences: Sequence[float]) -> float:
    """The sign-flip test of scipy, over all signs."""
    found = stats.permutation_test(
        (differences, np.zeros(len(differences))),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    )
    return float(found.pvalue)


@given(st.lists(st.integers(-8, 8), min_size=2, max_size=11), st.sampled_from([1, 3, 8]))
@settings(max_examples=40, deadline=None)
def test_differences_of_binary_samples_are_tested_as_by_scipy(counts: list[int], k: int) -> None:
    p_value, method = sign_flip([count / k for count in counts])
    assert method == "exact sign flips"
    # In whole numbers: thirds do not add up to 0 in scipy, and a tie would be none.
    assert p_value == pytest.approx(elsewhere([float(count) for count in counts]))


@given(st.lists(st.integers(-3_000_000, 3_000_000), min_size=2, max_size=10))
@settings(max_examples=40, deadline=None)
def test_differences_of_any_scores_are_tested_as_by_scipy(millionths: list[int]) -> None:
    p_value, _ = sign_flip([count / 1_000_000 for count in millionths])
    assert p_value == pytest.approx(elsewhere([float(count) for count in millionths]))


def test_many_differences_of_any_size_are_tested_by_random_signs_which_the_seed_repeats() -> None:
    differences = [float(value) for value in np.random.default_rng(2).normal(0.2, 1, 200)]
    p_value, method = sign_flip(differences, seed=5)
    assert method == f"{MONTE_CARLO_DRAWS} random sign flips"
    assert sign_flip(differences, seed=5) == (p_value, method)
    assert p_value == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.01)


def test_random_signs_agree_with_all_signs() -> None:
    eighths = [float(value) / 8 for value in np.random.default_rng(4).integers(-6, 9, 100)]
    exact, method = sign_flip(eighths)
    assert method == "exact sign flips"
    # A breath of noise hides the common unit.
    noise = random.Random(1)
    by_chance, other_method = sign_flip([value + noise.uniform(0, 1e-7) if value else 0.0 for value in eighths])
    assert other_method != method
    assert by_chance == pytest.approx(exact, abs=0.01)


def test_random_signs_never_claim_certainty() -> None:
    certain = [1 + math.sqrt(number) for number in range(40)]
    assert sign_flip(certain)[0] == 1 / (MONTE_CARLO_DRAWS + 1)


def test_large_comparisons_of_binary_samples_are_still_exact() -> None:
    first, second = (scored(*beta_binomial(seed, 1000, 8, mean, 0.5)) for seed, mean in ((1, 0.4), (2, 0.43)))
    comparison = paired_test(first, second)
    assert comparison.method == "exact sign flips"
    differences = [np.mean(second[item]) - np.mean(first[item]) for item in first]
    assert comparison.p_value == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.005)


def test_items_of_one_evaluation_alone_are_named_and_do_not_count() -> None:
    first = {"a": [1.0], "b": [0.0], "c": [1.0]}
    second = {"d": [0.0], "c": [1.0], "b": [1.0]}
    comparison = paired_test(first, second)
    assert (comparison.only_in_first, comparison.only_in_second) == (("a",), ("d",))
    assert (comparison.first_mean, comparison.second_mean) == (0.5, 1.0)
    assert comparison.difference.n_items == 2


def test_an_item_without_a_score_is_as_if_absent() -> None:
    comparison = paired_test({"a": [1.0], "b": []}, {"a": [1.0], "b": [1.0]})
    assert comparison.only_in_second == ("b",)


def test_evaluations_that_share_no_item_are_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"no scored item in common \(1 in the first, 1 in the second\); compare two"):
        paired_test({"a": [1.0], "b": []}, {"b": [1.0]})


def test_an_evaluation_does_not_differ_from_itself() -> None:
    scores = scored(*beta_binomial(11, 60, 4, 0.5, 0.5))
    comparison = paired_test(scores, scores)
    assert (comparison.p_value, comparison.ties) == (1.0, 60)
    assert comparison.difference.low < 0 < comparison.difference.high
    assert comparison.difference.high - comparison.difference.low < 0.25


def test_the_same_scores_in_another_order_are_a_tie() -> None:
    assert paired_test(scored([0.1, 0.2, 0.3]), scored([0.3, 0.2, 0.1])).ties == 1


def test_a_swap_of_the_two_mirrors_the_comparison() -> None:
    first, second = (scored(*beta_binomial(seed, 80, 4, mean, 0.5)) for seed, mean in ((1, 0.3), (2, 0.5)))
    there, back = paired_test(first, second), paired_test(second, first)
    assert ends(back.difference) == pytest.approx((-there.difference.high, -there.difference.low))
    assert back.p_value == pytest.approx(there.p_value)
    assert (back.wins, back.losses) == (there.losses, there.wins)


def test_the_difference_of_scores_of_unknown_range_has_at_least_the_interval_of_student() -> None:
    draw = np.random.default_rng(8)
    first = {str(item): [float(draw.normal(5, 2))] for item in range(30)}
    second = {item: [scores[0] + float(draw.normal(1, 1))] for item, scores in first.items()}
    theirs = stats.ttest_rel(
        [scores[0] for scores in second.values()], [scores[0] for scores in first.values()]
    ).confidence_interval(0.95)
    difference = paired_test(first, second).difference
    assert difference.low <= theirs.low + 1e-9
    assert difference.high >= theirs.high - 1e-9


# Coverage


@pytest.mark.slow
def test_stated_intervals_hold_the_truth_in_a_quick_simulation() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "coverage_simulation.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    report = json.loads(done.stdout.splitlines()[-1])
    assert all(goal["met"] for goal in report["goals"].values()), report
    assert done.returncode == 0
