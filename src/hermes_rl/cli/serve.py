"""`hermes-rl serve` (Serve): generate groups of rollouts and deliver them to a trajectory API for a trainer.

Without --replicas no code of replicas is imported.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from hermes_rl.cli.environment_command import environment_mode
from hermes_rl.console.config_options import (
    ATROPOS_FLAGS,
    PART,
    ConfigSections,
    refuse_atropos_endpoints,
    section_values,
)
from hermes_rl.console.output import echo
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import rl_home

if TYPE_CHECKING:
    from hermes_rl.environment.resolve_config import Settings
    from hermes_rl.orchestration.replicas.hosts import Hosts
    from hermes_rl.orchestration.replicas.worker_spec import WorkerSpec
    from hermes_rl.rollout.environment_protocol import Environment

HERE, RAY = "here", "ray"
# On top of the worker's stop timeout: it closes its sandboxes and leaves the API.
DRAIN_GRACE = 15.0
OPTIONS: tuple[click.Parameter, ...] = (
    click.Option(
        ["--replicas"], type=click.IntRange(1, 4096), help="Serve with this many replicas; see docs/many-machines.md."
    ),
    click.Option(
        ["--shards"],
        type=click.IntRange(1, 65536),
        help="With --replicas: split the items into this many shards, one process each; fixed per database. "
        "[the number of replicas]",
    ),
    click.Option(
        ["--on"],
        type=click.Choice([HERE, RAY]),
        default=HERE,
        help="With --replicas: run on this machine or a Ray cluster.",
    ),
    click.Option(["--name"], help="With --replicas: use this name in `hermes-rl replicas`. [the environment's name]"),
    click.Option(["--ray-address"], help="Use this Ray cluster. [RAY_ADDRESS, or the one on this machine]"),
    click.Option(["--ray-working-dir"], metavar="FOLDER", help="Copy this folder to every Ray node."),
    click.Option(
        ["--replica-cpus"], type=click.FloatRange(0), default=1.0, help="Reserve this many CPUs per replica. [1]"
    ),
    click.Option(
        ["--replica-resource"],
        multiple=True,
        metavar="NAME=AMOUNT",
        help="Reserve this Ray resource per replica; restricts nodes. Repeatable.",
    ),
    click.Option(
        ["--replica-key"],
        multiple=True,
        metavar="NAME",
        help="Pass this stored key to workers as an environment variable.",
    ),
)


def serve_command(environment: "type[Environment]") -> click.Command:
    """The environment's `serve` with options for replicas; the context's `obj` is the reference as typed."""
    from hermes_rl.environment.command import mode_command
    from hermes_rl.orchestration.run_file import read_part

    own = mode_command(environment, "serve")
    serve_alone = cast("Callable[..., int]", own.callback)
    names = [str(option.name) for option in OPTIONS]

    def run(config_file: Path | None, part: str | None, **values: Any) -> int:
        config = read_part(config_file, part)
        replica_options = {name: values.pop(name) for name in names}
        if replica_options["replicas"] is None:
            _check_alone(replica_options)
            return serve_alone(config_file=config_file, config=config, **values)
        return _replicas(environment, str(click.get_current_context().obj), config, replica_options, values)

    own.callback = run
    own.params += [click.Option(["--part"], help=PART), *OPTIONS]
    return own


serve = environment_mode("serve", serve_command)


def _replicas(
    environment: "type[Environment]",
    reference: str,
    config: ConfigSections,
    replica_options: dict[str, Any],
    values: dict[str, Any],
) -> int:
    from hermes_rl.environment.ask_endpoint import choose_endpoint
    from hermes_rl.environment.resolve_config import Settings, resolve_settings
    from hermes_rl.orchestration.replicas.controller import FleetTask, run_fleet
    from hermes_rl.orchestration.replicas.shards import resolve_shards
    from hermes_rl.orchestration.replicas.types import FleetTimeouts
    from hermes_rl.rollout.token_requirements import require_exact_tokens

    as_json, trace = values.pop("as_json"), values.pop("trace")
    refuse_atropos_endpoints(**{name: values.pop(name) for name in ATROPOS_FLAGS})
    given = {name: text for name, text in values.items() if text is not None}
    settings = resolve_settings(environment, config, section_values(given, "env"), section_values(given, "openai"))
    if not settings.has_endpoint:
        settings = Settings(settings.env, (choose_endpoint(),))
    _check(settings)
    require_exact_tokens(settings.env, settings.endpoints)
    shards = resolve_shards(
        environment.display_name(),
        settings.env,
        requested=replica_options["shards"],
        replicas=replica_options["replicas"],
    )
    arguments = [*_arguments(given, trace), *_weight_arguments(settings, shards)]
    serve_dir = _relative_serve_dir(settings.env.serve_dir)
    worker_spec = _worker_spec(reference, config, arguments, shards, serve_dir, replica_options["replica_key"])
    patience = FleetTimeouts(drain_timeout=settings.env.stop_timeout + DRAIN_GRACE)
    name = replica_options["name"] or environment.display_name()
    task = FleetTask(
        name, environment.display_name(), replica_options["replicas"], shards, replica_options["on"], patience
    )
    _report(f"{replica_options['replicas']} replicas of {name} for {shards} shards")
    fleet = run_fleet(task, _hosts_factory(replica_options, name, worker_spec, patience.drain_timeout), _report)
    if as_json:
        restarts = sum(shard.restarts for shard in fleet.shards)
        summary = {"ended": fleet.reason, "shards": shards, "restarts": restarts, "replicas_opened": fleet.opened}
        echo(fast_json.dumps(summary).decode())
    return 0


def _hosts_factory(
    replica_options: dict[str, Any], name: str, worker_spec: "WorkerSpec", drain_seconds: float
) -> "Callable[[], Hosts]":
    resources = dict(_resource(text) for text in replica_options["replica_resource"])
    if replica_options["on"] == HERE:
        from hermes_rl.orchestration.replicas.hosts import LocalHosts

        return lambda: LocalHosts(worker_spec)
    from hermes_rl.orchestration.replicas.ray_hosts import RayHosts, RayOptions

    place = RayOptions(
        replica_options["ray_address"], replica_options["replica_cpus"], resources, replica_options["ray_working_dir"]
    )
    return lambda: RayHosts(name, worker_spec, place, drain_seconds)


def _arguments(given: dict[str, str], trace: str | None) -> list[str]:
    """The options as command-line arguments."""
    arguments = [word for name, text in given.items() for word in (f"--{name.replace('__', '.', 1)}", text)]
    return [*arguments, "--trace", trace] if trace else arguments


def _weight_arguments(settings: "Settings", shards: int) -> list[str]:
    """Split the environment's weight over its shards, because the API counts each shard separately."""
    env = settings.env
    arguments = ["--env.inference_weight", repr(env.inference_weight / shards)]
    if env.min_batch_allocation:
        arguments += ["--env.min_batch_allocation", repr(env.min_batch_allocation / shards)]
    return arguments if shards > 1 else []


def _relative_serve_dir(serve_dir: str | None) -> str | None:
    """`serve_dir` relative to the hermes-rl home, which may be elsewhere on a worker's machine; None if outside."""
    home = rl_home().absolute()
    folder = None if serve_dir is None else Path(serve_dir).absolute()
    return str(folder.relative_to(home)) if folder is not None and folder.is_relative_to(home) else None


def _worker_spec(
    reference: str, config: ConfigSections, arguments: list[str], shards: int, serve_dir: str | None, keys: list[str]
) -> "WorkerSpec":
    import yaml

    from hermes_rl.core.keys import find_key
    from hermes_rl.orchestration.replicas.worker_spec import WorkerSpec

    file, colon, name = reference.partition(":")
    if file.endswith(".py") and Path(file).exists():
        reference = f"{Path(file).absolute()}{colon}{name}"
    found = {key: find_key(key) for key in keys}
    if missing := [key for key, value in found.items() if value is None]:
        raise ConfigError(f"--replica-key {missing[0]}: no such key; set it with `hermes-rl config set {missing[0]}`")
    # The same sections give the same text: its hash names the workers to adopt.
    text = yaml.safe_dump(dict(config.values), sort_keys=False) if config.values else None
    variables = {key: value for key, value in found.items() if value}
    return WorkerSpec(reference, tuple(arguments), shards, text, serve_dir, variables)


def _check_alone(replica_options: dict[str, Any]) -> None:
    for name in ("shards", "name", "ray_address", "ray_working_dir", "replica_resource", "replica_key"):
        if replica_options[name]:
            raise ConfigError(f"--{name.replace('_', '-')} needs --replicas N")
    if replica_options["on"] != HERE:
        raise ConfigError(f"--on {replica_options['on']} needs --replicas N")


def _check(settings: "Settings") -> None:
    env = settings.env
    if env.evaluation_only:
        raise ConfigError("--env.evaluation_only runs in one process; leave out --replicas")
    if env.shards != 1 or env.shard != 0:
        raise ConfigError("--replicas assigns the shards; use --shards instead of --env.shards and --env.shard")


def _resource(text: str) -> tuple[str, float]:
    name, sign, amount = text.partition("=")
    try:
        return name, float(amount if sign else "1")
    except ValueError:
        raise ConfigError(f"--replica-resource {text!r} is not NAME=AMOUNT, such as gpu_node=1") from None


def _report(text: str) -> None:
    echo(f"replicas: {text}", err=True)
