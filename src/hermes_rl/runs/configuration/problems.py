"""What is wrong with a draft, and what is worth knowing: the rules that no single field can check.

Always true: a draft without problems and with nothing missing makes a run file whose every part is valid.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from hermes_rl.runs.configuration.draft import ChosenEnvironment, Draft
from hermes_rl.runs.configuration.layers import Layers
from hermes_rl.runs.configuration.linked import key_of, plain_name
from hermes_rl.runs.run_file import EngineEntry
from hermes_rl.training.settings import TrainerSettings

# What the run bears, where a field alone would take more: nothing can be compared in a group of one, the trajectory API
# counts groups in 16 bits, and numpy takes seeds of 32.
RUN_RANGES = {"env.group_size": (2, 65_535), "seed": (0, 4_294_967_000)}


@dataclass(frozen=True, slots=True)
class Problem:
    key: str | None
    message: str


def problems_of(draft: Draft) -> list[Problem]:
    """All of them; a field that is not set yet is none: see missing_of."""
    layers = Layers.of(draft)
    return [
        *_of_environments(draft),
        *_of_model(TrainerSettings, layers.section("tinker"), "tinker"),
        *(_of_engine(layers) if layers.runs_engine() else ()),
    ]


def missing_of(draft: Draft) -> list[Problem]:
    """The fields that somebody must set before the run can start."""
    layers = Layers.of(draft)
    missing = []
    for name, kind in layers.preset.needs.fields.items():
        if {plain_name(key): value for key, value in layers.decided().items()}.get(name) is None:
            missing.append(Problem(name, f"{name} is not set yet: give {WANTED[kind]}"))
    return missing


WANTED = {
    "value": "a value",
    "model": "the model to train, a folder (config.json, tokenizer, *.safetensors) or OWNER/NAME on the hub",
    "folder": "the model to train, a folder with config.json, tokenizer and *.safetensors",
}


def model_fault(kind: str, value: Any) -> str | None:
    """Why the value is no model of that kind."""
    folder = Path(str(value)).expanduser()
    if folder.is_dir():
        return None if (folder / "config.json").is_file() else f"{folder} has no config.json"
    if kind == "model" and str(value).count("/") == 1 and not str(value).startswith((".", "/", "~")):
        return None
    return "there is no such folder"


def notes_of(draft: Draft) -> list[str]:
    """What somebody may want to know before the run is started."""
    layers = Layers.of(draft)
    notes = [
        f"{plain_name(key)} was set to {value!r}, which the preset {draft.preset} puts aside: it locks "
        f"{layers.locked[key]!r}"
        for key, value in draft.changes.items()
        if key in layers.locked and layers.locked[key] != value
    ]
    batch = layers.linked("batch_size")
    for one in draft.trained:
        size = one.description.env["group_size"].value
        if isinstance(size, int) and isinstance(batch, int) and size > 0 and batch % size:
            below, above = batch // size * size, -(-batch // size) * size
            notes.append(
                f"a step takes whole groups: batch_size {batch} with {one.name}'s groups of {size} makes {above} "
                f"rollouts a step; take batch_size {f'{below} or ' if below else ''}{above} for whole groups"
            )
    return [*notes, *(note for one in draft.environments for note in _changed_file(one))]


def version_of(chosen: ChosenEnvironment) -> str | None:
    """That of its file now; None where there is none any more."""
    try:
        return hashlib.sha256(chosen.file.read_bytes()).hexdigest()[:8]
    except OSError:
        return None


def _changed_file(chosen: ChosenEnvironment) -> Iterator[str]:
    _, _, version = chosen.id.partition("@")
    now = version_of(chosen)
    if now is None:
        yield f"the file of {chosen.name} is gone: {chosen.file}; select another environment"
    elif version and now != version:
        yield (
            f"the file of {chosen.name} has changed since it was selected ({chosen.id}, now {now}): the fields shown "
            "may be the old ones until it is selected again; a run takes the file as it is"
        )


def _of_environments(draft: Draft) -> Iterator[Problem]:
    several = len(draft.environments) > 1
    for one in draft.environments:
        where = f"{one.name}: " if several else ""
        for found in one.description.problems:
            key = None if found.field is None else key_of(f"{found.section}.{found.field}")
            yield Problem(key, f"{where}{found.message}")
        for key, (least, most) in RUN_RANGES.items():
            value = one.description.env[plain_name(key)].value
            trains = not one.evaluation_only or key != "env.group_size"
            if trains and isinstance(value, int) and not least <= value <= most:
                yield Problem(key, f"{where}in a run {plain_name(key)} is from {least} to {most}, got {value}")


def _of_engine(layers: Layers) -> Iterator[Problem]:
    values = layers.section("engine")
    yield from _of_model(EngineEntry, {"model": "not set", **values}, "engine")
    rank, lora = layers.decided().get("engine.rank"), layers.section("tinker").get("lora_rank")
    if isinstance(rank, int) and isinstance(lora, int) and rank < lora:
        yield Problem(
            "engine.rank",
            f"the engine's largest rank is {rank}, less than lora_rank {lora}; set engine.rank to {lora} or more, or "
            f"lora_rank to {rank} or less",
        )


def _of_model(model: type[BaseModel], values: dict[str, Any], section: str) -> Iterator[Problem]:
    try:
        model.model_validate(values)
    except ValidationError as error:
        for one in error.errors(include_input=False, include_url=False):
            key = key_of(f"{section}.{one['loc'][0]}") if one["loc"] else None
            yield Problem(key, str(one["msg"]).removeprefix("Value error, "))
