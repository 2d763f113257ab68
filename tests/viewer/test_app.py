"""Each question of the API, over files; hostile records are answered like any other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.viewer.recording import Asking, group, rollout, until, viewing, write_lines

BIDI, ANSI = "\u202edesrever\u202c", "\x1b[31mred\x1b[0m\x07"


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    path = tmp_path_factory.mktemp("records") / "groups.jsonl"
    scripted = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    write_lines(
        path,
        group(0, rollout(0, 0.0, "a banana", turns_used=9), rollout(1, 1.0, "an apple", stop_reason="max_turns")),
        group(1, rollout(0, None), rollout(1, 0.25, "read_file naïve 東京タワー", tool_uses=[])),
        b"this is no record\n",
        group(2, rollout(0, 0.5, scripted + BIDI + ANSI + "\0 end"), withheld="equal_scores"),
        group(3, rollout(0, 0.75, "x" * 5_000_000 + " needle")),
        b'{"rollouts": [{"score": NaN, "messages": [{"role": "user", "content": "\xff\\ud800 oddity"}]}]}\n',
    )
    with viewing(path) as asking:
        asking.whole()
        yield asking


@pytest.fixture
def name(ask: Asking) -> str:
    return ask.source()


def ids(answer: dict[str, Any]) -> list[str]:
    return [row["id"] for row in answer["rows"]]


def found(ask: Asking, name: str, question: str) -> list[str]:
    return ids(ask(f"/api/s/{name}/rollouts?{question}"))


def test_home_lists_what_there_is(ask: Asking) -> None:
    [source] = ask("/api/home")["sources"]
    assert (source["kind"], source["name"]) == ("groups", "groups.jsonl")
    assert (source["groups"], source["rollouts"], source["environment"]) == (5, 7, "words")
    assert source["indexing"] is None


def test_a_source_says_what_could_not_be_read(ask: Asking, name: str) -> None:
    told = ask(f"/api/s/{name}")
    assert told["problem"] == "1 line could not be read"
    assert [one["line"] for one in told["broken"]] == [3]


def test_each_group_counts_once_in_the_mean(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    write_lines(path, group(0, *(rollout(index, 0.0) for index in range(3))), group(1, rollout(0, 1.0)))
    with viewing(path) as asking:
        told = asking(f"/api/s/{asking.whole()}")
        assert told["reward"]["mean"] == asking("/api/home")["sources"][0]["reward_mean"] == 0.5


def test_a_source_is_summed_up(ask: Asking, name: str) -> None:
    told = ask(f"/api/s/{name}")
    assert told["counts"] == {"groups": 5, "rollouts": 7, "scored": 5, "failed": 1, "withheld": 1, "broken": 1}
    assert told["reward"]["mean"] == 0.5
    assert sum(told["reward"]["histogram"]["counts"]) == 5
    assert len(told["reward"]["histogram"]["edges"]) == len(told["reward"]["histogram"]["counts"]) + 1
    assert told["failures"] == [{"cause": "sandbox/died", "count": 1}]
    assert {"reason": "max_turns", "count": 1} in told["stop_reasons"]
    assert told["tools"][0]["name"] == "terminal"
    assert told["provenance"]["environment"] == "words"


def test_groups_come_by_pages(ask: Asking, name: str) -> None:
    first = ask(f"/api/s/{name}/groups?limit=2")
    second = ask(f"/api/s/{name}/groups?limit=2&after={first['next']}")
    third = ask(f"/api/s/{name}/groups?limit=2&after={second['next']}")
    assert ids(first) + ids(second) + ids(third) == ["1", "2", "4", "5", "6"]
    assert (first["total"], third["next"]) == (5, None)


def test_a_group_row_has_its_scores(ask: Asking, name: str) -> None:
    row = ask(f"/api/s/{name}/groups")["rows"][1]
    assert (row["scores"], row["mean"], row["failures"]) == ([None, 0.25], 0.25, ["sandbox/died"])
    assert (row["title"], row["item_id"], row["rollouts"]) == ("question 1", "item-1", 2)


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("-n", ["6", "5", "4", "2", "1"]),
        ("mean", ["2", "1", "4", "5", "6"]),
        ("-mean", ["5", "1", "4", "2", "6"]),
        ("-spread", ["1", "2", "4", "5", "6"]),
    ],
)
def test_groups_are_sorted_and_what_has_no_score_is_last(ask: Asking, name: str, sort: str, order: list[str]) -> None:
    taken: list[str] = []
    after = ""
    while True:
        page = ask(f"/api/s/{name}/groups?limit=1&sort={sort}&after={after}")
        taken += ids(page)
        if page["next"] is None:
            break
        after = page["next"]
    assert taken == order


def test_a_group_tells_what_separated_good_from_bad(ask: Asking, name: str) -> None:
    told = ask(f"/api/s/{name}/groups/1")
    assert [row["id"] for row in told["rollouts"]] == ["1-0", "1-1"]
    assert told["item"] == {"question": "question 0"}
    assert {"what": "turns", "name": "turns", "good": 2.0, "bad": 9.0} in told["contrast"]
    assert {"what": "stop_reason", "name": "max_turns", "good": 1.0, "bad": 0.0} in told["contrast"]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("min_score=0.5", ["1-1", "4-0", "5-0"]),
        ("min_score=0.2&max_score=0.6", ["2-1", "4-0"]),
        ("stop_reason=max_turns", ["1-1"]),
        ("failure=sandbox/died", ["2-0"]),
        ("failure=any", ["2-0"]),
        ("failure=none&max_score=0.1", ["1-0"]),
        ("tool=nothing", []),
        ("q=banana", ["1-0"]),
        ("q=BANANA", ["1-0"]),
        ("q=ban*", ["1-0"]),
        ("q=ban", []),
        ("q=read_file", ["2-1"]),
        ("q=naive", ["2-1"]),
        ("q=東京", ["2-1"]),
        ("q=needle", ["5-0"]),
        ("q=oddity", ["6-0"]),
        ("q=apple+thinking", []),
        ("q=apple+think", ["1-1"]),
        ("q=%22%29%20OR%20NEAR%28", []),
        ("q=***", []),
        ("q=%00", []),
        ("sort=-score&limit=3", ["1-1", "5-0", "4-0"]),
        ("sort=-turns&limit=1", ["1-0"]),
    ],
)
def test_rollouts_are_found(ask: Asking, name: str, question: str, expected: list[str]) -> None:
    assert found(ask, name, question) == expected


def test_a_match_is_shown_with_the_text_around_it(ask: Asking, name: str) -> None:
    [row] = ask(f"/api/s/{name}/rollouts?q=needle")["rows"]
    assert "needle" in row["snippet"]
    assert len(row["snippet"]) < 400


def test_a_filtered_list_says_how_many_there_are(ask: Asking, name: str) -> None:
    assert ask(f"/api/s/{name}/rollouts?min_score=0.2&limit=1")["total"] == 4
    assert ask(f"/api/s/{name}/rollouts?q=apple&limit=1")["total"] == 1


def test_a_rollout_is_told_with_its_neighbours(ask: Asking, name: str) -> None:
    told = ask(f"/api/s/{name}/rollouts/1-1")
    assert (told["score"], told["version"], told["tool_errors"]) == (1.0, {"low": 3, "high": 4}, 1)
    assert told["neighbours"] == {"previous": "1-0", "next": None}
    assert told["timings"] == [{"span": "model", "name": "m", "start": 0.0, "seconds": 1.5}]
    assert told["sequences"][0]["tokens"] == 3
    assert told["sequences"][0]["versions"] == [3, 4]
    assert (told["messages"], told["components"]) == (3, {"tests": 1.0})


def test_a_failed_rollout_says_why(ask: Asking, name: str) -> None:
    told = ask(f"/api/s/{name}/rollouts/2-0")
    assert (told["score"], told["failure"], told["failure_message"]) == (None, "sandbox/died", "it is gone")


def test_messages_come_by_pages(ask: Asking, name: str) -> None:
    first = ask(f"/api/s/{name}/rollouts/1-0/messages?limit=2")
    rest = ask(f"/api/s/{name}/rollouts/1-0/messages?from={first['next']}")
    [question, answer], [result] = first["rows"], rest["rows"]
    assert [question["sampled"], answer["sampled"]] == [False, True]
    assert answer["reasoning"]["text"] == "let me think"
    assert answer["tool_calls"][0]["arguments"]["text"] == '{"command": "ls"}'
    assert (result["error"], result["tool_call_id"], rest["next"]) == (True, "c1", None)


def test_a_long_text_is_cut_and_read_on_by_pieces(ask: Asking, name: str) -> None:
    [message] = ask(f"/api/s/{name}/rollouts/5-0/messages?from=1&limit=1")["rows"]
    assert (len(message["content"]["text"]), message["content"]["cut"]) == (20_000, True)
    assert message["content"]["chars"] == 5_000_007
    piece = ask(f"/api/s/{name}/rollouts/5-0/text?message=1&part=content&from=4999999")
    assert (piece["text"], piece["next"]) == ("x needle", None)


@pytest.mark.parametrize("part", ["content", "reasoning", "call:0"])
def test_each_part_of_a_message_can_be_read_whole(ask: Asking, name: str, part: str) -> None:
    assert ask(f"/api/s/{name}/rollouts/1-0/text?message=1&part={part}")["text"]


def test_tokens_come_by_pages(ask: Asking, name: str) -> None:
    page = ask(f"/api/s/{name}/rollouts/1-0/tokens?from=1&limit=1")
    assert (page["ids"], page["mask"], page["logprobs"], page["versions"]) == ([6], [1], [-0.5], [3])
    assert (page["total"], page["next"], page["pieces"]) == (3, 2, None)


def test_a_rollout_is_copied_as_its_record(ask: Asking, name: str) -> None:
    for rollout_id, score in (("1-1", 1.0), ("5-0", 0.75)):
        response = ask.client.get(f"/api/s/{name}/rollouts/{rollout_id}.jsonl")
        assert response.headers["content-disposition"] == f'attachment; filename="rollout-{rollout_id}.jsonl"'
        assert json.loads(response.content)["score"] == score
        assert response.content.count(b"\n") == 1


def test_a_group_is_copied_as_its_line(ask: Asking, name: str) -> None:
    response = ask.client.get(f"/api/s/{name}/groups/5.jsonl")
    assert json.loads(response.content)["id"] == "group-3"


def test_hostile_text_comes_as_json_and_unchanged(ask: Asking, name: str) -> None:
    response = ask.client.get(f"/api/s/{name}/rollouts/4-0/messages")
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"
    text = response.json()["rows"][1]["content"]["text"]
    assert "<script>" in text and BIDI in text and ANSI in text and "\0" in text


def test_bytes_that_are_no_text_are_shown_as_such(ask: Asking, name: str) -> None:
    [message] = ask(f"/api/s/{name}/rollouts/6-0/messages")["rows"]
    assert message["content"]["text"] == "\ufffd\ufffd oddity"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/s/nothing", 404),
        ("/api/s/..%2f..%2fetc", 404),
        ("/api/s/NAME/groups/99", 404),
        ("/api/s/NAME/groups/x", 404),
        ("/api/s/NAME/groups/99999999999999999999", 404),
        ("/api/s/NAME/rollouts/1-99", 404),
        ("/api/s/NAME/rollouts/1-99999", 404),
        ("/api/s/NAME/rollouts/-1", 404),
        ("/api/s/NAME/rollouts/1-0/text?message=99", 404),
        ("/api/s/NAME/rollouts/1-0/text?part=call:7&message=1", 404),
        ("/api/s/NAME/rollouts/1-0/tokens?sequence=5", 404),
        ("/api/s/NAME/curve", 404),
        ("/api/s/NAME/live", 404),
        ("/api/nothing", 404),
        ("/api", 404),
        ("/api/s/NAME/rollouts?limit=x", 400),
        ("/api/s/NAME/rollouts?min_score=nan", 400),
        ("/api/s/NAME/rollouts?sort=secret", 400),
        ("/api/s/NAME/rollouts?after=garbage", 400),
        ("/api/s/NAME/rollouts?sort=score&after=WyJuIiwyLDIsbnVsbF0", 400),
    ],
)
def test_a_bad_question_is_told_what_is_wrong(ask: Asking, name: str, path: str, status: int) -> None:
    error = ask(path.replace("NAME", name), status)["error"]
    assert error["message"] and error["next_step"]


def test_a_page_never_holds_more_than_its_limit(ask: Asking, name: str) -> None:
    assert len(ask(f"/api/s/{name}/rollouts?limit=0")["rows"]) == 1
    assert len(ask(f"/api/s/{name}/rollouts?limit=999999")["rows"]) == 7


def test_a_growing_file_is_followed(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "growing.jsonl", group(0))
    with viewing(path) as ask:
        name = ask.whole()
        write_lines(path, group(1), b'{"torn')
        until(lambda: ask(f"/api/s/{name}/groups")["total"] == 2)


def test_the_first_rows_are_there_before_any_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_rl.viewer.indexers.MAX_PROCESSES", 0)
    path = write_lines(tmp_path / "new.jsonl", *(group(number) for number in range(60)))
    with viewing(path) as ask:
        name = ask.source()
        assert len(ask(f"/api/s/{name}/groups?limit=200")["rows"]) == 50
        assert ask(f"/api/s/{name}")["indexing"] == {"done_bytes": 0, "total_bytes": path.stat().st_size}
        assert found(ask, name, "q=hello&limit=1") == ["1-0"]


def test_a_file_that_was_replaced_is_never_taken_for_the_old_one(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", group(0))
    with viewing(path) as ask:
        name = ask.whole()
        path.write_bytes(b"")
        write_lines(path, group(7, rollout(0, 0.125)))
        assert ask(f"/api/s/{name}/groups")["rows"][0]["record_id"] == "group-7"
        assert ask(f"/api/s/{name}/rollouts/1-0")["score"] == 0.125


def test_two_viewers_share_one_index(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "shared.jsonl", *(group(number) for number in range(20)))
    with viewing(path) as first, viewing(path) as second:
        assert first.whole() == second.whole()
        name = first.source()
        write_lines(path, group(20))
        for ask in (first, second):
            until(lambda ask=ask: ask(f"/api/s/{name}/groups")["total"] == 21)  # type: ignore[misc]
