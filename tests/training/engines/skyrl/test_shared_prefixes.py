"""Rows of several sequences that begin with the same tokens."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.training.engines.skyrl.inside.hermes_skyrl.buckets import FINE, padded_length
from hermes_rl.training.engines.skyrl.inside.hermes_skyrl.shared_prefixes import (
    WORTH,
    Row,
    Sample,
    cost,
    joined,
    segments,
    separated,
    shared_passes,
    shared_rows,
)

WIDTH = 576


def sample(tokens: list[int], prompt: int, kind: str = "ppo") -> Sample:
    """Its last `len(tokens) - prompt` tokens are sampled, so the first inert targets are one fewer than the prompt."""
    inputs, targets = np.array(tokens[:-1]), np.array(tokens[1:])
    return Sample(kind, inputs, targets, np.arange(len(inputs)) < prompt - 1)


def group(seed: int, prompt: int, continuations: list[int], kind: str = "ppo") -> list[Sample]:
    random = np.random.default_rng(seed)
    shared = random.integers(0, 50, prompt).tolist()
    return [sample([*shared, *random.integers(0, 50, size).tolist()], prompt, kind) for size in continuations]


def test_a_group_is_one_row_with_its_prompt_once() -> None:
    samples = group(1, 100, [10, 20, 30, 20, 10])
    [row] = shared_rows(samples, WIDTH)
    assert sorted(row.indices) == [0, 1, 2, 3, 4]
    # The last token of the prompt has a sampled target, so each sequence has its own.
    assert row.shared == 99
    assert row.length == 2 * padded_length(129, FINE)


def test_two_groups_are_two_rows_of_one_pass() -> None:
    samples = group(1, 240, [30] * 8) + group(2, 240, [30] * 8)
    [one] = shared_passes(samples, rows=8, unit=1, width=576)
    assert (len(one.chosen), one.rows, one.length) == (2, 2, 640)
    assert sorted(index for row in one.chosen for index in row.indices) == list(range(16))
    # 1,280 tokens are computed instead of 16 x 320.


def test_only_sequences_of_one_kind_share_a_row() -> None:
    samples = group(1, 100, [10] * 4, "ppo") + group(1, 100, [10] * 4, "cispo")
    rows = list(shared_rows(samples, WIDTH))
    assert sorted(sorted(row.indices) for row in rows) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_tokens_that_are_trained_on_are_never_shared() -> None:
    tokens = list(range(100))
    assert list(shared_rows([sample([*tokens, 1, 2], 1), sample([*tokens, 3, 4], 1)], WIDTH)) == []


def test_a_token_with_another_target_is_not_shared() -> None:
    first, second = group(1, 100, [10, 10])
    second.targets[40] = 999
    assert first.common(second) == 40


def test_long_continuations_are_left_apart() -> None:
    assert list(shared_rows(group(1, 50, [400, 400, 400]), WIDTH)) == []


def test_attention_over_a_long_row_may_cost_more_than_it_saves() -> None:
    samples = group(1, 4000, [1500, 1500, 1500])
    assert list(shared_rows(samples, 64)) == []
    assert len(list(shared_rows(samples, 8192))) == 1


def test_a_pass_of_few_rows_has_no_memory_for_longer_ones() -> None:
    samples = group(1, 240, [30] * 8)
    assert list(shared_passes(samples, rows=2, unit=1, width=576)) == []
    assert list(shared_passes(samples, rows=8, unit=4, width=576)) == []
    [one] = shared_passes(samples, rows=16, unit=4, width=576)
    assert one.rows == 4


def test_segments_name_the_sequence_of_each_token() -> None:
    row = Row([0, 1], 2, 8)
    assert segments(row, [4, 3]).tolist() == [1, 1, 2, 2, 3, 0, 0, 0]
    assert joined(row, [[1, 2, 3, 4], [1, 2, 5]]) == [1, 2, 3, 4, 5]
    assert list(separated(row, [4, 3], [1, 2, 3, 4, 5])) == [[1, 2, 3, 4], [1, 2, 5]]


@st.composite
def batches(draw: st.DrawFn) -> list[Sample]:
    """Groups with few different tokens, so that other groups begin alike too."""
    samples = []
    for _ in range(draw(st.integers(1, 4))):
        prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=60))
        for _ in range(draw(st.integers(1, 5))):
            tail = draw(st.lists(st.integers(0, 1), min_size=2, max_size=20))
            samples.append(sample([*prompt, *tail], draw(st.integers(1, len(prompt))), draw(st.sampled_from("ab"))))
    return samples


@given(samples=batches(), rows=st.sampled_from([0, 4, 8, 32]), unit=st.sampled_from([1, 2]))
def test_rows_hold_each_sequence_at_most_once_and_whole(samples: list[Sample], rows: int, unit: int) -> None:
    seen: list[int] = []
    for each in shared_passes(samples, rows, unit, WIDTH):
        assert len(each.chosen) <= each.rows
        assert each.rows % unit == 0
        for row in each.chosen:
            seen += row.indices
            members = [samples[index] for index in row.indices]
            lengths = [len(member.tokens) for member in members]
            assert len(members) > 1
            assert len({member.kind for member in members}) == 1
            assert all(member.inert[: row.shared].all() for member in members)
            columns = [member.tokens.tolist() for member in members]
            whole = joined(row, columns)
            assert len(whole) <= row.length == each.length
            assert list(separated(row, lengths, whole)) == columns
            targets = [member.targets.tolist() for member in members]
            assert list(separated(row, lengths, joined(row, targets))) == targets
            assert np.count_nonzero(segments(row, lengths)) == len(whole)
            apart = sum(cost(padded_length(length, FINE), WIDTH) for length in lengths)
            assert cost(row.length, WIDTH) <= WORTH * apart
    assert len(seen) == len(set(seen))
