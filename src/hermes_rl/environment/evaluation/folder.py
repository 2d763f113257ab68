"""The folder of an evaluation: which one it is, one process at a time in it, and never two evaluations mixed."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from hermes_rl import jsontext
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.groups import config_hash
from hermes_rl.errors import ConfigError
from hermes_rl.home import rl_home
from hermes_rl.store.holding import only_writer
from hermes_rl.store.records import read_groups
from hermes_rl.terminal.screen import console

GROUPS, METRICS, SAMPLES = "groups.jsonl", "metrics.json", "samples.jsonl"
PREVIOUS = "groups.previous.jsonl"


@contextmanager
def evaluation_folder(env: Environment) -> Iterator[Path]:
    """The folder of this evaluation, for this process alone: as it was left with `resume`, else without old groups."""
    folder = _asked_for(env) or (_newest_unfinished(env) if env.resume_evaluation else _own_folder(env))
    with only_writer(folder, "--env.data_dir_to_save_evals"):
        if not env.resume_evaluation:
            # The groups go first: a report without groups misleads no resume.
            _set_groups_aside(folder)
            for name in (METRICS, SAMPLES):
                (folder / name).unlink(missing_ok=True)
        yield folder


@contextmanager
def folder_for_a_report(env: Environment) -> Iterator[Path]:
    """The folder of an author's own evaluation, which has a report and samples and no groups."""
    folder = _asked_for(env) or _own_folder(env)
    with only_writer(folder, "--env.data_dir_to_save_evals"):
        _set_groups_aside(folder)
        yield folder


def _asked_for(env: Environment) -> Path | None:
    if not env.config.data_dir_to_save_evals:
        return None
    folder = Path(env.config.data_dir_to_save_evals)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _newest_unfinished(env: Environment) -> Path:
    wanted = config_hash(env)
    folders = _base(env).glob(f"{env.display_name()}-*/{GROUPS}")
    for path in sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            first = next(read_groups(path), None)
        except ConfigError:  # of another version
            continue
        if first and first.provenance.config_hash == wanted and not _finished(path.parent):
            return path.parent
    raise ConfigError(
        f"there is no unfinished evaluation of {env.display_name()} with these settings under {_base(env)}; "
        "start one without --resume, or name the folder of one with --env.data_dir_to_save_evals"
    )


def _finished(folder: Path) -> bool:
    """Whether its report is there and no limit had cut it short."""
    path = folder / METRICS
    return path.exists() and not jsontext.loads(path.read_bytes()).get("limit")


def _base(env: Environment) -> Path:
    return (Path(env.config.serve_dir) if env.config.serve_dir else rl_home()) / "evals"


def _own_folder(env: Environment) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    base = _base(env)
    base.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = base / (f"{env.display_name()}-{stamp}" + (f"-{number}" if number > 1 else ""))
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def _set_groups_aside(folder: Path) -> None:
    path = folder / GROUPS
    if path.exists() and path.stat().st_size:
        path.replace(folder / PREVIOUS)
        console().print(
            f"{folder} held an evaluation; its groups are kept as {PREVIOUS} until the next one", soft_wrap=True
        )
