"""Checks of a whole draft, beyond those of single fields: problems, missing fields and notes.

Always true: a draft without problems and without missing fields gives a valid run file.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from hermes_rl.core.validation import problem_text
from hermes_rl.orchestration.configuration.draft import ChosenEnvironment, Draft
from hermes_rl.orchestration.configuration.precedence import Layers
from hermes_rl.orchestration.configuration.shared_fields import key_of, plain_name
from hermes_rl.orchestration.run_file import EngineEntry
from hermes_rl.training.config import TrainerSettings

Model = TypeVar("Model", bound=BaseModel)
# Stricter than the fields themselves: a group of one has no advantage, the trajectory API counts groups in 16 bits, and
# numpy takes 32-bit seeds.
RUN_RANGES = {"env.group_size": (2, 65_535), "seed": (0, 4_294_967_000)}


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    key: str | None
    message: str


def find_problems(draft: Draft) -> list[ConfigProblem]:
    """All problems. A field that is not set yet is not one of them: see missing_fields."""
    return check_values(Layers.from_draft(draft))[1]


def check_values(layers: Layers) -> tuple[TrainerSettings | None, list[ConfigProblem]]:
    """The trainer's settings, None if they are invalid, and the problems of the whole draft."""
    trainer, problems = _check(TrainerSettings, layers.section("tinker"), "tinker")
    engine = _engine_problems(layers) if layers.runs_engine() else ()
    return trainer, [*_environment_problems(layers.draft), *problems, *engine]


def missing_fields(draft: Draft) -> list[ConfigProblem]:
    """The fields that must be set before the run can start."""
    layers = Layers.from_draft(draft)
    decided = {plain_name(key): value for key, value in layers.decided().items()}
    unset = {name: kind for name, kind in layers.preset.needs.fields.items() if decided.get(name) is None}
    return [ConfigProblem(name, f"{name} is not set: give {EXPECTED[kind]}") for name, kind in unset.items()]


EXPECTED = {
    "value": "a value",
    "model": "the model to train, a folder (config.json, tokenizer, *.safetensors) or OWNER/NAME on the hub",
    "folder": "the model to train, a folder with config.json, tokenizer and *.safetensors",
}


def model_problem(kind: str, value: Any) -> str | None:
    """Why the value is not a model of that kind."""
    folder = Path(str(value)).expanduser()
    if folder.is_dir():
        return None if (folder / "config.json").is_file() else f"{folder} has no config.json"
    if kind == "model" and str(value).count("/") == 1 and not str(value).startswith((".", "/", "~")):
        return None
    return "there is no such folder"


def draft_notes(draft: Draft) -> list[str]:
    """Warnings to show before the run starts."""
    layers = Layers.from_draft(draft)
    notes = [
        f"{plain_name(key)} was set to {value!r}, but the preset {draft.preset} locks it at {layers.locked[key]!r}"
        for key, value in draft.changes.items()
        if key in layers.locked and layers.locked[key] != value
    ]
    batch = layers.linked_value("batch_size")
    for chosen in draft.trained:
        size = chosen.description.env["group_size"].value
        if isinstance(size, int) and isinstance(batch, int) and size > 0 and batch % size:
            below, above = batch // size * size, -(-batch // size) * size
            notes.append(
                f"a step takes whole groups: batch_size {batch} with {chosen.name}'s groups of {size} gives {above} "
                f"rollouts per step; set batch_size to {f'{below} or ' if below else ''}{above}"
            )
    return [*notes, *(note for chosen in draft.environments for note in _changed_file_notes(chosen))]


def file_version(chosen: ChosenEnvironment) -> str | None:
    """The version of its current file; None when the file is gone."""
    try:
        return hashlib.sha256(chosen.file.read_bytes()).hexdigest()[:8]
    except OSError:
        return None


def _changed_file_notes(chosen: ChosenEnvironment) -> Iterator[str]:
    _, _, version = chosen.id.partition("@")
    current = file_version(chosen)
    if current is None:
        yield f"the file of {chosen.name} is gone: {chosen.file}; select another environment"
    elif version and current != version:
        yield (
            f"the file of {chosen.name} has changed since it was selected ({chosen.id}, now {current}): the fields "
            "shown may be outdated until it is selected again; a run uses the current file"
        )


def _environment_problems(draft: Draft) -> Iterator[ConfigProblem]:
    several = len(draft.environments) > 1
    for chosen in draft.environments:
        where = f"{chosen.name}: " if several else ""
        for found in chosen.description.problems:
            key = None if found.field is None else key_of(f"{found.section}.{found.field}")
            yield ConfigProblem(key, f"{where}{found.message}")
        for key, (low, high) in RUN_RANGES.items():
            value = chosen.description.env[plain_name(key)].value
            applies = not chosen.evaluation_only or key != "env.group_size"
            if applies and isinstance(value, int) and not low <= value <= high:
                yield ConfigProblem(key, f"{where}{plain_name(key)} must be from {low} to {high} in a run, got {value}")


def _engine_problems(layers: Layers) -> Iterator[ConfigProblem]:
    yield from _check(EngineEntry, {"model": "not set", **layers.section("engine")}, "engine")[1]
    rank, lora = layers.decided().get("engine.rank"), layers.section("tinker").get("lora_rank")
    if isinstance(rank, int) and isinstance(lora, int) and rank < lora:
        yield ConfigProblem(
            "engine.rank",
            f"the engine's maximum rank {rank} is less than lora_rank {lora}; set engine.rank to {lora} or more, or "
            f"lora_rank to {rank} or less",
        )
    name = "max_token_trainer_length"
    longest = layers.decided().get("engine.max_length")
    trained = layers.section("tinker").get(name, TrainerSettings.model_fields[name].default)
    if isinstance(longest, int) and isinstance(trained, int) and longest < trained:
        yield ConfigProblem(
            "engine.max_length",
            f"the engine's maximum length {longest} is less than {name} {trained}; set engine.max_length to {trained} "
            f"or more, or {name} to {longest} or less",
        )


def _check(model: type[Model], values: dict[str, Any], section: str) -> tuple[Model | None, list[ConfigProblem]]:
    try:
        return model.model_validate(values), []
    except ValidationError as error:
        return None, [
            ConfigProblem(
                key_of(f"{section}.{item['loc'][0]}") if item["loc"] else None,
                problem_text(item),
            )
            for item in error.errors(include_input=False, include_url=False)
        ]
