"""`hermes-rl redteam ENVIRONMENT` (Write): ask a model to game an environment's reward."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_rl.cli.environment_command import EnvironmentCommand
from hermes_rl.cli.progress import progress
from hermes_rl.console.live_display import console
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.replace_file import replace_file

if TYPE_CHECKING:
    from hermes_rl.environment.base import HermesAgentBaseEnv
    from hermes_rl.environment.resolve_config import Settings
    from hermes_rl.validation.redteam.campaign import RedTeamReport

HELP = """Ask a model to get an environment's reward without doing the task, and keep what works.

Every rollout that passes compute_reward and fails audit_reward is replayed in a fresh sandbox, shortened to the tool
calls it needs, and written to a Python file of cheats for `hermes-rl validate`. The environment needs audit_reward. The
exit code is 1 if there is an exploit."""
DEFAULT_FILE = Path("redteam_cheats.py")


def redteam_command(environment: "type[HermesAgentBaseEnv]") -> click.Command:
    from hermes_rl.cli.settings_command import ENDPOINT_FIRST, settings_command
    from hermes_rl.validation.redteam.campaign import ITEMS, MINUTES, PARALLEL, run_redteam

    positive = click.IntRange(min=1)
    options: list[click.Parameter] = [
        click.Option(
            ["--minutes"], type=click.FloatRange(min=0, min_open=True), default=MINUTES,
            help="Start attacks for this many minutes.",
        ),
        click.Option(
            ["--max-rollouts"], type=positive, show_default="no limit", help="Start at most this many attacks."
        ),
        click.Option(["--items"], type=positive, default=ITEMS, help="Attack this many items in turn."),
        click.Option(["--parallel"], type=positive, default=PARALLEL, help="Run this many attacks at once."),
        click.Option(
            ["--with-source/--without-source"], default=False,
            help="Show the attacker the environment's file.",
        ),
        click.Option(
            ["--out"], type=click.Path(path_type=Path, dir_okay=False), default=DEFAULT_FILE,
            help="Write the cheats to this new file.",
        ),
    ]  # fmt: skip

    def run(
        settings: "Settings",
        *,
        minutes: float,
        max_rollouts: int | None,
        items: int,
        parallel: int,
        with_source: bool,
        out: Path,
        as_json: bool,
    ) -> int:
        if out.suffix != ".py" or not out.stem.isidentifier():
            raise ConfigError(f"--out {out} is not the file of a Python module; name it like {DEFAULT_FILE}")
        if out.exists():
            raise ConfigError(f"{out} exists; choose another file with --out, or remove it")
        began = time.monotonic()
        with progress("redteam", max_rollouts or round(minutes * 60)) as steps:

            def show(report: "RedTeamReport") -> None:
                """Without a limit on the attacks, the bar shows the seconds. What is found is kept at once."""
                attacks, exploits = report.rollouts, len(report.exploits)
                done = attacks if max_rollouts else min(round(time.monotonic() - began), round(minutes * 60))
                steps.show(done, f"{attacks} attacks, {exploits} exploits")
                if exploits:
                    replace_file(out, report.as_file(out))

            report = run_async(
                run_redteam(
                    environment,
                    settings,
                    with_source=with_source,
                    items=items,
                    minutes=minutes,
                    max_rollouts=max_rollouts,
                    parallel=parallel,
                    show=show,
                )
            )
        print_report(report, out)
        if as_json:
            echo(fast_json.dumps({**report.as_dict(), "file": str(out) if report.exploits else None}).decode())
        return 1 if report.exploits else 0

    return settings_command(
        "redteam",
        environment,
        run,
        options,
        sections=ENDPOINT_FIRST,
        json_help="Print the report as one JSON object.",
        help=HELP,
    )


redteam = EnvironmentCommand(
    "redteam",
    redteam_command,
    help=f"{HELP}\n\nENVIRONMENT is a name of `hermes-rl env list`, FILE.py, FILE.py:CLASS or MODULE:CLASS.",
    short_help="Ask a model to game an environment's reward.",
    options_metavar="ENVIRONMENT [OPTIONS]",
)


def print_report(report: "RedTeamReport", out: Path) -> None:
    """Print the counts and every exploit with its steps, then the next command."""
    from rich.table import Table

    from hermes_rl.console.escaping_console import styled

    screen = console()
    shown = "with" if report.with_source else "without"
    table = Table(
        title=f"redteam · {report.environment} · {report.model}, {shown} the source", title_justify="left",
        show_header=False, min_width=40,
    )  # fmt: skip
    rows = {
        "attacks": f"{report.rollouts} in {report.minutes:g} minutes, {report.scored} scored",
        "passed": f"{report.passed}, {report.solved} of them solved the task",
        "audit failed": str(report.audit_errors or ""),
        "repeated an exploit": str(report.repeated or ""),
        "not reproduced in a replay": str(report.lost or ""),
        **{f"not scored: {cause}": str(count) for cause, count in report.failures.items()},
    }
    for label, text in rows.items():
        if text:
            table.add_row(label, text)
    screen.print(table)
    for exploit in report.exploits:
        where = f"{exploit.works_on} of {exploit.tried_on} items"
        before = f"{len(exploit.script)} of {exploit.steps_before} steps are needed"
        screen.print(styled(("exploit", "bold red"), f" {exploit.name}, on {where}; {before}"), soft_wrap=True)
        for step in exploit.script:
            text = repr(step) if isinstance(step, str) else f"{step[0]} {fast_json.dumps(step[1]).decode()}"
            screen.print(f"    {text[:400]}", soft_wrap=True, markup=False)
    if report.exploits:
        screen.print(
            f"{out}: return found_cheats(item) from cheats(item) of your environment, fix the reward, then run "
            "`hermes-rl validate`",
            soft_wrap=True,
        )
    else:
        screen.print("no exploit found; that does not prove that there is none", soft_wrap=True)
