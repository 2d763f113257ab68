"""Lines of a file as groups: whole ones only, each described as far as it can be."""

import json
from pathlib import Path

import pytest

from hermes_rl.viewer.sources import jsonl
from hermes_rl.viewer.sources.jsonl import BrokenLine, Line, index_entry, read_lines, read_part
from hermes_rl.viewer.summaries import GroupEntry
from tests.viewer.recording import group, rollout, write_lines


def only(raw: bytes) -> GroupEntry | BrokenLine:
    return index_entry(Line(1, 0, len(raw), raw))


def found(raw: bytes) -> GroupEntry:
    entry = only(raw)
    assert isinstance(entry, GroupEntry), entry
    return entry


def test_a_torn_last_line_is_not_taken(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", b"{}\n", b"{}\n", b'{"format": "herm')
    assert [line.number for line in read_lines(path)] == [1, 2]


def test_blank_lines_count_and_are_not_shown(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", b"{}\n", b"\n", b"  \n", b"[]\n")
    assert [(line.number, line.offset) for line in read_lines(path)] == [(1, 0), (4, 7)]


def test_a_line_beyond_the_limit_is_passed_over_in_pieces(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", b"x" * 5_000_000 + b"\n", b"{}\n")
    [long, short] = read_lines(path, limit=1_000)
    assert (long.length, long.raw) == (5_000_001, None)
    assert (short.offset, short.raw) == (5_000_001, b"{}\n")


def test_an_endless_torn_line_is_not_taken(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", b"x" * 3_000_000)
    assert list(read_lines(path, limit=1_000)) == []


@pytest.mark.parametrize("raw", [b"nothing\n", b"[1, 2]\n", b'"text"\n', b"{}\n", b'{"a": 1}\n', b'{"rollouts": [}\n'])
def test_a_line_that_is_no_group_is_told_as_broken(raw: bytes) -> None:
    assert isinstance(only(raw), BrokenLine)


@pytest.mark.parametrize("large", [False, True])
def test_versions_of_any_type_are_passed_over(monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    monkeypatch.setattr(jsonl, "LARGE_LINE", 10 if large else 10**9)
    record = rollout(0, sequences=[{"versions": [[1], {"a": 2}, None, "3", 4, 6]}])
    [entry] = found(json.dumps(group(0, record)).encode() + b"\n").rollouts
    assert (entry.version_low, entry.version_high) == (4, 6)


def test_large_and_small_lines_are_described_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = json.dumps(group(3, rollout(0, 0.25), rollout(1, None))).encode() + b"\n"
    small = found(raw)
    monkeypatch.setattr(jsonl, "LARGE_LINE", 10)
    large = found(raw)
    assert [one.offset for one in small.rollouts] == [None, None]
    for one, other in zip(small.rollouts, large.rollouts, strict=True):
        assert (one.score, one.failure, one.tools, one.words, one.version_low, one.version_high) == (
            *(other.score, other.failure, other.tools, other.words, other.version_low, other.version_high),
        )
    assert (small.id, small.title, small.environment) == (large.id, large.title, large.environment)


def test_a_rollout_of_a_large_line_is_found_by_its_own_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "LARGE_LINE", 10)
    path = write_lines(tmp_path / "a.jsonl", group(0), group(1, rollout(0, 0.25, "wörter")))
    entry = index_entry(list(read_lines(path))[1])
    assert isinstance(entry, GroupEntry)
    [one] = entry.rollouts
    assert json.loads(read_part(path, one.offset or 0, one.length or 0))["score"] == 0.25


def test_versions_are_the_range_over_all_sequences() -> None:
    [first, _] = found(json.dumps(group()).encode()).rollouts
    assert (first.version_low, first.version_high) == (3, 4)


def test_a_sample_is_a_group_of_one() -> None:
    entry = found(json.dumps({"prompt": "what is it?", "response": "a cat", "reward": 1.0}).encode())
    assert entry.title == "what is it?"
    assert [one.score for one in entry.rollouts] == [1.0]
    assert "a cat" in entry.rollouts[0].words


@pytest.mark.parametrize(
    ("raw", "score"),
    [
        (b'{"rollouts": [{"score": NaN, "messages": []}]}', None),
        (b'{"rollouts": [{"score": 1e999, "messages": []}]}', None),
        (b'{"rollouts": [{"score": "high", "messages": "none"}]}', None),
        (b'{"rollouts": [{"score": true, "messages": [null, 3, {"content": 7}]}]}', None),
        (b'{"rollouts": [{"score": 2, "messages": [{"content": "\\ud800 half"}]}]}', 2.0),
        (b'{"rollouts": [{"score": 2, "messages": [{"content": "\xff\xfe bytes"}]}]}', 2.0),
        (b'{"rollouts": [{"score": 2, "usage": 5, "tool_uses": {}, "sequences": 3, "failure": "late"}]}', 2.0),
        (b'{"rollouts": [{"score": 123456789012345678901234567890}], "item": null, "provenance": 3}', None),
    ],
)
@pytest.mark.parametrize("large", [0, 10**9])
def test_odd_records_are_described_all_the_same(
    raw: bytes, score: float | None, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "LARGE_LINE", large)
    entry = only(raw)
    if large:
        assert isinstance(entry, GroupEntry)
        assert entry.rollouts[0].score == score
    assert isinstance(entry, GroupEntry | BrokenLine)
