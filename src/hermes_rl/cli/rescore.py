"""`hermes-rl rescore FILE --env ENVIRONMENT` (Run): score recorded rollouts again after a change to the reward."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_rl.cli.progress import progress
from hermes_rl.cli.recorded_command import RecordedCommand
from hermes_rl.console.live_display import console
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Group

if TYPE_CHECKING:
    from hermes_rl.environment.base import HermesAgentBaseEnv
    from hermes_rl.environment.resolve_config import Settings
    from hermes_rl.evaluation.rescore import RescoreSource, RescoreStats

HELP = """Score recorded rollouts again after a change to the reward, without a model.

FILE was written by `hermes-rl process`. If the reward only needs the transcript, it scores that; if it reads the
sandbox, the recorded tool calls are replayed in a fresh one first. Writes the groups to a new file and shows what
changed. The exit code is 1 if a rollout lost its score."""


def rescore_command(environment: "type[HermesAgentBaseEnv]", path: Path) -> click.Command:
    from hermes_rl.cli.settings_command import NO_ENDPOINT, settings_command
    from hermes_rl.environment.prebuild import without_health_checks
    from hermes_rl.evaluation.rescore import RescoreSource

    options: list[click.Parameter] = [
        click.Option(
            ["--output", "-o"],
            type=click.Path(path_type=Path),
            show_default="FILE.rescored.jsonl",
            help="Write to this file.",
        ),
        click.Option(
            ["--from", "source"],
            type=click.Choice([one.value for one in RescoreSource]),
            default=RescoreSource.AUTO.value,
            show_default=True,
            help="Select what to score from.",
        ),
        click.Option(["--overwrite"], is_flag=True, help="Replace the output file if it exists."),
    ]

    def run(settings: "Settings", *, output: Path | None, source: str, overwrite: bool, as_json: bool) -> int:
        target = output or path.with_suffix(".rescored.jsonl")
        if target.exists():
            if not overwrite or target.samefile(path):
                raise ConfigError(f"{target} already exists; pass --overwrite, or another --output")
            target.unlink()
        env = environment(settings.env, without_health_checks(settings.endpoints))
        env.artifacts_folder = path.with_suffix(".artifacts")
        began = time.monotonic()
        moved = run_async(_rescore(env, path, target, RescoreSource(source)))
        seconds = time.monotonic() - began
        _show(moved, target, seconds)
        if as_json:
            result = {**moved.summary(), "path": str(target), "seconds": round(seconds, 3)}
            echo(fast_json.dumps(result).decode())
        return 1 if moved.no_longer_scored else 0

    return settings_command(
        "rescore",
        environment,
        run,
        options,
        sections=NO_ENDPOINT,
        json_help="Print the changes as one JSON object.",
        help=HELP,
    )


rescore = RecordedCommand("rescore", rescore_command, help=HELP)


async def _rescore(env: "HermesAgentBaseEnv", path: Path, target: Path, source: "RescoreSource") -> "RescoreStats":
    from hermes_rl.evaluation.rescore import RescoreStats, rescore_groups
    from hermes_rl.store.export import count_lines
    from hermes_rl.store.records import RecordWriter, group_to_record, read_groups

    moved = RescoreStats()
    total = count_lines(path)
    async with env.opened():
        with RecordWriter(target) as writer, progress("rescore", total) as shown:
            done = 0

            def keep(group: Group) -> None:
                nonlocal done
                writer.write(group_to_record(group))
                done += 1
                shown.show(done, f"{moved.up} up, {moved.down} down, {moved.same} same")

            await rescore_groups(env, read_groups(path), keep, moved, source=source)
    return moved


def _show(moved: "RescoreStats", target: Path, seconds: float) -> None:
    from rich.table import Table

    from hermes_rl.console.escaping_console import styled

    summary: dict[str, Any] = moved.summary()
    table = Table(title=f"rescore · {moved.groups} groups in {seconds:.1f} s", title_justify="left", show_header=False)
    for name, count in summary["rollouts"].items():
        if count or name == "same":
            table.add_row(name.replace("_", " "), str(count))
    table.add_row("mean score", f"{_mean(summary['mean_before'])} → {_mean(summary['mean_after'])}")
    table.add_row("from the transcript alone", str(moved.from_transcript))
    table.add_row(
        "replayed",
        f"{moved.replayed}; {moved.calls_that_differ} of {moved.calls} calls returned a different result",
    )
    for cause, count in moved.failures.most_common():
        table.add_row(styled((f"not scored: {cause}", "red")), str(count))
    screen = console()
    screen.print(table)
    for example in moved.examples:
        screen.print(
            f"changed: group {example['group']}, rollout {example['rollout']}: {example['from']} → {example['to']}",
            soft_wrap=True,
        )
    for difference in moved.drift:
        screen.print(f"different result: {difference['call']}", soft_wrap=True)
        screen.print(f"  recorded: {difference['recorded']}\n  replayed: {difference['replayed']}", soft_wrap=True)
    for cause, message in moved.failure_examples.items():
        screen.print(f"{cause}, for instance: {message[:300]}", soft_wrap=True)
    screen.print(f"written: {target}", soft_wrap=True)


def _mean(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
