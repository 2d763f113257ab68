"""Options shared by `run start` and `train`, and the run they describe."""

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import click

from hermes_rl.cli.last import run_reference
from hermes_rl.console.config_options import TRACE
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError

if TYPE_CHECKING:
    from hermes_rl.orchestration.run_file import RunFile

RAY_REPLICAS = 2


def start_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument ENV and the options of a run."""
    for decorate in (
        click.option(
            "--max-minutes",
            type=click.FloatRange(0, min_open=True),
            metavar="MINUTES",
            help="Stop with a checkpoint after this time, each time the run is started or resumed.",
        ),
        click.option(
            "--max-cost",
            type=click.FloatRange(0, min_open=True),
            metavar="AMOUNT",
            help="Stop with a checkpoint after spending this much on rollouts, judges and simulated users.",
        ),
        click.option(
            "--max-tokens-total",
            type=click.IntRange(1),
            metavar="TOKENS",
            help="Stop with a checkpoint after this many tokens of rollouts, judges and simulated users.",
        ),
        click.option("--trace", metavar="URL", help=TRACE),
        click.option(
            "--reach",
            metavar="ADDRESS",
            help="Listen on this address for other nodes, guarded by the key HERMES_RL_RUN_TOKEN.",
        ),
        click.option("--ray-address", help="With --on ray: use this cluster.  [default: the one on this machine]"),
        click.option(
            "--shards",
            type=click.IntRange(1),
            help="Split the items into this many shards.  [default: the number of replicas]",
        ),
        click.option(
            "--replicas",
            type=click.IntRange(1, 4096),
            help="Run this many replicas of each environment.  [default: 1, or 2 with --on ray]",
        ),
        click.option(
            "--on",
            type=click.Choice(["here", "ray"]),
            default="here",
            help="Run replicas on this machine or on a Ray cluster.",
        ),
        click.option("--dry-run", is_flag=True, help="Check and print the run without starting it."),
        click.option(
            "--eval", "evaluated", multiple=True, metavar="ENV", help="Also evaluate on this environment; repeatable."
        ),
        click.option(
            "--eval-items",
            type=click.IntRange(0),
            help="Evaluate this many held-out items before and after training, at temperature 0 and at 1; 0 for none.  "
            "[default: about a fifth of the run's time]",
        ),
        click.option(
            "--add", "added", multiple=True, metavar="ENV[:WEIGHT]", help="Also train on this environment; repeatable."
        ),
        click.option(
            "--set",
            "changes",
            multiple=True,
            metavar="FIELD=VALUE",
            help="Set a field; list them with `hermes-rl run show ENV`.",
        ),
        click.option(
            "--init-from",
            metavar="RUN|PATH",
            help="Start from a previous run's last checkpoint, a PEFT folder or a tinker:// path.",
        ),
        click.option("--preset", help="Train with this preset: laptop, self-hosted, tinker, or your own."),
        click.argument("environment", metavar="ENV"),
    ):
        command = decorate(command)
    return command


def build_run(
    environment: str,
    *,
    preset: str | None,
    init_from: str | None = None,
    changes: tuple[str, ...],
    added: tuple[str, ...],
    evaluated: tuple[str, ...],
    trace: str | None,
    eval_items: int | None = None,
    max_tokens_total: int | None = None,
    max_cost: float | None = None,
    max_minutes: float | None = None,
    **machines: Any,
) -> "RunFile":
    """Build and check the run that the options of `start_options` describe, without starting anything."""
    from hermes_rl.orchestration.configuration.build import prepare_run_file
    from hermes_rl.orchestration.configuration.edit import add_environment, edit_fields, new_draft
    from hermes_rl.orchestration.discovery.lookup import find_environment
    from hermes_rl.orchestration.held_out import default_items
    from hermes_rl.tracing.setup import Tracing

    found, fields = find_environment(environment), [parse_change(text) for text in changes]
    if preset is None:
        raise ConfigError(choose_preset_text(environment))
    draft = new_draft(found, preset)
    for text in added:
        name, weight = parse_weight(text)
        draft = add_environment(draft, find_environment(name), weight=weight)
    for name in evaluated:
        draft = add_environment(draft, find_environment(name), evaluation_only=True)
    draft = edit_fields(
        draft, fields if init_from is None else [*fields, ("tinker.init_from", run_reference(init_from))]
    )
    Tracing.from_option(trace)
    run_file = prepare_run_file(draft)
    items = default_items(run_file) if eval_items is None else eval_items
    run_file = add_replicas(run_file.model_copy(update={"trace": trace, "held_out_items": items}), **machines)
    return add_limits(run_file, max_tokens_total, max_cost, max_minutes)


def add_limits(
    run_file: "RunFile", max_tokens_total: int | None, max_cost: float | None, max_minutes: float | None
) -> "RunFile":
    """Add the limits: the environments count tokens and cost, each an equal part; the supervisor counts the time."""
    if max_tokens_total is max_cost is None:
        return run_file.model_copy(update={"max_minutes": max_minutes})
    if run_file.replicas is not None:
        raise ConfigError("--max-tokens-total and --max-cost need a run without --replicas; use --max-minutes")
    share = len(run_file.environments)
    limits: dict[str, Any] = {}
    if max_tokens_total is not None:
        limits["token_limit"] = max(1, max_tokens_total // share)
    if max_cost is not None:
        limits["spend_limit"] = max_cost / share
    entries = []
    for entry in run_file.environments:
        openai = dict(entry.openai)
        prices = {"prompt_price": 0.0, "completion_price": 0.0} if run_file.engine is not None else {}
        openai |= {name: price for name, price in prices.items() if openai.get(name) is None}
        if max_cost is not None and None in (openai.get("prompt_price"), openai.get("completion_price")):
            raise ConfigError(
                "--max-cost needs the price of a million tokens: --set openai.prompt_price=… and "
                "--set openai.completion_price=…"
            )
        entries.append(entry.model_copy(update={"env": {**entry.env, **limits}, "openai": openai}))
    return run_file.model_copy(update={"environments": tuple(entries), "max_minutes": max_minutes})


def choose_preset_text(environment: str) -> str:
    """The presets with their descriptions, and an example."""
    from hermes_rl.orchestration.presets.preset import list_presets

    presets = list_presets()
    width = max(len(one["name"]) for one in presets)
    lines = [f"  {one['name']:<{width}}  {one.get('description') or one['problem']}" for one in presets]
    return "\n".join(
        [
            "no preset given; choose where to train with --preset:",
            *lines,
            f'for instance: hermes-rl train {environment} --preset laptop --set base_model="$(hermes-rl engine model)"',
        ]
    )


def add_replicas(
    run_file: "RunFile",
    *,
    on: Literal["here", "ray"] = "here",
    replicas: int | None = None,
    shards: int | None = None,
    ray_address: str | None = None,
    reach: str | None = None,
) -> "RunFile":
    """Add replicas and the address for other nodes; ConfigError if a requirement is missing."""
    from hermes_rl.core.keys import find_key
    from hermes_rl.orchestration.run_file import RUN_KEY, ReplicasEntry

    count = replicas or (RAY_REPLICAS if on == "ray" else None)
    if count is None and (shards or ray_address):
        raise ConfigError("--shards and --ray-address need --replicas N")
    if on == "ray" and importlib.util.find_spec("ray") is None:
        raise ConfigError("--on ray needs the extra `ray`: pip install 'hermes-rl[ray]'")
    changes: dict[str, Any] = {}
    if count is not None:
        changes["replicas"] = ReplicasEntry(count=count, shards=shards, on=on, ray_address=ray_address)
    if reach is not None:
        if find_key(RUN_KEY) is None:
            raise ConfigError(
                f"--reach opens the run's API and inference to other machines and needs the key {RUN_KEY}; "
                f"set it to any long random text with `hermes-rl config set {RUN_KEY}`"
            )
        changes |= {"reach": reach, "keys": (*run_file.keys, RUN_KEY)}
    return run_file.model_copy(update=changes)


def parse_weight(text: str) -> tuple[str, float]:
    """Split ENV[:WEIGHT]. FILE.py:CLASS has a colon too, so only a number counts as a weight."""
    name, colon, tail = text.rpartition(":")
    try:
        weight = float(tail) if colon else None
    except ValueError:
        weight = None
    if weight is None:
        return text, 1.0
    if not 0 < weight < float("inf"):
        raise ConfigError(f"--add {text}: the weight must be above 0, got {tail}")
    return name, weight


def parse_change(text: str) -> tuple[str, Any]:
    """Split FIELD=VALUE. The value is parsed as JSON if it is valid JSON."""
    field, sign, value = text.partition("=")
    if not sign or not field.strip():
        raise ConfigError(f"--set {text!r} is not FIELD=VALUE, such as --set group_size=8")
    try:
        return field.strip(), fast_json.loads(value)
    except ValueError:
        return field.strip(), value
