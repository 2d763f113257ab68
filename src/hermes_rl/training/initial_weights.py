"""InitialWeights: what a new run starts from: the last checkpoint of another run, a tinker:// path or a PEFT folder.

Always true: only weights are taken, never an optimizer's state; base model and LoRA rank are those of the new run.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import rl_home
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.skyrl.paths import find_sampler_archive
from hermes_rl.training.utilization import BusyTimer
from hermes_rl.training.weights.adapter import CONFIG, Adapter
from hermes_rl.training.weights.download import unpack_adapter
from hermes_rl.training.weights.run_metadata import read_run
from hermes_rl.training.weights.source import SCHEME, find_folder
from hermes_rl.training.weights.upload import upload_adapter

# Options of an adapter that an engine cannot continue to train with.
UNTRAINABLE = ("use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out")


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """`state` is a training state at the engine, `adapter` a PEFT folder on disk; one of them is set.

    `archive` is the adapter of `state` on this machine's disk, for an engine that does not have the state: each run of
    `hermes-rl train` has its own.
    """

    reference: str
    state: str | None = None
    adapter: Path | None = None
    archive: Path | None = None
    run: str | None = None
    step: int | None = None

    def record(self) -> dict[str, Any]:
        """For `run.json`."""
        return {
            "init_from": self.reference,
            "weights": self.state or str(self.adapter),
            "run": self.run,
            "step": self.step,
        }


def find_initial_weights(settings: TrainerSettings) -> InitialWeights | None:
    """What `init_from` names; None without it. Raises ConfigError if a run cannot start from it."""
    reference = settings.init_from
    if reference is None:
        return None
    if reference.startswith(SCHEME):
        if "/weights/" not in reference:
            raise ConfigError(
                f"init_from {reference} is not a training state; give a path like tinker://MODEL/weights/NAME"
            )
        return InitialWeights(reference, state=reference)
    folder = find_folder(reference)
    if folder is None:
        raise ConfigError(
            f"init_from {reference}: no such run in {rl_home() / 'runs'}, and no folder of a run or of a PEFT adapter"
        )
    if (folder / CONFIG).is_file():
        return _from_adapter(reference, folder.resolve(), settings)
    return _from_run(reference, folder, settings)


def _from_run(reference: str, folder: Path, settings: TrainerSettings) -> InitialWeights:
    run = read_run(folder)
    saved = run.weights(None)
    if saved.state is None:
        raise ConfigError(f"init_from {reference}: the lineage of run {run.name} names no training state")
    for field in ("base_model", "lora_rank"):
        require_same(f"run {run.name}", field, run.settings.get(field), settings)
    hosted = run.settings.get("base_url") is None
    if run.settings and hosted == settings.self_hosted:
        places = ("hosted Tinker", "a self-hosted engine")
        raise ConfigError(
            f"init_from {reference}: run {run.name} was trained on {places[not hosted]}, this run on {places[hosted]}; "
            f"a self-hosted run can start from the folder that `hermes-rl export {reference} --to peft` writes"
        )
    archive = find_sampler_archive(saved.sampler) if settings.self_hosted else None
    return InitialWeights(reference, saved.state, archive=archive, run=run.name, step=saved.step)


def _from_adapter(reference: str, folder: Path, settings: TrainerSettings) -> InitialWeights:
    if not settings.self_hosted:
        raise ConfigError(
            f"init_from {reference}: hosted Tinker cannot load an adapter from a folder; start from a run or a "
            "tinker:// path, or train on your own engine (--tinker.base_url)"
        )
    adapter = Adapter(folder)
    for option in UNTRAINABLE:
        if adapter.config.get(option):
            raise ConfigError(f"init_from {reference}: its {CONFIG} has {option}; only a plain LoRA can be trained")
    require_same(f"the adapter {reference}", "lora_rank", adapter.rank, settings)
    base = adapter.config.get("base_model_name_or_path")
    if base and not _same_model(str(base), settings.base_model):
        raise ConfigError(
            f"init_from {reference}: the adapter is for {base}, and this run trains {settings.base_model}; if they are "
            f"the same model, change base_model_name_or_path in {folder / CONFIG}"
        )
    return InitialWeights(reference, adapter=folder)


@asynccontextmanager
async def state_at_engine(
    start: InitialWeights | None, settings: TrainerSettings, busy: BusyTimer
) -> AsyncIterator[str | None]:
    """The path of a training state at the engine with these weights, until a policy was made of it; None for None.

    An adapter on disk is uploaded for that time. Raises ConfigError if the run cannot start from the weights.
    """
    # Not above: the SDK is optional.
    from hermes_rl.training.engines.tinker import delete_state, find_state

    if start is None:
        yield None
        return
    if start.state is not None:
        info = await find_state(settings, start.state, busy)
        if info is not None:
            require_same(start.state, "base_model", info.base_model, settings)
            require_same(start.state, "lora_rank", info.lora_rank, settings)
            yield start.state
            return
        if start.archive is None:
            raise ConfigError(
                f"init_from {start.reference}: {settings.base_url or 'hosted Tinker'} has no {start.state}; use the "
                f"engine that trained it, or the folder that `hermes-rl export {start.reference} --to peft` writes"
            )
    uploaded = await _upload(start, str(settings.base_url))
    try:
        yield uploaded
    finally:
        await delete_state(settings, uploaded, busy)


async def _upload(start: InitialWeights, base_url: str) -> str:
    if start.adapter is not None:
        return await upload_adapter(base_url, Adapter(start.adapter))
    with tempfile.TemporaryDirectory() as scratch:
        await asyncio.to_thread(unpack_adapter, cast("Path", start.archive), Path(scratch))
        return await upload_adapter(base_url, Adapter(Path(scratch)))


def require_same(what: str, field: str, value: Any, settings: TrainerSettings) -> None:
    """Raise ConfigError if a setting of the weights differs from that of the run."""
    own = getattr(settings, field)
    if value not in (None, own):
        raise ConfigError(
            f"init_from {settings.init_from}: {what} has {field} {value!r}, this run {own!r}; "
            f"pass --tinker.{field} {value}"
        )


def _same_model(one: str, other: str) -> bool:
    paths = [Path(name).expanduser() for name in (one, other)]
    return one == other or (all(path.is_dir() for path in paths) and paths[0].samefile(paths[1]))
