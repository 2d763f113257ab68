#!/usr/bin/env python3
"""Writes docs/red-team.md from outcomes of tests/redteam: from reports of pytest that are named, else from a new run.

scripts/redteam_table.py                    runs all of it (needs root, the real parts and a quarter of an hour)
scripts/redteam_table.py REPORT.xml …       from runs with --junitxml=REPORT.xml -o junit_family=xunit1, also of parts
"""

import argparse
import datetime as dt
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[1]
PAGE = CHECKOUT / "docs" / "red-team.md"
sys.path.insert(0, str(CHECKOUT))

from tests.redteam.attacks import ATTACKS, Attack  # noqa: E402

_BEGIN, _END = "<!-- begin of what scripts/redteam_table.py writes -->", "<!-- end -->"
# The one in which a test may tell more than whether it passed.
_FAMILY = ("-o", "junit_family=xunit1")
_ORDER = ("bubblewrap", "docker", "podman", "runsc", "singularity")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="*", type=Path, metavar="REPORT.xml")
    given = parser.parse_args().reports
    with tempfile.TemporaryDirectory() as directory:
        reports = given or [_run(Path(directory) / "report.xml")]
        undefended, contained = _read(reports)
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    told = _told(undefended, contained)
    PAGE.write_text(f"{before}{_BEGIN}\n\n{told}\n{_END}{after}")
    print(f"wrote {PAGE}: {len(undefended)} attacks, {len(contained)} outcomes")


def _run(report: Path) -> Path:
    command = [sys.executable, "-m", "pytest", "tests/redteam/test_attacks.py", f"--junitxml={report}", *_FAMILY]
    subprocess.run(command, cwd=CHECKOUT, check=False)
    return report


def _read(reports: Iterable[Path]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Where each attack succeeded, and what became of it in each sandbox; only of tests that passed."""
    undefended: dict[str, str] = {}
    contained: dict[tuple[str, ...], dict[str, Any]] = {}
    for report in reports:
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 - our own report
            if case.find("failure") is not None or case.find("error") is not None:
                print(f"left out, as it failed: {case.get('name')}", file=sys.stderr)
                continue
            for one in case.iter("property"):
                value = json.loads(one.get("value", "null"))
                if one.get("name") == "undefended":
                    undefended[value["attack"]] = value["where"].split("\n")[0].rstrip(".")
                elif one.get("name") == "contained":
                    contained[value["attack"], value["backend"], value["user"], str(value["owner"])] = value
    return undefended, list(contained.values())


def _told(undefended: dict[str, str], contained: list[dict[str, Any]]) -> str:
    by_attack: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in contained:
        by_attack[one["attack"]].append(one)
    backends = [name for name in _ORDER if any(one["backend"] == name for one in contained)]
    today = dt.datetime.now(dt.UTC).date()
    lines = [f"Run of {today}: {len(undefended)} attacks, {len(contained)} rollouts.", "", *_set_ups(contained), ""]
    lines += _table(
        ["attack", *backends, "plain shared verification", "ctx.verify"],
        [_row(attack, by_attack[attack.name], backends) for attack in ATTACKS if attack.name in by_attack],
    )
    lines += ["", "## The attacks, and where they succeed", ""]
    lines += _table(
        ["attack", "what it does", "it succeeds when", "undefended set-up"],
        [
            [attack.name, attack.what, attack.harm.value, undefended[attack.name]]
            for attack in ATTACKS
            if attack.name in undefended
        ],
    )
    return "\n".join(lines) + "\n"


def _set_ups(contained: list[dict[str, Any]]) -> list[str]:
    counted: dict[str, set[str]] = defaultdict(set)
    for one in contained:
        owner = "root" if one["owner"] == 0 else "an ordinary user"
        counted[one["backend"]].add(f"policy as {one['user']}, sandboxes owned by {owner}")
    return [f"- `{name}`: {'; '.join(sorted(counted[name]))}" for name in _ORDER if name in counted]


def _row(attack: Attack, outcomes: list[dict[str, Any]], backends: list[str]) -> list[str]:
    cells = [attack.name]
    for backend in backends:
        here = [one for one in outcomes if one["backend"] == backend]
        cells.append(_contained(here))
    shared = {str(one["shared"]) for one in outcomes}
    verified = {one["score"] for one in outcomes if not one["died"]}
    cells.append("**forged**" if "1.0" in shared else "no score" if "None" in shared else "0")
    scores = sorted(f"{score:g}" for score in verified)
    cells.append(
        ", ".join([*scores, *(["no score where its sandbox died"] if any(one["died"] for one in outcomes) else [])])
    )
    return cells


def _contained(outcomes: list[dict[str, Any]]) -> str:
    if not outcomes:
        return "–"
    if any(one["unheld"] for one in outcomes):
        return "**not held** for an ordinary user, else contained"
    notes = sorted({f"what it gains is {one['worthless']}" for one in outcomes if one["worthless"]})
    notes += sorted({f"its sandbox died, policy as {one['user']}" for one in outcomes if one["died"]})
    return f"contained ({'; '.join(notes)})" if notes else "contained"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [_line(head), _line(["---"] * len(head)), *map(_line, rows)]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    main()
