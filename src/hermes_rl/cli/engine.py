"""`hermes-rl engine`: a training engine of your own, on this machine."""

import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from hermes_rl import jsontext
from hermes_rl.cli.progress import progress
from hermes_rl.errors import ConfigError
from hermes_rl.training.selfhost.environment import (
    STEPS,
    EngineEnvironment,
    existing_environment,
    none_is_made,
    own_environment,
)
from hermes_rl.training.selfhost.model import checked_model
from hermes_rl.training.selfhost.record import EngineRecord, all_records, read_record
from hermes_rl.training.selfhost.running import (
    EngineSettings,
    EngineStartError,
    RunningEngine,
    answers,
    await_ready,
    end_engine,
    log_end,
    start_engine,
)

_SETTINGS = {"show_default": True, "max_content_width": 110}


@click.group(context_settings=_SETTINGS)
def engine() -> None:
    """Train on this machine: SkyRL behind the Tinker API, on a CPU or a GPU, without any key.

    A trainer reaches it by `--tinker.base_url`, with the address that `start` prints.
    """


@engine.command(context_settings=_SETTINGS)
@click.option(
    "--model", required=True, help="Folder of the model: config.json, tokenizer, safetensors; or a hub's name."
)
@click.option("--name", default="default", help="Engines of different names run side by side, with data of their own.")
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    help="Where it listens on this machine.",
    show_default="its last one, or any that is free",
)
@click.option("--rank", default=32, type=click.IntRange(1), help="The largest LoRA rank that can be trained.")
@click.option(
    "--adapters",
    default=8,
    type=click.IntRange(4),
    help="Sets of LoRA weights in memory: the base, each model in training, and each version that is sampled from.",
)
@click.option(
    "--micro-batch", default=8, type=click.IntRange(0), help="Sequences of one pass; 0 for a whole batch at once."
)
@click.option(
    "--samples", default=8, type=click.IntRange(0), help="Sequences sampled at once; 0 for as many as there are."
)
@click.option(
    "--environment",
    type=click.Path(path_type=Path),
    help="A Python environment with SkyRL in it.",
    show_default="one that is made on first use: 1.1 GB, about two minutes",
)
@click.option("--detach", is_flag=True, help="Leave it running in the background.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print {url, pid, model, log} as one JSON object when it is ready."
)
def start(
    model: str,
    name: str,
    port: int | None,
    rank: int,
    adapters: int,
    micro_batch: int,
    samples: int,
    environment: Path | None,
    detach: bool,
    as_json: bool,
) -> None:
    """Start an engine, and say where it listens once it can answer.

    It runs until Ctrl-C, or with --detach until `hermes-rl engine stop`. The same command again goes on with the same
    checkpoints. What was compiled is kept, so the second start is faster.
    """
    checked = checked_model(model)
    if checked.warning:
        click.echo(f"warning: {checked.warning}", err=True)
    settings = EngineSettings(
        model=checked.name,
        name=name,
        port=port,
        rank=rank,
        adapters=adapters,
        micro_batch=micro_batch,
        samples=samples,
        detach=detach,
    )
    where = _environment(environment)
    # Before anything is started, so that no signal finds it half ended.
    signal.signal(signal.SIGTERM, _interrupt)
    running = start_engine(settings, where)
    try:
        with progress("engine", 1) as shown:
            await_ready(running, lambda line: shown.show(0, line))
        _announce(running.record, detach=detach, as_json=as_json)
        if not detach:
            _watch(running)
    except BaseException as error:
        end_engine(running.record)
        if isinstance(error, KeyboardInterrupt):
            click.echo("the engine has ended", err=True)
            return
        raise


def _environment(given: Path | None) -> EngineEnvironment:
    if given is not None:
        return existing_environment(given)
    if none_is_made():
        click.echo("the first start installs SkyRL into an environment of its own: 1.1 GB, about two minutes", err=True)
    with progress("SkyRL's environment", STEPS) as shown:
        return own_environment(shown.show)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _announce(record: EngineRecord, *, detach: bool, as_json: bool) -> None:
    if as_json:
        shown = {"url": record.url, "pid": record.pid, "model": record.model, "log": record.log}
        click.echo(jsontext.dumps(shown).decode())
        # Whoever started it waits for this line.
        sys.stdout.flush()
        return
    end = f"`hermes-rl engine stop {record.name}` ends it" if detach else "Ctrl-C ends it"
    click.echo(f"the engine {record.name!r} trains {record.model} at {record.url}; {end}; log: {record.log}", err=True)


def _watch(running: RunningEngine) -> None:
    status = running.process.wait()
    raise EngineStartError(
        f"the engine ended by itself, with exit status {status}; {running.record.log} ends:\n"
        f"{log_end(Path(running.record.log))}"
    )


@engine.command(context_settings=_SETTINGS)
@click.argument("name", default="default")
def stop(name: str) -> None:
    """End an engine. Its checkpoints stay, and the next start goes on with them."""
    ended = end_engine(_known(name))
    click.echo(f"the engine {name!r} has ended" if ended else f"the engine {name!r} was not running", err=True)


@engine.command(context_settings=_SETTINGS)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(as_json: bool) -> None:
    """Show the engines that were started here, and whether they can answer."""
    rows = [{**asdict(record), "url": record.url, "state": _state(record)} for record in all_records()]
    if as_json:
        click.echo(jsontext.dumps(rows).decode())
        return
    if not rows:
        click.echo("no engine was started here; `hermes-rl engine start --model FOLDER` starts one", err=True)
    for row in rows:
        click.echo(f"{row['name']:<16} {row['state']:<8} {row['url']:<24} {row['model']}")


def _state(record: EngineRecord) -> str:
    if not record.alive():
        return "ended"
    return "ready" if answers(record.url) else "starting"


@engine.command(context_settings=_SETTINGS)
@click.argument("name", default="default")
@click.option("--lines", default=50, type=click.IntRange(1), help="How many, from the end.")
def logs(name: str, lines: int) -> None:
    """Show the end of an engine's log."""
    click.echo(log_end(Path(_known(name).log), lines))


def _known(name: str) -> EngineRecord:
    record = read_record(name)
    if record is None:
        known = ", ".join(record.name for record in all_records()) or "none was started here"
        raise ConfigError(f"no engine is named {name!r}; there are: {known}")
    return record
