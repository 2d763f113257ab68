"""`hermes-rl doctor`: what is here, what is missing, and the line that mends it."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hermes_rl import jsontext
from hermes_rl.cli.progress import progress
from hermes_rl.runs.doctor.examination import CHECKS, examine
from hermes_rl.runs.doctor.finding import Finding, State, healthy
from hermes_rl.terminal.running import on_a_loop

if TYPE_CHECKING:
    from rich.table import Table

_LOOKS = {
    State.OK: "[green]ok[/green]",
    State.ABSENT: "[dim]absent[/dim]",
    State.WARN: "[yellow]warn[/yellow]",
    State.MISSING: "[red]MISSING[/red]",
}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def doctor(as_json: bool) -> int:
    """Look at all that a training run needs of this machine, and say the line that mends what is missing.

    It looks at Python, installed extras, keys (masked), sandboxes (really started), ports, disks, memory, the clock,
    the engine's environment, runs that were interrupted, and what dead processes left. It mends nothing by itself.

    `absent` is what you have not set up and only need for what the line names. The exit status is 1 when something is
    MISSING, which every run needs.
    """
    findings = on_a_loop(_examined())
    if as_json:
        told = {"healthy": healthy(findings), "findings": [asdict(finding) for finding in findings]}
        click.echo(jsontext.dumps(told).decode())
    else:
        _show(findings)
    return 0 if healthy(findings) else 1


async def _examined() -> list[Finding]:
    with progress("looking", len(CHECKS)) as shown:
        return await examine(tell=shown.show)


def _show(findings: list[Finding]) -> None:
    from rich.console import Console

    screen = Console(highlight=False)
    screen.print(_table(findings))
    wrong = sum(finding.state is State.MISSING for finding in findings)
    if wrong:
        screen.print(f"[red]{wrong} missing[/red]: type the lines above, then hermes-rl doctor again")
    else:
        screen.print("[green]Nothing that every run needs is missing.[/green] Next: hermes-rl env list")


def _table(findings: list[Finding]) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("", "", "what was found, and what mends it"):
        table.add_column(column, overflow="fold")
    # The worst stand last, next to where one types.
    for finding in sorted(findings, key=lambda one: list(_LOOKS).index(one.state)):
        style = "dim" if finding.state is State.ABSENT else "bold"
        mend = f"\n[{style}]→ {escape(finding.mend)}[/{style}]" if finding.mend else ""
        table.add_row(_LOOKS[finding.state], escape(finding.check), escape(finding.what) + mend)
    return table
