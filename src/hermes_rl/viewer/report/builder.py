"""Builds a report: the overviews of its sources, and as many of their groups as fit.

Always true: the page stays below its size limit; overviews cover the whole source, and the included groups are spread
evenly over it.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

from hermes_rl.core.errors import ConfigError
from hermes_rl.version import __version__
from hermes_rl.viewer.catalog import NotFoundError
from hermes_rl.viewer.record_reader import SourceChangedError
from hermes_rl.viewer.report.page import ReportPage, json_member, open_page
from hermes_rl.viewer.report.selection import SelectedGroups, add_groups, add_tokens
from hermes_rl.viewer.service import ViewerService
from hermes_rl.viewer.sources.source import RecordSource, RunAccess, SourceKind

DEFAULT_GROUPS = 100
# Most mail servers accept this size, and a browser loads it in a second.
PAGE_BYTES = 16_000_000
# Tokens would take most of a page and are read least: they are added only up to this size.
WITH_TOKENS_BYTES = 8_000_000
# Reserved for the list of sources and the note, which come last.
FOOTER_BYTES = 50_000
MAX_SOURCES = 20
MAX_COMPARED = 4
TITLE_NAMES = 3


class ReportContents(NamedTuple):
    """What a report includes, and the totals of its sources."""

    path: Path
    bytes: int
    groups: int
    groups_held: int
    rollouts: int
    rollouts_held: int


ProgressCallback = Callable[[str, int, int], object]


def write_report(
    targets: Sequence[str],
    runs: RunAccess,
    path: Path,
    *,
    groups: int = DEFAULT_GROUPS,
    on_step: ProgressCallback = lambda *_: None,
    private: bool = False,
) -> ReportContents:
    """Write the report of the targets, given as for `hermes-rl view`; ConfigError when there is nothing.

    A `private` page can be read by its owner only.
    """
    service = ViewerService(targets, runs)
    try:
        sources = service.complete(lambda done, of: on_step("reading", done, of))
        if len(sources) > MAX_SOURCES:
            raise ConfigError(f"{len(sources)} sources are too many for one report; the limit is {MAX_SOURCES}")
        with open_page(path, " · ".join(source.name for source in sources[:TITLE_NAMES]), private=private) as page:
            made = _fill(page, service, sources, groups, on_step)
        return made._replace(path=path, bytes=path.stat().st_size)
    except (SourceChangedError, NotFoundError, sqlite3.Error) as error:
        raise ConfigError(f"a source changed while the report was written ({error}); try again") from error
    finally:
        service.close()


def _fill(
    page: ReportPage, service: ViewerService, sources: Sequence[RecordSource], groups: int, on_step: ProgressCallback
) -> ReportContents:
    overviews = {source.id: _without_progress(service.overviews.source(source.id)) for source in sources}
    for source in sources:
        page.add(*_overview(service, source, overviews[source.id]))
    evaluations = [source.id for source in sources if source.kind is SourceKind.EVALUATION][:MAX_COMPARED]
    for first, second in permutations(evaluations, 2):
        both = service.overviews.compare(first, second)
        both |= {side: _without_progress(both[side]) for side in ("a", "b")}
        page.add(json_member(f"/api/compare?a={first}&b={second}", both))
    room = PAGE_BYTES - FOOTER_BYTES
    if page.size > room:
        raise ConfigError("the overviews alone exceed the size of a report; pass fewer sources")
    held: dict[str, SelectedGroups] = {}
    for done, source in enumerate(sources):
        share = page.size + (room - page.size) // (len(sources) - done)
        held[source.id] = add_groups(
            page, service, source.id, groups, share, lambda done, of: on_step("groups", done, of)
        )
        page.add(json_member(f"/api/s/{source.id}/groups", {"rows": held[source.id].group_rows}))
        page.add(json_member(f"/api/s/{source.id}/rollouts", {"rows": held[source.id].rollout_rows}))
    for name, selected in held.items():
        add_tokens(page, service, name, selected, min(WITH_TOKENS_BYTES, room))
    contents = _contents(overviews, held)
    runs = sum(source.kind is SourceKind.RUN for source in sources)
    listed = [_without_progress(source) for source in service.overviews.home()["sources"] if source["id"] in overviews]
    page.add(
        json_member("/api/home", {"version": __version__, "sources": listed}),
        json_member(
            "report", {"note": _note(contents), "start": _start(sources), "compare": len(evaluations) > 1, "runs": runs}
        ),
    )
    return contents


def _overview(service: ViewerService, source: RecordSource, overview: dict[str, Any]) -> Iterator[bytes]:
    base = f"/api/s/{source.id}"
    yield json_member(base, overview)
    if source.kind is SourceKind.RUN:
        yield json_member(f"{base}/curve", service.overviews.curve(source.id))
        yield json_member(f"{base}/live", service.overviews.live(source.id))
    if source.kind is SourceKind.EVALUATION:
        yield json_member(f"{base}/metrics", service.overviews.metrics(source.id))


def _without_progress(source: dict[str, Any]) -> dict[str, Any]:
    """A source may have grown since; the report shows it as it was."""
    return source | {"indexing": None}


def _start(sources: Sequence[RecordSource]) -> str:
    """The start page: the run, else the only source, else the list of sources."""
    runs = [source for source in sources if source.kind is SourceKind.RUN]
    [first, *others] = runs if len(runs) == 1 else sources
    return "/" if others else f"/s/{first.id}"


def _contents(overviews: dict[str, dict[str, Any]], held: dict[str, SelectedGroups]) -> ReportContents:
    return ReportContents(
        path=Path(),
        bytes=0,
        groups=sum(overview["counts"]["groups"] for overview in overviews.values()),
        groups_held=sum(len(selected.groups) for selected in held.values()),
        rollouts=sum(overview["counts"]["rollouts"] for overview in overviews.values()),
        rollouts_held=sum(len(selected.rollout_rows) for selected in held.values()),
    )


def _note(made: ReportContents) -> str:
    now = datetime.now(UTC)
    if (made.groups_held, made.rollouts_held) == (made.groups, made.rollouts):
        part = f"complete, {_plural(made.groups, 'group')} with {_plural(made.rollouts, 'rollout')}"
    else:
        part = (
            f"{made.groups_held:,} of {_plural(made.groups, 'group')}, evenly spread, with {made.rollouts_held:,} of "
            f"{_plural(made.rollouts, 'rollout')}; overviews cover everything"
        )
    return f"Report of {now.day} {now:%B %Y}, {now:%H:%M} UTC: {part}. Long texts are truncated."


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
