"""A report: one file that holds its answers, bounded, and that nothing written by others can break out of."""

import base64
import hashlib
import json
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.cli.run_access import viewed_runs
from hermes_rl.core.errors import ConfigError
from hermes_rl.viewer.report import builder, selection
from hermes_rl.viewer.report.builder import PAGE_BYTES, ReportContents, write_report
from hermes_rl.viewer.sources.source import no_runs
from tests.support.recorded_runs import make_run, write_steps
from tests.viewer.recording import group, rollout, viewing, write_evaluation, write_lines

HOSTILE = "</script><!-- <script>alert(1)</script><img src=http://evil/x onerror=alert(1)>'\" &amp; ]]> \u2028"
ODD = ["a\x00b\x1b[31mred\x07", "half a pair \ud83d", "\u202eright to left", "\r\n\x85\u2028", "\ufeff\ufffe"]


class Page(HTMLParser):
    """What a browser would see."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: dict[str, str] = {}
        self._now = ""
        self.bytes = path.read_bytes()
        self.feed(self.bytes.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._now = " ".join([tag, *(value or "" for name, value in attrs if name == "type")])

    def handle_endtag(self, tag: str) -> None:
        self._now = ""

    def handle_data(self, data: str) -> None:
        self.texts[self._now] = self.texts.get(self._now, "") + data

    @property
    def answers(self) -> dict[str, Any]:
        return dict(json.loads(self.texts["script application/json"]))

    @property
    def policy(self) -> str:
        return next(value for tag, _, value in self.attributes if tag == "meta" and value.startswith("default-src"))


@dataclass
class Made:
    report: ReportContents
    page: Page

    @property
    def answers(self) -> dict[str, Any]:
        return self.page.answers

    @property
    def base(self) -> str:
        [source] = self.answers["/api/home"]["sources"]
        return f"/api/s/{source['id']}"


Making = Callable[..., Made]


@pytest.fixture
def made(tmp_path: Path) -> Making:
    """The report of some targets, read again."""

    def make(*targets: Path | str, **options: Any) -> Made:
        path = tmp_path / "out" / "page.html"
        return Made(write_report([str(one) for one in targets], viewed_runs(), path, **options), Page(path))

    return make


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "groups.jsonl", *(group(number) for number in range(5)))


def test_a_report_of_groups_answers_as_the_viewer_does(made: Making, groups: Path) -> None:
    told = made(groups)
    with viewing(groups) as ask:
        ask.whole()
        for path in ("", "/groups/3", "/rollouts/3-1/messages"):
            assert told.answers[told.base + path] == ask(told.base + path)
        rows = ask(f"{told.base}/rollouts")["rows"]
        assert told.answers[f"{told.base}/rollouts"]["rows"] == rows
        assert told.answers[f"{told.base}/groups"]["rows"] == ask(f"{told.base}/groups")["rows"]
        detail = ask(f"{told.base}/rollouts/3-1")
    assert told.answers[f"{told.base}/rollouts/3-1"] == detail
    assert told.report[2:] == (5, 5, 10, 10)


def test_all_that_a_list_leads_to_is_held(made: Making, groups: Path) -> None:
    told = made(groups, groups=3)
    held = told.answers
    for row in held[f"{told.base}/groups"]["rows"]:
        rollouts = held[f"{told.base}/groups/{row['id']}"]["rollouts"]
        assert rollouts
        for one in rollouts:
            detail = held[f"{told.base}/rollouts/{one['id']}"]
            assert held[f"{told.base}/rollouts/{one['id']}/messages"]["rows"]
            assert held[f"{told.base}/rollouts/{one['id']}/tokens?sequence=0"]["ids"] == [5, 6, 7]
            for other in filter(None, detail["neighbours"].values()):
                assert f"{told.base}/rollouts/{other}" in held


def test_an_evaluation_comes_with_its_numbers(made: Making, tmp_path: Path) -> None:
    write_evaluation(tmp_path / "first", [0.0, 1.0])
    told = made(tmp_path / "first")
    names = [metric["name"] for metric in told.answers[f"{told.base}/metrics"]["metrics"]]
    assert "eval/mean_reward" in names
    assert told.answers["report"]["start"] == told.base.removeprefix("/api")


def test_two_evaluations_are_compared_both_ways(made: Making, tmp_path: Path) -> None:
    write_evaluation(tmp_path / "first", [0.0, 1.0])
    write_evaluation(tmp_path / "second", [1.0, 1.0])
    held = made(tmp_path / "first", tmp_path / "second").answers
    a, b = (source["id"] for source in held["/api/home"]["sources"])
    assert held[f"/api/compare?a={a}&b={b}"]["metrics"][0]["difference"] == 0.5
    assert held[f"/api/compare?a={b}&b={a}"]["metrics"][0]["difference"] == -0.5
    assert held["report"]["compare"] is True


def test_a_run_comes_with_its_curve_and_its_state(made: Making) -> None:
    write_steps(make_run("reported"), 4)
    told = made("reported")
    assert told.answers[f"{told.base}/curve"]["steps"] == [1, 2, 3, 4]
    assert told.answers[f"{told.base}/live"]["step"] == 4
    assert told.report.groups == 0


def test_groups_are_spread_evenly_and_the_note_says_of_how_many(made: Making, groups: Path) -> None:
    told = made(groups, groups=3)
    assert [row["id"] for row in told.answers[f"{told.base}/groups"]["rows"]] == ["1", "3", "5"]
    assert "3 of 5 groups, evenly spread, with 6 of 10 rollouts" in told.answers["report"]["note"]
    assert told.answers[told.base]["counts"]["groups"] == 5
    assert told.report[2:] == (5, 3, 10, 6)


def test_the_order_in_which_room_is_given_is_spread_from_the_beginning() -> None:
    ids = [str(number) for number in range(100)]
    order = selection.bit_reversal_order(ids)
    assert sorted(order, key=int) == ids
    assert sorted(map(int, order[:4])) == [0, 32, 64, 96]


def test_nothing_that_was_written_by_others_becomes_markup(made: Making, tmp_path: Path) -> None:
    call = {"id": HOSTILE, "function": {"name": HOSTILE, "arguments": HOSTILE}}
    said = {"role": HOSTILE, "content": HOSTILE, "reasoning_content": HOSTILE, "tool_calls": [call]}
    hostile = rollout(
        0,
        None,
        messages=[said, {"role": "tool", "content": HOSTILE}],
        components={HOSTILE: 1.0},
        failure={"whose": HOSTILE, "cause": HOSTILE, "message": HOSTILE},
        timings=[{"span": HOSTILE, "name": HOSTILE, "start": 0.0, "seconds": 1.0}],
        metadata={HOSTILE: HOSTILE},
        withheld=HOSTILE,
    )
    source = {"environment": HOSTILE, "model": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    fields = {"item": HOSTILE, "item_id": HOSTILE, "withheld": HOSTILE, "created_at": HOSTILE, "provenance": source}
    path = write_lines(tmp_path / "<b>&'\".jsonl", group(0, hostile, **fields))
    told = made(path)
    assert told.page.tags["script"] == 2
    assert not {"img", "b"} & set(told.page.tags)
    assert not [name for _, name, _ in told.page.attributes if name.startswith("on")]
    [message, _] = told.answers[f"{told.base}/rollouts/1-0/messages"]["rows"]
    assert message["content"]["text"] == HOSTILE
    begin = told.page.bytes.index(b'id="answers">') + len(b'id="answers">')
    assert b"<" not in told.page.bytes[begin : told.page.bytes.index(b"</script>", begin)]


@pytest.mark.parametrize("odd", ODD)
def test_odd_characters_do_not_spoil_a_page(made: Making, tmp_path: Path, odd: str) -> None:
    told = made(write_lines(tmp_path / "groups.jsonl", group(0, rollout(0, 0.5, odd))))
    assert b"\x00" not in told.page.bytes
    assert b"\x1b" not in told.page.bytes
    text = told.answers[f"{told.base}/rollouts/1-0/messages"]["rows"][1]["content"]["text"]
    assert text == odd.replace("\ud83d", "\ufffd")


def test_a_page_runs_its_own_script_and_reaches_no_other_address(made: Making, groups: Path) -> None:
    page = made(groups).page
    shown = {kind: page.texts[tag] for kind, tag in (("script", "script module"), ("style", "style"))}
    for kind, text in shown.items():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in page.policy
    assert page.policy.startswith("default-src 'none'; ")
    assert "unsafe" not in page.policy
    assert {value.partition(":")[0] for _, name, value in page.attributes if name in {"href", "src"}} == {"data"}
    assert not re.search(r"url\((?!['\"]?data:)|@import", shown["style"])


def test_a_long_text_and_a_long_conversation_are_cut_and_say_so(made: Making, tmp_path: Path) -> None:
    talk = [{"role": "user", "content": f"message {number}"} for number in range(selection.MAX_MESSAGES + 30)]
    long = rollout(1, 0.5, "x" * 5_000_000)
    told = made(write_lines(tmp_path / "groups.jsonl", group(0, rollout(0, 0.5, messages=talk), long)))
    conversation = told.answers[f"{told.base}/rollouts/1-0/messages"]
    assert (len(conversation["rows"]), conversation["total"]) == (selection.MAX_MESSAGES, selection.MAX_MESSAGES + 30)
    text = told.answers[f"{told.base}/rollouts/1-1/messages"]["rows"][1]["content"]
    assert (len(text["text"]), text["chars"], text["cut"]) == (20_000, 5_000_000, True)


def test_a_page_stays_below_its_size_and_keeps_both_ends(
    made: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "PAGE_BYTES", 600_000)
    monkeypatch.setattr(selection, "MIN_GROUP_BYTES", 30_000)
    two = [rollout(place, 0.5, "x" * 19_000) for place in range(2)]
    path = write_lines(tmp_path / "groups.jsonl", *(group(number, *two) for number in range(60)))
    told = made(path)
    assert 400_000 < told.report.bytes <= 600_000
    assert len(told.page.bytes) == told.report.bytes
    held = [int(row["id"]) for row in told.answers[f"{told.base}/groups"]["rows"]]
    assert 5 < len(held) < 60
    assert held[0] < 15
    assert held[-1] > 45


def test_a_group_of_many_rollouts_leaves_room_for_others(
    made: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "PAGE_BYTES", 600_000)
    monkeypatch.setattr(selection, "MIN_GROUP_BYTES", 100_000)
    large = group(0, *(rollout(place, 0.5, "x" * 19_000) for place in range(40)))
    told = made(write_lines(tmp_path / "groups.jsonl", large, *(group(number) for number in range(1, 5))))
    assert told.report.groups_held == 5
    first = told.answers[f"{told.base}/groups/1"]
    assert 0 < len(first["rollouts"]) < 40
    assert first["rollouts_total"] == 40


def test_tokens_get_what_room_is_left(made: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = {"tokens": [7] * 9_000, "mask": [1] * 9_000, "logprobs": [-1 / 3] * 9_000, "versions": [1] * 9_000}
    path = write_lines(
        tmp_path / "groups.jsonl", *(group(number, rollout(0, 0.5, sequences=[tokens])) for number in range(3))
    )
    told = made(path)
    page = told.answers[f"{told.base}/rollouts/1-0/tokens?sequence=0"]
    assert (len(page["ids"]), page["total"], page["logprobs"][0]) == (selection.MAX_TOKENS, 9_000, -0.3333)
    monkeypatch.setattr(builder, "WITH_TOKENS_BYTES", 0)
    assert not [name for name in made(path).answers if "tokens" in name]


def test_what_could_not_be_read_is_told(made: Making, groups: Path) -> None:
    told = made(write_lines(groups, b"this is no record\n"))
    assert [one["line"] for one in told.answers[told.base]["broken"]] == [6]


def test_a_file_without_groups_makes_a_page(made: Making, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    told = made(tmp_path / "empty.jsonl")
    assert told.answers[f"{told.base}/groups"] == {"rows": []}
    assert told.answers[told.base]["counts"]["groups"] == 0


def test_what_is_not_there_leaves_no_page(made: Making, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file, folder or run 'nothing'"):
        made("nothing")
    assert not (tmp_path / "out").exists()


def test_a_page_that_cannot_be_made_leaves_the_old_one_and_nothing_else(
    made: Making, groups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made(groups).page.bytes
    monkeypatch.setattr(builder, "PAGE_BYTES", 1_000)
    with pytest.raises(ConfigError, match="exceed the size of a report"):
        made(groups)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["page.html"]
    assert (tmp_path / "out" / "page.html").read_bytes() == before


def test_how_far_it_is_is_told(made: Making, groups: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    made(groups, on_step=lambda *step: steps.append(step))
    assert ("groups", 4, 5) in steps


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    line = json.dumps(group(0, rollout(0, 0.5, "x" * 200_000))).encode() + b"\n"
    path = write_lines(tmp_path / "groups.jsonl", *[line] * 200)
    write_report([str(path)], no_runs(), tmp_path / "warm.html", groups=1)
    tracemalloc.start()
    write_report([str(path)], no_runs(), tmp_path / "page.html")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 40_000_000
    assert peak < 20_000_000
    assert (tmp_path / "page.html").stat().st_size < PAGE_BYTES
