"""An environment's command line: `process`, `evaluate`, `serve`, with an option for every field of its configuration.

The same commands serve `python my_env.py process …` and `hermes-rl process my_env.py …`. Results go to standard
output only with --json; what a person reads goes to standard error.
"""

import asyncio
import gc
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from hermes_rl import jsontext
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.display import summary_table
from hermes_rl.environment.endpoint_choice import choose_endpoint
from hermes_rl.environment.exactness import require_exact_tokens
from hermes_rl.environment.generation import generate_groups, store_split
from hermes_rl.environment.report.page import write_report
from hermes_rl.environment.serving.kept_files import kept_files
from hermes_rl.environment.serving.running import board_for, serve
from hermes_rl.environment.settings import Settings, defaults, resolve
from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.home import rl_home
from hermes_rl.inference import APIServerConfig
from hermes_rl.rewards import Hold, watching
from hermes_rl.secrets import is_literal
from hermes_rl.stopping import Stop
from hermes_rl.store import only_writer

T = TypeVar("T")

MODES = {
    "process": "Make groups of rollouts and write them to a JSONL file.",
    "evaluate": "Run the agent on the held-out items and write metrics.json and samples.jsonl.",
    "serve": "Make groups of rollouts for a trainer and deliver them to a trajectory API.",
}


def run_command(environment: type[Environment], arguments: list[str] | None = None) -> int:
    """The whole command line of one environment; the exit code."""
    group = click.Group(
        name=environment.display_name(),
        help=environment.__doc__ or f"The environment {environment.display_name()}.",
        commands=[mode_command(environment, mode) for mode in MODES],
    )
    return run_click(group, arguments, prog_name=None)


def run_click(command: click.Command, arguments: list[str] | None, prog_name: str | None) -> int:
    """Run a click command; our own errors are printed without a traceback, with exit code 2 or 1."""
    try:
        code = command.main(arguments, prog_name=prog_name, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        return 130
    except HermesRLError as error:
        click.echo(f"error: {error}", err=True)
        return 2 if isinstance(error, ConfigError) else 1
    return int(code or 0)


def mode_command(environment: type[Environment], mode: str) -> click.Command:
    """The click command of one mode, its options made from the configuration models."""
    env_default, endpoints = defaults(environment)
    endpoint = endpoints[0] if endpoints else APIServerConfig()
    options: list[click.Parameter] = [
        click.Option(
            ["--config", "config_file"], type=click.Path(path_type=Path), help="YAML file with env and openai."
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the result as one JSON object."),
    ]
    if mode == "process":
        options.append(click.Option(["--overwrite"], is_flag=True, help="Replace the output file if it exists."))
    if mode != "serve":
        options.append(click.Option(["--resume"], is_flag=True, help="Go on where an interrupted run stopped."))
    options += section_options("env", env_default)
    options += section_options("openai", endpoint)

    def run(
        config_file: Path | None, as_json: bool, resume: bool = False, overwrite: bool = False, **flags: str | None
    ) -> int:
        given = {name: text for name, text in flags.items() if text is not None}
        settings = resolve(environment, config_file, section_values(given, "env"), section_values(given, "openai"))
        if not settings.has_endpoint:
            settings = Settings(settings.env, (choose_endpoint(),))
        _warn_of_literal_keys(settings)
        if mode == "process":
            path = _output_file(environment, settings, overwrite=overwrite, resume=resume)
            result = on_a_loop(_process(environment, settings, path, resume=resume))
        elif mode == "serve":
            result = on_a_loop(_serve(environment, settings))
        else:
            result = on_a_loop(_evaluate(environment, settings, resume=resume))
        if as_json:
            sys.stdout.write(jsontext.dumps(result).decode() + "\n")
        return 0 if mode == "serve" or result.get("scored", 1) else 1

    return click.Command(
        mode, callback=run, params=options, help=MODES[mode], context_settings={"max_content_width": 110}
    )


async def _process(environment: type[Environment], settings: Settings, path: Path, *, resume: bool) -> dict[str, Any]:
    env = environment(settings.env, settings.endpoints)
    env.metrics_path = path.with_suffix(".metrics.jsonl")
    with watching(asyncio.get_running_loop(), report=_say_hold) as env.watchdog:
        async with env.opened():
            tally = await generate_groups(env, path, resume=resume)
    page = write_report(path, tally=tally).path
    notes = {"groups": str(path), "page": str(page), "metrics": str(env.metrics_path)}
    summary_table(f"process · {environment.display_name()}", tally, notes)
    files = {"path": str(path), "page": str(page), "metrics_path": str(env.metrics_path)}
    return {**tally.summary(), **files}


def _output_file(environment: type[Environment], settings: Settings, *, overwrite: bool, resume: bool) -> Path:
    """Where the groups go; an existing file is never mixed with a new run's groups."""
    if overwrite and resume:
        raise ConfigError("--resume keeps the groups of the file and --overwrite removes them; pass one of the two")
    path = Path(settings.env.data_path_to_save_groups or Path("data") / f"{environment.display_name()}.jsonl")
    if path.exists() and path.stat().st_size and not resume:
        if not overwrite:
            raise ConfigError(
                f"{path} already holds groups; pass --resume to go on with it, --overwrite to replace it, or another "
                "--env.data_path_to_save_groups"
            )
        with only_writer(path, "--env.data_path_to_save_groups"):
            path.unlink()
    return path


async def _evaluate(environment: type[Environment], settings: Settings, *, resume: bool) -> dict[str, Any]:
    env = environment(settings.env, settings.endpoints)
    env.resume_evaluation = resume
    env.metrics_path = rl_home() / "evals" / f"{environment.display_name()}.metrics.jsonl"
    with watching(asyncio.get_running_loop(), report=_say_hold) as env.watchdog:
        async with env.opened():
            await env.run_evaluate()
    report = env.last_evaluation or {}
    scored = report.get("metrics", {}).get("eval/scored")
    return {**report, **({} if scored is None else {"scored": scored})}


async def _serve(environment: type[Environment], settings: Settings) -> dict[str, Any]:
    require_exact_tokens(settings.env, settings.endpoints)
    env = environment(settings.env, settings.endpoints)
    kept = kept_files(env)
    env.metrics_path = kept.metrics
    stop = Stop(settings.env.stop_timeout)
    try:
        with watching(asyncio.get_running_loop(), report=_say_hold) as env.watchdog, stop.on_signals():
            async with env.opened():
                store_split(env, kept.split)
                served = await serve(env, stop, board_for(env))
    except asyncio.CancelledError:
        if stop.signals > 1:
            raise click.Abort from None
        return {"ended": "a signal before it was open"}
    notes = {"ended": served.ended, "metrics": str(env.metrics_path)}
    if served.left:
        notes["left for the next run"] = f"{served.left} groups in {served.spool}"
    summary_table(f"serve · {environment.display_name()}", served.tally, notes)
    return {**served.summary(), "metrics_path": str(env.metrics_path)}


def _say_hold(hold: Hold) -> None:
    click.echo(f"warning: {hold}", err=True)


def settle_collector() -> None:
    """Set Python's garbage collector for a process that holds thousands of conversations.

    With its defaults a full collection walks all of them again and again: at 4,096 rollouts in flight that took a fifth
    of the processor and tripled the p99 between turns (benchmarks/agent_loop.py).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def on_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work to its end."""
    settle_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def section_options(section: str, default: BaseModel) -> list[click.Parameter]:
    """An option `--SECTION.FIELD` for each field of a model."""
    return [
        click.Option(
            [f"--{section}.{name}", f"{section}__{name}"],
            metavar=_metavar(field.annotation),
            help=_help(field.description or "", getattr(default, name, PydanticUndefined), secret=name == "api_key"),
        )
        for name, field in type(default).model_fields.items()
    ]


def _help(description: str, value: Any, *, secret: bool) -> str:
    shown = "" if value is None or value is PydanticUndefined or secret else f" [{value}]"
    return description + shown


def _metavar(annotation: Any) -> str:
    return str(getattr(annotation, "__name__", annotation)).replace("typing.", "").upper().split(".")[-1]


def section_values(flags: dict[str, str], section: str) -> dict[str, str]:
    """Those of a section, by field."""
    return {name.removeprefix(f"{section}__"): text for name, text in flags.items() if name.startswith(f"{section}__")}


def _warn_of_literal_keys(settings: Settings) -> None:
    if any(endpoint.key_is_literal for endpoint in settings.endpoints):
        click.echo(
            "warning: --openai.api_key holds a literal key, which other users of this machine can see in the process "
            "list; use env:NAME or file:PATH",
            err=True,
        )
    if settings.env.rollout_server_token and is_literal(settings.env.rollout_server_token):
        click.echo("warning: --env.rollout_server_token holds a literal token; use env:NAME or file:PATH", err=True)
