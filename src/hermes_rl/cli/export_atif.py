"""`hermes-rl export atif FILE...`: export rollouts as ATIF documents, with their exact tokens."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from hermes_rl.cli.last import GroupsFile
from hermes_rl.cli.progress import progress
from hermes_rl.console.live_display import console
from hermes_rl.console.output import echo
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError

FILE = GroupsFile()
Write = Callable[[int, int, Mapping[str, Any]], object]


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@click.option(
    "-o",
    "--output",
    "out",
    required=True,
    type=click.Path(path_type=Path),
    help="Write to this folder, one file per rollout, or to this .jsonl file, one line per rollout.",
)
@click.option("--overwrite", is_flag=True, help="Replace the .jsonl file if it exists. A folder is never replaced.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as one JSON object.")  # fmt: skip
def atif(files: Sequence[Path], out: Path, overwrite: bool, as_json: bool) -> int:
    """Export rollouts as ATIF 1.8 documents, which other agent and training tools read.

    Every rollout is exported, also one without a score, with its token ids and logprobs. `hermes-rl import` reads the
    documents back into equal groups.

    \b
    hermes-rl export atif data/my_env.jsonl -o trajectories
    hermes-rl export data/my_env.jsonl --to atif -o trajectories.jsonl
    """  # noqa: D301 - click's own mark for lines that are kept
    from hermes_rl.interop.atif import document
    from hermes_rl.store.export import count_lines
    from hermes_rl.store.records import read_groups

    groups = rollouts = 0
    with progress("export atif", sum(map(count_lines, files))) as shown, _writer(out, files, overwrite) as write:
        for path in files:
            for group in read_groups(path):
                groups += 1
                for rollout in group.rollouts:
                    write(groups, rollout.index, document(group, rollout))
                    rollouts += 1
                shown.show(groups, f"{rollouts:,} documents")
    console().print(f"written: {out} ({rollouts:,} documents of {groups:,} groups)", soft_wrap=True)
    if as_json:
        echo(fast_json.dumps({"documents": rollouts, "groups": groups, "path": str(out)}))
    return 0


@contextmanager
def _writer(out: Path, files: Sequence[Path], overwrite: bool) -> Iterator[Write]:
    """Writes documents to a draft that replaces the output at the end, so that the output is complete or absent."""
    lines = out.suffix == ".jsonl"
    if out.exists() and (not lines or not overwrite or any(out.samefile(path) for path in files)):
        hint = "choose another with -o, or pass --overwrite" if lines else "choose another with -o"
        raise ConfigError(f"{out} exists; {hint}")
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        if lines:
            with draft.open("wb") as file:
                yield lambda _group, _index, one: file.write(fast_json.dumps(one) + b"\n")
        else:
            draft.mkdir()
            yield lambda group, index, one: (draft / f"{group:06}-{index}.atif.json").write_bytes(fast_json.dumps(one))
        draft.replace(out)
    finally:
        if draft.is_dir():
            shutil.rmtree(draft)
        draft.unlink(missing_ok=True)
