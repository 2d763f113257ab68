"""`hermes-rl validate ENVIRONMENT`: whether its reward can be trusted, what is wrong with it and how to mend it."""

from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import click

from hermes_rl import jsontext
from hermes_rl.cli.environment_verb import EnvironmentVerb
from hermes_rl.cli.progress import Steps, progress
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.settings import Settings, defaults, resolve
from hermes_rl.environment.validation.report import Kind, Report, Severity, mean_of
from hermes_rl.environment.validation.running import ITEMS, run_validation
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.terminal.running import on_a_loop
from hermes_rl.terminal.screen import console
from hermes_rl.terminal.sections import section_options, section_values

HELP = """Play an environment with scripted agents, and say what is wrong with it and how to mend it.

One agent does nothing, one plays the author's oracle(item), the others cheat: ours, and the author's cheats(item). No
model is needed; give one with --openai.* when the reward asks a model. Looks also at whether scores, items and prompts
repeat, at leaks and at time. The exit code is 1 when there is an error."""
COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
KINDS = {Kind.CHEAT: "cheat: ", Kind.OWN_CHEAT: "your cheat: "}


def validate_command(environment: type[HermesAgentBaseEnv]) -> click.Command:
    env_default, endpoints = defaults(environment)
    options: list[click.Parameter] = [
        click.Option(["--config", "config_file"], type=click.Path(path_type=Path), help="YAML file with env, openai."),
        click.Option(
            ["--items"],
            type=click.IntRange(min=1),
            default=ITEMS,
            help=f"Items to try, three of training to two held out. [{ITEMS}]",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the report as one JSON object."),
        *section_options("env", env_default),
        *section_options("openai", endpoints[0] if endpoints else APIServerConfig()),
    ]

    def run(config_file: Path | None, items: int, as_json: bool, **flags: str | None) -> int:
        given = {name: text for name, text in flags.items() if text is not None}
        settings = resolve(environment, config_file, section_values(given, "env"), section_values(given, "openai"))
        report = on_a_loop(_validated(environment, settings, items))
        print_report(report)
        if as_json:
            click.echo(jsontext.dumps(report.as_dict()).decode())
        return 0 if report.ok else 1

    return click.Command(
        "validate", callback=run, params=options, help=HELP, context_settings={"max_content_width": 110}
    )


validate = EnvironmentVerb(
    "validate",
    validate_command,
    help=f"{HELP}\n\nENVIRONMENT is a bundled name, FILE.py or FILE.py:CLASS.",
    short_help="Try an environment with scripted agents, cheats among them; say how to mend it.",
    options_metavar="ENVIRONMENT [OPTIONS]",
)


async def _validated(environment: type[HermesAgentBaseEnv], settings: Settings, items: int) -> Report:
    with ExitStack() as bar:
        steps: Steps | None = None

        def show(done: int, total: int, last: str) -> None:
            nonlocal steps
            # How many rollouts there will be is known only when the items are.
            steps = steps or bar.enter_context(progress("validate", total))
            steps.show(done, last)

        return await run_validation(environment, settings, items=items, show=show)


def print_report(report: Report) -> None:
    """The scores as a table, then the findings, the worst first; what mends several is said once."""
    from rich.markup import escape
    from rich.table import Table

    tried = " and ".join(f"{count} {split}" for split, count in report.items.items() if count)
    title = f"validate · {report.environment} · {tried or 'no'} items, a pass is {report.pass_score:g}"
    table = Table(title=title, title_justify="left")
    table.add_column("agent")
    for name in ("mean", "lowest", "highest", "no score"):
        table.add_column(name, justify="right")
    for agent, kind in report.agents().items():
        scores = report.scores(agent)
        known = [score for score in scores if score is not None]
        mean = mean_of(scores)
        style = None if _as_it_should(report, kind, known) else "red"
        figures = ["–"] * 3 if mean is None else [f"{value:.3g}" for value in (mean, min(known), max(known))]
        missing = len(scores) - len(known)
        table.add_row(escape(KINDS.get(kind, "") + agent), *figures, str(missing) if missing else "", style=style)
    screen = console()
    if report.trials:
        screen.print(table)
    for mend, findings in groupby(report.findings, key=lambda finding: finding.mend):
        for finding in findings:
            colour = COLOURS[finding.severity]
            screen.print(f"[bold {colour}]{finding.severity}[/] {escape(finding.seen)}", soft_wrap=True)
        screen.print(f"  → {escape(mend)}", soft_wrap=True)
    took = ", ".join(f"{name.replace('_', ' ')} {seconds:.3g} s" for name, seconds in report.seconds.items())
    screen.print(f"{report.environment}: {report.verdict}" + (f" ({took})" if took else ""), soft_wrap=True)


def _as_it_should(report: Report, kind: Kind, scores: list[float]) -> bool:
    if kind is Kind.ORACLE:
        return all(score >= report.pass_score for score in scores)
    return not any(scores)
