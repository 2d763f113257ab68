"""`hermes-rl trainer`: a policy trained from the batches of a trajectory API, and inference from its newest weights."""

import asyncio
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from hermes_rl import jsontext
from hermes_rl.environment.command import on_a_loop, section_options, section_values
from hermes_rl.environment.display import console
from hermes_rl.environment.settings import merged_section
from hermes_rl.secrets import is_literal
from hermes_rl.stopping import Stop
from hermes_rl.training.settings import TrainerSettings

STOP_SECONDS = 600.0
SECRETS = ("api_key", "rollout_server_token", "inference_token")
SHOWN = ("reward/mean", "train/loss", "kl/sample_train_k3", "time/step")


def _run(config_file: Path | None, run_name: str, stay: bool, as_json: bool, **flags: str | None) -> None:
    """Learn from the groups that environments send to the trajectory API, by GRPO with LoRA through the Tinker API.

    Beside it runs an inference server, from which environments sample the newest weights. The same command started
    again goes on where it stopped. Ctrl-C ends it after the step under way; what was learned is kept.
    """
    # First: it says which extra is missing, where the others would only fail to import.
    import hermes_rl.training.tinker_api  # noqa: F401
    from hermes_rl.training.run_folder import RunFolder
    from hermes_rl.training.running import run_training

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    given = {name: text for name, text in flags.items() if text is not None}
    settings = merged_section(TrainerSettings(), "tinker", config_file, section_values(given, "tinker"))
    for name in SECRETS:
        value = getattr(settings, name)
        if value and is_literal(value):
            click.echo(f"warning: --tinker.{name} holds a literal secret; use env:NAME or file:PATH", err=True)

    async def train() -> dict[str, Any]:
        stop = Stop(STOP_SECONDS)
        with stop.on_signals(), _shown(settings.total_steps) as watcher:
            return await run_training(settings, RunFolder.named(run_name), stop, watcher, stay=stay)

    try:
        result = on_a_loop(train())
    except asyncio.CancelledError:
        raise click.Abort from None
    if as_json:
        sys.stdout.write(jsontext.dumps(result).decode() + "\n")
    else:
        click.echo(f"{result['ended']} at step {result['step']}; {result['folder']}", err=True)


@contextmanager
def _shown(total: int) -> Iterator[Any]:
    """A progress bar on a terminal; elsewhere a line for each step."""
    from hermes_rl.training.running import Watcher

    screen = console()

    def listening(url: str) -> None:
        screen.print(f"inference listens on {url}/v1; Ctrl-C ends the run after the step under way")

    def complete() -> None:
        screen.print("complete; inference answers from the last weights until Ctrl-C")

    def line(step: int, metrics: dict[str, float]) -> str:
        figures = "  ".join(f"{name} {metrics[name]:.4g}" for name in SHOWN if name in metrics)
        return f"step {step} of {total}  {figures}"

    if not screen.is_terminal:
        yield Watcher(listening, lambda _: None, lambda step, metrics: screen.print(line(step, metrics)), complete)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("[bold]training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, TimeElapsedColumn(), console=screen) as bar:
        task = bar.add_task("training", total=total, state="starting")

        def begun(progress: Any) -> None:
            bar.update(task, completed=progress.step, state=progress.state)

        def stepped(step: int, metrics: dict[str, float]) -> None:
            bar.update(task, completed=step, state=f"reward {metrics.get('reward/mean', float('nan')):.3f}")
            screen.print(line(step, metrics))

        yield Watcher(listening, begun, stepped, complete)


trainer = click.Command(
    "trainer",
    callback=_run,
    help=_run.__doc__,
    params=[
        click.Option(
            ["--config", "config_file"], type=click.Path(path_type=Path), help="YAML file with a section tinker."
        ),
        click.Option(
            ["--run", "run_name"], default="default", show_default=True, help="Name of the run, to resume by."
        ),
        click.Option(["--stay"], is_flag=True, help="Go on answering after the last step, until it is stopped."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print what the run came to as one JSON object."),
        *section_options("tinker", TrainerSettings()),
    ],
    context_settings={"max_content_width": 110},
)
