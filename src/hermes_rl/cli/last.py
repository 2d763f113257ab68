"""`last` and prefixes wherever a command takes the name of a run, a file of groups or an evaluation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.last_output import LAST, known_output, named_path

# Runs named in an error.
SHOWN = 5


class GroupsFile(click.Path):
    """A file of groups; `last` is the one that `hermes-rl process` wrote last."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(str(named_path(value, "groups")) if isinstance(value, str) else value, param, ctx)


def resolve_run_id(text: str) -> str:
    """The id of a run; ConfigError, with candidates, if none or several match."""
    from hermes_rl.orchestration.status.run_list import list_runs

    known = [str(run["run_id"]) for run in list_runs()]
    if text in known:
        return text
    if not known:
        raise ConfigError(f"no run {text!r}, as there are no runs yet; start one with `hermes-rl train ENV`")
    if text == LAST:
        return known[0]
    matches = [run_id for run_id in known if run_id.startswith(text)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(
            f"{len(matches)} runs begin with {text!r}: {', '.join(matches[:SHOWN])}; pass a longer prefix"
        )
    raise ConfigError(f"no run {text!r}; the newest are {', '.join(known[:SHOWN])}; list all with `hermes-rl run list`")


def run_reference(text: str) -> str:
    """The id of a run for `last` or a prefix, as in `hermes-rl run`; any other reference is unchanged."""
    if Path(text).exists():
        return text
    try:
        return resolve_run_id(text)
    except ConfigError:
        return text


def targets_with_last(targets: Sequence[str]) -> tuple[str, ...]:
    """The targets of `view` and `report`: `last` is the newest of the runs, files of groups and evaluations."""
    return tuple(_newest() if target == LAST and not Path(target).exists() else target for target in targets)


def _newest() -> str:
    from hermes_rl.orchestration.status.run_list import list_runs

    outputs = (known_output("groups"), known_output("evaluation"))
    found = {str(path): path.stat().st_mtime for path in outputs if path}
    found |= {str(run["run_id"]): float(run["started_at"] or 0) for run in list_runs()[:1]}
    if not found:
        raise ConfigError(
            f"nothing to name `{LAST}` on this machine: `hermes-rl process`, `evaluate` and `train` make something"
        )
    return max(found, key=lambda name: found[name])
