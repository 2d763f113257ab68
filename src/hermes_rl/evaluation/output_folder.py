"""The output folder of an evaluation: one process at a time writes to it, and it never mixes two evaluations."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from hermes_rl.console.live_display import console
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.file_lock import exclusive_lock
from hermes_rl.core.paths import rl_home
from hermes_rl.core.private_files import FOLDER_MODE, private_folder
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.group import config_hash
from hermes_rl.store.records import read_groups

GROUPS, METRICS, SAMPLES = "groups.jsonl", "metrics.json", "samples.jsonl"
PREVIOUS = "groups.previous.jsonl"


@contextmanager
def evaluation_folder(env: Environment) -> Iterator[Path]:
    """The folder of this evaluation, locked for this process; with `resume` as it was left, else without old groups."""
    folder = _configured_folder(env) or (_newest_unfinished(env) if env.resume_evaluation else _new_folder(env))
    with exclusive_lock(folder, "--env.data_dir_to_save_evals"):
        if not env.resume_evaluation:
            # The groups go first: a report without groups does not mislead `resume`.
            _move_old_groups(folder)
            for name in (METRICS, SAMPLES):
                (folder / name).unlink(missing_ok=True)
        yield folder


@contextmanager
def report_folder(env: Environment) -> Iterator[Path]:
    """The folder of a custom evaluation, which has a report and samples but no groups."""
    folder = _configured_folder(env) or _new_folder(env)
    with exclusive_lock(folder, "--env.data_dir_to_save_evals"):
        _move_old_groups(folder)
        yield folder


def _configured_folder(env: Environment) -> Path | None:
    if not env.config.data_dir_to_save_evals:
        return None
    folder = Path(env.config.data_dir_to_save_evals)
    return private_folder(folder)


def _newest_unfinished(env: Environment) -> Path:
    own_hash = config_hash(env)
    folders = _base(env).glob(f"{env.display_name()}-*/{GROUPS}")
    for path in sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            first = next(read_groups(path), None)
        except ConfigError:  # written by another version
            continue
        if first and first.provenance.config_hash == own_hash and not _is_finished(path.parent):
            return path.parent
    raise ConfigError(
        f"there is no unfinished evaluation of {env.display_name()} with these settings under {_base(env)}; "
        "start one without --resume, or give its folder with --env.data_dir_to_save_evals"
    )


def _is_finished(folder: Path) -> bool:
    """Whether it has a report, no limit stopped it early, and every rollout has a score."""
    path = folder / METRICS
    if not path.exists():
        return False
    report = fast_json.loads(path.read_bytes())
    return not (report.get("limit") or report.get("metrics", {}).get("eval/unscored_share"))


def _base(env: Environment) -> Path:
    return (Path(env.config.serve_dir) if env.config.serve_dir else rl_home()) / "evals"


def _new_folder(env: Environment) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    base = _base(env)
    private_folder(base)
    number = 1
    while True:
        folder = base / (f"{env.display_name()}-{stamp}" + (f"-{number}" if number > 1 else ""))
        try:
            folder.mkdir(FOLDER_MODE)
        except FileExistsError:
            number += 1
        else:
            return folder


def _move_old_groups(folder: Path) -> None:
    path = folder / GROUPS
    if path.exists() and path.stat().st_size:
        path.replace(folder / PREVIOUS)
        console().print(
            f"{folder} contained an evaluation; its groups are kept as {PREVIOUS} until the next one", soft_wrap=True
        )
