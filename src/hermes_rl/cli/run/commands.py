"""The commands of `hermes-rl run`. RUN is an id, a unique prefix of one, or `last`."""

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from hermes_rl.cli.last import resolve_run_id
from hermes_rl.cli.progress import progress
from hermes_rl.cli.run.live import (
    audit_text,
    component_states,
    exit_code,
    follow,
    forecast_text,
    is_limited,
    problems,
    summary_line,
)
from hermes_rl.cli.run.logs import follow_logs, print_tail, select_components
from hermes_rl.cli.run.start_options import build_run, start_options
from hermes_rl.cli.run.test import test_command
from hermes_rl.console.live_display import console
from hermes_rl.console.output import echo
from hermes_rl.core import fast_json
from hermes_rl.core.errors import HermesRLError
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.run_state import Phase

if TYPE_CHECKING:
    from hermes_rl.orchestration.run_file import RunFile


_SETTINGS = {"show_default": True, "max_content_width": 110}
STOP_SECONDS = 180.0


class StopError(HermesRLError):
    """A run did not stop in time."""


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(context_settings=_SETTINGS)
def run() -> None:
    """Start, watch and stop training runs. They run in the background, independent of the shell.

    RUN is a run's id, a unique prefix of one, or `last`.
    """


run.add_command(test_command)


@run.command("list", context_settings=_SETTINGS)
@click.option("--all", "everything", is_flag=True, help="List all runs, not only the newest 20.")
@_json
def list_command(everything: bool, as_json: bool) -> None:
    """List the runs, newest first."""
    from hermes_rl.orchestration.status.run_list import list_runs

    rows = list_runs()
    if as_json:
        _print(rows)
        return
    if not rows:
        echo("no runs yet; start one with `hermes-rl train ENV`", err=True)
    for row in rows if everything else rows[:20]:
        step = row["step"]
        echo(
            f"{row['run_id']:<20} {row['status']:<12} {row['environment'] or '':<24} "
            f"{'' if step is None else f'step {step}':<12} {_moment(row['started_at'])}"
        )


@run.command("show", context_settings=_SETTINGS)
@click.argument("what", metavar="RUN|ENV")
@click.option("--preset", help="For ENV: show the fields of this preset.  [default: tinker]")
@_json
def show_command(what: str, preset: str | None, as_json: bool) -> None:
    """Show the configuration of a run, or the fields that you can set for an environment."""
    from hermes_rl.orchestration.configuration.edit import new_draft
    from hermes_rl.orchestration.configuration.view import draft_view
    from hermes_rl.orchestration.discovery.lookup import find_environment
    from hermes_rl.orchestration.run_file import read_run_file
    from hermes_rl.orchestration.status.run_list import list_runs

    known = {str(row["run_id"]) for row in list_runs()}
    if what == "last" or any(run_id.startswith(what) for run_id in known):
        run_id = resolve_run_id(what)
        path = RunPaths(run_id).file
        if as_json:
            _print(read_run_file(path).model_dump(mode="json"))
        else:
            echo(path.read_text().rstrip("\n"))
        return
    report = draft_view(new_draft(find_environment(what), preset))
    if as_json:
        _print(report)
        return
    echo(f"preset {report['preset']}; change a field with --set FIELD=VALUE")
    for field in report["configurable_fields"]:
        echo(f"  {field['name']} = {field.get('current_value')!r}  {field.get('description') or ''}".rstrip())
    echo("locked by the preset:")
    for field in report["locked_fields"]:
        echo(f"  {field['name']} = {field.get('locked_value')!r}")


@run.command("start", context_settings=_SETTINGS, short_help="Start a run on an environment.")
@start_options
@click.option("--follow", "follows", is_flag=True, help="Show progress until the run ends, like `hermes-rl train`.")
@_json
def start_command(dry_run: bool, follows: bool, as_json: bool, **options: Any) -> int:
    """Start a run on ENV: a name of `hermes-rl env list`, FILE.py, FILE.py:CLASS or MODULE:CLASS."""
    return launch_run(build_run(**options), dry_run=dry_run, follows=follows, as_json=as_json)


def launch_run(run_file: "RunFile", *, dry_run: bool, follows: bool, as_json: bool) -> int:
    """Start the run, or with `dry_run` only print it; returns the exit code."""
    if dry_run:
        if as_json:
            _print(run_file.model_dump(mode="json"))
        else:
            echo(run_file.as_yaml(), nl=False)
        echo("the configuration is valid; nothing was started", err=True)
        return 0
    from hermes_rl.orchestration.supervision import start_run

    run_id = start_run(run_file)
    if follows:
        echo(f"run {run_id} is starting; Ctrl-C leaves it running", err=True)
        report = follow(run_id)
        return _ended(run_id, report, as_json=as_json)
    if as_json:
        logs = {part: str(RunPaths(run_id).log(part)) for part in ("api", "trainer")}
        _print({"run_id": run_id, "status": "starting", "config_path": str(RunPaths(run_id).file), "logs": logs})
    else:
        echo(run_id)
        echo(f"starting; follow it with `hermes-rl run status {run_id} --watch`", err=True)
    return 0


@run.command("status", context_settings=_SETTINGS)
@click.argument("name", metavar="RUN", default="last")
@click.option("--watch", is_flag=True, help="Show progress until the run ends.")
@_json
def status_command(name: str, watch: bool, as_json: bool) -> int:
    """Show the status of a run. The exit code is 1 if it failed."""
    from hermes_rl.orchestration.status.status import status

    run_id = resolve_run_id(name)
    if watch:
        return _ended(run_id, follow(run_id), as_json=as_json)
    report = status(run_id)
    if as_json:
        _print(report)
    else:
        echo(f"{run_id}  {summary_line(report)}")
        for part, state in component_states(report).items():
            echo(f"  {part:<12} {state:<20} {RunPaths(run_id).log(part)}")
        if audit := audit_text(report):
            echo(f"  {'audit':<12} {audit}")
        if forecast := forecast_text(run_id):
            echo(f"  {'forecast':<12} {forecast}")
        for problem in problems(report):
            echo(f"  {problem}")
    return exit_code(report)


@run.command("stop", context_settings=_SETTINGS)
@click.argument("name", metavar="RUN")
@click.option("--no-wait", is_flag=True, help="Return before the run has stopped.")
@_json
def stop_command(name: str, no_wait: bool, as_json: bool) -> int:
    """Stop a run with a checkpoint. Does nothing if it has ended."""
    from hermes_rl.orchestration.status.status import status
    from hermes_rl.orchestration.supervision import await_phase, stop_run

    run_id = resolve_run_id(name)
    stop_run(run_id)
    if not no_wait:
        with progress(f"stopping {run_id}", 1) as steps:
            steps.show(0, "")
            try:
                await_phase(run_id, [phase for phase in Phase if phase.ended], STOP_SECONDS)
            except TimeoutError as error:
                raise StopError(f"{error}; the stop request remains; see `hermes-rl run logs {run_id}`") from None
    report = status(run_id)
    _report(
        report, f"run {run_id} is {report['status']}; resume it with `hermes-rl run resume {run_id}`", as_json=as_json
    )
    return 0


@run.command("resume", context_settings=_SETTINGS)
@click.argument("name", metavar="RUN")
@click.option("--follow", "follows", is_flag=True, help="Show progress until the run ends.")
@_json
def resume_command(name: str, follows: bool, as_json: bool) -> int:
    """Resume a stopped, failed or interrupted run from its last checkpoint."""
    from hermes_rl.orchestration.status.status import status
    from hermes_rl.orchestration.supervision import resume_run

    run_id = resolve_run_id(name)
    resume_run(run_id)
    if follows:
        return _ended(run_id, follow(run_id), as_json=as_json)
    _report(
        status(run_id), f"run {run_id} resumes; follow it with `hermes-rl run status {run_id} --watch`", as_json=as_json
    )
    return 0


@run.command("results", context_settings=_SETTINGS, short_help="Show rewards, evaluations, the curve and the weights.")
@click.argument("name", metavar="RUN", default="last")
@_json
def results_command(name: str, as_json: bool) -> None:
    """Show the results of a run: rewards, evaluations, the curve, the weights, and what to do next."""
    from hermes_rl.cli.run.results import results_lines
    from hermes_rl.orchestration.status.results import results

    found = results(resolve_run_id(name))
    if as_json:
        _print(found)
        return
    for line in results_lines(found):
        echo(line)


@run.command("logs", context_settings=_SETTINGS)
@click.argument("name", metavar="RUN", default="last")
@click.option("--part", help="Select api, trainer, env, env-NAME, engine, export or supervisor.", show_default="all")
@click.option("--lines", default=50, type=click.IntRange(1), help="Show this many lines of each log.")
@click.option("--follow", "follows", is_flag=True, help="Print new lines until the run ends.")
@_json
def logs_command(name: str, part: str | None, lines: int, follows: bool, as_json: bool) -> None:
    """Show the last lines of a run's logs."""
    run_id = resolve_run_id(name)
    parts = select_components(run_id, part)
    if as_json:
        from hermes_rl.orchestration.status.logs import log_lines

        _print({one: {"path": str(RunPaths(run_id).log(one)), "text": log_lines(run_id, one, lines)} for one in parts})
        return
    print_tail(run_id, parts, lines)
    if follows:
        follow_logs(run_id, parts)


def _moment(seconds: float | None) -> str:
    return "" if not seconds else datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def _ended(run_id: str, report: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        _print(report)
    elif report["status"] == "finished":
        from hermes_rl.cli.run.results import results_lines
        from hermes_rl.orchestration.status.results import results

        for line in results_lines(results(run_id)):
            echo(line, err=True)
    elif is_limited(report):
        console().print(
            f"stopped, {report['reason']}; resume with `hermes-rl run resume {run_id}`, which counts from 0 again",
            soft_wrap=True,
        )
    elif report["status"] in {"failed", "interrupted"}:
        console().print(
            f"{report['status']}; see `hermes-rl run logs {run_id}`, then resume with `hermes-rl run resume {run_id}`",
            soft_wrap=True,
        )
    return exit_code(report)


def _report(report: dict[str, Any], message: str, *, as_json: bool) -> None:
    if as_json:
        _print(report)
    else:
        echo(message, err=True)


def _print(value: Any) -> None:
    echo(fast_json.dumps(value).decode())
    sys.stdout.flush()
