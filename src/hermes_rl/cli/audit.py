"""`hermes-rl audit ENVIRONMENT|FOLDER` (Look): check whether the reward of each task in a dataset can be trusted."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_rl.cli.environment_command import EnvironmentCommand
from hermes_rl.cli.progress import ProgressSteps, progress
from hermes_rl.console.live_display import console
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.core.private_files import write_private

if TYPE_CHECKING:
    from hermes_rl.environment.base import HermesAgentBaseEnv
    from hermes_rl.environment.resolve_config import Settings
    from hermes_rl.validation.audit.report import AuditReport

HELP = """Check whether the reward of each task in a dataset can be trusted.

On each task one agent does nothing, one plays the solution, the others cheat. Each verification is repeated, also with
another time zone and locale; the files of a Harbor task are read for tests that cannot fail, skip, leak or depend on
the machine. No model is needed. The exit code is 0 if all tasks are sound, 1 if any has a defect, 2 if tasks could not
be audited."""
MAX_SHOWN = 50


def audit_command(environment: "type[HermesAgentBaseEnv]") -> click.Command:
    from hermes_rl.cli.settings_command import ENVIRONMENT_FIRST, settings_command
    from hermes_rl.validation.audit.runner import JOBS

    options: list[click.Parameter] = [
        click.Option(
            ["--out"],
            type=click.Path(file_okay=False, path_type=Path),
            help="Keep the results in this folder: tasks.jsonl, audit.json, audit.html and badge.svg. An audit "
            "that was killed continues if you pass the same folder.",
        ),
        click.Option(["--jobs"], type=click.IntRange(min=1), default=JOBS, help="Audit this many tasks at once."),
        click.Option(["--items"], type=click.IntRange(min=1), show_default="all", help="Audit only this many tasks."),
    ]

    def run(settings: "Settings", *, out: Path | None, jobs: int, items: int | None, as_json: bool) -> int:
        report = run_async(_audit(environment, settings, out, jobs, items))
        if out is not None:
            write_files(report, out)
        print_report(report, out)
        if as_json:
            echo(fast_json.dumps(report.as_dict()).decode())
        return report.exit_code

    return settings_command(
        "audit",
        environment,
        run,
        options,
        sections=ENVIRONMENT_FIRST,
        json_help="Print the report as one JSON object.",
        help=HELP,
    )


class _AuditCommand(EnvironmentCommand):
    """Its first argument may be a folder of Harbor tasks, which the bundled environment harbor runs."""

    def invoke(self, ctx: click.Context) -> int:
        from hermes_rl.environment.loading.loader import bundled_environments
        from hermes_rl.validation.audit.task_files import is_harbor_dataset

        if ctx.args:
            target, *rest = ctx.args
            if is_harbor_dataset(Path(target)):
                ctx.args = ["harbor", "--env.dataset_name", target, *rest]
            elif Path(target).is_dir() and target not in bundled_environments():
                raise click.UsageError(
                    f"{target} has no folder with a task.toml; name an environment or a folder of Harbor tasks", ctx
                )
        return super().invoke(ctx)


audit = _AuditCommand(
    "audit",
    audit_command,
    help=f"{HELP}\n\nThe first argument is a folder of Harbor tasks, or an environment: a name of "
    "`hermes-rl env list`, FILE.py, FILE.py:CLASS or MODULE:CLASS.",
    short_help="Check whether the reward of each task in a dataset can be trusted.",
    options_metavar="ENVIRONMENT|FOLDER [OPTIONS]",
)


async def _audit(
    environment: "type[HermesAgentBaseEnv]", settings: "Settings", out: Path | None, jobs: int, items: int | None
) -> "AuditReport":
    from hermes_rl.validation.audit.runner import run_audit

    with ExitStack() as bar:
        steps: ProgressSteps | None = None

        def show(done: int, total: int, last: str) -> None:
            nonlocal steps
            # The number of tasks is known only once they are loaded.
            steps = steps or bar.enter_context(progress("audit", total))
            steps.show(done, last)

        return await run_audit(environment, settings, out=out, jobs=jobs, items=items, show=show)


def write_files(report: "AuditReport", out: Path) -> None:
    """Write the report as JSON, HTML and a badge."""
    from hermes_rl.validation.audit.badge import badge
    from hermes_rl.validation.audit.html_report import html_report

    write_private(out / "audit.json", fast_json.dumps(report.as_dict()) + b"\n")
    write_private(out / "audit.html", html_report(report).encode())
    write_private(out / "badge.svg", badge(report).encode())


def print_report(report: "AuditReport", out: Path | None) -> None:
    """Print the checks that failed with their fixes, then the tasks that are not sound."""
    from rich.table import Table

    from hermes_rl.console.escaping_console import styled
    from hermes_rl.validation.audit.checks import BY_NAME, Outcome

    screen = console()
    table = Table(title=f"audit · {report.environment} · {len(report.records)} tasks", title_justify="left")
    for name in ("check", "what a pass proves"):
        table.add_column(name)
    for name in ("passed", "defect", "warning"):
        table.add_column(name, justify="right")
    for name, counts in report.by_check().items():
        style = "red" if counts[Outcome.DEFECT] else "yellow" if counts[Outcome.WARNING] else None
        figures = [str(counts[outcome] or "") for outcome in (Outcome.PASSED, Outcome.DEFECT, Outcome.WARNING)]
        if any(figures):
            table.add_row(name, BY_NAME[name].proves, *figures, style=style)
    screen.print(table)
    _print_tasks(report)
    failing = [name for name, counts in report.by_check().items() if counts[Outcome.DEFECT] or counts[Outcome.WARNING]]
    for name in failing:
        screen.print(styled(f"→ {name}: {BY_NAME[name].fix}"), soft_wrap=True)
    for note in report.notes:
        screen.print(styled(note), soft_wrap=True)
    kept = f", {report.resumed} from an earlier audit" if report.resumed else ""
    screen.print(f"{report.environment}: {report.verdict} ({report.seconds:.0f} s{kept})", soft_wrap=True)
    if out is not None:
        screen.print(f"written: {out / 'audit.html'}", soft_wrap=True)


def _print_tasks(report: "AuditReport") -> None:
    """The first tasks that failed a check or were not audited."""
    from hermes_rl.console.escaping_console import styled
    from hermes_rl.validation.audit.checks import Outcome
    from hermes_rl.validation.audit.report import Status

    screen = console()
    colours = {Status.DEFECT: "red", Status.CANNOT: "yellow", Status.SOUND: "yellow"}
    found = [
        (record, failed)
        for record in report.records
        for failed in [[one for one in record["checks"] if one["outcome"] in {Outcome.DEFECT, Outcome.WARNING}]]
        if failed or record["status"] != Status.SOUND
    ]
    for record, failed in found[:MAX_SHOWN]:
        name = (record["task"], f"bold {colours[record['status']]}")
        screen.print(styled(name, f" ({record['split']})"), soft_wrap=True)
        for one in failed:
            screen.print(styled(f"  {one['check']}: {'; '.join(one['seen'])}"), soft_wrap=True)
        if record["why"]:
            screen.print(styled(f"  not audited: {record['why']}"), soft_wrap=True)
    if len(found) > MAX_SHOWN:
        more = len(found) - MAX_SHOWN
        screen.print(f"and {more} more; read all with --json or in the HTML report of --out FOLDER", soft_wrap=True)
