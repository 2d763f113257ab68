"""`hermes-rl engine` (Train): run a local training engine, or serve the weights that a run trained."""

import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from hermes_rl.cli.export_weights import KINDS
from hermes_rl.cli.progress import progress
from hermes_rl.console.output import echo
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.training.engines.skyrl.fit import MAX_ADAPTERS, MIN_ADAPTERS, device_memory, fit_engine
from hermes_rl.training.engines.skyrl.model_check import check_model
from hermes_rl.training.engines.skyrl.process import (
    EngineSettings,
    EngineStartError,
    RunningEngine,
    is_ready,
    log_tail,
    start_engine,
    stop_engine,
    wait_until_ready,
)
from hermes_rl.training.engines.skyrl.record import EngineRecord, all_records, read_record
from hermes_rl.training.engines.skyrl.virtualenv import (
    STEPS,
    EngineVenv,
    existing_environment,
    managed_environment,
    needs_install,
)
from hermes_rl.training.sizing.model_shape import ModelShape

_SETTINGS = {"show_default": True, "max_content_width": 110}


@click.group(context_settings=_SETTINGS)
def engine() -> None:
    """Run a local training engine: SkyRL behind the Tinker API, on a CPU or a GPU, without an API key.

    Pass the address printed by `start` to a trainer as `--tinker.base_url`. After training, `serve` makes the trained
    model an OpenAI-compatible endpoint.
    """


@engine.command(context_settings=_SETTINGS)
@click.option(
    "--model",
    required=True,
    help="Load this model: a folder with config.json, tokenizer and safetensors, or a hub name.",
)
@click.option("--name", default="default", help="Name the engine; each name has its own data.")
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    help="Listen on this port.",
    show_default="the last one used, or a free one",
)
@click.option("--rank", default=32, type=click.IntRange(1), help="Set the maximum LoRA rank.")
@click.option(
    "--adapters",
    type=click.IntRange(MIN_ADAPTERS),
    help="Keep this many LoRA adapters in memory: the base, each model in training, each sampled version.",
    show_default=f"{MAX_ADAPTERS}, or down to {MIN_ADAPTERS} when memory is short",
)
@click.option(
    "--micro-batch",
    default=8,
    type=click.IntRange(0),
    help="Train up to this many sequences per pass; 0 for the whole batch.",
)
@click.option(
    "--samples", default=8, type=click.IntRange(0), help="Sample this many sequences at once; 0 for no limit."
)
@click.option(
    "--max-length",
    type=click.IntRange(1),
    help="Refuse longer sequences, and refuse to start if this length does not fit the memory.",
    show_default="no limit",
)
@click.option("--tensor-parallel", default=1, type=click.IntRange(1), help="Split every layer over this many devices.")
@click.option("--fsdp", default=1, type=click.IntRange(1), help="Shard weights and batches over this many devices.")
@click.option("--expert-parallel", default=1, type=click.IntRange(1), help="Split experts over this many devices.")
@click.option(
    "--replicate-attention", is_flag=True, help="Keep all attention heads on every device, if they cannot be split."
)
@click.option("--gradient-checkpointing", is_flag=True, help="Recompute layers in the backward pass to save memory.")
@click.option(
    "--loss-chunk", default=1024, type=click.IntRange(0), help="Compute logits of this many tokens at once; 0 for all."
)
@click.option("--cuda", is_flag=True, help="Compute on NVIDIA GPUs (Linux); untested by this project.")
@click.option(
    "--environment",
    type=click.Path(path_type=Path),
    help="Use this Python environment, which has SkyRL installed.",
    show_default="created on first use: 1.1 GB, about two minutes",
)
@click.option("--detach", is_flag=True, help="Run in the background.")
@click.option("--json", "as_json", is_flag=True, help="Print {url, pid, model, log} as one JSON object when ready.")
def start(
    model: str, adapters: int | None, environment: Path | None, detach: bool, as_json: bool, **options: Any
) -> None:
    """Start an engine and print its address when it is ready.

    It runs until Ctrl-C, or with --detach until `hermes-rl engine stop`. Starting it again resumes from its
    checkpoints. Compiled code is cached, so the second start is faster.

    Before it starts, the layout is checked and the memory per device is estimated.
    """
    checked = check_model(model, cuda=options["cuda"])
    if checked.warning:
        echo(f"warning: {checked.warning}", err=True)
    settings = _fitted(EngineSettings(model=checked.name, detach=detach, **options), checked.shape, adapters)
    engine_environment = _environment(environment, cuda=settings.cuda)
    # Installed before anything is started, so that a signal never leaves an engine behind.
    signal.signal(signal.SIGTERM, _interrupt)
    running = start_engine(settings, engine_environment)
    try:
        with progress("engine", 1, by_stage=True) as shown:
            wait_until_ready(running, lambda line: shown.show(0, line))
        _announce(running.record, detach=detach, as_json=as_json)
        if not detach:
            _watch(running)
    except BaseException as error:
        stop_engine(running.record)
        if isinstance(error, KeyboardInterrupt):
            echo("engine stopped", err=True)
            return
        raise


def _fitted(settings: EngineSettings, shape: ModelShape | None, adapters: int | None) -> EngineSettings:
    """The settings, checked against the model and this machine; with the number of adapters where none is given."""
    memory = device_memory(settings)
    if settings.layout.devices > 1 and not settings.cuda:
        echo(f"warning: {settings.layout.devices} virtual devices on the CPU, to try a layout; not faster", err=True)
    if shape is None:
        echo(f"memory is not estimated: the sizes of {settings.model} are not known here", err=True)
        return replace(settings, adapters=adapters or settings.adapters)
    fit = fit_engine(settings, shape, memory, adapters)
    echo(str(fit), err=True)
    return fit.settings


def _environment(given: Path | None, *, cuda: bool) -> EngineVenv:
    if given is not None:
        return existing_environment(given)
    if needs_install(cuda=cuda):
        size = "6 GB, about ten minutes" if cuda else "1.1 GB, about two minutes"
        echo(f"installing SkyRL into its own environment: {size}, only once", err=True)
    with progress("SkyRL's environment", STEPS, by_stage=True) as shown:
        return managed_environment(shown.show, cuda=cuda)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _announce(record: EngineRecord, *, detach: bool, as_json: bool) -> None:
    if as_json:
        shown = {"url": record.url, "pid": record.pid, "model": record.model, "log": record.log}
        echo(fast_json.dumps(shown).decode())
        # The parent process waits for this line.
        sys.stdout.flush()
        return
    end = f"stop it with `hermes-rl engine stop {record.name}`" if detach else "press Ctrl-C to stop"
    echo(f"engine {record.name!r} with {record.model} is ready at {record.url}; {end}; log: {record.log}", err=True)


def _watch(running: RunningEngine) -> None:
    status = running.process.wait()
    raise EngineStartError(
        f"the engine exited with status {status}; the end of {running.record.log}:\n"
        f"{log_tail(Path(running.record.log))}"
    )


@engine.command(context_settings=_SETTINGS, short_help="Serve the weights of a training run with llama.cpp.")
@click.argument("run")
@click.option("--step", type=click.IntRange(min=0), help="Serve the weights after this step instead of the last.")
@click.option("--base-model", help="Use this base model: a folder or a hub name.", show_default="from the run")
@click.option("--type", "kind", type=click.Choice(KINDS), help="Set the weight type; q8_0 is faster, f32 is exact.",
              show_default="the base model's")  # fmt: skip
@click.option("--host", default="127.0.0.1", help="Listen on this address; the endpoint has no password.")
@click.option("--port", default=8901, type=click.IntRange(0, 65_535), help="Listen on this port; 0 takes a free one.")
@click.option("--parallel", default=8, type=click.IntRange(1), help="Answer this many requests at once.")
@click.option("--context", default=2048, type=click.IntRange(1), help="Limit one conversation to this many tokens.")
@click.option(
    "--threads",
    default=0,
    type=click.IntRange(0),
    help="Compute with this many threads.",
    show_default="half the cores",
)
@click.option("--json", "as_json", is_flag=True, help="Print {url, model, log} as one JSON object when ready.")
def serve(run: str, as_json: bool, **options: Any) -> None:
    """Serve the weights of a training run as an OpenAI-compatible endpoint, with llama.cpp, until Ctrl-C.

    RUN is anything that `hermes-rl export` accepts, `last`, or a prefix of a run's id; the training engine need not be
    running. `smollm2` is the untrained small model of the quickstart, 93 MB to download on first use.

    Answers are the model's own text, at temperature 1 unless the request sets another.

    \b
    hermes-rl engine serve smollm2
    hermes-rl engine serve words-1
    hermes-rl process my_env.py --openai.base_url http://127.0.0.1:8901/v1 --openai.model_name words-1
    """  # noqa: D301 - click's own mark for lines that are kept
    from hermes_rl.cli.local_server import RunServerSettings, run_server

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with run_server(RunServerSettings(run, **options)) as server:
            if as_json:
                shown = {"url": server.base_url, "model": server.name, "log": str(server.log)}
                echo(fast_json.dumps(shown).decode())
                # The parent process waits for this line.
                sys.stdout.flush()
            else:
                echo(f"ready: {server.base_url} model={server.name}; press Ctrl-C to stop", err=True)
            server.wait()
    except KeyboardInterrupt:
        echo("model server stopped", err=True)


@engine.command(context_settings=_SETTINGS)
@click.option("--json", "as_json", is_flag=True, help="Print {model} as one JSON object.")
def model(as_json: bool) -> None:
    """Get the small model as a folder to train from, and print its path.

    SmolLM2 with 135 million parameters in float32: 540 MB, converted from a download of 93 MB on first use.

    \b
    hermes-rl train terminal_words --preset laptop --set base_model="$(hermes-rl engine model)"
    """  # noqa: D301 - click's own mark for lines that are kept
    from hermes_rl.cli.local_server import small_model_folder

    folder = small_model_folder()
    echo(fast_json.dumps({"model": str(folder)}).decode() if as_json else folder)


@engine.command(context_settings=_SETTINGS)
@click.argument("name", default="default")
def stop(name: str) -> None:
    """Stop an engine. The next start resumes from its checkpoints."""
    ended = stop_engine(_known(name))
    echo(f"engine {name!r} stopped" if ended else f"engine {name!r} was not running", err=True)


@engine.command(context_settings=_SETTINGS)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(as_json: bool) -> None:
    """List the engines started on this machine and their state."""
    rows = [{**asdict(record), "url": record.url, "state": _state(record)} for record in all_records()]
    if as_json:
        echo(fast_json.dumps(rows).decode())
        return
    if not rows:
        echo("no engines yet; start one with `hermes-rl engine start --model FOLDER`", err=True)
    for row in rows:
        echo(f"{row['name']:<16} {row['state']:<8} {row['url']:<24} {row['model']}")


def _state(record: EngineRecord) -> str:
    if not record.alive():
        return "ended"
    return "ready" if is_ready(record.url) else "starting"


@engine.command(context_settings=_SETTINGS)
@click.argument("name", default="default")
@click.option("--lines", default=50, type=click.IntRange(1), help="Show this many lines.")
def logs(name: str, lines: int) -> None:
    """Show the last lines of an engine's log."""
    echo(log_tail(Path(_known(name).log), lines))


def _known(name: str) -> EngineRecord:
    record = read_record(name)
    if record is None:
        known = ", ".join(record.name for record in all_records()) or "none"
        raise ConfigError(f"no engine {name!r}; known engines: {known}")
    return record
