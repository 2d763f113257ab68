"""Find the files of hermes-rl on this machine, and which of them must be kept.

Always true: read-only. A run that has not ended, and anything in use by a lock, process, mount or sandbox, has a reason
to be kept.
"""

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from hermes_rl.agent.harnesses.installer import agents_home
from hermes_rl.core import fast_json
from hermes_rl.core.errors import HermesRLError
from hermes_rl.core.paths import images_home, rl_home
from hermes_rl.orchestration.cleanup.plan import DiskItem, ItemKind
from hermes_rl.orchestration.cleanup.usage import holders
from hermes_rl.orchestration.run_paths import RunPaths, inference_tests_home, logs_home, runs_home
from hermes_rl.orchestration.status.derive import LivePhase, live_phase
from hermes_rl.orchestration.status.inspect import is_run, read_facts
from hermes_rl.orchestration.status.run_list import FOLDER_GONE, recorded_runs
from hermes_rl.orchestration.supervision.process_tags import lock_is_free
from hermes_rl.sandbox.backends.baked_images import baked_images, local_engines
from hermes_rl.sandbox.ledger import backends_in_use
from hermes_rl.training.engines.skyrl.paths import ENVIRONMENT_PREFIX, engines_home
from hermes_rl.viewer.index.schema import indexes_home

REMOVED = ".removed-"
"""Prefix of a file or folder that was renamed and is yet to be deleted."""
BY_HAND = "data; delete it by hand"
# With these backends, process arguments contain the image and the folders of each sandbox.
SEEN_IN_ARGUMENTS = {"bubblewrap", "local"}
COMPILED = "compiled"
INCOMPLETE = "incomplete"
START_SECONDS = 3600.0


def find_disk_items(problem: Callable[[str], object] = lambda _: None) -> list[DiskItem]:
    """All items, not yet measured. `problem` is called with each read error."""
    runs = {item.name: item for item in _runs()}
    found = [*runs.values(), *_engines(runs), *_images(), *_caches(), *_logs(runs), *_ci(), *_data(), *_leftovers()]
    used = holders(found)
    return [_with_keep_reason(item, used) for item in found] + list(_container_images(problem))


def _with_keep_reason(item: DiskItem, used: Mapping[Path, str]) -> DiskItem:
    if item.keep:
        return item
    for path in item.paths:
        if path.is_symlink():
            return replace(item, keep="a symbolic link; delete it by hand")
        if not os.access(path.parent, os.W_OK):
            return replace(item, keep=f"{path.parent} is not writable; run as its owner")
        if holder := used.get(path):
            return replace(item, keep=f"in use by {holder}")
    held = next((lock for lock in item.locks if _is_held(lock)), None)
    return replace(item, keep=f"in use: {held} is locked" if held else None)


def _is_held(lock: Path) -> bool:
    """A lock that this user may not open counts as held."""
    try:
        return not lock_is_free(lock)
    except OSError:
        return True


def _folders(home: Path) -> list[Path]:
    try:
        return sorted(path for path in home.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return []


def _runs() -> Iterator[DiskItem]:
    for folder in _folders(runs_home()):
        name, (state, keep) = folder.name, run_state(folder)
        paths = (folder, *_checkpoints(name)) if (folder / "parts" / "engine").is_dir() else (folder,)
        locks = (folder / "supervisor.lock", *folder.glob("parts/*/keeper.lock"), folder / "lineage.jsonl")
        locks += tuple(path / "lock" for path in paths[1:2])
        yield DiskItem(ItemKind.RUN, name, paths, locks, note=state, keep=keep)
    for run in recorded_runs():
        if not os.path.lexists(runs_home() / run.id):
            yield DiskItem(ItemKind.RUN, run.id, note=FOLDER_GONE, last_used=run.changed_at)


def run_state(folder: Path) -> tuple[str, str | None]:
    """The state of a run, and why it must be kept."""
    run_id = folder.name
    if is_run(folder):
        phase = live_phase(read_facts(RunPaths(run_id), skip_ended_components=True))
        if phase is LivePhase.INTERRUPTED:
            return phase, f"interrupted; `hermes-rl run stop {run_id}` ends it"
        return phase, None if phase.ended else f"{phase}; `hermes-rl run stop {run_id}` stops it"
    # A folder of `hermes-rl trainer`, or a run that never started.
    try:
        state = str(fast_json.loads((folder / "run.json").read_bytes())["state"])
    except FileNotFoundError:
        recent = time.time() - folder.stat().st_mtime < START_SECONDS
        return INCOMPLETE, "may be starting; try again in an hour" if recent else None
    except (OSError, ValueError, KeyError, TypeError):
        state = "unreadable"
    if state in {"complete", "stopped", "failed"}:
        return state, None
    return state, f"not ended; `hermes-rl trainer --run {run_id}` continues it; otherwise delete it by hand"


def _engines(runs: Mapping[str, DiskItem]) -> Iterator[DiskItem]:
    of_runs = {path for run in runs.values() for path in run.paths}
    for folder in _folders(engines_home()):
        name = folder.name
        if name.startswith(ENVIRONMENT_PREFIX):
            note = "environment" if (folder / "complete").exists() else INCOMPLETE
            lock = folder.with_suffix(".lock")
            yield DiskItem(ItemKind.ENGINE, name, (folder,), (lock,), used=lock, note=note)
        elif name != COMPILED and folder not in of_runs:
            yield DiskItem(ItemKind.ENGINE, name, _checkpoints(name), (folder / "lock",), note="checkpoints")


def _checkpoints(engine: str) -> tuple[Path, ...]:
    """An engine's folder, and the record of its last start."""
    home = engines_home()
    return tuple(path for path in (home / engine, home / f"{engine}.json") if path.exists())


def _images() -> Iterator[DiskItem]:
    keep = "in use by a singularity sandbox" if "singularity" in backends_in_use() else None
    for home in (images_home() / "unpacked", images_home() / "baked"):
        for folder in _folders(home):
            name = folder.name.removesuffix(".part")
            note = home.name if name == folder.name else INCOMPLETE
            lock = folder.with_name(f"{name}.lock")
            yield DiskItem(ItemKind.IMAGE, folder.name, (folder,), (lock,), used=folder, note=note, keep=keep)


def _container_images(problem: Callable[[str], object]) -> Iterator[DiskItem]:
    for engine in local_engines():
        try:
            images = asyncio.run(baked_images(engine))
        except HermesRLError as error:
            problem(f"{error} Its images are not listed.")
            continue
        for image in images:
            keep = f"in use by the container {image.container}" if image.container else None
            size, created = image.bytes, image.made_at
            yield DiskItem(
                ItemKind.IMAGE, image.name, engine=engine, note=engine, keep=keep, bytes=size, last_used=created
            )


def _caches() -> Iterator[DiskItem]:
    if (view := indexes_home()).is_dir():
        yield DiskItem(
            ItemKind.CACHE, view.name, (view,), tuple(view.glob("*.lock")), note="indexes of `hermes-rl view`"
        )
    if (judgements := rl_home() / "judgements").is_dir():
        yield DiskItem(ItemKind.CACHE, judgements.name, (judgements,), note="answers of judge models")
    for folder in _folders(engines_home() / COMPILED):
        yield DiskItem(ItemKind.CACHE, f"{COMPILED}-{folder.name}", (folder,), note="compiled for an engine")
    backends = backends_in_use() - SEEN_IN_ARGUMENTS
    keep = f"in use by a {min(backends)} sandbox" if backends else None
    for folder in _folders(agents_home()):
        note = INCOMPLETE if folder.suffix == ".part" else "an installed agent"
        yield DiskItem(ItemKind.CACHE, folder.name, (folder,), (agents_home(),), note=note, keep=keep)


def _logs(runs: Mapping[str, DiskItem]) -> Iterator[DiskItem]:
    logs: dict[str, list[Path]] = {}
    for path in sorted(logs_home().glob("[!.]*_*.log*")):
        stem = re.sub(r"\.log(\.\d+)?$", "", path.name)
        matching = [run for run in runs if stem.endswith(f"_{run}")]
        logs.setdefault(max(matching, key=len, default=stem.rpartition("_")[2]), []).append(path)
    for name, paths in logs.items():
        run = runs.get(name)
        owner, keep = ("of a run", run.keep) if run else ("of a deleted run", None)
        yield DiskItem(ItemKind.LOGS, name, tuple(paths), note=f"{len(paths)} files {owner}", keep=keep)
    if (tests := inference_tests_home()).is_dir():
        yield DiskItem(ItemKind.LOGS, tests.name, (tests,), tuple(tests.glob("*.log")), note="of `hermes-rl run test`")


def _ci() -> Iterator[DiskItem]:
    for home in ci_homes():
        for folder in _folders(home):
            complete = folder / "complete"
            note = "CI environment of a checkout" if complete.exists() else INCOMPLETE
            locks = (ci_homes()[0] / "lock", folder.with_name(f"{folder.name}.lock"))
            yield DiskItem(ItemKind.CI, folder.name, (folder,), locks, used=complete, note=note)


def ci_homes() -> list[Path]:
    """`.ci/run` keeps its lock in the first. The second holds what sandbox users must be able to read."""
    if moved := os.environ.get("XDG_CACHE_HOME"):
        return [Path(moved) / "hermes-rl-ci"]
    return [Path.home() / ".cache" / "hermes-rl-ci", Path("/var/cache/hermes-rl-ci")]


def _data() -> Iterator[DiskItem]:
    for name in ("evals", "spool", "serve", "trajectories.db"):
        path = rl_home() / name
        if path.exists():
            paths = (path, *path.parent.glob(f"{name}-*"))
            yield DiskItem(ItemKind.DATA, name, paths, keep=BY_HAND)


def _leftovers() -> Iterator[DiskItem]:
    engines, images = engines_home(), images_home()
    homes = [rl_home(), runs_home(), engines, engines / COMPILED, images / "unpacked", images / "baked", agents_home()]
    for home in (*homes, logs_home(), *ci_homes()):
        for path in sorted(home.glob(f"{REMOVED}*")):
            yield DiskItem(ItemKind.LEFTOVER, path.name, (path,), note="left by an interrupted removal")
