"""`hermes-rl export` (Train): export rollouts for TRL or as ATIF documents, or export a run's weights."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from hermes_rl.cli.export_atif import atif
from hermes_rl.cli.export_weights import ExportVerb, weights
from hermes_rl.cli.last import GroupsFile
from hermes_rl.cli.progress import progress
from hermes_rl.console.live_display import console
from hermes_rl.console.output import echo
from hermes_rl.core import fast_json
from hermes_rl.store.export import Dpo, ExportedRows, RowWriter, Sft, count_lines, export_groups

FILE = GroupsFile()


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    for add in reversed(
        (
            click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE),
            click.option("-o", "--output", "out", required=True, type=click.Path(dir_okay=False, path_type=Path),
                         help="Write rows to this JSONL file."),
            click.option("--without-examples", is_flag=True,
                         help="Drop worked examples from prompts: keep only system messages and the last message."),
            click.option("--overwrite", is_flag=True, help="Replace the output file if it exists."),
            click.option("--json", "as_json", is_flag=True, help="Print the counts as one JSON object."),
        )
    ):  # fmt: skip
        command = add(command)
    return command


@click.group(cls=ExportVerb, subcommand_metavar="sft|dpo|atif FILE... | RUN --to peft|merged|gguf")
def export() -> None:
    """Export rollouts as SFT or DPO data for TRL and `datasets`, as ATIF, or the weights of a training run.

    \b
    hermes-rl export sft data/my_env.jsonl -o sft.jsonl
    hermes-rl export data/my_env.jsonl --to atif -o trajectories
    hermes-rl export my-run --to merged
    """  # noqa: D301 - click's own mark for lines that are kept


export.add_command(weights)
export.add_command(atif)


@export.command()
@_shared
@click.option("--min-score", type=float, help="Keep only rollouts with at least this score.")
@click.option("--best", is_flag=True, help="Keep only the best rollout of each group.")
@click.option("--prompt-completion", is_flag=True, help="Write rows with prompt and completion instead of messages.")
def sft(
    files: Sequence[Path], out: Path, without_examples: bool, overwrite: bool, as_json: bool,
    min_score: float | None, best: bool, prompt_completion: bool,
) -> int:  # fmt: skip
    """Export the conversations of scored rollouts.

    Rows have messages, tools, score and item_id. Rollouts without a score and rollouts of evaluations are left out.

    \b
    hermes-rl export sft data/my_env.jsonl -o sft.jsonl --min-score 1
    hermes-rl export sft shard-*.jsonl -o sft.jsonl --best --prompt-completion
    """  # noqa: D301 - click's own mark for lines that are kept
    form = Sft(min_score, best, prompt_completion, examples=not without_examples)
    return _export("sft", files, out, form, overwrite=overwrite, as_json=as_json)


@export.command()
@_shared
@click.option("--min-gap", type=click.FloatRange(min=0), default=0.0, help="Require at least this score difference.")
@click.option(
    "--pairs", type=click.Choice(["best-worst", "all"]), default="best-worst", show_default=True,
    help="Write one pair per group, or every pair with different scores.",
)  # fmt: skip
def dpo(
    files: Sequence[Path], out: Path, without_examples: bool, overwrite: bool, as_json: bool,
    min_gap: float, pairs: str,
) -> int:  # fmt: skip
    """Export pairs of a better and a worse rollout of the same group.

    Rows have prompt, chosen, rejected, tools, chosen_score, rejected_score and item_id. Equal scores make no pair.

    \b
    hermes-rl export dpo data/my_env.jsonl -o dpo.jsonl --min-gap 0.5
    """  # noqa: D301 - click's own mark for lines that are kept
    form = Dpo(min_gap, all_pairs=pairs == "all", examples=not without_examples)
    return _export("dpo", files, out, form, overwrite=overwrite, as_json=as_json)


def _export(what: str, files: Sequence[Path], out: Path, form: RowWriter, *, overwrite: bool, as_json: bool) -> int:
    with progress(f"export {what}", sum(map(count_lines, files))) as shown:
        done = export_groups(
            files,
            out,
            form,
            overwrite=overwrite,
            on_group=lambda so_far: shown.show(so_far.groups, f"{so_far.rows:,} rows"),
        )
    _show(done, out)
    if as_json:
        echo(fast_json.dumps({**done.as_dict(), "path": str(out) if done.rows else None}))
    return 0 if done.rows else 1


def _show(done: ExportedRows, out: Path) -> None:
    screen = console()
    where = f"written: {out}" if done.rows else "nothing written: no rollout qualifies"
    screen.print(f"{done.rows:,} rows of {done.rollouts:,} rollouts in {done.groups:,} groups", soft_wrap=True)
    for reason, count in done.left_out.most_common():
        screen.print(f"  left out: {count:,} {reason.replace('_', ' ')}", soft_wrap=True)
    screen.print(where, soft_wrap=True)
