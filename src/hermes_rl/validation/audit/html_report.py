"""The report of an audit as one HTML file that needs no network and, except for its filter, no script."""

from collections.abc import Iterator, Mapping
from html import escape
from importlib import resources
from string import Template
from typing import Any

from hermes_rl.validation.audit.badge import badge
from hermes_rl.validation.audit.checks import BY_NAME, Outcome
from hermes_rl.validation.audit.report import AuditReport, Status

NAMES = {Status.SOUND: "sound", Status.DEFECT: "defects", Status.CANNOT: "not audited"}


def html_report(report: AuditReport) -> str:
    page = Template(resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    return page.substitute(
        title=escape(f"Reward audit of {report.dataset or report.environment}"),
        environment=escape(report.environment),
        dataset=escape(report.dataset or "its own"),
        version=escape(report.version),
        verdict=escape(report.verdict),
        status=report.status,
        badge=badge(report),
        seconds=f"{report.seconds:,.0f}",
        notes="".join(f"<p>{escape(note)}</p>" for note in report.notes),
        checks="".join(_checks(report)),
        tasks="".join(_task(record) for record in sorted(report.records, key=_worst_first)),
    )


def _worst_first(record: Mapping[str, Any]) -> int:
    return [Status.DEFECT, Status.CANNOT, Status.SOUND].index(record["status"])


def _checks(report: AuditReport) -> Iterator[str]:
    for name, counts in report.by_check().items():
        figures = "".join(
            f'<td class="n {outcome if counts[outcome] else ""}">{counts[outcome] or "–"}</td>' for outcome in Outcome
        )
        yield f"<tr><td><code>{name}</code></td><td>{escape(BY_NAME[name].proves)}</td>{figures}</tr>"


def _task(record: Mapping[str, Any]) -> str:
    failed = [one for one in record["checks"] if one["outcome"] in {Outcome.DEFECT, Outcome.WARNING}]
    found = "".join(
        f'<li class="{one["outcome"]}"><b>{one["check"]}</b>: {escape("; ".join(one["seen"]))}'
        f"<br><span>{escape(BY_NAME[one['check']].fix)}</span></li>"
        for one in failed
    )
    if record["why"]:
        found += f'<li class="cannot"><b>not audited</b>: {escape(record["why"])}</li>'
    agents = "".join(
        f"<tr><td>{escape(one['agent'])}</td><td>{escape(_scores(one['scores']) or one['failure'] or '')}</td>"
        f"<td>{escape(_scores(one['elsewhere']))}</td></tr>"
        for one in record["agents"]
    )
    table = (
        f"<table><tr><th>agent</th><th>scores</th><th>in other time zones and locales</th></tr>{agents}</table>"
        if agents
        else ""
    )
    proof = record["certificate"]
    names = ", ".join(one["check"] for one in failed) or ("–" if record["status"] != Status.CANNOT else "refused")
    return (
        f'<details class="task" data-text="{escape(record["task"] + " " + names)}" data-status="{record["status"]}">'
        f'<summary><span class="pill {record["status"]}">{NAMES[record["status"]]}</span>'
        f'<b>{escape(record["task"])}</b><span class="split">{escape(record["split"])}</span>'
        f'<span class="failed">{escape(names)}</span></summary>'
        f"<ul>{found}</ul>{table}"
        f'<p class="proof">Certificate <code>{proof["id"]}</code> · task sha256 <code>{proof["sha256"]}</code> · '
        f"{len(proof['passed'])} checks passed: {escape(', '.join(proof['passed']))} · hermes-rl "
        f"{escape(proof['hermes_rl'])}</p></details>"
    )


def _scores(scores: list[float]) -> str:
    return ", ".join(f"{score:g}" for score in scores)
