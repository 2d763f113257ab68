"""`hermes-rl doctor` (Maintain): check that this machine has what a training run needs."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hermes_rl.cli.progress import progress
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.orchestration.doctor.finding import DoctorFinding, FindingState, healthy

if TYPE_CHECKING:
    from rich.table import Table

_STATE_STYLES = {
    FindingState.OK: ("ok", "green"),
    FindingState.ABSENT: ("absent", "dim"),
    FindingState.WARN: ("warn", "yellow"),
    FindingState.MISSING: ("MISSING", "red"),
}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def doctor(as_json: bool) -> int:
    """Check that this machine has what a training run needs, and print the command that fixes each problem.

    Checks Python, installed extras, keys (masked), sandboxes (by starting one), ports, disks, memory, the clock, the
    engine's environment, interrupted runs and leftovers of dead processes. Changes nothing.

    `absent` marks an optional part that is not set up; its line says what needs it. The exit code is 1 if something
    that every run needs is MISSING.
    """
    findings = run_async(_run_checks())
    if as_json:
        report = {"healthy": healthy(findings), "findings": [asdict(finding) for finding in findings]}
        echo(fast_json.dumps(report).decode())
    else:
        _show(findings)
    return 0 if healthy(findings) else 1


async def _run_checks() -> list[DoctorFinding]:
    from hermes_rl.orchestration.doctor.runner import CHECKS, run_checks

    with progress("checking", len(CHECKS)) as shown:
        return await run_checks(report=shown.show)


def _show(findings: list[DoctorFinding]) -> None:
    from hermes_rl.console.escaping_console import EscapingConsole, styled

    screen = EscapingConsole()
    screen.print(_table(findings))
    missing = sum(finding.state is FindingState.MISSING for finding in findings)
    if missing:
        screen.print(styled((f"{missing} missing", "red"), ": run the commands above, then hermes-rl doctor again"))
    else:
        screen.print(styled(("Everything that every run needs is present.", "green"), " Next: hermes-rl env list"))


def _table(findings: list[DoctorFinding]) -> "Table":
    from rich.table import Table

    from hermes_rl.console.escaping_console import styled

    table = Table(box=None, pad_edge=False)
    for column in ("", "", "finding, and how to fix it"):
        table.add_column(column, overflow="fold")
    # Worst last, next to the prompt.
    for finding in sorted(findings, key=lambda one: list(_STATE_STYLES).index(one.state)):
        style = "dim" if finding.state is FindingState.ABSENT else "bold"
        fix = (f"\n→ {finding.fix}" if finding.fix else "", style)
        table.add_row(styled(_STATE_STYLES[finding.state]), finding.check, styled(finding.what, fix))
    return table
