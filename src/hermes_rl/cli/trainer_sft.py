"""`hermes-rl trainer sft FILE…`: supervised fine-tuning on recorded rollouts, as a warm start for RL."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_rl.cli.progress import progress
from hermes_rl.cli.training_command import run_and_report
from hermes_rl.console.config_options import (
    PART,
    SettingsCommand,
    config_option,
    resolve_section,
    section_options,
    section_values,
    trace_option,
    warn_about_literal_secrets,
)
from hermes_rl.console.live_display import console
from hermes_rl.console.output import log_to_stderr
from hermes_rl.core.shutdown import StopSignal
from hermes_rl.training.config import TrainerSettings

if TYPE_CHECKING:
    from hermes_rl.training.sft_data import SftData

STOP_SECONDS = 600.0
# The settings of the section that have an effect; a file may have others, for the RL run that follows.
FIELDS = frozenset(
    "base_url api_key base_model tokenizer_name lora_rank seed init_from batch_size max_token_trainer_length "
    "loss_aggregation loss_constant learning_rate lr_schedule warmup_steps adam_beta1 adam_beta2 adam_eps "
    "weight_decay grad_clip_norm checkpoint_every keep_checkpoints step_retries engine_patience use_wandb "
    "wandb_name metric_sinks".split()
)


def _run(
    files: Sequence[Path],
    config_file: Path | None,
    part: str | None,
    run_name: str,
    min_score: float | None,
    top: int | None,
    epochs: int,
    as_json: bool,
    trace: str | None,
    **flags: str | None,
) -> None:
    """Fine-tune a model on chosen rollouts: cross entropy on their sampled tokens, with LoRA, through the Tinker API.

    FILE was written by `hermes-rl process`. By default the best rollout of each group is chosen, if scores differ.
    Prompts and tool output are never trained on. Running the command again resumes the run. Ctrl-C stops it after the
    current step, with a checkpoint.

    \b
    hermes-rl trainer sft data/my_env.jsonl --run warm-1 --tinker.base_url http://127.0.0.1:8002
    hermes-rl trainer sft shard-*.jsonl --min-score 1 --epochs 3 --run warm-2
    """  # noqa: D301 (\b keeps a paragraph's line breaks in click)
    # First, because it reports a missing extra; the other imports would just fail.
    import hermes_rl.training.engines.tinker  # noqa: F401
    from hermes_rl.orchestration.run_file import read_part
    from hermes_rl.training.run_folder import RunFolder
    from hermes_rl.training.sft import run_sft
    from hermes_rl.training.sft_data import RolloutChoice, SftPlan

    log_to_stderr()
    config = read_part(config_file, part)
    settings = resolve_section(TrainerSettings(), "tinker", config, section_values(flags, "tinker"))
    warn_about_literal_secrets(flags)
    folder = RunFolder.named(run_name)
    data = _read(files, RolloutChoice(min_score, top), settings.max_token_trainer_length)
    plan = SftPlan(len(data.rollouts), settings.batch_size, epochs, settings.seed)

    async def train() -> dict[str, Any]:
        stop = StopSignal(STOP_SECONDS)
        with stop.on_signals(), progress("sft", plan.total_steps) as shown:
            return await run_sft(
                settings,
                folder,
                stop,
                data,
                plan,
                lambda step, metrics: shown.show(step, f"loss {metrics['train/loss']:.4g}"),
            )

    run_and_report(train(), run=run_name, model=settings.base_model, trace=trace, as_json=as_json)


def _read(files: Sequence[Path], choice: Any, max_tokens: int) -> "SftData":
    from hermes_rl.store.export import count_lines
    from hermes_rl.training.sft_data import read_sft_data

    with progress("read", sum(map(count_lines, files))) as shown:
        data = read_sft_data(
            files,
            choice,
            max_tokens,
            lambda so_far: shown.show(so_far.groups, f"{len(so_far.rollouts):,} rollouts chosen"),
        )
    screen = console()
    screen.print(f"{len(data.rollouts):,} rollouts chosen from {data.groups:,} groups", soft_wrap=True)
    for reason, count in data.skipped.most_common():
        screen.print(f"  skipped: {count:,} {reason.replace('_', ' ')}", soft_wrap=True)
    return data


sft = SettingsCommand(
    "sft",
    callback=_run,
    help=_run.__doc__,
    short_help="Fine-tune a model on chosen rollouts, with LoRA.",
    params=[
        click.Argument(
            ["files"], metavar="FILE...", nargs=-1, required=True,
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
        ),
        config_option("Read the section tinker from a YAML file."),
        click.Option(["--part"], help=PART),
        click.Option(
            ["--run", "run_name"], default="sft", show_default=True, help="Name the run; an existing run is resumed."
        ),
        click.Option(
            ["--min-score"], type=float,
            help="Choose rollouts with at least this score.", show_default="above the mean of their group",
        ),
        click.Option(
            ["--top"], type=click.IntRange(min=1),
            help="Choose at most this many rollouts per group, the best first.", show_default="1; all with --min-score",
        ),
        click.Option(
            ["--epochs"], type=click.IntRange(min=1), default=1, show_default=True,
            help="Train this many times on every chosen rollout.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the result as one JSON object."),
        trace_option(),
        *(
            option
            for option in section_options("tinker", TrainerSettings())
            if (option.name or "").removeprefix("tinker__") in FIELDS
        ),
    ],
)  # fmt: skip
