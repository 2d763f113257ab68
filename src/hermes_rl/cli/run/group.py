"""The verbs of `hermes-rl run`. RUN is an id, the beginning of one, or `last`."""

import sys
from datetime import datetime
from typing import Any

import click

from hermes_rl import jsontext
from hermes_rl.cli.progress import progress
from hermes_rl.cli.run.live import exit_code, follow, part_states, problems, said
from hermes_rl.cli.run.logs import chosen_parts, follow_logs, show_end
from hermes_rl.cli.run.naming import named_run
from hermes_rl.cli.run.starting import made_run, starting_options
from hermes_rl.cli.run.testing import test_command
from hermes_rl.errors import HermesRLError
from hermes_rl.runs.configuration.editing import new_draft
from hermes_rl.runs.configuration.showing import shown
from hermes_rl.runs.discovery.finding import find_environment
from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.run_file import RunFile, read_run_file
from hermes_rl.runs.states import Phase
from hermes_rl.runs.supervision import await_phase, resume_run, start_run, stop_run
from hermes_rl.runs.watching.listing import list_runs
from hermes_rl.runs.watching.results import results
from hermes_rl.runs.watching.status import status
from hermes_rl.terminal.screen import console

_SETTINGS = {"show_default": True, "max_content_width": 110}
STOP_SECONDS = 180.0


class StopError(HermesRLError):
    """A run that was told to stop has not."""


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(context_settings=_SETTINGS)
def run() -> None:
    """Start, watch and stop training runs; each goes on when the shell that started it is gone.

    RUN is a run's id, the beginning of one, or `last`.
    """


run.add_command(test_command)


@run.command("list", context_settings=_SETTINGS)
@click.option("--all", "everything", is_flag=True, help="All of them, not the newest 20.")
@_json
def list_command(everything: bool, as_json: bool) -> None:
    """List the runs, the newest first."""
    rows = list_runs()
    if as_json:
        _print(rows)
        return
    if not rows:
        click.echo("there is no run yet; `hermes-rl train ENV` starts one", err=True)
    for row in rows if everything else rows[:20]:
        step = row["step"]
        click.echo(
            f"{row['run_id']:<20} {row['status']:<12} {row['environment'] or '':<24} "
            f"{'' if step is None else f'step {step}':<12} {_moment(row['started_at'])}"
        )


@run.command("show", context_settings=_SETTINGS)
@click.argument("what", metavar="RUN|ENV")
@click.option("--preset", help="For an environment: the preset whose fields to show.  [default: tinker]")
@_json
def show_command(what: str, preset: str | None, as_json: bool) -> None:
    """Show the configuration of a run; for an environment, the fields that a run of it would have."""
    known = {str(row["run_id"]) for row in list_runs()}
    if what == "last" or any(run_id.startswith(what) for run_id in known):
        run_id = named_run(what)
        path = RunPlaces(run_id).file
        if as_json:
            _print(read_run_file(path).model_dump(mode="json"))
        else:
            click.echo(path.read_text().rstrip("\n"))
        return
    told = shown(new_draft(find_environment(what), preset))
    if as_json:
        _print(told)
        return
    click.echo(f"preset {told['preset']}; change a field with --set FIELD=VALUE")
    for field in told["configurable_fields"]:
        click.echo(f"  {field['name']} = {field.get('current_value')!r}  {field.get('description') or ''}".rstrip())
    click.echo("locked by the preset:")
    for field in told["locked_fields"]:
        click.echo(f"  {field['name']} = {field.get('locked_value')!r}")


@run.command("start", context_settings=_SETTINGS)
@starting_options
@click.option("--follow", "follows", is_flag=True, help="Stay and show how it goes, as `hermes-rl train` does.")
@_json
def start_command(
    environment: str,
    preset: str | None,
    changes: tuple[str, ...],
    added: tuple[str, ...],
    evaluated: tuple[str, ...],
    dry_run: bool,
    trace: str | None,
    follows: bool,
    as_json: bool,
    **machines: Any,
) -> int:
    """Start a run on ENV: a bundled name, one of `env list`, FILE.py or FILE.py:CLASS."""
    run_file = made_run(environment, preset, changes, added, evaluated, trace, machines)
    return started(run_file, dry_run=dry_run, follows=follows, as_json=as_json)


def started(run_file: RunFile, *, dry_run: bool, follows: bool, as_json: bool) -> int:
    """Start the run, or show what would be started; the exit code."""
    if dry_run:
        if as_json:
            _print(run_file.model_dump(mode="json"))
        else:
            click.echo(run_file.as_yaml(), nl=False)
        click.echo("everything is in order; nothing was started", err=True)
        return 0
    run_id = start_run(run_file)
    if follows:
        click.echo(f"the run {run_id} is starting; Ctrl-C leaves it running", err=True)
        told = follow(run_id)
        return _ended(run_id, told, as_json=as_json)
    if as_json:
        logs = {part: str(RunPlaces(run_id).log(part)) for part in ("api", "trainer")}
        _print({"run_id": run_id, "status": "starting", "config_path": str(RunPlaces(run_id).file), "logs": logs})
    else:
        click.echo(run_id)
        click.echo(f"starting; follow it with `hermes-rl run status {run_id} --watch`", err=True)
    return 0


@run.command("status", context_settings=_SETTINGS)
@click.argument("name", metavar="RUN", default="last")
@click.option("--watch", is_flag=True, help="Stay and show how it goes until it has ended.")
@_json
def status_command(name: str, watch: bool, as_json: bool) -> int:
    """Tell how a run goes. The exit code is 1 when it failed."""
    run_id = named_run(name)
    if watch:
        return _ended(run_id, follow(run_id), as_json=as_json)
    told = status(run_id)
    if as_json:
        _print(told)
    else:
        click.echo(f"{run_id}  {said(told)}")
        for part, state in part_states(told).items():
            click.echo(f"  {part:<12} {state:<20} {RunPlaces(run_id).log(part)}")
        for problem in problems(told):
            click.echo(f"  {problem}")
    return exit_code(told)


@run.command("stop", context_settings=_SETTINGS)
@click.argument("name", metavar="RUN")
@click.option("--no-wait", is_flag=True, help="Do not wait until it has stopped.")
@_json
def stop_command(name: str, no_wait: bool, as_json: bool) -> int:
    """Stop a run; what it learned is kept. Harmless for one that has ended."""
    run_id = named_run(name)
    stop_run(run_id)
    if not no_wait:
        with progress(f"stopping {run_id}", 1) as shown_steps:
            shown_steps.show(0, "")
            try:
                await_phase(run_id, [phase for phase in Phase if phase.ended], STOP_SECONDS)
            except TimeoutError as error:
                raise StopError(
                    f"{error}; it is still told to stop, and `hermes-rl run logs {run_id}` may say why"
                ) from None
    told = status(run_id)
    _report(told, f"the run {run_id} is {told['status']}; `hermes-rl run resume {run_id}` goes on", as_json=as_json)
    return 0


@run.command("resume", context_settings=_SETTINGS)
@click.argument("name", metavar="RUN")
@click.option("--follow", "follows", is_flag=True, help="Stay and show how it goes.")
@_json
def resume_command(name: str, follows: bool, as_json: bool) -> int:
    """Go on with a run that was stopped, failed or was interrupted, from its last checkpoint."""
    run_id = named_run(name)
    resume_run(run_id)
    if follows:
        return _ended(run_id, follow(run_id), as_json=as_json)
    _report(status(run_id), f"the run {run_id} goes on", as_json=as_json)
    return 0


@run.command("results", context_settings=_SETTINGS)
@click.argument("name", metavar="RUN", default="last")
@_json
def results_command(name: str, as_json: bool) -> None:
    """Show what a run came to: metrics, curve, weights."""
    found = results(named_run(name))
    if as_json:
        _print(found)
        return
    for key, value in found.items():
        if isinstance(value, dict):
            click.echo(f"{key}:")
            for inner, one in value.items():
                click.echo(f"  {inner}: {one}")
        elif key != "history":
            click.echo(f"{key}: {value}")


@run.command("logs", context_settings=_SETTINGS)
@click.argument("name", metavar="RUN", default="last")
@click.option("--part", help="api, trainer, env, env-NAME, engine, export or supervisor.", show_default="all of them")
@click.option("--lines", default=50, type=click.IntRange(1), help="How many, from the end.")
@click.option("--follow", "follows", is_flag=True, help="Go on with what is written, until the run has ended.")
@_json
def logs_command(name: str, part: str | None, lines: int, follows: bool, as_json: bool) -> None:
    """Show the end of a run's logs."""
    run_id = named_run(name)
    parts = chosen_parts(run_id, part)
    if as_json:
        from hermes_rl.runs.watching.logs import log_lines

        _print({one: {"path": str(RunPlaces(run_id).log(one)), "text": log_lines(run_id, one, lines)} for one in parts})
        return
    show_end(run_id, parts, lines)
    if follows:
        follow_logs(run_id, parts)


def _moment(seconds: float | None) -> str:
    return "" if not seconds else datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def _ended(run_id: str, told: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        _print(told)
    elif told["status"] == "finished":
        console().print(
            f"finished; `hermes-rl run results {run_id}` shows what it came to", markup=False, soft_wrap=True
        )
    elif told["status"] in {"failed", "interrupted"}:
        console().print(
            f"{told['status']}; `hermes-rl run logs {run_id}` shows why, `hermes-rl run resume {run_id}` goes on",
            markup=False,
            soft_wrap=True,
        )
    return exit_code(told)


def _report(told: dict[str, Any], sentence: str, *, as_json: bool) -> None:
    if as_json:
        _print(told)
    else:
        click.echo(sentence, err=True)


def _print(value: Any) -> None:
    click.echo(jsontext.dumps(value).decode())
    sys.stdout.flush()
