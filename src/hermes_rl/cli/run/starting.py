"""A run made of options: what `run start` and `train` have in common."""

from collections.abc import Callable
from typing import Any

import click

from hermes_rl import jsontext
from hermes_rl.environment.command import TRACE
from hermes_rl.errors import ConfigError
from hermes_rl.runs.configuration import edited, new_draft, with_environment
from hermes_rl.runs.discovery import find_environment
from hermes_rl.runs.rl_tools.starting import startable
from hermes_rl.runs.run_file import RunFile
from hermes_rl.tracing import Tracing


def starting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument ENV and the options that say what is to be run."""
    for decorate in (
        click.option("--trace", metavar="URL", help=TRACE),
        click.option("--dry-run", is_flag=True, help="Check everything and show the run; start nothing."),
        click.option(
            "--eval", "evaluated", multiple=True, metavar="ENV", help="Evaluate on this one too, without training."
        ),
        click.option("--add", "added", multiple=True, metavar="ENV[:WEIGHT]", help="Train on this one as well."),
        click.option(
            "--set", "changes", multiple=True, metavar="FIELD=VALUE", help="Change a field; `run show` names them."
        ),
        click.option(
            "--preset", help="Where to train: laptop, self-hosted, tinker, or one of your own.  [default: tinker]"
        ),
        click.argument("environment", metavar="ENV"),
    ):
        command = decorate(command)
    return command


def made_run(
    environment: str,
    preset: str | None,
    changes: tuple[str, ...],
    added: tuple[str, ...],
    evaluated: tuple[str, ...],
    trace: str | None = None,
) -> RunFile:
    """The run, checked as far as it can be before anything is started."""
    draft = new_draft(find_environment(environment), preset)
    for text in added:
        name, weight = split_weight(text)
        draft = with_environment(draft, find_environment(name), weight=weight)
    for name in evaluated:
        draft = with_environment(draft, find_environment(name), evaluation_only=True)
    for text in changes:
        field, value = split_change(text)
        draft = edited(draft, field, value)
    Tracing.of(trace)
    return startable(draft).model_copy(update={"trace": trace})


def split_weight(text: str) -> tuple[str, float]:
    """ENV and its weight. A file's class is written with a colon too, so only a number counts as a weight."""
    name, colon, tail = text.rpartition(":")
    try:
        weight = float(tail) if colon else None
    except ValueError:
        weight = None
    if weight is None:
        return text, 1.0
    if not 0 < weight < float("inf"):
        raise ConfigError(f"--add {text}: a weight is a number above 0, got {tail}")
    return name, weight


def split_change(text: str) -> tuple[str, Any]:
    """FIELD and its value: JSON where the text is JSON, else the text itself."""
    field, sign, value = text.partition("=")
    if not sign or not field.strip():
        raise ConfigError(f"--set {text!r} is no change; write --set FIELD=VALUE, such as --set group_size=8")
    try:
        return field.strip(), jsontext.loads(value)
    except ValueError:
        return field.strip(), value
