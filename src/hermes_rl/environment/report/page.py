"""A file of groups as one page of HTML, to be read without a server, a network or a script.

Everything that a model, a tool or an author wrote is escaped, and the page forbids itself every script and every other
address. It is written a piece at a time: memory holds one group and the figures, whatever the file's size.
"""

import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from hermes_rl.environment.metrics import Tally
from hermes_rl.environment.report.conversations import (
    SHADES,
    Scale,
    group_label,
    group_place,
    group_section,
    score_bars,
    tokens_of,
)
from hermes_rl.environment.report.text import encoded, escaped, figure, moment, one_line, quantity, spaced
from hermes_rl.store import read_groups
from hermes_rl.trajectory import Group

GROUPS_SHOWN = 100
# A browser reads a page of this size in a second or two; the groups after it are in the table alone.
PAGE_BYTES = 24_000_000
BINS = 20
STYLE = Path(__file__).with_name("page.css")
OPENING = """<!doctype html>
<html lang=en>
<meta charset=utf-8>
<meta http-equiv=Content-Security-Policy content="default-src 'none'; style-src 'unsafe-inline'">
<meta name=viewport content="width=device-width, initial-scale=1">
<meta name=color-scheme content="light dark">
<title>{title}</title>
<style>
{style}</style>
"""
CLOSING = "</main></html>\n"


class Report(NamedTuple):
    """What a page holds: groups of the file, rows in its table, groups with their conversations."""

    path: Path
    groups: int
    rows: int
    conversations: int


@dataclass(slots=True)
class _Row:
    """One line of the table of groups."""

    place: int
    item: str
    scores: list[float | None]
    causes: list[str]
    withheld: str | None
    tokens: int
    seconds: float


@dataclass(slots=True)
class _Figures:
    """What the first reading of a file gives."""

    tally: Tally
    groups: int = 0
    environments: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    first: str = ""
    last: str = ""
    rows: list[_Row] = field(default_factory=list)


def write_report(
    groups: Path,
    page: Path | None = None,
    *,
    shown: int = GROUPS_SHOWN,
    tally: Tally | None = None,
    on_group: Callable[[], object] = lambda: None,
) -> Report:
    """Write the page of a file, beside it unless told where. A `tally` of the whole file spares reading it all."""
    page = page or groups.with_suffix(".html")
    figures = _figures(groups, shown, tally, on_group)
    draft = page.with_name(f".{page.name}.{os.getpid()}")
    page.parent.mkdir(parents=True, exist_ok=True)
    try:
        with draft.open("wb") as out:
            size, conversations = 0, 0
            for piece in _head(groups, figures):
                size += out.write(encoded(piece))
            scale = Scale.of(figures.tally.scores)
            for number, group in enumerate(islice(read_groups(groups), shown)):
                if size > PAGE_BYTES:
                    break
                for piece in group_section(group, number, scale):
                    size += out.write(encoded(piece))
                conversations += 1
            for piece in _foot(figures, conversations):
                out.write(encoded(piece))
        draft.replace(page)
    finally:
        draft.unlink(missing_ok=True)
    return Report(page, figures.groups, len(figures.rows), conversations)


def _figures(path: Path, shown: int, tally: Tally | None, on_group: Callable[[], object]) -> _Figures:
    figures = _Figures(tally or Tally())
    for group in islice(read_groups(path), None if tally is None else shown):
        source = group.provenance
        figures.groups += 1
        figures.environments[source.environment] += 1
        figures.models[source.model] += 1
        figures.versions[source.versions.get("hermes-rl", "")] += 1
        figures.first = min(figures.first or group.created_at, group.created_at)
        figures.last = max(figures.last, group.created_at)
        if tally is None:
            figures.tally.add(group)
        if len(figures.rows) < shown:
            figures.rows.append(_row(group, len(figures.rows)))
        on_group()
    if figures.tally.groups > figures.groups:
        # The rest was not read, so nothing is known of its times.
        figures.groups, figures.first = figures.tally.groups, ""
    return figures


def _row(group: Group, number: int) -> _Row:
    return _Row(
        place=group_place(group, number),
        item=group_label(group),
        scores=[rollout.score for rollout in group.rollouts],
        causes=[str(rollout.failure) for rollout in group.rollouts if rollout.failure],
        withheld=group.withheld,
        tokens=sum(map(tokens_of, group.rollouts)),
        seconds=max((rollout.seconds for rollout in group.rollouts), default=0.0),
    )


def _head(path: Path, figures: _Figures) -> Iterator[str]:
    tally = figures.tally
    name = ", ".join(figures.environments) or path.stem
    yield OPENING.format(title=escaped(f"{name} · {path.name}"), style=STYLE.read_text())
    yield f"<header><h1>{escaped(name)}</h1><p class=sub>{' · '.join(_about(path, figures))}</p></header><main>"
    if not figures.groups:
        yield "<p class=note>There are no groups in this file yet.</p>"
        return
    yield "<dl class=figures>"
    for label, value, detail in _cards(figures):
        yield f"<div><dt>{label}</dt><dd>{value}</dd><dd class=detail>{detail}</dd></div>"
    yield "</dl>"
    if tally.limit:
        yield f"<p class=note>Ended early by {escaped(tally.limit)}.</p>"
    yield "<div class=columns>"
    yield from _breakdowns(tally)
    yield "</div>"
    yield from _table(figures)


def _about(path: Path, figures: _Figures) -> Iterator[str]:
    yield f"<b>{escaped(', '.join(filter(None, figures.models)) or 'no model')}</b>"
    yield escaped(path.name)
    if figures.first:
        first, last = moment(figures.first), moment(figures.last)
        yield f"{first} UTC" if first == last else f"{first} – {last} UTC"
    if version := ", ".join(filter(None, figures.versions)):
        yield f"hermes-rl {escaped(version)}"


def _cards(figures: _Figures) -> Iterator[tuple[str, str, str]]:
    tally, budget = figures.tally, figures.tally.budget
    failed = sum(tally.failures.values())
    error = f"± {tally.standard_error:.3f}" if tally.standard_error is not None else ""
    yield "mean score", figure(tally.mean), error and f"{error} standard error"
    yield "groups", f"{figures.groups:,}", _withheld_note(tally)
    yield "rollouts", f"{tally.rollouts:,}", f"{len(tally.scores):,} scored"
    share = f"{failed / tally.rollouts:.1%} of the rollouts" if failed else "every rollout was scored"
    yield "failures", f"<span class=bad>{failed:,}</span>" if failed else "0", share
    yield "tool calls", f"{tally.tool_calls:,}", f"{tally.tool_errors:,} with an error"
    kinds = f"{budget.prompt_tokens:,} prompt, {budget.completion_tokens:,} completion"
    yield "tokens", quantity(budget.tokens), kinds if budget.tokens else "not counted by the endpoint"
    if budget.spent is not None:
        yield "spent", f"{budget.spent:,.4f}", "by the endpoint's prices"


def _withheld_note(tally: Tally) -> str:
    withheld = sum(tally.withheld_groups.values())
    return f"{withheld:,} withheld from training" if withheld else "none withheld from training"


def _breakdowns(tally: Tally) -> Iterator[str]:
    if tally.scores:
        yield f"<section><h2>Scores</h2>{_histogram(tally.scores)}</section>"
    means = {name: statistics.fmean(values) for name, values in tally.components.items()}
    if means:
        rows = "".join(f"<tr><td>{escaped(name)}<td class=n>{figure(mean)}" for name, mean in means.items())
        yield f"<section><h2>Parts of the score, mean</h2><table class=counts>{rows}</table></section>"
    yield from _counted("Why rollouts stopped", tally.stop_reasons, tally.rollouts)
    yield from _counted("Not scored, by cause", tally.failures, tally.rollouts, tally.examples, "bad")
    yield from _counted("Groups withheld", tally.withheld_groups, tally.groups)
    yield from _counted("Rollouts withheld", tally.withheld_rollouts, tally.rollouts)
    yield from _counted("Tried again, by cause", tally.retried, tally.rollouts, {})


def _counted(
    title: str, counts: Counter[str], total: int, examples: Mapping[str, str] | None = None, kind: str = ""
) -> Iterator[str]:
    if not counts:
        return
    yield f"<section><h2>{title}</h2><table class='counts {kind}'>"
    for name, count in counts.most_common():
        width = 100 * count / max(total, 1)
        label = escaped(spaced(name) if examples is None else name)
        yield f"<tr><td>{label}<td class=n>{count:,}<td class=share><i style='width:{width:.1f}%'></i>"
        if example := (examples or {}).get(name):
            yield f"<tr class=example><td colspan=3>{escaped(one_line(example, 200))}"
    yield "</table></section>"


def _histogram(scores: Sequence[float]) -> str:
    scale = Scale.of(scores)
    bins = Counter(min(int(scale.share(score) * BINS), BINS - 1) for score in scores)
    most = max(bins.values())
    bars = "".join(
        f"<rect class=s{place * SHADES // BINS} x={place * 10 + 1} width=8 y={60 - height:.1f} height={height:.1f}>"
        f"<title>{count:,} rollouts</title></rect>"
        for place, count in sorted(bins.items())
        for height in [max(60 * count / most, 1)]
    )
    label = f"Distribution of {len(scores):,} scores from {figure(scale.least)} to {figure(scale.most)}"
    return (
        f"<svg class=histogram viewBox='0 0 {BINS * 10} 61' preserveAspectRatio=none role=img aria-label='{label}'>"
        f"<line x1=0 x2={BINS * 10} y1=60.5 y2=60.5 />{bars}</svg>"
        f"<p class=axis><span>{figure(scale.least)}</span><span>{figure(scale.most)}</span></p>"
    )


def _table(figures: _Figures) -> Iterator[str]:
    scale = Scale.of(figures.tally.scores)
    yield (
        "<section><h2>Groups</h2><div class=wide><table class=groups><thead><tr><th class=n>draw<th>item<th>scores"
        "<th class=n>mean<th class=n>tokens<th class=n>time<th>withheld</thead><tbody>"
    )
    for number, row in enumerate(figures.rows):
        scores = [score for score in row.scores if score is not None]
        causes = escaped(", ".join(sorted(set(row.causes))))
        withheld = f"<span class=chip>{escaped(spaced(row.withheld))}</span>" if row.withheld else ""
        yield (
            f"<tr><td class=n><a href='#group-{number}'>{row.place}</a><td class=what>"
            f"<a href='#group-{number}'>{escaped(row.item)}</a><td title='{causes}'>{score_bars(row.scores, scale)}"
            f"<td class=n>{f'{statistics.fmean(scores):.3f}' if scores else '–'}"
            f"<td class=n>{quantity(row.tokens) if row.tokens else ''}<td class=n>{row.seconds:.1f} s<td>{withheld}"
        )
    yield "</tbody></table></div>"
    if figures.groups > len(figures.rows):
        left = figures.groups - len(figures.rows)
        yield (
            f"<p class=note>The first {len(figures.rows):,} groups of the file are shown and {left:,} are left out; "
            f"<code>hermes-rl report FILE --groups {figures.groups}</code> shows all. The figures above are of all.</p>"
        )
    yield (
        "</section><h2>Rollouts</h2><p class='note legend'>Time of a rollout: <i class=model></i>model "
        "<i class=tool></i>tool <i class=sandbox></i>sandbox <i class=verifier></i>verifier</p>"
    )


def _foot(figures: _Figures, conversations: int) -> Iterator[str]:
    if left := len(figures.rows) - conversations:
        yield (
            f"<p class=note>The conversations of {left:,} more groups of the table are left out: the page has reached "
            f"{PAGE_BYTES // 1_000_000} MB.</p>"
        )
    yield CLOSING
