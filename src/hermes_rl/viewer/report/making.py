"""A report: the overviews of its sources, and as many of their groups as there is room for.

Always true: the page stays below its size, whatever the sources hold; what it says of a whole source was counted over
all of it, and what it holds of groups is spread evenly over the source.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

from hermes_rl.errors import ConfigError
from hermes_rl.version import __version__
from hermes_rl.viewer.catalog import NotThereError
from hermes_rl.viewer.desk import Desk
from hermes_rl.viewer.reading import ChangedError
from hermes_rl.viewer.report.holding import Held, hold_groups, hold_tokens
from hermes_rl.viewer.report.page import Page, answer, writing
from hermes_rl.viewer.sources.source import Kind, Runs, Source

GROUPS = 100
# What most mail servers take, and a browser reads in a second.
PAGE_BYTES = 16_000_000
# Tokens would take most of a page, and are what is read least: they get what is left below this.
WITH_TOKENS_BYTES = 8_000_000
# For the list of sources and the note, which come last.
LAST_BYTES = 50_000
SOURCES = 20
COMPARED = 4
NAMED = 3


class Report(NamedTuple):
    """What a page holds, and of how much."""

    path: Path
    bytes: int
    groups: int
    groups_held: int
    rollouts: int
    rollouts_held: int


Step = Callable[[str, int, int], object]


def write_report(
    targets: Sequence[str], runs: Runs, path: Path, *, groups: int = GROUPS, on_step: Step = lambda *_: None
) -> Report:
    """Write the page of what the targets name, as `hermes-rl view` takes them; ConfigError when there is nothing."""
    desk = Desk(targets, runs)
    try:
        sources = desk.complete(lambda done, of: on_step("reading", done, of))
        if len(sources) > SOURCES:
            raise ConfigError(f"{len(sources)} sources are too many for one page; name at most {SOURCES}")
        with writing(path, " · ".join(source.name for source in sources[:NAMED])) as page:
            made = _fill(page, desk, sources, groups, on_step)
        return made._replace(path=path, bytes=path.stat().st_size)
    except (ChangedError, NotThereError, sqlite3.Error) as error:
        raise ConfigError(f"what was to be reported has changed meanwhile ({error}); try again") from error
    finally:
        desk.close()


def _fill(page: Page, desk: Desk, sources: Sequence[Source], groups: int, on_step: Step) -> Report:
    told = {source.id: _read(desk.overviews.source(source.id)) for source in sources}
    for source in sources:
        page.add(*_overview(desk, source, told[source.id]))
    evaluations = [source.id for source in sources if source.kind is Kind.EVALUATION][:COMPARED]
    for first, second in permutations(evaluations, 2):
        both = desk.overviews.compare(first, second)
        both |= {side: _read(both[side]) for side in ("a", "b")}
        page.add(answer(f"/api/compare?a={first}&b={second}", both))
    room = PAGE_BYTES - LAST_BYTES
    if page.size > room:
        raise ConfigError("the overviews alone are too much for one page; name fewer sources")
    held: dict[str, Held] = {}
    for place, source in enumerate(sources):
        share = page.size + (room - page.size) // (len(sources) - place)
        held[source.id] = hold_groups(
            page, desk, source.id, groups, share, lambda done, of: on_step("groups", done, of)
        )
        page.add(answer(f"/api/s/{source.id}/groups", {"rows": held[source.id].group_rows}))
        page.add(answer(f"/api/s/{source.id}/rollouts", {"rows": held[source.id].rollout_rows}))
    for name, one in held.items():
        hold_tokens(page, desk, name, one, min(WITH_TOKENS_BYTES, room))
    made = _counted(told, held)
    listed = [_read(source) for source in desk.overviews.home()["sources"] if source["id"] in told]
    page.add(
        answer("/api/home", {"version": __version__, "sources": listed}),
        answer("report", {"note": _note(made), "start": _start(sources), "compare": len(evaluations) > 1}),
    )
    return made


def _overview(desk: Desk, source: Source, told: dict[str, Any]) -> Iterator[bytes]:
    base = f"/api/s/{source.id}"
    yield answer(base, told)
    if source.kind is Kind.RUN:
        yield answer(f"{base}/curve", desk.overviews.curve(source.id))
        yield answer(f"{base}/live", desk.overviews.live(source.id))
    if source.kind is Kind.EVALUATION:
        yield answer(f"{base}/metrics", desk.overviews.metrics(source.id))


def _read(told: dict[str, Any]) -> dict[str, Any]:
    """A source that may have grown since, as it was when the report was made."""
    return told | {"indexing": None}


def _start(sources: Sequence[Source]) -> str:
    """Where a reader begins: with the run, else with the only source, else with their list."""
    runs = [source for source in sources if source.kind is Kind.RUN]
    [first, *others] = runs if len(runs) == 1 else sources
    return "/" if others else f"/s/{first.id}"


def _counted(told: dict[str, dict[str, Any]], held: dict[str, Held]) -> Report:
    return Report(
        path=Path(),
        bytes=0,
        groups=sum(one["counts"]["groups"] for one in told.values()),
        groups_held=sum(len(one.groups) for one in held.values()),
        rollouts=sum(one["counts"]["rollouts"] for one in told.values()),
        rollouts_held=sum(len(one.rollout_rows) for one in held.values()),
    )


def _note(made: Report) -> str:
    """What its reader has to know of a report."""
    now = datetime.now(UTC)
    if (made.groups_held, made.rollouts_held) == (made.groups, made.rollouts):
        part = f"all of it, {_many(made.groups, 'group')} with {_many(made.rollouts, 'rollout')}"
    else:
        part = (
            f"{made.groups_held:,} of {_many(made.groups, 'group')}, evenly spread, with {made.rollouts_held:,} of "
            f"{_many(made.rollouts, 'rollout')}; overviews are of all"
        )
    return f"Report of {now.day} {now:%B %Y}, {now:%H:%M} UTC: {part}. Long texts are cut."


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
