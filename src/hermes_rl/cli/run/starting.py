"""A run made of options: what `run start` and `train` have in common."""

import importlib.util
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import click

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.runs.configuration.editing import edited, new_draft, with_environment
from hermes_rl.runs.discovery.finding import find_environment
from hermes_rl.runs.keys import find_key
from hermes_rl.runs.rl_tools.starting import startable
from hermes_rl.runs.run_file import ReplicasEntry, RunFile
from hermes_rl.runs.supervision.plan import RUN_KEY
from hermes_rl.terminal.sections import TRACE
from hermes_rl.tracing.opening import Tracing

ONE_MACHINE: Mapping[str, Any] = MappingProxyType({})
RAY_REPLICAS = 2


def starting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument ENV and the options that say what is to be run."""
    for decorate in (
        click.option("--trace", metavar="URL", help=TRACE),
        click.option(
            "--reach",
            metavar="ADDRESS",
            help="This machine's address as the nodes reach it; the key HERMES_RL_RUN_TOKEN guards what listens there.",
        ),
        click.option("--ray-address", help="With --on ray: the cluster.  [default: the one that runs here]"),
        click.option("--shards", type=click.IntRange(1), help="Parts of the items.  [default: as many as replicas]"),
        click.option(
            "--replicas",
            type=click.IntRange(1, 4096),
            help="Serve each environment from so many places.  [default: 1, or 2 with --on ray]",
        ),
        click.option("--on", type=click.Choice(["here", "ray"]), default="here", help="Where replicas run."),
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
    machines: Mapping[str, Any] = ONE_MACHINE,
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
    return on_machines(startable(draft).model_copy(update={"trace": trace}), **machines)


def on_machines(
    run_file: RunFile,
    *,
    on: Literal["here", "ray"] = "here",
    replicas: int | None = None,
    shards: int | None = None,
    ray_address: str | None = None,
    reach: str | None = None,
) -> RunFile:
    """The run from so many places; ConfigError where what that needs is not there."""
    count = replicas or (RAY_REPLICAS if on == "ray" else None)
    if count is None and (shards or ray_address):
        raise ConfigError("--shards and --ray-address are for many replicas; say how many by --replicas N")
    if on == "ray" and importlib.util.find_spec("ray") is None:
        raise ConfigError("--on ray needs the extra `ray`: pip install 'hermes-rl[ray]'")
    changes: dict[str, Any] = {}
    if count is not None:
        changes["replicas"] = ReplicasEntry(count=count, shards=shards, on=on, ray_address=ray_address)
    if reach is not None:
        if find_key(RUN_KEY) is None:
            raise ConfigError(
                f"--reach opens the run's API and inference to other machines, for who has its key; "
                f"`hermes-rl config set {RUN_KEY}` takes any long random text"
            )
        changes |= {"reach": reach, "keys": (*run_file.keys, RUN_KEY)}
    return run_file.model_copy(update=changes)


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
