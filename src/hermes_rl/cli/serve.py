"""`hermes-rl serve`: the environment's own command, and many replicas of it where they are asked for.

Always true: without --replicas it is the environment's command, and nothing of replicas is loaded.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from hermes_rl import jsontext
from hermes_rl.cli.environment_verb import environment_mode
from hermes_rl.environment.command import mode_command
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.endpoint_choice import choose_endpoint
from hermes_rl.environment.settings import Settings, resolve
from hermes_rl.errors import ConfigError
from hermes_rl.home import rl_home
from hermes_rl.terminal.sections import section_values

if TYPE_CHECKING:
    from hermes_rl.runs.replicas.hosts import Hosts
    from hermes_rl.runs.replicas.order import Order

HERE, RAY = "here", "ray"
# Beside the worker's own time to stop: it ends its sandboxes and says goodbye.
DRAIN_GRACE = 15.0
OPTIONS: tuple[click.Parameter, ...] = (
    click.Option(
        ["--replicas"], type=click.IntRange(1, 4096), help="Serve from so many places at once: docs/many-machines.md."
    ),
    click.Option(
        ["--shards"],
        type=click.IntRange(1, 65536),
        help="With --replicas: into how many parts the items are split, a process each; fixed for a database. "
        "[as many as replicas]",
    ),
    click.Option(
        ["--on"], type=click.Choice([HERE, RAY]), default=HERE, help="With --replicas: this machine, or a Ray cluster."
    ),
    click.Option(["--name"], help="With --replicas: what `hermes-rl replicas` calls them. [the environment's name]"),
    click.Option(["--ray-address"], help="The Ray cluster. [RAY_ADDRESS, or the one that runs on this machine]"),
    click.Option(["--ray-working-dir"], metavar="FOLDER", help="A folder that Ray brings to every node."),
    click.Option(["--replica-cpus"], type=click.FloatRange(0), default=1.0, help="Of its node, for each replica. [1]"),
    click.Option(
        ["--replica-resource"],
        multiple=True,
        metavar="NAME=AMOUNT",
        help="A resource of Ray's that each replica takes; it goes only where there is some.",
    ),
    click.Option(
        ["--replica-key"], multiple=True, metavar="NAME", help="A key of this machine that workers get as a variable."
    ),
)


def serve_command(environment: type[Environment]) -> click.Command:
    """The environment's `serve` with the options of replicas; its context's `obj` is what it was named by."""
    own = mode_command(environment, "serve")
    alone = cast("Callable[..., int]", own.callback)
    names = [str(option.name) for option in OPTIONS]

    def run(**values: Any) -> int:
        ours = {name: values.pop(name) for name in names}
        if ours["replicas"] is None:
            _check_alone(ours)
            return alone(**values)
        return _replicas(environment, str(click.get_current_context().obj), ours, values)

    return click.Command(
        "serve",
        callback=run,
        params=[*own.params, *OPTIONS],
        help=own.help,
        context_settings=own.context_settings,
    )


serve = environment_mode("serve", serve_command)


def _replicas(environment: type[Environment], reference: str, ours: dict[str, Any], values: dict[str, Any]) -> int:
    from hermes_rl.environment.exactness import require_exact_tokens
    from hermes_rl.runs.replicas.driving import Task, drive
    from hermes_rl.runs.replicas.shards import shards_of
    from hermes_rl.runs.replicas.states import Patience

    config_file, as_json, trace = values.pop("config_file"), values.pop("as_json"), values.pop("trace")
    given = {name: text for name, text in values.items() if text is not None}
    settings = resolve(environment, config_file, section_values(given, "env"), section_values(given, "openai"))
    if not settings.has_endpoint:
        settings = Settings(settings.env, (choose_endpoint(),))
    _check(settings)
    require_exact_tokens(settings.env, settings.endpoints)
    shards = shards_of(environment.display_name(), settings.env, asked=ours["shards"], replicas=ours["replicas"])
    words = [*_words(given, trace), *_share(settings, shards)]
    kept = _kept(settings.env.serve_dir)
    order = _order(reference, config_file, words, shards, kept, ours["replica_key"])
    patience = Patience(drain_within=settings.env.stop_timeout + DRAIN_GRACE)
    name = ours["name"] or environment.display_name()
    task = Task(name, environment.display_name(), ours["replicas"], shards, ours["on"], patience)
    _report(f"{ours['replicas']} replicas of {name} for {shards} shards")
    fleet = drive(task, _joined(ours, name, order, patience.drain_within), _report)
    if as_json:
        restarts = sum(shard.restarts for shard in fleet.shards)
        told = {"ended": fleet.reason, "shards": shards, "restarts": restarts, "replicas_opened": fleet.opened}
        sys.stdout.write(jsontext.dumps(told).decode() + "\n")
    return 0


def _joined(ours: dict[str, Any], name: str, order: "Order", drain_seconds: float) -> "Callable[[], Hosts]":
    resources = dict(_resource(text) for text in ours["replica_resource"])
    if ours["on"] == HERE:
        from hermes_rl.runs.replicas.hosts import LocalHosts

        return lambda: LocalHosts(order)
    from hermes_rl.runs.replicas.ray_hosts import RayHosts, RayPlace

    place = RayPlace(ours["ray_address"], ours["replica_cpus"], resources, ours["ray_working_dir"])
    return lambda: RayHosts(name, order, place, drain_seconds)


def _words(given: dict[str, str], trace: str | None) -> list[str]:
    """The options as they were given."""
    words = [word for name, text in given.items() for word in (f"--{name.replace('__', '.', 1)}", text)]
    return [*words, "--trace", trace] if trace else words


def _share(settings: Settings, shards: int) -> list[str]:
    """Of the environment's weight in a batch, which the API counts for each shard by itself."""
    env = settings.env
    words = ["--env.inference_weight", repr(env.inference_weight / shards)]
    if env.min_batch_allocation:
        words += ["--env.min_batch_allocation", repr(env.min_batch_allocation / shards)]
    return words if shards > 1 else []


def _kept(serve_dir: str | None) -> str | None:
    """A folder below our home as one below the home of each worker, which may be elsewhere on its machine."""
    home = rl_home().absolute()
    place = None if serve_dir is None else Path(serve_dir).absolute()
    return str(place.relative_to(home)) if place is not None and place.is_relative_to(home) else None


def _order(
    reference: str, config_file: Path | None, words: list[str], shards: int, kept: str | None, keys: list[str]
) -> "Order":
    from hermes_rl.runs.keys import find_key
    from hermes_rl.runs.replicas.order import Order

    file, colon, name = reference.partition(":")
    if file.endswith(".py") and Path(file).exists():
        reference = f"{Path(file).absolute()}{colon}{name}"
    found = {key: find_key(key) for key in keys}
    if missing := [key for key, value in found.items() if value is None]:
        raise ConfigError(f"--replica-key {missing[0]}: there is no such key; `hermes-rl config set {missing[0]}`")
    config = None if config_file is None else config_file.read_text()
    variables = {key: value for key, value in found.items() if value}
    return Order(reference, tuple(words), shards, config, kept, variables)


def _check_alone(ours: dict[str, Any]) -> None:
    for name in ("shards", "name", "ray_address", "ray_working_dir", "replica_resource", "replica_key"):
        if ours[name]:
            raise ConfigError(f"--{name.replace('_', '-')} is for many replicas; say how many by --replicas N")
    if ours["on"] != HERE:
        raise ConfigError(f"--on {ours['on']} is for many replicas; say how many by --replicas N")


def _check(settings: Settings) -> None:
    env = settings.env
    if env.evaluation_only:
        raise ConfigError("one process is enough to evaluate; leave --replicas out with --env.evaluation_only")
    if env.shards != 1 or env.shard != 0:
        raise ConfigError(
            "--replicas gives each worker its shard; leave --env.shards and --env.shard out, use --shards"
        )


def _resource(text: str) -> tuple[str, float]:
    name, sign, amount = text.partition("=")
    try:
        return name, float(amount if sign else "1")
    except ValueError:
        raise ConfigError(
            f"--replica-resource {text!r} is no resource; write NAME=AMOUNT, such as gpu_node=1"
        ) from None


def _report(text: str) -> None:
    click.echo(f"replicas: {text}", err=True)
