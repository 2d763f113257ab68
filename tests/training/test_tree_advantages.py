"""Advantages where rollouts branch: relative to siblings, and one for each shared turn."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.core.trajectory import Branch, Group, Rollout
from hermes_rl.store.codec import encode
from hermes_rl.training.advantages import ScoredTurns, get_advantage, group_advantages
from hermes_rl.training.batch import ExclusionReason, TrainingBatch, training_batch
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.step import GRPOStep
from hermes_rl.training.tree_advantages import tree_advantages
from tests.training.recorded_groups import SCORES, group, rollout, sequence
from tests.training.test_step import SETTINGS, Asked

MEAN = get_advantage("mean")


def root(score: float | None, turns: int = 3, **more: Any) -> Rollout:
    """A prompt of one token, then a sampled and another token for each turn."""
    return rollout(score, sequence("." + "#." * turns, calls=range(turns)), **more)


def branch(score: float | None, turn: int, of: int = 0, turns: int = 3, **more: Any) -> Rollout:
    """The same conversation; only what it sampled from `turn` on is masked in."""
    own = sequence("." + ".." * (turn - 1) + "#." * (turns - turn + 1), calls=range(turn - 1, turns), first=10)
    return rollout(score, own, branch=Branch(of, turn), **{"turns_used": turns} | more)


def batch(recorded: Group, **settings: Any) -> TrainingBatch:
    return training_batch([encode(recorded)], TrainerSettings(advantage="mean", **settings), 0)


def sampled_weights(made: TrainingBatch) -> list[list[float]]:
    """The advantages of the sampled tokens of each example."""
    return [example.advantages[example.mask == 1].tolist() for example in made.examples]


def test_the_example_of_the_decision_one_root_with_two_branches_and_another_root() -> None:
    made = batch(group(root(1.0), root(0.0), branch(0.0, 2), branch(0.5, 2)))
    assert sampled_weights(made) == [
        # Turn 1 counts for two of the four rollouts, each way to go on from it for two thirds of one.
        pytest.approx([2 * 0.25, 2 / 3 * 0.5, 2 / 3 * 0.5]),
        pytest.approx([2 * -0.25] * 3),
        pytest.approx([2 / 3 * -0.5] * 2),
        pytest.approx([0.0, 0.0], abs=1e-7),
    ]


def test_each_sampled_token_is_weighted_once_and_what_is_shared_is_only_context_in_a_branch() -> None:
    made = batch(group(root(1.0), branch(0.0, 2), branch(0.5, 2)))
    assert [example.mask.sum() for example in made.examples] == [3, 2, 2]
    # Turn 1 has nothing to compare with; the four tokens after it have 0.5, 0.5 and -0.5, -0.5, the others 0.
    assert [sum(weights) for weights in sampled_weights(made)] == pytest.approx([1.0, -1.0, 0.0], abs=1e-7)


async def test_the_gradient_of_a_step_has_each_shared_token_once() -> None:
    """The mean is over the ten sampled tokens: three of each root and two of each branch."""
    engine = Asked()
    recorded = group(root(1.0), root(0.0), branch(0.0, 2), branch(0.5, 2))
    await GRPOStep(SETTINGS).run(engine, [encode(recorded)], step=0, version=0)
    [(examples, *_)] = engine.steps
    sums = [float(example.advantages.sum()) for example in examples]
    assert sums == pytest.approx([(0.5 + 2 / 3) / 10, -1.5 / 10, -2 / 3 / 10, 0.0], abs=1e-7)
    # A root trains on the token of turn 1, its target at place 0. A branch does not: there it has no weight.
    assert [example.advantages[0] for example in examples] == pytest.approx([0.05, -0.05, 0.0, 0.0])
    assert [example.mask[0] for example in examples] == [1, 1, 0, 0]


def test_a_token_before_two_points_has_the_mean_of_all_leaves_after_both() -> None:
    made = batch(group(root(1.0), root(0.0), branch(0.0, 2), branch(0.5, 3)))
    # From turn 3: 1 against 0.5. From turn 2: the root's turn 2 is worth 0.75, against 0. Turn 1: 0.5 against 0.
    # Turn 1 counts for two rollouts, turn 2 for one, turn 3 for half of one.
    assert sampled_weights(made)[0] == pytest.approx([2 * 0.25, 0.375, 0.5 * 0.25])
    assert sampled_weights(made)[2:] == [pytest.approx([-0.375, -0.375]), pytest.approx([0.5 * -0.25])]


def test_a_branch_of_a_branch_is_compared_with_the_rest_of_that_branch() -> None:
    made = batch(group(root(1.0), branch(0.0, 2), branch(1.0, 3, of=1)))
    # Turn 2: 1 against the mean of 0 and 1, for one and a half of three rollouts. Turn 3 of the branch: 0 against 1,
    # for half as many.
    assert sampled_weights(made) == [
        pytest.approx([0.0, 1.5 * 0.25, 1.5 * 0.25]),
        pytest.approx([1.5 * -0.25, 0.75 * -0.5]),
        pytest.approx([0.75 * 0.5]),
    ]


def test_a_branch_that_leaves_a_branch_before_its_own_turns_is_one_of_the_root() -> None:
    """The second has turn 1 of the root, whether it names the root or the first branch."""
    named = batch(group(root(1.0), branch(0.0, 2), branch(0.5, 2, of=1)))
    assert sampled_weights(named) == sampled_weights(batch(group(root(1.0), branch(0.0, 2), branch(0.5, 2))))


def test_a_branch_without_a_score_is_in_no_mean() -> None:
    made = batch(group(root(1.0), root(0.0), branch(None, 2), branch(0.5, 2)))
    assert sampled_weights(made)[0] == pytest.approx([1.5 * 0.375, 0.75 * 0.25, 0.75 * 0.25])


def test_where_no_branch_was_scored_nothing_branched() -> None:
    made = batch(group(root(1.0), root(0.0), branch(None, 2)))
    assert sampled_weights(made) == sampled_weights(batch(group(root(1.0), root(0.0))))


def test_a_segment_without_siblings_continues_the_one_before() -> None:
    """The root failed, so its branch is all that is left of it."""
    made = batch(group(root(None), root(0.0), branch(1.0, 2)))
    assert sampled_weights(made) == [[-0.5, -0.5, -0.5], [0.5, 0.5]]


def test_a_length_penalty_counts_the_shared_tokens_of_a_branch() -> None:
    """Both rollouts have three sampled tokens in all."""
    assert batch(group(root(0.0), branch(0.0, 2)), length_penalty=100.0).excluded == {ExclusionReason.ZERO_SIGNAL: 1}


def test_the_turns_of_a_branch_in_metrics_are_those_of_its_conversation() -> None:
    assert [outcome.turns for outcome in batch(group(root(1.0), branch(0.0, 2))).outcomes] == [3, 3]


def test_with_per_turn_each_turn_is_compared_from_there_on() -> None:
    rows = root(0.0, turn_scores=(1.0, 0.0, 2.0)), branch(0.0, 2, turn_scores=(1.0, 3.0, 0.0))
    made = batch(group(*rows), per_turn=True)
    # To go at turn 2: 2 against 3. At turn 3: 2 against 0. Turn 1 has one root.
    assert sampled_weights(made) == [pytest.approx([0.0, -0.5, 1.0]), pytest.approx([0.5, -1.0])]


def test_the_expected_gradient_of_a_tree_is_that_of_independent_rollouts() -> None:
    """Exact, by all outcomes of two doors: two roots, and a third rollout that branches at the second door of one."""
    right = np.array([0.8, 0.6])
    expected = np.zeros(2)
    for picks in product((0, 1), repeat=5):
        rows = np.array([picks[:2], picks[2:4], (picks[0], picks[4])])
        chance = np.prod([right[at % 2] if pick else 1 - right[at % 2] for at, pick in enumerate(picks[:4])])
        chance *= right[1] if picks[4] else 1 - right[1]
        scores = {number: ScoredTurns(float(row.all())) for number, row in enumerate(rows)}
        found = tree_advantages(scores, [None, None, Branch(0, 2)], get_advantage("leave_one_out"))
        # What the branch shares is trained on in its root.
        worth = found * [[1, 1], [1, 1], [0, 1]]
        expected += chance * (worth * (rows - right)).sum(axis=0)
    # Of the probability that both picks are right, by the logit of each, for three rollouts.
    assert expected == pytest.approx(3 * right.prod() * (1 - right))


@pytest.mark.parametrize(
    "wrong", [Branch(1, 2), Branch(-1, 2), Branch(0, 0), Branch(0, 10**12)], ids=["self", "none", "turn 0", "huge"]
)
def test_a_branch_from_nowhere_makes_its_group_unreadable(wrong: Branch) -> None:
    made = batch(group(root(1.0), rollout(0.0, ".#", branch=wrong)))
    assert made.excluded == {ExclusionReason.UNREADABLE: 1}


TREES = st.lists(st.tuples(SCORES, st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=8)


def drawn(rows: list[tuple[float, int, int]]) -> tuple[dict[int, ScoredTurns], list[Branch | None]]:
    branches = [Branch(of, turn) if of < number else None for number, (_, of, turn) in enumerate(rows)]
    return {number: ScoredTurns(score) for number, (score, _, _) in enumerate(rows)}, branches


@given(st.lists(st.builds(ScoredTurns, SCORES, st.lists(SCORES, max_size=3).map(tuple)), min_size=1), st.booleans())
def test_without_branches_they_are_those_of_a_flat_group(rollouts: list[ScoredTurns], per_turn: bool) -> None:
    for name in ("mean", "mean_std", "leave_one_out"):
        flat = group_advantages(rollouts, get_advantage(name), per_turn=per_turn)
        tree = tree_advantages(
            dict(enumerate(rollouts)), [None] * len(rollouts), get_advantage(name), per_turn=per_turn
        )
        assert np.array_equal(flat, tree)


@given(TREES)
def test_no_advantage_is_lost_where_scores_differ_and_none_is_made_where_they_are_equal(
    rows: list[tuple[float, int, int]],
) -> None:
    compared, branches = drawn(rows)
    found = tree_advantages(compared, branches, MEAN)
    assert found.any() == (np.ptp([each.score for each in compared.values()]) > 1e-12)


@given(TREES, st.data())
def test_the_order_of_rollouts_that_branch_from_the_same_place_does_not_matter(
    rows: list[tuple[float, int, int]], data: st.DataObject
) -> None:
    roots = [(score, 9, 1) for score, _, _ in rows[:2]]
    leaves = [(score, of % len(roots), turn) for score, of, turn in rows[2:]]
    order = data.draw(st.permutations(range(len(leaves))))
    found = tree_advantages(*drawn(roots + leaves), MEAN)[len(roots) :]
    shuffled = tree_advantages(*drawn(roots + [leaves[at] for at in order]), MEAN)[len(roots) :]
    assert shuffled == pytest.approx(found[order], abs=1e-12)
