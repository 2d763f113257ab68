"""`hermes-rl trainer`: a policy trained from the batches of a trajectory API, and inference from its newest weights."""

import asyncio
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from hermes_rl import jsontext
from hermes_rl.secrets import is_literal
from hermes_rl.stopping import Stop
from hermes_rl.terminal.look import Look
from hermes_rl.terminal.running import on_a_loop, warn
from hermes_rl.terminal.screen import console, drawing
from hermes_rl.terminal.sections import merged_section, section_options, section_values, trace_option
from hermes_rl.tracing.opening import Tracing, traced
from hermes_rl.training.settings import TrainerSettings

STOP_SECONDS = 600.0
SECRETS = ("api_key", "rollout_server_token", "inference_token")
SHOWN = ("reward/mean", "train/loss", "kl/sample_train_k3", "time/step")


def _run(
    config_file: Path | None, run_name: str, stay: bool, as_json: bool, trace: str | None, **flags: str | None
) -> None:
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
        with stop.on_signals(), _shown(run_name, settings.total_steps) as watcher:
            return await run_training(settings, RunFolder.named(run_name), stop, watcher, stay=stay)

    try:
        about = {"run": run_name, "model": settings.base_model}
        with traced(Tracing.of(trace), "trainer", about, report=warn):
            result = on_a_loop(train())
    except asyncio.CancelledError:
        raise click.Abort from None
    if as_json:
        sys.stdout.write(jsontext.dumps(result).decode() + "\n")
    else:
        click.echo(f"{result['ended']} at step {result['step']}; {result['folder']}", err=True)


@contextmanager
def _shown(run_name: str, total: int) -> Iterator[Any]:
    """A panel on a terminal; elsewhere a line for each step."""
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
    course = _Course(run_name, total)
    with drawing(screen, course.look()) as shown:

        def begun(progress: Any) -> None:
            course.begun(progress)
            shown.look = course.look()

        def stepped(step: int, metrics: dict[str, float]) -> None:
            course.stepped(step, metrics)
            shown.look = course.look()

        yield Watcher(listening, begun, stepped, complete)


class _Course:
    """How the training goes, on a terminal."""

    def __init__(self, run_name: str, total: int) -> None:
        self._title, self._total = f"trainer · {run_name}", total
        self._progress: Any = None
        self._step = self._before = 0
        self._metrics: dict[str, float] = {}
        self._rewards: list[float] = []
        self._began = time.monotonic()

    def begun(self, progress: Any) -> None:
        self._progress, self._step, self._before = progress, progress.step, progress.step

    def stepped(self, step: int, metrics: dict[str, float]) -> None:
        self._step, self._metrics = step, metrics
        if "reward/mean" in metrics:
            self._rewards.append(metrics["reward/mean"])

    def look(self) -> Look:
        metrics = self._metrics
        figures = " · ".join(f"{name} {metrics[name]:.4g}" for name in SHOWN[1:] if name in metrics)
        reward = f"mean {metrics['reward/mean']:.3f} at step {self._step}" if "reward/mean" in metrics else ""
        rows = {"state": self._progress.state if self._progress else "starting", "score": reward, "figures": figures}
        return Look(
            self._title,
            {label: text for label, text in rows.items() if text},
            done=self._step,
            total=self._total,
            began=self._began,
            before=self._before,
            rewards=self._rewards,
        )


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
        trace_option(),
        *section_options("tinker", TrainerSettings()),
    ],
    context_settings={"max_content_width": 110},
)
