"""Finds the weights that a reference names: a run or its folder, a PEFT folder, or a tinker:// path.

Always true: weights that lie on this machine are read from there, so a run's engine need not be running.
"""

from dataclasses import dataclass
from pathlib import Path

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import rl_home
from hermes_rl.core.secrets import HIDDEN, resolve_key
from hermes_rl.training.engines.skyrl.paths import find_sampler_archive
from hermes_rl.training.weights.adapter import CONFIG, TENSORS
from hermes_rl.training.weights.download import Remote
from hermes_rl.training.weights.run_metadata import RunMetadata, SavedWeights, read_run

RUN_FILES = ("run.json", "lineage.jsonl")
# Where a finished run keeps its last weights, as a PEFT folder.
RUN_WEIGHTS = "weights"
SCHEME = "tinker://"


@dataclass(frozen=True, slots=True)
class WeightSource:
    """Weights in a PEFT folder, in an archive of an engine, or at an engine.

    `run` and `saved` are set if they come from a local run.
    """

    name: str
    location: Path | Remote
    run: RunMetadata | None = None
    saved: SavedWeights | None = None
    base_model: str | None = None


def find_source(
    reference: str, *, base_url: str | None = None, api_key: str | None = None, step: int | None = None
) -> WeightSource:
    """Resolve a reference; raises ConfigError if nothing matches. `base_url` names the engine to download from."""
    key = None if api_key is None else resolve_key(api_key, "--api-key")
    if reference.startswith(SCHEME):
        state = reference if "/weights/" in reference else None
        name = reference.removeprefix(SCHEME).replace("/", "-").replace(":", "-")
        return WeightSource(name, Remote(reference, state, base_url, key))
    folder = find_folder(reference)
    if folder is not None:
        if (folder / CONFIG).is_file():
            return WeightSource(folder.resolve().name, folder)
        return _run_source(folder, base_url, key, step)
    raise ConfigError(
        f"no weights found for {reference}: give a run in {rl_home() / 'runs'}, its folder, a PEFT folder or a "
        "tinker:// path. To export recorded groups, use `hermes-rl export sft` or `export dpo`."
    )


def find_folder(reference: str) -> Path | None:
    """The folder of a PEFT adapter or of a run, given by its path or the run's name; None if there is none."""
    for folder in (Path(reference).expanduser(), rl_home() / "runs" / reference):
        if any((folder / name).is_file() for name in (CONFIG, *RUN_FILES)):
            return folder
    return None


def _run_source(folder: Path, base_url: str | None, api_key: str | None, step: int | None) -> WeightSource:
    run = read_run(folder)
    saved = run.weights(step)
    base = run.settings.get("base_model")
    base_model = str(base) if base else None
    local = None if base_url else _local_weights(folder, run, saved)
    if local is not None:
        return WeightSource(run.name, local, run, saved, base_model)
    base_url = base_url or run.settings.get("base_url")
    saved_key = run.settings.get("api_key")
    # A literal key was never saved, and a self-hosted engine needs none.
    if api_key is None and base_url is None and saved_key and saved_key != HIDDEN:
        api_key = resolve_key(str(saved_key), "the run's api_key")
    remote = Remote(saved.sampler, saved.state, base_url, api_key)
    return WeightSource(run.name, remote, run, saved, base_model)


def _local_weights(folder: Path, run: RunMetadata, saved: SavedWeights) -> Path | None:
    """The weights on this machine: an engine's archive, else those that the run exported when it finished."""
    archive = find_sampler_archive(saved.sampler)
    if archive is not None:
        return archive
    exported = folder / RUN_WEIGHTS
    # A run that was resumed after its end has newer weights than it exported.
    is_exported = saved.final and saved == run.checkpoints[-1]
    return exported if is_exported and all((exported / name).is_file() for name in (CONFIG, TENSORS)) else None
