"""`hermes-rl validate ENVIRONMENT` (Write): test an environment's reward with scripted agents, including cheats."""

from contextlib import ExitStack
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from hermes_rl.cli.environment_command import EnvironmentCommand
from hermes_rl.cli.progress import ProgressSteps, progress
from hermes_rl.console.live_display import console
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.core.tolerance import passes
from hermes_rl.validation.report import AgentKind, Severity, ValidationReport, mean_score

if TYPE_CHECKING:
    from hermes_rl.environment.base import HermesAgentBaseEnv
    from hermes_rl.environment.resolve_config import Settings

HELP = """Test an environment's reward with scripted agents, and report problems with their fixes.

One agent does nothing, one plays the author's oracle(item), the others cheat: built-in cheats and the author's
cheats(item). No model is needed; pass --openai.* if the reward calls one. Also checks reproducibility of scores, items
and prompts, leaked answers and timing. The exit code is 1 if there is an error."""
COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
KINDS = {AgentKind.CHEAT: "cheat: ", AgentKind.OWN_CHEAT: "your cheat: "}


def validate_command(environment: "type[HermesAgentBaseEnv]") -> click.Command:
    from hermes_rl.cli.settings_command import ENVIRONMENT_FIRST, settings_command
    from hermes_rl.validation.sandbox_search import SEARCH_SECONDS
    from hermes_rl.validation.validate import ITEMS

    options: list[click.Parameter] = [
        click.Option(
            ["--items"],
            type=click.IntRange(min=1),
            default=ITEMS,
            help="Try this many items, three training items for two held-out ones.",
        ),
        click.Option(
            ["--search-seconds"],
            type=click.IntRange(min=0),
            default=SEARCH_SECONDS,
            help="Search the files of the sandboxes for answers for this many seconds; 0: no search.",
        ),
        click.Option(
            ["--max-cheat-score"],
            type=float,
            help="Accept cheats that score up to this, for instance where the format alone earns points.",
        ),
    ]

    def run(
        settings: "Settings",
        *,
        items: int,
        search_seconds: int,
        max_cheat_score: float | None,
        as_json: bool,
    ) -> int:
        report = run_async(
            _validate(
                environment, settings, items=items, search_seconds=search_seconds, max_cheat_score=max_cheat_score
            )
        )
        print_report(report)
        if as_json:
            echo(fast_json.dumps(report.as_dict()).decode())
        return 0 if report.ok else 1

    return settings_command(
        "validate",
        environment,
        run,
        options,
        sections=ENVIRONMENT_FIRST,
        json_help="Print the report as one JSON object.",
        help=HELP,
    )


validate = EnvironmentCommand(
    "validate",
    validate_command,
    help=f"{HELP}\n\nENVIRONMENT is a name of `hermes-rl env list`, FILE.py, FILE.py:CLASS or MODULE:CLASS.",
    short_help="Test an environment's reward with scripted agents, including cheats.",
    options_metavar="ENVIRONMENT [OPTIONS]",
)


async def _validate(environment: "type[HermesAgentBaseEnv]", settings: "Settings", **options: Any) -> ValidationReport:
    from hermes_rl.validation.validate import run_validation

    with ExitStack() as bar:
        steps: ProgressSteps | None = None

        def show(done: int, total: int, last: str) -> None:
            nonlocal steps
            # The number of rollouts is known only once the items are loaded.
            steps = steps or bar.enter_context(progress("validate", total))
            steps.show(done, last)

        return await run_validation(environment, settings, show=show, **options)


def print_report(report: ValidationReport) -> None:
    """Print the scores as a table, then the findings, worst first; a fix shared by several is printed once."""
    from rich.table import Table

    from hermes_rl.console.escaping_console import styled

    tried = " and ".join(f"{count} {split}" for split, count in report.items.items() if count)
    title = f"validate · {report.environment} · {tried or 'no'} items, pass score {report.pass_score:g}"
    table = Table(title=title, title_justify="left")
    table.add_column("agent")
    for name in ("mean", "lowest", "highest", "no score"):
        table.add_column(name, justify="right")
    for agent, kind in report.agents().items():
        scores = report.scores(agent)
        known = [score for score in scores if score is not None]
        mean = mean_score(scores)
        style = None if _is_expected(report, kind, known) else "red"
        figures = ["–"] * 3 if mean is None else [f"{value:.3g}" for value in (mean, min(known), max(known))]
        missing = len(scores) - len(known)
        table.add_row(KINDS.get(kind, "") + agent, *figures, str(missing) if missing else "", style=style)
    screen = console()
    if report.trials:
        screen.print(table)
    for fix, findings in groupby(report.findings, key=lambda finding: finding.fix):
        for finding in findings:
            colour = COLOURS[finding.severity]
            screen.print(styled((finding.severity, f"bold {colour}"), f" {finding.seen}"), soft_wrap=True)
        screen.print(f"  → {fix}", soft_wrap=True)
    if report.search:
        screen.print(report.search, soft_wrap=True)
    took = ", ".join(f"{name.replace('_', ' ')} {seconds:.3g} s" for name, seconds in report.seconds.items())
    screen.print(f"{report.environment}: {report.verdict}" + (f" ({took})" if took else ""), soft_wrap=True)


def _is_expected(report: ValidationReport, kind: AgentKind, scores: list[float]) -> bool:
    if kind is AgentKind.ORACLE:
        return all(passes(score, report.pass_score) for score in scores)
    return not any(scores)
