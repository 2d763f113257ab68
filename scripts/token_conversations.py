#!/usr/bin/env python3
"""Random conversations by the hundred thousand: is every sampled token recorded once, exactly, in each of them?

scripts/token_conversations.py                            100,000 conversations, on all cores
scripts/token_conversations.py --cases 1000 --first 5000  some others; conversation 5000 is the same each time

The conversations and the oracle are those of tests/support: every family of chat models, with its template and
with its renderer. The last line printed is one JSON object; exit status 1 when anything is not exact, or
when fewer than 30% of the conversations have a history that does not extend.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.support.conversation_oracle import extends, findings
from tests.support.conversations import SETTINGS, Setting, play

LEAST_NOT_EXTENDING = 0.3
CHUNK = 250
SHOWN = 10
# Renderers take two to three times as long as templates.
DRAWN_FROM = [setting for setting in SETTINGS for _ in range(3 if setting.writer == "template" else 1)]


@dataclass
class Tally:
    cases: Counter[str] = field(default_factory=Counter)
    not_extending: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)

    def __iadd__(self, other: "Tally") -> Self:
        self.cases += other.cases
        self.not_extending += other.not_extending
        self.counts += other.counts
        self.wrong += other.wrong
        return self

    def add(self, case: int) -> None:
        setting = setting_of(case)
        self.cases[str(setting)] += 1
        try:
            played = play(Random(case), setting)
            found = findings(played)
        except Exception as error:
            raise RuntimeError(f"conversation {case}, {setting}, cannot be had or judged") from error
        self.not_extending[str(setting)] += not extends(played)
        self.counts["requests"] += len(played.exchanges)
        self.counts["requests_that_cannot_be_written"] += played.refused
        self.counts["sequences"] += len(played.recorder.sequences())
        completions = [sampled for one in played.exchanges for sampled in one.completions]
        self.counts["completions"] += len(completions)
        self.counts["sampled_tokens"] += sum(len(sampled.tokens) for sampled in completions)
        if found:
            self.wrong.append({"case": case, "setting": str(setting), "found": found[:3]})


def setting_of(case: int) -> Setting:
    return DRAWN_FROM[case % len(DRAWN_FROM)]


def tallied(cases: range) -> Tally:
    tally = Tally()
    for case in cases:
        tally.add(case)
    return tally


def run(cases: range, processes: int) -> Tally:
    chunks = [cases[begin : begin + CHUNK] for begin in range(0, len(cases), CHUNK)]
    total = Tally()
    columns = [TextColumn("conversations"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[wrong]} wrong")]
    times = [TimeElapsedColumn(), TimeRemainingColumn()]
    with (
        Progress(*columns, *times, console=Console(stderr=True)) as bar,
        multiprocessing.get_context("spawn").Pool(processes) as pool,
    ):
        task = bar.add_task("", total=len(cases), wrong=0)
        for tally in pool.imap_unordered(tallied, chunks):
            total += tally
            bar.update(task, advance=tally.cases.total(), wrong=len(total.wrong))
    return total


def report(total: Tally, seconds: float) -> dict[str, Any]:
    cases = total.cases.total()
    return {
        "cases": cases,
        "wrong": len(total.wrong),
        "not_extending": round(total.not_extending.total() / cases, 4),
        "by_setting": {
            name: {"cases": total.cases[name], "not_extending": round(total.not_extending[name] / total.cases[name], 4)}
            for name in sorted(total.cases)
        },
        **total.counts,
        "seconds": round(seconds, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    total = run(range(options.first, options.first + options.cases), options.processes)
    for wrong in sorted(total.wrong, key=lambda one: int(one["case"]))[:SHOWN]:
        print(f"conversation {wrong['case']}, {wrong['setting']}:", *wrong["found"], sep="\n    ", file=sys.stderr)
    figures = report(total, time.monotonic() - began)
    print(json.dumps(figures))
    return 0 if not total.wrong and figures["not_extending"] >= LEAST_NOT_EXTENDING else 1


if __name__ == "__main__":
    sys.exit(main())
