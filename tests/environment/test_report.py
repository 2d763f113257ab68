"""A report: everything in it escaped, nothing in it from elsewhere, figures of the whole file, memory of one group."""

import tracemalloc
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.environment.budget import Budget, Prices
from hermes_rl.environment.metrics import Tally
from hermes_rl.environment.report.conversations import MESSAGES_SHOWN
from hermes_rl.environment.report.page import write_report
from hermes_rl.environment.report.text import TEXT_SHOWN
from hermes_rl.errors import ConfigError, Failure, Whose
from hermes_rl.store import RecordWriter, record_of
from hermes_rl.trajectory import Group, Provenance, Rollout, Span, StopReason, Timing, ToolUse, Usage

PROVENANCE = Provenance(environment="shell", environment_hash="h", model="some-model", versions={"hermes-rl": "1.2"})
PROMPT: list[dict[str, Any]] = [
    {"role": "system", "content": "You work in a shell."},
    {"role": "user", "content": "Count the lines."},
]
HOSTILE = "</pre></details><script>alert(1)</script><img src=http://evil/x onerror=alert(1)>'\" &amp; <!-- ]]>"
VOID = {"meta", "line", "rect", "img", "link", "input", "br"}
CLOSED_BY_THE_NEXT = {"tr", "td", "th", "dt", "dd", "html"}


class Page(HTMLParser):
    """What a browser would see."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.text = ""
        self.source = path.read_text()
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID | CLOSED_BY_THE_NEXT:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID | CLOSED_BY_THE_NEXT:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def rollout(score: float | None = 1.0, *said: dict[str, Any], **fields: Any) -> Rollout:
    failure = Failure(Whose.SANDBOX, "start", "bwrap is missing") if score is None else None
    answers = said or ({"role": "assistant", "content": "There are 3."},)
    return Rollout(
        item_id="i",
        index=0,
        seed=7,
        messages=[*PROMPT, *answers],
        score=score,
        failure=failure,
        stop_reason=None if failure else StopReason.NATURAL,
        **{"metadata": {"prompt_length": 2}, "turns_used": 1, **fields},
    )


def group(*rollouts: Rollout, **fields: Any) -> Group:
    told = {"item": {"n": 3}, "provenance": PROVENANCE, "created_at": "2026-11-15T08:00:00.000+00:00", **fields}
    return Group(item_id="item-1", rollouts=rollouts, **told)


def page_of(folder: Path, *groups: Group, **options: Any) -> Page:
    path = folder / "groups.jsonl"
    with RecordWriter(path) as writer:
        for one in groups:
            writer.write(record_of(one))
    return Page(write_report(path, **options).path)


def test_a_page_stands_beside_its_file_and_has_the_figures_of_the_run(tmp_path: Path) -> None:
    page = page_of(
        tmp_path,
        group(rollout(1.0, usage=Usage(900, 100)), rollout(0.0), withheld="equal_scores"),
        group(rollout(0.5), rollout(None), draw=1),
    )
    assert (tmp_path / "groups.html").exists()
    for shown in ("shell", "some-model", "hermes-rl 1.2", "0.5", "sandbox/start", "equal scores", "900 prompt"):
        assert shown in page.text
    assert "bwrap is missing" in page.text


def test_a_rollout_is_shown_with_its_conversation(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "wc -l\\nf"}'}}
    page = page_of(
        tmp_path,
        group(
            rollout(
                0.25,
                {"role": "assistant", "content": "", "reasoning_content": "I count.", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": '{"output": "3 f\\n", "error": null}'},
                {"role": "assistant", "content": "There are 3."},
                components={"tests": 0.125},
                turn_scores=(0.0625, 0.75),
                tool_uses=(ToolUse(1, "c1", "terminal", "{}", "3 f"),),
                timings=(Timing(Span.MODEL, "chat_completion", 0.0, 0.5), Timing(Span.TOOL, "terminal", 0.5, 0.5)),
                seconds=1.0,
                metadata={"prompt_length": 2, "earlier_failures": ["endpoint/timeout"]},
            )
        ),
    )
    shown = (
        "Count the lines.",
        "I count.",
        "terminal",
        "wc -l\nf",
        "3 f\n",
        "There are 3.",
        "tests 0.125",
        "turn 0.0625",
    )
    for text in (*shown, "turn 0.75", "natural", "tried again after endpoint/timeout", "1 turn, 1 call"):
        assert text in page.text
    assert ("i", "style", "left:50.00%;width:50.00%") in page.attributes


def test_the_prompt_of_a_group_is_shown_once(tmp_path: Path) -> None:
    page = page_of(tmp_path, group(rollout(), rollout(0.0), rollout(0.5)))
    assert page.text.count("You work in a shell.") == 1


def test_nothing_that_was_written_by_others_becomes_markup(tmp_path: Path) -> None:
    call = {"id": HOSTILE, "function": {"name": HOSTILE, "arguments": HOSTILE}}
    said = {"role": "assistant", "content": HOSTILE, "reasoning_content": HOSTILE, "tool_calls": [call]}
    odd = {"role": HOSTILE, "content": [{"type": "text", "text": HOSTILE}, {"type": "image_url", "image_url": HOSTILE}]}
    hostile = rollout(
        1.0, said, odd, {"role": "tool", "content": f'{{"{"x" * 3}<script>": "<script>"}}'},
        components={HOSTILE: 1.0}, withheld=HOSTILE, timings=(Timing(Span.TOOL, HOSTILE, 0.0, 1.0),),
        metadata={"prompt_length": 2, "earlier_failures": [HOSTILE]},
    )  # fmt: skip
    broken = replace(rollout(None), failure=Failure(Whose.TOOL, HOSTILE, HOSTILE))
    source = replace(PROVENANCE, environment=HOSTILE, model=HOSTILE, versions={"hermes-rl": HOSTILE})
    page = page_of(
        tmp_path,
        replace(
            group(hostile, broken, withheld=HOSTILE, provenance=source, created_at=HOSTILE),
            item=HOSTILE,
            item_id=HOSTILE,
        ),
    )
    assert not {"script", "img"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert page.open == []
    assert HOSTILE in page.text


def test_a_page_has_no_script_and_no_address_of_another_place(tmp_path: Path) -> None:
    page = page_of(tmp_path, group(rollout()))
    assert {value[0] for _, name, value in page.attributes if name in {"href", "src"}} == {"#"}
    assert "url(" not in page.source and "@import" not in page.source
    [policy] = [value for tag, name, value in page.attributes if tag == "meta" and value.startswith("default-src")]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


@pytest.mark.parametrize(
    "odd", ["a\x00b\x1b[31mred\x07", "half a pair \ud83d", "\u202eright to left", "\r\n\x85\u2028"]
)
def test_odd_characters_do_not_spoil_a_page(tmp_path: Path, odd: str) -> None:
    page = page_of(tmp_path, group(rollout(1.0, {"role": "assistant", "content": odd})))
    assert "\x00" not in page.source and "\x1b" not in page.source
    assert page.open == []


def test_groups_beyond_the_limit_are_counted_and_not_shown(tmp_path: Path) -> None:
    groups = [group(rollout(float(number % 2)), draw=number) for number in range(5)]
    page = page_of(tmp_path, *groups, shown=2)
    assert page.tags["section"] - page_of(tmp_path / "one", groups[0], groups[1]).tags["section"] == 0
    assert "2 groups of the file are shown and 3 are left out" in page.text
    assert "--groups 5" in page.text


def test_a_long_text_keeps_its_beginning_and_its_end_and_says_what_is_left_out(tmp_path: Path) -> None:
    text = "BEGIN" + "x" * 50_000 + "END"
    page = page_of(tmp_path, group(rollout(1.0, {"role": "assistant", "content": text})))
    assert "BEGINx" in page.text and "xEND" in page.text
    assert f"{len(text) - TEXT_SHOWN:,} characters left out" in page.text
    assert len(page.source) < 40_000


def test_messages_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    said = [{"role": "assistant", "content": f"message {number}."} for number in range(MESSAGES_SHOWN + 30)]
    page = page_of(tmp_path, group(rollout(1.0, *said)))
    assert "30 more messages are left out" in page.text
    assert f"message {MESSAGES_SHOWN}." not in page.text


def test_conversations_end_where_a_page_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_rl.environment.report.page.PAGE_BYTES", 20_000)
    long = rollout(1.0, {"role": "assistant", "content": "x" * 5_000})
    page = page_of(tmp_path, *[group(long, draw=number) for number in range(10)])
    assert "more groups of the table are left out" in page.text
    assert len(page.source) < 40_000


def test_a_file_without_groups_makes_a_page_that_says_so(tmp_path: Path) -> None:
    assert "no groups" in page_of(tmp_path).text


@pytest.mark.parametrize("scores", [(-5.0, 3.0), (1e150, -1e150), (0.0, 0.0), (1e-300, 12345678.9)])
def test_scores_of_any_size_have_a_place(tmp_path: Path, scores: tuple[float, float]) -> None:
    page = page_of(tmp_path, group(*map(rollout, scores)))
    heights = [
        float(value.split(":")[1].rstrip("%")) for tag, name, value in page.attributes if (tag, name) == ("b", "style")
    ]
    assert heights and all(0 <= height <= 100 for height in heights)


def test_with_a_tally_of_the_run_only_the_groups_that_are_shown_are_read(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    page_of(tmp_path, group(rollout()))
    path.write_bytes(path.read_bytes() + b"not a group\n")
    tally = Tally(budget=Budget(prices=Prices(1, 1)), limit="token_limit: 9 of 9 tokens")
    tally.groups = 7
    tally.add_rollouts([rollout(0.25, usage=Usage(1_500_000, 500_000))])
    page = Page(write_report(path, shown=1, tally=tally).path)
    for shown in ("0.25", "2.0000", "Ended early by token_limit", "6 are left out"):
        assert shown in page.text


def test_a_page_that_cannot_be_made_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    page_of(tmp_path, group(rollout()))
    before = (tmp_path / "groups.html").read_bytes()
    with (tmp_path / "groups.jsonl").open("ab") as file:
        file.write(b"not a group\n")
    with pytest.raises(ConfigError, match="line 2 holds no group"):
        write_report(tmp_path / "groups.jsonl")
    assert (tmp_path / "groups.html").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["groups.html", "groups.jsonl"]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    line = record_of(group(rollout(1.0, {"role": "assistant", "content": "x" * 100_000})))
    with RecordWriter(path) as writer:
        for _ in range(150):
            writer.write(line)
    tracemalloc.start()
    write_report(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 30_000_000
    assert peak < 5_000_000
