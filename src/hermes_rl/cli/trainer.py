"""`hermes-rl trainer` (Train): train a policy on batches from a trajectory API."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hermes_rl.cli.trainer_sft import sft
from hermes_rl.cli.training_command import run_and_report
from hermes_rl.console.config_options import (
    PART,
    SettingsGroup,
    config_option,
    resolve_section,
    section_options,
    section_values,
    trace_option,
    warn_about_literal_secrets,
)
from hermes_rl.console.live_display import console, live_panel
from hermes_rl.console.output import log_to_stderr
from hermes_rl.console.panel import Panel
from hermes_rl.core.shutdown import StopSignal
from hermes_rl.training.config import TrainerSettings

COMMAND_LINE = ParameterSource.COMMANDLINE
STOP_SECONDS = 600.0
SHOWN = ("reward/mean", "train/loss", "kl/sample_train_k3", "time/step")


def _run(
    config_file: Path | None,
    part: str | None,
    run_name: str,
    init_from: str | None,
    stay: bool,
    as_json: bool,
    trace: str | None,
    **flags: str | None,
) -> None:
    """Train a policy on batches from a trajectory API: GRPO with LoRA, through the Tinker API.

    Also runs an inference server, from which environments sample the newest weights. Running the command again resumes
    the run. Ctrl-C stops it after the current step, with a checkpoint.
    """
    # First, because it reports a missing extra; the other imports would just fail.
    import hermes_rl.training.engines.tinker  # noqa: F401
    from hermes_rl.orchestration.run_file import read_part
    from hermes_rl.training.run import run_training
    from hermes_rl.training.run_folder import RunFolder

    log_to_stderr()
    config = read_part(config_file, part)
    if init_from is not None:
        flags["tinker__init_from"] = init_from
    settings = resolve_section(TrainerSettings(), "tinker", config, section_values(flags, "tinker"))
    warn_about_literal_secrets(flags)

    async def train() -> dict[str, Any]:
        stop = StopSignal(STOP_SECONDS)
        with stop.on_signals(), _shown(run_name, settings.total_steps) as watcher:
            return await run_training(settings, RunFolder.named(run_name), stop, watcher, stay=stay)

    run_and_report(train(), run=run_name, model=settings.base_model, trace=trace, as_json=as_json)


@contextmanager
def _shown(run_name: str, total: int) -> Iterator[Any]:
    """A panel on a terminal, otherwise a line per step."""
    from hermes_rl.training.run import RunCallbacks

    screen = console()

    def listening(url: str) -> None:
        screen.print(f"inference server listening on {url}/v1; press Ctrl-C to stop after the current step")

    def complete() -> None:
        screen.print("training complete; the inference server keeps serving the last weights until Ctrl-C")

    def line(step: int, metrics: dict[str, float]) -> str:
        figures = "  ".join(f"{name} {metrics[name]:.4g}" for name in SHOWN if name in metrics)
        return f"step {step} of {total}  {figures}"

    if not screen.is_terminal:
        yield RunCallbacks(listening, lambda _: None, lambda step, metrics: screen.print(line(step, metrics)), complete)
        return
    training = _TrainingPanel(run_name, total)
    with live_panel(screen, training.panel()) as display:

        def begun(progress: Any) -> None:
            training.begun(progress)
            display.panel = training.panel()

        def stepped(step: int, metrics: dict[str, float]) -> None:
            training.stepped(step, metrics)
            display.panel = training.panel()

        yield RunCallbacks(listening, begun, stepped, complete)


class _TrainingPanel:
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

    def panel(self) -> Panel:
        metrics = self._metrics
        figures = " · ".join(f"{name} {metrics[name]:.4g}" for name in SHOWN[1:] if name in metrics)
        reward = f"mean {metrics['reward/mean']:.3f} at step {self._step}" if "reward/mean" in metrics else ""
        rows = {"state": self._progress.state if self._progress else "starting", "score": reward, "figures": figures}
        return Panel(
            self._title,
            {label: text for label, text in rows.items() if text},
            done=self._step,
            total=self._total,
            began=self._began,
            before=self._before,
            rewards=self._rewards,
        )


def _train_or_subcommand(**values: Any) -> None:
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        _run(**values)
        return
    given = [option for option in ctx.command.params if ctx.get_parameter_source(option.name or "") is COMMAND_LINE]
    if given:
        raise click.UsageError(f"{given[0].opts[0]} must follow {ctx.invoked_subcommand}", ctx)


trainer = SettingsGroup(
    "trainer",
    callback=_train_or_subcommand,
    invoke_without_command=True,
    subcommand_metavar="[sft FILE...]",
    help=_run.__doc__,
    params=[
        config_option("Read the section tinker from a YAML file."),
        click.Option(["--part"], help=PART),
        click.Option(
            ["--run", "run_name"],
            default="default",
            show_default=True,
            help="Name the run; an existing run is resumed.",
        ),
        click.Option(
            ["--init-from"],
            metavar="RUN|PATH",
            help="Start a new run from a previous run's last checkpoint, a PEFT folder or a tinker:// path.",
        ),
        click.Option(["--stay"], is_flag=True, help="Keep serving inference after the last step, until stopped."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the result as one JSON object."),
        trace_option(),
        *section_options("tinker", TrainerSettings()),
    ],
)
trainer.add_command(sft)
