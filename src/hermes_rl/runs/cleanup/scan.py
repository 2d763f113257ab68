"""Find what hermes-rl has on this machine's disk, and what of it must be kept.

Always true: reads only. A run that has not ended, and anything held by a lock, a process, a mount or a sandbox, has a
reason to be kept.
"""

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from hermes_rl import jsontext
from hermes_rl.agents.installing import agents_home
from hermes_rl.errors import HermesRLError
from hermes_rl.home import images_home, rl_home
from hermes_rl.runs.cleanup.plan import Item, Kind
from hermes_rl.runs.cleanup.usage import holders
from hermes_rl.runs.places import RunPlaces, inference_tests_home, logs_home, runs_home
from hermes_rl.runs.supervision.marks import lock_is_free
from hermes_rl.runs.watching.listing import GONE, recorded_runs
from hermes_rl.runs.watching.live import facts_of, is_run
from hermes_rl.runs.watching.standing import LivePhase, live_phase
from hermes_rl.sandbox.baked_images import baked_images, local_engines
from hermes_rl.sandbox.ledger import living_backends
from hermes_rl.training.selfhost.places import ENVIRONMENT_PREFIX, engines_home
from hermes_rl.viewer.index.schema import indexes_home

REMOVED = ".removed-"
"""Prefix of a file or folder that was moved away and is yet to be deleted."""
BY_HAND = "data; delete it by hand"
# On these, the arguments of a process name the image and the folders of each sandbox.
SEEN_IN_ARGUMENTS = {"bubblewrap", "local"}
COMPILED = "compiled"
INCOMPLETE = "incomplete"
START_SECONDS = 3600.0


def find(problem: Callable[[str], object] = lambda _: None) -> list[Item]:
    """Everything, not yet measured. `problem` is called with what could not be read."""
    runs = {item.name: item for item in _runs()}
    found = [*runs.values(), *_engines(runs), *_images(), *_caches(), *_logs(runs), *_ci(), *_data(), *_leftovers()]
    used = holders(found)
    return [_checked(item, used) for item in found] + list(_container_images(problem))


def _checked(item: Item, used: Mapping[Path, str]) -> Item:
    """With a reason to keep it, if there is one."""
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
    """Also true of a lock that this user may not open."""
    try:
        return not lock_is_free(lock)
    except OSError:
        return True


def _folders(home: Path) -> list[Path]:
    try:
        return sorted(path for path in home.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return []


def _runs() -> Iterator[Item]:
    for folder in _folders(runs_home()):
        name, state, keep = folder.name, *state_of_run(folder)
        paths = (folder, *_checkpoints(name)) if (folder / "parts" / "engine").is_dir() else (folder,)
        locks = (folder / "supervisor.lock", *folder.glob("parts/*/keeper.lock"), folder / "lineage.jsonl")
        locks += tuple(path / "lock" for path in paths[1:2])
        yield Item(Kind.RUN, name, paths, locks, note=state, keep=keep)
    for run in recorded_runs():
        if not os.path.lexists(runs_home() / run.id):
            yield Item(Kind.RUN, run.id, note=GONE, last_used=run.changed_at)


def state_of_run(folder: Path) -> tuple[str, str | None]:
    """The state of a run, and why it must be kept."""
    run_id = folder.name
    if is_run(folder):
        phase = live_phase(facts_of(RunPlaces(run_id), briefly=True))
        if phase is LivePhase.INTERRUPTED:
            return phase, f"interrupted; `hermes-rl run stop {run_id}` ends it for good"
        return phase, None if phase.ended else f"{phase}; `hermes-rl run stop {run_id}` stops it"
    # A folder of `hermes-rl trainer`, or one in which nothing ever began.
    try:
        state = str(jsontext.loads((folder / "run.json").read_bytes())["state"])
    except FileNotFoundError:
        young = time.time() - folder.stat().st_mtime < START_SECONDS
        return INCOMPLETE, "may be starting; try again in an hour" if young else None
    except (OSError, ValueError, KeyError, TypeError):
        state = "unreadable"
    if state in {"complete", "stopped", "failed"}:
        return state, None
    return state, f"not ended; `hermes-rl trainer --run {run_id}` continues it, else delete it by hand"


def _engines(runs: Mapping[str, Item]) -> Iterator[Item]:
    of_runs = {path for run in runs.values() for path in run.paths}
    for folder in _folders(engines_home()):
        name = folder.name
        if name.startswith(ENVIRONMENT_PREFIX):
            note = "environment" if (folder / "complete").exists() else INCOMPLETE
            lock = folder.with_suffix(".lock")
            yield Item(Kind.ENGINE, name, (folder,), (lock,), used=lock, note=note)
        elif name != COMPILED and folder not in of_runs:
            yield Item(Kind.ENGINE, name, _checkpoints(name), (folder / "lock",), note="checkpoints")


def _checkpoints(engine: str) -> tuple[Path, ...]:
    """The folder of an engine, and the record of its last start."""
    home = engines_home()
    return tuple(path for path in (home / engine, home / f"{engine}.json") if path.exists())


def _images() -> Iterator[Item]:
    keep = "in use by a singularity sandbox" if "singularity" in living_backends() else None
    for home in (images_home() / "unpacked", images_home() / "baked"):
        for folder in _folders(home):
            whole = folder.name.removesuffix(".part")
            note = home.name if whole == folder.name else INCOMPLETE
            lock = folder.with_name(f"{whole}.lock")
            yield Item(Kind.IMAGE, folder.name, (folder,), (lock,), used=folder, note=note, keep=keep)


def _container_images(problem: Callable[[str], object]) -> Iterator[Item]:
    for engine in local_engines():
        try:
            images = asyncio.run(baked_images(engine))
        except HermesRLError as error:
            problem(f"{error} Its images are not listed.")
            continue
        for image in images:
            keep = f"in use by the container {image.container}" if image.container else None
            size, made = image.bytes, image.made_at
            yield Item(Kind.IMAGE, image.name, engine=engine, note=engine, keep=keep, bytes=size, last_used=made)


def _caches() -> Iterator[Item]:
    if (view := indexes_home()).is_dir():
        yield Item(Kind.CACHE, view.name, (view,), tuple(view.glob("*.lock")), note="indexes of `hermes-rl view`")
    if (judgements := rl_home() / "judgements").is_dir():
        yield Item(Kind.CACHE, judgements.name, (judgements,), note="answers of judge models")
    for folder in _folders(engines_home() / COMPILED):
        yield Item(Kind.CACHE, f"{COMPILED}-{folder.name}", (folder,), note="compiled for an engine")
    backends = living_backends() - SEEN_IN_ARGUMENTS
    keep = f"in use by a {min(backends)} sandbox" if backends else None
    for folder in _folders(agents_home()):
        note = INCOMPLETE if folder.suffix == ".part" else "an installed agent"
        yield Item(Kind.CACHE, folder.name, (folder,), (agents_home(),), note=note, keep=keep)


def _logs(runs: Mapping[str, Item]) -> Iterator[Item]:
    logs: dict[str, list[Path]] = {}
    for path in sorted(logs_home().glob("[!.]*_*.log*")):
        stem = re.sub(r"\.log(\.\d+)?$", "", path.name)
        named = [run for run in runs if stem.endswith(f"_{run}")]
        logs.setdefault(max(named, key=len, default=stem.rpartition("_")[2]), []).append(path)
    for name, paths in logs.items():
        run = runs.get(name)
        whose, keep = ("of a run", run.keep) if run else ("of a run that is gone", None)
        yield Item(Kind.LOGS, name, tuple(paths), note=f"{len(paths)} files {whose}", keep=keep)
    if (tests := inference_tests_home()).is_dir():
        yield Item(Kind.LOGS, tests.name, (tests,), tuple(tests.glob("*.log")), note="of `hermes-rl run test`")


def _ci() -> Iterator[Item]:
    for home in ci_homes():
        for folder in _folders(home):
            complete = folder / "complete"
            note = "made for a checkout's checks" if complete.exists() else INCOMPLETE
            locks = (ci_homes()[0] / "lock", folder.with_name(f"{folder.name}.lock"))
            yield Item(Kind.CI, folder.name, (folder,), locks, used=complete, note=note)


def ci_homes() -> list[Path]:
    """`.ci/run` keeps its lock in the first. The second has what the users of sandboxes must be able to read."""
    if moved := os.environ.get("XDG_CACHE_HOME"):
        return [Path(moved) / "hermes-rl-ci"]
    return [Path.home() / ".cache" / "hermes-rl-ci", Path("/var/cache/hermes-rl-ci")]


def _data() -> Iterator[Item]:
    for name in ("evals", "spool", "serve", "trajectories.db"):
        path = rl_home() / name
        if path.exists():
            paths = (path, *path.parent.glob(f"{name}-*"))
            yield Item(Kind.DATA, name, paths, keep=BY_HAND)


def _leftovers() -> Iterator[Item]:
    engines, images = engines_home(), images_home()
    homes = [rl_home(), runs_home(), engines, engines / COMPILED, images / "unpacked", images / "baked", agents_home()]
    for home in (*homes, logs_home(), *ci_homes()):
        for path in sorted(home.glob(f"{REMOVED}*")):
            yield Item(Kind.LEFTOVER, path.name, (path,), note="left by a removal that was killed")
