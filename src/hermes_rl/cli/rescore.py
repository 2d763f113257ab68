"""`hermes-rl rescore FILE --env ENVIRONMENT`: recorded rollouts scored again, and what moved."""

import time
from pathlib import Path
from typing import Any

import click

from hermes_rl import jsontext
from hermes_rl.cli.progress import progress
from hermes_rl.cli.recorded_verb import RecordedVerb
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.preparation import without_waiting
from hermes_rl.environment.rescoring import Moved, Source, rescore_groups
from hermes_rl.environment.settings import defaults, resolve
from hermes_rl.errors import ConfigError
from hermes_rl.store.export import count_lines
from hermes_rl.store.records import RecordWriter, read_groups, record_of
from hermes_rl.terminal.running import on_a_loop
from hermes_rl.terminal.screen import console
from hermes_rl.terminal.sections import section_options, section_values
from hermes_rl.trajectory import Group

HELP = """Score recorded rollouts again after a change of the reward, without a model.

FILE is what `hermes-rl process` wrote. Scored from the transcript when the reward asks for nothing else; when it looks
into the sandbox, the recorded tool calls are carried out again in a fresh one first. The new groups go to a file of
their own, and what moved is shown."""


def rescore_command(environment: type[HermesAgentBaseEnv], path: Path) -> click.Command:
    options: list[click.Parameter] = [
        click.Option(["--output", "-o"], type=click.Path(path_type=Path), help="New file [FILE.rescored.jsonl]."),
        click.Option(
            ["--from", "source"],
            type=click.Choice([one.value for one in Source]),
            default=Source.AUTO.value,
            show_default=True,
            help="What to score from.",
        ),
        click.Option(["--overwrite"], is_flag=True, help="Replace the output file if it exists."),
        click.Option(["--config", "config_file"], type=click.Path(path_type=Path), help="YAML file with env."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print what moved as one JSON object."),
        *section_options("env", defaults(environment)[0]),
    ]

    def run(
        output: Path | None, source: str, overwrite: bool, config_file: Path | None, as_json: bool, **flags: str | None
    ) -> int:
        given = {name: text for name, text in flags.items() if text is not None}
        settings = resolve(environment, config_file, section_values(given, "env"), {})
        target = output or path.with_suffix(".rescored.jsonl")
        if target.exists():
            if not overwrite or target.samefile(path):
                raise ConfigError(f"{target} exists; pass --overwrite, or another --output")
            target.unlink()
        env = environment(settings.env, without_waiting(settings.endpoints))
        began = time.monotonic()
        moved = on_a_loop(_rescore(env, path, target, Source(source)))
        seconds = time.monotonic() - began
        _show(moved, target, seconds)
        if as_json:
            result = {**moved.summary(), "path": str(target), "seconds": round(seconds, 3)}
            click.echo(jsontext.dumps(result).decode())
        return 1 if moved.no_longer_scored else 0

    return click.Command(
        "rescore", callback=run, params=options, help=HELP, context_settings={"max_content_width": 110}
    )


rescore = RecordedVerb("rescore", rescore_command, help=HELP)


async def _rescore(env: HermesAgentBaseEnv, path: Path, target: Path, source: Source) -> Moved:
    moved = Moved()
    total = count_lines(path)
    async with env.opened():
        with RecordWriter(target) as writer, progress("rescore", total) as shown:
            done = 0

            def keep(group: Group) -> None:
                nonlocal done
                writer.write(record_of(group))
                done += 1
                shown.show(done, f"{moved.up} up, {moved.down} down, {moved.same} same")

            await rescore_groups(env, read_groups(path), keep, moved, source=source)
    return moved


def _show(moved: Moved, target: Path, seconds: float) -> None:
    from rich.table import Table

    summary: dict[str, Any] = moved.summary()
    table = Table(title=f"rescore · {moved.groups} groups in {seconds:.1f} s", title_justify="left", show_header=False)
    for name, count in summary["rollouts"].items():
        if count or name == "same":
            table.add_row(name.replace("_", " "), str(count))
    table.add_row("mean score", f"{_mean(summary['mean_before'])} → {_mean(summary['mean_after'])}")
    table.add_row("from the transcript alone", str(moved.from_transcript))
    table.add_row(
        "replayed in a sandbox",
        f"{moved.replayed}; of {moved.calls} calls {moved.calls_that_differ} answered differently",
    )
    for cause, count in moved.failures.most_common():
        table.add_row(f"[red]not scored: {cause}[/red]", str(count))
    screen = console()
    screen.print(table)
    for example in moved.examples:
        screen.print(
            f"moved: group {example['group']}, rollout {example['rollout']}: {example['from']} → {example['to']}",
            soft_wrap=True,
        )
    for one in moved.drift:
        screen.print(f"answered differently: {one['call']}", soft_wrap=True, markup=False)
        screen.print(f"  recorded: {one['recorded']}\n  replayed: {one['replayed']}", soft_wrap=True, markup=False)
    for cause, message in moved.failure_examples.items():
        screen.print(f"{cause}, for instance: {message[:300]}", soft_wrap=True, markup=False)
    screen.print(f"groups: {target}", soft_wrap=True)


def _mean(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
