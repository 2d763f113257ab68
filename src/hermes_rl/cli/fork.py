"""`hermes-rl fork FILE` (Run): rebuild a recorded rollout at one of its turns, and let a model continue from there."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_rl.cli.recorded_command import RecordedCommand, recorded_group
from hermes_rl.console.live_display import console
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Group, Rollout

if TYPE_CHECKING:
    from hermes_rl.environment.base import HermesAgentBaseEnv
    from hermes_rl.environment.resolve_config import Settings
    from hermes_rl.evaluation.fork import Fork

HELP = """Rebuild a recorded rollout at one of its turns, and let a model continue from there.

FILE was written by `hermes-rl process`. The tool calls before the turn are executed again in a fresh sandbox; if a
result differs from the record, nothing is forked and the first difference is shown. --edit replaces the message before
the turn: what would the model have done with a different tool result? The new rollouts are scored and added to a file
of groups. The exit code is 1 if none has a score."""
ANSWER = 60


def fork_command(environment: "type[HermesAgentBaseEnv]", path: Path) -> click.Command:
    from hermes_rl.cli.settings_command import ENDPOINT_FIRST, settings_command
    from hermes_rl.evaluation.fork import Fork

    positive = click.IntRange(min=1)
    options: list[click.Parameter] = [
        click.Option(["--turn", "-t"], type=positive, required=True, help="Answer again from this turn on, from 1."),
        click.Option(
            ["--group", "-g"], default="1", show_default=True, help="Select a group by number, from 1, or by id."
        ),
        click.Option(
            ["--rollout", "-r"], type=click.IntRange(min=0), default=0, show_default=True,
            help="Select a rollout of the group by number, from 0.",
        ),
        click.Option(["-n", "--count"], type=positive, default=1, show_default=True, help="Make this many forks."),
        click.Option(["--edit"], metavar="TEXT", help="Replace the message before the turn with this text."),
        click.Option(
            ["--output", "-o"], type=click.Path(path_type=Path), show_default="FILE.forks.jsonl",
            help="Add the group to this file.",
        ),
    ]  # fmt: skip

    def run(
        settings: "Settings",
        *,
        turn: int,
        group: str,
        rollout: int,
        count: int,
        edit: str | None,
        output: Path | None,
        as_json: bool,
    ) -> int:
        if not settings.has_endpoint:
            raise ConfigError("a fork needs a model: pass --url http://HOST:PORT/v1 and --model NAME")
        source = recorded_group(path, group)
        target = output or path.with_suffix(".forks.jsonl")
        env = environment(settings.env, settings.endpoints)
        forked = run_async(_fork(env, path, source, Fork(rollout, turn, count, edit, settings.env.seed), target))
        _show(source.rollouts[rollout], forked, target)
        if as_json:
            from hermes_rl.evaluation.fork import fork_summary

            result = {**fork_summary(source.rollouts[rollout], forked), "path": str(target)}
            echo(fast_json.dumps(result).decode())
        return 0 if forked.scored else 1

    return settings_command(
        "fork",
        environment,
        run,
        options,
        sections=ENDPOINT_FIRST,
        json_help="Print the scores as one JSON object.",
        help=HELP,
    )


fork = RecordedCommand("fork", fork_command, help=HELP)


async def _fork(env: "HermesAgentBaseEnv", path: Path, group: Group, fork: "Fork", target: Path) -> Group:
    from hermes_rl.evaluation.fork import fork_rollout
    from hermes_rl.store.records import RecordWriter, group_to_record, read_groups

    async with env.opened():
        forked = await fork_rollout(env, group, fork, read_groups(path) if env.seats else ())
    with RecordWriter(target) as writer:
        writer.write(group_to_record(forked))
    return forked


def _show(source: Rollout, forked: Group, target: Path) -> None:
    from rich.table import Table

    table = Table("rollout", "score", "turns", "ended", "last message", title=f"fork · {target}", title_justify="left")
    table.add_row("recorded", *_row(source))
    for rollout in forked.rollouts:
        table.add_row(str(rollout.index), *_row(rollout))
    console().print(table)
    for failure in sorted({one.failure.message for one in forked.rollouts if one.failure is not None}):
        echo(failure, err=True)


def _row(rollout: Rollout) -> tuple[str, ...]:
    last: dict[str, Any] = rollout.messages[-1] if rollout.messages else {}
    text = " ".join(str(last.get("content") or "").split())
    ended = str(rollout.stop_reason if rollout.failure is None else rollout.failure)
    score = "–" if rollout.score is None else f"{rollout.score:g}"
    return score, str(rollout.turns_used), ended, text[:ANSWER]
