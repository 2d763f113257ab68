import json
from collections.abc import Sequence as Listed
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hermes_rl.api.atropos.scored_data import ORIGIN, read_scored_data
from hermes_rl.core.trajectory import Group, Rollout, SampledCall, Sampling, Sequence, StopReason
from hermes_rl.extensions import ADVANTAGES
from hermes_rl.rollout.filters import DistinctScores, GroupRules, SequenceLimit
from hermes_rl.store.codec import GroupView, encode, open_group
from hermes_rl.store.container import json_part, pack_parts
from hermes_rl.training.batch import ExclusionReason, TrainingBatch, training_batch
from hermes_rl.training.config import TrainerSettings
from tests.store.test_codec import contents_of
from tests.training.plain_reference import expected
from tests.training.recorded_groups import RAW, SCORES, group, groups, rollout, sequence

NOW = 7


def batch(*recorded: Group, version: int = 0, **given: Any) -> TrainingBatch:
    return training_batch([encode(one) for one in recorded], TrainerSettings(**given), version)


def excluded(*recorded: Group, version: int = 0, **given: Any) -> dict[ExclusionReason, int]:
    return dict(batch(*recorded, version=version, **given).excluded)


def worth(made: TrainingBatch) -> list[list[float]]:
    return [example.advantages.tolist() for example in made.examples]


@settings(deadline=None)
@given(
    st.lists(groups(), max_size=4),
    st.sampled_from(sorted(ADVANTAGES.builtin)),
    st.fixed_dictionaries(
        {
            "per_turn": st.booleans(),
            "length_penalty": st.sampled_from([0.0, 125.0]),
            "mask_truncated": st.booleans(),
            "max_staleness": st.integers(0, NOW),
            "max_token_trainer_length": st.integers(2, 14),
            "max_batch_tokens": st.none() | st.integers(2, 60),
        }
    ),
)
def test_examples_and_causes_are_those_of_plain_loops_over_decoded_groups(
    recorded: list[Group], advantage: str, given: dict[str, Any]
) -> None:
    asked = TrainerSettings(advantage=advantage, **given)
    made = training_batch([encode(one) for one in recorded], asked, NOW)
    rows, causes = expected(recorded, asked, NOW)
    assert made.excluded == causes
    places = [(origin.outcome.group, origin.outcome.rollout, origin.sequence) for origin in made.origins]
    assert places == [row.place for row in rows]
    assert [origin.staleness for origin in made.origins] == [row.staleness for row in rows]
    for example, row in zip(made.examples, rows, strict=True):
        tokens_in, targets, logprobs, advantages, mask = zip(*row.positions, strict=True)
        assert example.tokens.tolist() == list(tokens_in)
        assert example.targets.tolist() == list(targets)
        assert example.logprobs.tolist() == list(logprobs)
        assert example.advantages.tolist() == pytest.approx(list(advantages), rel=1e-6, abs=1e-7)
        assert example.mask.tolist() == list(mask)


@settings(deadline=None)
@given(st.lists(groups(), max_size=3))
def test_columns_are_of_the_types_an_engine_takes(recorded: list[Group]) -> None:
    for example in batch(*recorded).examples:
        columns = (example.tokens, example.targets, example.logprobs, example.advantages, example.mask)
        assert [column.dtype.name for column in columns] == ["int64"] * 2 + ["float32"] * 3
        assert len({len(column) for column in columns}) == 1


def test_each_token_is_followed_by_its_target() -> None:
    made = batch(group(rollout(1.0, "..##"), rollout(0.0, "..##")))
    assert made.examples[0].tokens.tolist() == [10, 11, 12]
    assert made.examples[0].targets.tolist() == [11, 12, 13]


def test_what_was_not_sampled_has_logprob_0_and_not_the_sentinel_of_atropos() -> None:
    made = batch(group(rollout(1.0, ".#.#"), rollout(0.0, ".#.#")))
    assert made.examples[0].logprobs.tolist() == pytest.approx([-0.51, 0.0, -0.53])


def test_a_token_that_was_certain_is_a_sampled_one() -> None:
    certain = replace(sequence(".#."), logprobs=(-0.3, 0.0, -0.4))
    [first, *_] = batch(group(rollout(1.0, certain), rollout(0.0, ".#"))).examples
    assert (first.mask.tolist(), first.advantages.tolist(), first.logprobs.tolist()) == ([1, 0], [0.5, 0], [0, 0])


def test_what_was_not_sampled_has_no_advantage() -> None:
    assert worth(batch(group(rollout(1.0, ".#.#"), rollout(0.0, ".#")))) == [[0.5, 0.0, 0.5], [-0.5]]


def test_all_sequences_of_a_rollout_have_its_advantage() -> None:
    made = batch(group(rollout(1.0, ".#", "..#"), rollout(0.0, ".#")))
    assert worth(made) == [[0.5], [0.0, 0.5], [-0.5]]


def test_turns_are_matched_by_model_call_and_not_by_position() -> None:
    """The agent went back to its first context for its last call."""
    better = rollout(0.0, sequence(".#.#", calls=(0, 2)), sequence("..#", calls=(1,)), turn_scores=(0.0, 0.0, 1.0))
    worse = rollout(0.0, sequence(".#.#.#", calls=(0, 1, 2)), turn_scores=(0.0, 1.0, 0.0))
    made = batch(group(better, worse), per_turn=True)
    assert worth(made) == [[0.0, 0.0, 0.5], [0.0, 0.0], [0.0, 0.0, 0.0, 0.0, -0.5]]


def test_a_turn_whose_sequence_was_dropped_moves_no_other() -> None:
    """The sequence of the first call failed the token check."""
    better = rollout(0.0, sequence(".#", calls=(1,)), turn_scores=(0.0, 2.0), turns_used=2)
    worse = rollout(0.0, sequence(".#.#", calls=(0, 1)), turn_scores=(2.0, 0.0))
    assert worth(batch(group(better, worse), per_turn=True)) == [[1.0], [0.0, 0.0, -1.0]]


def test_calls_without_a_token_between_them_are_two_turns() -> None:
    joined = replace(sequence(".##"), calls=(SampledCall(0, 1), SampledCall(1, 2)))
    made = batch(group(rollout(0.0, joined, turn_scores=(0.0, 1.0)), rollout(0.0, ".#")), per_turn=True)
    assert worth(made)[0] == [0.5, 0.5]
    made = batch(group(rollout(0.0, joined, turn_scores=(1.0, 0.0)), rollout(0.0, ".#")), per_turn=True)
    assert worth(made)[0] == [0.5, 0.0]


def test_all_tokens_of_a_turn_have_its_advantage() -> None:
    better, worse = rollout(0.0, ".##.#", turn_scores=(2.0, 1.0)), rollout(0.0, ".##.#", turn_scores=(0.0, 0.0))
    made = batch(group(better, worse), per_turn=True)
    assert worth(made) == [[1.5, 1.5, 0.0, 0.5], [-1.5, -1.5, 0.0, -0.5]]


def test_a_turn_that_one_rollout_reached_is_compared_with_the_outcome_of_the_other() -> None:
    made = batch(group(rollout(1.0, ".#.#", turn_scores=(0.0, 0.5)), rollout(0.0, ".#")), per_turn=True)
    assert worth(made) == [[0.75, 0.0, 0.75], [-0.75]]


def test_turns_of_a_sequence_that_is_left_out_are_counted_all_the_same() -> None:
    better = rollout(0.0, sequence("......#", calls=[0]), sequence(".#", calls=[1]), turn_scores=(0.0, 1.0))
    worse = rollout(0.0, ".#.#", turn_scores=(0.0, 0.0))
    made = batch(group(better, worse), per_turn=True, max_token_trainer_length=4)
    assert worth(made) == [[0.5], [-0.5, 0.0, -0.5]]


def test_without_calls_the_turns_of_one_whole_sequence_are_its_spans() -> None:
    made = batch(group(rollout(0.0, ".#.#", turn_scores=(0.0, 1.0)), rollout(0.0, ".#")), per_turn=True)
    assert worth(made) == [[0.5, 0.0, 0.5], [-0.5]]


CALLED = sequence(".#", calls=[0])


@pytest.mark.parametrize(
    "unknown",
    [
        rollout(1.0, ".#", ".#", turn_scores=(0.0, 0.0)),
        rollout(1.0, ".#", turn_scores=(0.0,), turns_used=2),
        rollout(1.0, ".#", turn_scores=(0.0, 0.0)),
        rollout(1.0, CALLED, turn_scores=(0.0, 0.0)),
        rollout(1.0, CALLED, ".#", turn_scores=(0.0, 0.0)),
    ],
    ids=["two_sequences", "lost_turn", "too_many_scores", "too_many_scores_of_calls", "some_calls"],
)
def test_a_rollout_whose_turns_are_unknown_is_compared_with_and_not_trained_on(unknown: Rollout) -> None:
    recorded = group(unknown, rollout(0.0, CALLED, turn_scores=(0.5,)), rollout(0.5, CALLED))
    made = batch(recorded, per_turn=True)
    assert made.excluded == {ExclusionReason.UNMATCHED_TURNS: 1}
    assert [values[0] for values in worth(made)] == pytest.approx([-1 / 6, -1 / 6])
    assert [outcome.score for outcome in made.outcomes] == [1.0, 0.0, 0.5]


def test_turns_need_not_be_known_where_scores_of_rollouts_are_compared() -> None:
    assert not excluded(group(rollout(1.0, ".#", turn_scores=(1.0, 2.0)), rollout(0.0, ".#")))
    assert not excluded(group(rollout(1.0, ".#", ".#", turns_used=9), rollout(0.0, ".#")), per_turn=True)


def test_differences_in_turns_that_nobody_reached_are_no_signal() -> None:
    recorded = group(rollout(1.0, ".#", turn_scores=(0.0,)), rollout(0.0, ".#", turn_scores=(1.0,)))
    assert excluded(recorded, per_turn=True) == {ExclusionReason.ZERO_SIGNAL: 1}


@pytest.mark.parametrize("calls", [[[0, 2]], [[0, 1], [1, 1]], [[-1, 1]], [[0, 9]], [[0]], "ab", [["x", "y"]]], ids=str)
def test_calls_that_fit_to_no_tokens_make_a_group_unreadable(calls: Any) -> None:
    parts = contents_of(encode(group(rollout(1.0, CALLED), rollout(0.0, CALLED))))
    records = open_group(pack_parts(parts.values())).rollouts
    records[0]["calls"] = [calls]
    data = pack_parts({**parts, "rollouts": json_part("rollouts", records)}.values())
    assert training_batch([data], TrainerSettings(), 0).excluded == {ExclusionReason.UNREADABLE: 1}


def test_a_group_of_an_older_version_is_read() -> None:
    data = encode(group(rollout(1.0, ".#"), rollout(0.0, ".#")))
    assert "calls" not in open_group(data).rollouts[0]
    assert worth(training_batch([data], TrainerSettings(), 0)) == [[0.5], [-0.5]]


def test_a_standard_deviation_is_that_of_the_settings() -> None:
    recorded = group(rollout(1.0, ".#"), rollout(0.0, ".#"))
    made = batch(recorded, advantage="mean_std", advantage_epsilon=0.5, sample_std=False)
    assert worth(made) == [[0.5], [-0.5]]
    assert worth(batch(recorded, advantage="mean_std")) == [
        pytest.approx([0.70701], abs=1e-5),
        pytest.approx([-0.70701], abs=1e-5),
    ]


def test_a_length_penalty_is_taken_off_per_thousand_sampled_tokens() -> None:
    recorded = group(rollout(1.0, ".....##", ".#.#"), rollout(1.0, ".....##"))
    assert excluded(recorded) == {ExclusionReason.ZERO_SIGNAL: 1}
    made = batch(recorded, length_penalty=500.0)
    assert [max(values, key=abs) for values in worth(made)] == [-0.5, -0.5, 0.5]


def test_rewards_are_reported_without_the_length_penalty() -> None:
    recorded = group(rollout(1.0, ".##"), rollout(1.0, ".#"))
    assert [outcome.score for outcome in batch(recorded, length_penalty=500.0).outcomes] == [1.0, 1.0]


@pytest.mark.parametrize("reason", [StopReason.LENGTH, StopReason.CONTEXT_FULL, StopReason.MAX_TURNS])
def test_a_truncated_rollout_is_compared_with_and_not_trained_on_if_masked(reason: StopReason) -> None:
    recorded = group(rollout(1.0, ".#", stop_reason=reason), rollout(0.0, ".#"), rollout(0.5, ".#"))
    assert worth(batch(recorded)) == [[0.5], [-0.5], [0.0]]
    made = batch(recorded, mask_truncated=True)
    assert made.excluded == {ExclusionReason.TRUNCATED: 1}
    assert worth(made) == [[-0.5], [0.0]]


@pytest.mark.parametrize("reason", sorted(set(StopReason) - {"length", "context_full", "max_turns"}))
def test_a_rollout_that_ended_otherwise_is_not_truncated(reason: StopReason) -> None:
    recorded = group(rollout(1.0, ".#", stop_reason=reason), rollout(0.0, ".#"))
    assert not excluded(recorded, mask_truncated=True)


def test_a_group_that_is_withheld_is_left_out() -> None:
    assert excluded(group(rollout(1.0, ".#"), rollout(0.0, ".#"), withheld="why")) == {
        ExclusionReason.GROUP_WITHHELD: 1
    }


def test_an_unscored_rollout_is_in_no_baseline() -> None:
    made = batch(group(rollout(None, ".#"), rollout(1.0, ".#"), rollout(0.0, ".#")))
    assert made.excluded == {ExclusionReason.UNSCORED: 1}
    assert worth(made) == [[0.5], [-0.5]]


@pytest.mark.parametrize("reason", ["no_tokens", "not_returned", "why"])
def test_a_rollout_that_may_not_be_the_policys_is_in_no_baseline(reason: str) -> None:
    made = batch(group(rollout(9.0, ".#", withheld=reason), rollout(1.0, ".#"), rollout(0.0, ".#")))
    assert made.excluded == {ExclusionReason.WITHHELD: 1}
    assert worth(made) == [[0.5], [-0.5]]


def test_a_rollout_is_in_the_baseline_whoever_finds_it_too_long() -> None:
    """Left out by the environment or by the trainer, the others have the same advantages."""
    shorter = [rollout(1.0, ".#"), rollout(0.0, ".#")]
    by_environment = batch(group(rollout(2.0, "....#", withheld="too_long"), *shorter))
    by_trainer = batch(group(rollout(2.0, "....#"), *shorter), max_token_trainer_length=4)
    assert by_environment.excluded == {ExclusionReason.WITHHELD: 1}
    assert by_trainer.excluded == {ExclusionReason.TOO_LONG: 1}
    assert worth(by_environment) == worth(by_trainer) == [[0.0], [-1.0]]
    assert [outcome.score for outcome in by_environment.outcomes] == [2.0, 1.0, 0.0]


@settings(deadline=None)
@given(st.lists(st.tuples(SCORES, st.integers(2, 12)), min_size=1, max_size=6), st.integers(2, 12))
def test_environment_and_trainer_have_the_same_baseline(drawn: list[tuple[float, int]], limit: int) -> None:
    """The limit on either side gives the same advantages, and the environment withholds what has none."""
    rollouts = [rollout(score, "." * (length - 1) + "#") for score, length in drawn]
    marked, withheld = GroupRules(sequence_limit=SequenceLimit(limit), rules=(DistinctScores(),)).apply(rollouts)
    ours = batch(group(*marked, withheld=withheld))
    theirs = batch(group(*rollouts), max_token_trainer_length=limit)
    if withheld is None:
        assert [example.advantages.tolist() for example in ours.examples] == worth(theirs)
    else:
        assert not theirs.examples


@pytest.mark.parametrize("scores", [[], [1.0], [0.5, 0.5], [0.1, 0.1, 0.1], [-0.0, 0.0]], ids=str)
def test_a_group_without_a_signal_is_dropped_and_counted(scores: list[float]) -> None:
    made = batch(group(*[rollout(score, ".#") for score in scores]))
    assert not made.examples
    assert made.excluded == {ExclusionReason.ZERO_SIGNAL: 1}


def test_rewards_of_a_group_without_a_signal_are_kept() -> None:
    made = batch(group(rollout(1.0, ".#"), rollout(1.0, ".#")))
    assert [outcome.score for outcome in made.outcomes] == [1.0, 1.0]


def test_a_rollout_as_good_as_the_mean_is_an_example_all_the_same() -> None:
    made = batch(group(rollout(1.0, ".#"), rollout(0.5, ".#"), rollout(0.0, ".#")))
    assert worth(made) == [[0.5], [0.0], [-0.5]]


def test_a_batch_of_nothing_but_equal_scores_is_empty_and_not_an_error() -> None:
    made = batch(*[group(rollout(1.0, ".#"), rollout(1.0, ".#"))] * 3)
    assert made.examples == ()
    assert made.groups == 3
    assert made.groups_used == 0


@pytest.mark.parametrize("score", [1e39, 1.7e308])
def test_scores_beyond_what_a_step_can_compute_are_left_out(score: float) -> None:
    assert excluded(group(rollout(score, ".#"), rollout(-score, ".#"))) == {ExclusionReason.OVERFLOW: 1}


def test_huge_scores_divided_by_their_deviation_are_trained_on() -> None:
    made = batch(group(rollout(1e308, ".#"), rollout(-1e308, ".#")), advantage="mean_std")
    assert worth(made) == [pytest.approx([0.5**0.5]), pytest.approx([-(0.5**0.5)])]


def test_an_advantage_that_is_no_number_is_left_out() -> None:
    recorded = group(rollout(1.0, ".#"), rollout(0.0, ".#"))
    assert excluded(recorded, advantage=f"{__name__}:not_a_number") == {ExclusionReason.OVERFLOW: 1}


def not_a_number(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return scores * np.nan


def test_a_sequence_over_the_limit_is_left_out() -> None:
    made = batch(group(rollout(1.0, "...##"), rollout(0.0, "..##")), max_token_trainer_length=4)
    assert made.excluded == {ExclusionReason.TOO_LONG: 1}
    assert worth(made) == [[0.0, -0.5, -0.5]]


def test_a_sequence_of_exactly_the_limit_is_trained_on() -> None:
    assert not excluded(group(rollout(1.0, "..##"), rollout(0.0, "..##")), max_token_trainer_length=4)


@pytest.mark.parametrize("mask", ["", ".", "#", "#..", "..."])
def test_a_sequence_with_nothing_to_learn_is_left_out(mask: str) -> None:
    assert excluded(group(rollout(1.0, mask), rollout(0.0, ".#"))) == {ExclusionReason.UNSAMPLED: 1}


WHOLE = sequence("..##")


@pytest.mark.parametrize(
    ("torn", "cause"),
    [
        (replace(WHOLE, logprobs=(*WHOLE.logprobs[:-1], None)), ExclusionReason.NO_LOGPROBS),
        (replace(WHOLE, versions=(*WHOLE.versions[:-1], None)), ExclusionReason.NO_VERSIONS),
    ],
)
def test_a_sampled_token_without_its_logprob_or_version_takes_its_sequence_out(
    torn: Sequence, cause: ExclusionReason
) -> None:
    assert excluded(group(rollout(1.0, torn, WHOLE), rollout(0.0, WHOLE))) == {cause: 1}


def test_the_oldest_token_says_how_stale_a_sequence_is() -> None:
    mixed = sequence(".##.#", version=(9, 5, 6, 9, 4))
    made = batch(group(rollout(1.0, mixed), rollout(0.0, sequence(".#", version=7))), version=7)
    assert [origin.staleness for origin in made.origins] == [3, 0]


def test_a_first_token_that_is_no_target_makes_nothing_stale() -> None:
    recorded = group(rollout(1.0, sequence("##", version=(0, 7))), rollout(0.0, sequence(".#", version=7)))
    assert [origin.staleness for origin in batch(recorded, version=7).origins] == [0, 0]


def test_a_sequence_that_is_too_stale_by_now_is_left_out() -> None:
    recorded = group(rollout(1.0, sequence(".#", version=4)), rollout(0.0, sequence(".#", version=5)))
    assert excluded(recorded, version=6, max_staleness=1) == {ExclusionReason.STALE: 1}


def test_what_is_stale_counts_in_the_baseline() -> None:
    recorded = group(rollout(1.0, sequence(".#", version=4)), rollout(0.0, sequence(".#", version=5)))
    assert worth(batch(recorded, version=6, max_staleness=1)) == [[-0.5]]


@pytest.mark.parametrize(
    "way",
    [
        Sampling(0.7, logprobs="raw"),
        Sampling(0.7),
        Sampling(0.0, logprobs="processed"),
        Sampling(1.0, 0.9, None, "raw"),
        Sampling(1.0, None, 20, "raw"),
        Sampling(1.0, 2.0, None, "raw"),
    ],
    ids=str,
)
def test_what_no_weight_makes_up_for_is_left_out(way: Sampling) -> None:
    recorded = group(rollout(1.0, sequence(".#", sampling=way)), rollout(0.0, ".#"))
    assert excluded(recorded) == {ExclusionReason.UNCORRECTABLE: 1}


@pytest.mark.parametrize(
    "way", [RAW, Sampling(1.0), Sampling(0.7, logprobs="processed"), Sampling(1.0, 1.0, -1)], ids=str
)
def test_what_a_weight_makes_up_for_is_trained_on(way: Sampling) -> None:
    assert not excluded(group(rollout(1.0, sequence(".#", sampling=way)), rollout(0.0, ".#")))


def pair(length: int) -> Group:
    mask = "." * (length - 1) + "#"
    return group(rollout(1.0, mask), rollout(0.0, mask))


def places(made: TrainingBatch) -> list[int]:
    return sorted({origin.outcome.group for origin in made.origins})


def test_groups_beyond_the_tokens_of_a_batch_are_left_out_and_the_oldest_stay() -> None:
    made = batch(pair(4), pair(4), pair(4), max_batch_tokens=17)
    assert places(made) == [0, 1]
    assert made.excluded == {ExclusionReason.BEYOND_BATCH: 1}


@pytest.mark.parametrize(("limit", "fits"), [(16, [0, 1]), (15, [0])])
def test_the_tokens_of_a_batch_are_counted_with_the_last_of_each_sequence(limit: int, fits: list[int]) -> None:
    assert places(batch(pair(4), pair(4), max_batch_tokens=limit)) == fits


def test_a_younger_group_never_takes_the_place_of_an_older_one() -> None:
    assert places(batch(pair(4), pair(6), pair(2), max_batch_tokens=14)) == [0]


def test_a_group_that_fits_into_no_batch_does_not_keep_the_others_out() -> None:
    made = batch(pair(9), pair(4), max_batch_tokens=8)
    assert places(made) == [1]
    assert made.excluded == {ExclusionReason.BEYOND_BATCH: 1}


def test_a_group_override_silences_all_of_its_rollouts() -> None:
    recorded = group(rollout(1.0, ".#"), rollout(0.0, ".#"), overrides={"set_advantage_to_zero": True})
    assert excluded(recorded) == {ExclusionReason.ZERO_SIGNAL: 1}


def atropos_group(overrides: Listed[Any] | None, score: float = 1.0) -> Group:
    item = {"atropos": {} if overrides is None else {"overrides": json.dumps(overrides)}}
    return group(rollout(score, ".#"), rollout(0.0, ".#"), rollout(0.0, ".#"), item=item, provenance=ORIGIN)


@pytest.mark.parametrize(
    "overrides", [[{}, {"set_advantage_to_zero": True}, None], [None, {"set_advantage_to_zero": 1}]]
)
def test_a_rollout_that_an_override_silences_is_compared_with_and_not_learned_from(overrides: list[Any]) -> None:
    assert [values[0] for values in worth(batch(atropos_group(overrides)))] == pytest.approx([2 / 3, 0.0, -1 / 3])


@pytest.mark.parametrize("overrides", [None, [], [{}, {}, {"set_advantage_to_zero": False}]])
def test_other_overrides_silence_nothing(overrides: list[Any] | None) -> None:
    assert all(values[0] for values in worth(batch(atropos_group(overrides))))


def test_an_override_silences_an_infinite_advantage_too() -> None:
    silent = {"set_advantage_to_zero": True}
    assert excluded(atropos_group([silent, silent, silent], score=1.7e308)) == {ExclusionReason.ZERO_SIGNAL: 1}


def test_a_group_from_atropos_says_no_versions_and_is_left_out_by_that_name() -> None:
    posted = {
        "tokens": [[1, 2], [1, 3]],
        "masks": [[-100, 2], [-100, 3]],
        "scores": [1.0, 0.0],
        "inference_logprobs": [[1.0, -0.5], [1.0, -0.7]],
    }
    _, data = read_scored_data(json.dumps(posted).encode())
    made = training_batch([data], TrainerSettings(), 0)
    assert made.excluded == {ExclusionReason.NO_VERSIONS: 2}


def test_an_example_knows_the_rollout_it_comes_from() -> None:
    recorded = group(rollout(None, ".#"), rollout(1.0, ".#", "#.#", components={"tests": 1.0}), rollout(0.0, ".#"))
    origin = batch(group(), recorded).origins[1]
    outcome = origin.outcome
    assert (outcome.group, outcome.rollout, origin.sequence) == (1, 1, 1)
    assert (outcome.environment, outcome.score, outcome.turns) == ("words", 1.0, 3)
    assert outcome.components == {"tests": 1.0}


@pytest.mark.parametrize(
    "data", [encode(pair(3))[:-1], encode(group(rollout(1.0, ".#", components={"tests": None})))], ids=["torn", "odd"]
)
def test_a_group_that_cannot_be_read_is_counted_and_the_others_are_trained_on(data: bytes) -> None:
    made = training_batch([data, encode(pair(3))], TrainerSettings(), 0)
    assert made.excluded == {ExclusionReason.UNREADABLE: 1}
    assert places(made) == [1]


def test_messages_are_never_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: GroupView) -> None:
        raise AssertionError

    monkeypatch.setattr(GroupView, "conversations", property(refuse))
    monkeypatch.setattr(GroupView, "item", property(refuse))
    assert batch(pair(3)).examples
