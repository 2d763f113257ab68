"""Which rollouts are chosen, what of them is trained on, and in which order."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Group, Provenance
from hermes_rl.store.records import RecordWriter, group_to_record
from hermes_rl.training.sft_data import RolloutChoice, SftData, SftPlan, check_tokens, read_sft_data
from tests.support.chat_models import chat_model
from tests.training.recorded_groups import group, rollout, sequence


def written(folder: Path, *groups: Group, name: str = "groups.jsonl") -> Path:
    with RecordWriter(folder / name) as writer:
        for each in groups:
            writer.write(group_to_record(each))
    return folder / name


def read(folder: Path, *groups: Group, min_score: float | None = None, top: int | None = None) -> SftData:
    return read_sft_data([written(folder, *groups)], RolloutChoice(min_score, top), 100)


def first_tokens(data: SftData) -> list[int]:
    return [int(examples[0].tokens[0]) for examples in data.rollouts]


def scored(*scores: float) -> Group:
    """Rollouts that begin with the tokens 100, 200 and so on."""
    return group(*(rollout(score, sequence(".#", first=100 * place)) for place, score in enumerate(scores, 1)))


@pytest.mark.parametrize(
    ("min_score", "top", "chosen"),
    [
        (None, None, [300]),
        (None, 2, [300, 100]),
        # The mean is 0.5, and 0.5 is not above it.
        (None, 9, [300, 100]),
        (0.5, None, [300, 100, 400]),
        (0.5, 2, [300, 100]),
        (0.95, 2, [300]),
    ],
)
def test_the_rule_of_choice(tmp_path: Path, min_score: float | None, top: int | None, chosen: list[int]) -> None:
    data = read(tmp_path, scored(0.6, -0.1, 1.0, 0.5), min_score=min_score, top=top)
    assert first_tokens(data) == chosen
    assert data.skipped["rollouts_not_chosen"] == 4 - len(chosen)


@pytest.mark.parametrize("score", [0.1, 1.0])
def test_equal_scores_choose_none_without_a_minimum(score: float) -> None:
    scores = [score] * 3
    assert RolloutChoice().choose(scores, range(3)) == []
    assert RolloutChoice(min_score=score).choose(scores, range(3)) == [0, 1, 2]


def test_of_equal_best_ones_the_first_is_chosen(tmp_path: Path) -> None:
    assert first_tokens(read(tmp_path, scored(0.0, 1.0, 1.0))) == [200]


def test_only_sampled_tokens_have_weight_and_the_ids_are_those_recorded(tmp_path: Path) -> None:
    data = read(tmp_path, group(rollout(1.0, sequence("..#.##", first=7))), min_score=0)
    [[example]] = data.rollouts
    assert example.tokens.tolist() == [7, 8, 9, 10, 11]
    assert example.targets.tolist() == [8, 9, 10, 11, 12]
    assert example.advantages.tolist() == example.mask.tolist() == [0, 1, 0, 1, 1]


def test_a_rollout_of_several_sequences_stays_together(tmp_path: Path) -> None:
    data = read(tmp_path, group(rollout(1.0, ".#", "..#", "...")), min_score=0)
    assert [len(examples) for examples in data.rollouts] == [2]


def test_what_is_left_out_is_counted_by_reason(tmp_path: Path) -> None:
    mixed = group(
        rollout(None, ".#"),
        rollout(1.0, ".#", withheld="not_returned"),
        rollout(1.0),
        rollout(1.0, "." * 100 + "#"),
        rollout(1.0, ".#", "." * 100 + "#"),
        rollout(0.0, ".#"),
    )
    data = read(tmp_path, mixed, group(rollout(1.0, ".#"), split="eval"), min_score=0.5)
    assert dict(data.skipped) == {
        "rollouts_without_a_score": 1,
        "rollouts_withheld": 1,
        "rollouts_without_usable_tokens": 2,
        "sequences_too_long": 2,
        "rollouts_not_chosen": 1,
        "rollouts_of_evaluations": 1,
    }
    assert len(data.rollouts) == 1


def test_the_best_that_can_be_trained_on_is_chosen(tmp_path: Path) -> None:
    data = read(tmp_path, group(rollout(1.0), rollout(0.9, sequence(".#", first=200)), rollout(0.0, ".#")))
    assert first_tokens(data) == [200]


@pytest.mark.parametrize(("reason", "rollouts"), [("equal_scores", 2), ("too_few_scored", 2), ("suspicious", 0)])
def test_a_group_withheld_for_lack_of_comparison_still_has_good_rollouts(
    tmp_path: Path, reason: str, rollouts: int
) -> None:
    withheld = group(rollout(1.0, ".#"), rollout(1.0, ".#"), withheld=reason)
    data = read(tmp_path, withheld, group(rollout(1.0, ".#")), min_score=1)
    assert len(data.rollouts) == rollouts + 1


def test_files_are_read_in_their_order(tmp_path: Path) -> None:
    files = [written(tmp_path, scored(0.0, 1.0), name="a"), written(tmp_path, scored(1.0, 0.0), name="b")]
    assert first_tokens(read_sft_data(files, RolloutChoice(), 100)) == [200, 100]


def test_nothing_to_train_on_is_an_error_with_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no rollout to train on in 1 groups \(2 rollouts not chosen\)"):
        read(tmp_path, scored(1.0, 1.0))


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 4), st.integers(0, 5))
def test_every_epoch_has_every_rollout_once(rollouts: int, batch_size: int, epochs: int, seed: int) -> None:
    plan = SftPlan(rollouts, batch_size, epochs, seed)
    batches = [plan.batch(step) for step in range(plan.total_steps)]
    assert batches == [SftPlan(rollouts, batch_size, 99, seed).batch(step) for step in range(plan.total_steps)]
    per_epoch = plan.steps_per_epoch
    for epoch in range(epochs):
        seen = [index for batch in batches[epoch * per_epoch : (epoch + 1) * per_epoch] for index in batch]
        assert sorted(seen) == list(range(rollouts))
    assert all(0 < len(batch) <= batch_size for batch in batches)


def test_epochs_and_seeds_differ_in_their_order() -> None:
    plan = SftPlan(50, 50, 2, seed=0)
    assert plan.batch(0) != plan.batch(1)
    assert plan.batch(0) != SftPlan(50, 50, 2, seed=1).batch(0)


def test_the_digest_is_of_tokens_and_masks(tmp_path: Path) -> None:
    def digest(name: str, *masks: str, first: int = 10) -> str:
        made = group(rollout(1.0, *(sequence(mask, first=first) for mask in masks)))
        return read_sft_data([written(tmp_path, made, name=name)], RolloutChoice(0.0), 100).digest()

    same = digest("a", ".#.#")
    assert same == digest("b", ".#.#")
    assert len({same, digest("c", "..##"), digest("d", ".#.#", first=11), digest("e", ".#.#", ".#")}) == 4


def from_model(folder: Path, model: str, first: int = 10) -> SftData:
    source = Provenance("words", "hash", model, {})
    return read(folder, group(rollout(1.0, sequence(".#", first=first)), provenance=source), min_score=0)


def test_rollouts_of_the_same_model_are_taken_without_a_word(tmp_path: Path) -> None:
    assert check_tokens(from_model(tmp_path, "m"), chat_model("chatml").tokenizer, "m", 1000) == []


def test_rollouts_of_a_model_that_is_not_here_are_warned_of(tmp_path: Path) -> None:
    [warning] = check_tokens(from_model(tmp_path, "no/such"), chat_model("chatml").tokenizer, "m", 1000)
    assert "1 rollouts come from 'no/such'" in warning


def test_token_ids_that_the_model_does_not_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="token id 1001, but m has 1000 tokens"):
        check_tokens(from_model(tmp_path, "m", first=1000), chat_model("chatml").tokenizer, "m", 1000)


def test_rollouts_of_another_tokenizer_on_this_disk_are_refused(tmp_path: Path) -> None:
    # Both were trained on the same text; their special tokens have the same ids.
    other = chat_model("llama3").save(tmp_path / "other")
    with pytest.raises(ConfigError, match="is not that of m"):
        check_tokens(from_model(tmp_path, str(other)), chat_model("chatml").tokenizer, "m", 10_000)


def test_another_model_with_the_same_tokenizer_is_only_warned_of(tmp_path: Path) -> None:
    same = chat_model("chatml").save(tmp_path / "larger")
    assert len(check_tokens(from_model(tmp_path, str(same)), chat_model("chatml").tokenizer, "m", 10_000)) == 1
