"""Build the run file from a draft: every value of every part, validated. Building it is the dry run.

Always true: the models of all parts accept the result, and it contains no secret and no address.
"""

import importlib.util
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.keys import find_key
from hermes_rl.orchestration.configuration.checks import check_values, file_version, missing_fields
from hermes_rl.orchestration.configuration.draft import ChosenEnvironment, Draft
from hermes_rl.orchestration.configuration.edit import refresh_descriptions
from hermes_rl.orchestration.configuration.precedence import Layers, names_in
from hermes_rl.orchestration.configuration.shared_fields import LINKED_FIELDS, PER_ENVIRONMENT, RUN_OWNED_FIELDS
from hermes_rl.orchestration.presets.preset import load_preset
from hermes_rl.orchestration.requirements import missing_for
from hermes_rl.orchestration.run_file import EngineEntry, EnvironmentEntry, RunFile
from hermes_rl.training.config import TrainerSettings

_REFERENCE = re.compile(r'"env:([A-Za-z_][A-Za-z0-9_]*)"')
_HOSTED_KEY = "TINKER_API_KEY"
_BACKEND_KEYS = {"modal": ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"), "daytona": ("DAYTONA_API_KEY",)}
# The trainer's endpoint answers once its model is loaded.
_READY_SECONDS = 600.0


def build_run_file(draft: Draft, *, run_id: str | None = None, stored: bool = False) -> RunFile:
    """ConfigError lists everything that is missing or invalid.

    Describes the environments again if a file changed, or if the draft was stored: a file's imports may have changed.
    """
    versioned = _with_versions(draft)
    current = refresh_descriptions(versioned, force=stored or versioned != draft)
    layers = Layers.from_draft(current)
    trainer, problems = check_values(layers)
    problems = [*missing_fields(current), *problems]
    if trainer is None or problems:
        raise ConfigError("the run cannot start: " + "; ".join(problem.message for problem in problems))
    tinker, engine = _tinker(layers, trainer), _engine(layers, trainer)
    environments = tuple(_environment_entry(layers, chosen) for chosen in current.environments)
    return RunFile(
        run_id=run_id or secrets.token_hex(4),
        name=str(layers.linked_value("wandb_name") or current.wandb_name),
        preset=current.preset,
        environments=environments,
        tinker=tinker,
        engine=engine,
        keys=tuple(dict.fromkeys(_key_names(layers, environments, tinker))),
    )


class MissingRequirementError(ConfigError):
    """A package or key is missing; the message has the commands that fix it."""


def prepare_run_file(draft: Draft, *, stored: bool = False) -> RunFile:
    """build_run_file, and MissingRequirementError for a missing package or key."""
    run_file = build_run_file(draft, stored=stored)
    hosted = run_file.engine is None and not run_file.tinker.get("base_url")
    missing = missing_for(dict.fromkeys([*([_HOSTED_KEY] if hosted else []), *load_preset(draft.preset).needs.keys]))
    if missing:
        what = "; ".join(f"{requirement.name} is missing, run `{requirement.fix}`" for requirement in missing)
        hint = ". The presets laptop and self-hosted need no key" if hosted else ""
        raise MissingRequirementError(f"a run of the preset {run_file.preset!r} cannot start: {what}{hint}")
    return run_file


def _with_versions(draft: Draft) -> Draft:
    """The draft with environment ids that match the current files."""
    versions = [(chosen, chosen.id.partition("@")[0], file_version(chosen)) for chosen in draft.environments]
    named = (replace(chosen, id=f"{name}@{version}") if version else chosen for chosen, name, version in versions)
    return replace(draft, environments=tuple(named))


def _environment_entry(layers: Layers, chosen: ChosenEnvironment) -> EnvironmentEntry:
    description, run_values = chosen.description, layers.run_values(chosen)
    env = {name: field.value for name, field in description.env.items() if field.readable}
    env |= _linked_values("env", layers) | run_values["env"]
    if not layers.is_wandb_explicit():
        env.pop("use_wandb", None)
        # config_init asks for wandb: on a machine without it every part of the run would warn.
        if description.env["use_wandb"].set_by_config_init and not _has_wandb():
            env["use_wandb"] = False
    openai = {name: field.value for name, field in description.openai.items() if field.readable}
    openai |= _linked_values("openai", layers) | run_values["openai"] | {"health_check": True}
    openai["ready_timeout"] = max(float(openai["ready_timeout"]), _READY_SECONDS)
    return EnvironmentEntry(
        name=chosen.name,
        id=chosen.id,
        reference=chosen.reference,
        registers_as=description.name,
        weight=chosen.weight,
        evaluation_only=chosen.evaluation_only,
        env=_without_addresses("env", env),
        openai=_without_addresses("openai", openai),
    )


def _tinker(layers: Layers, trainer: TrainerSettings) -> dict[str, Any]:
    dumped = trainer.model_dump(mode="json")
    if not layers.is_wandb_explicit():
        dumped.pop("use_wandb")
    return _without_addresses("tinker", dumped)


def _engine(layers: Layers, trainer: TrainerSettings) -> EngineEntry | None:
    if not layers.runs_engine():
        return None
    values = layers.section("engine")
    if "engine.rank" not in layers.decided():
        values["rank"] = max(int(values.get("rank", 1)), trainer.lora_rank)
    return EngineEntry.model_validate(values)


def _linked_values(section: str, layers: Layers) -> dict[str, Any]:
    shared = {name: layers.linked_value(name) for name in LINKED_FIELDS if name not in PER_ENVIRONMENT}
    return {field: value for name, value in shared.items() for field in names_in(section, name)}


def _without_addresses(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Without the values that the supervisor sets when it starts a part."""
    stored = {"server_type", "api_key", "inference_weight", "evaluation_only"}
    return {
        name: value for name, value in values.items() if f"{section}.{name}" not in RUN_OWNED_FIELDS or name in stored
    }


def _key_names(layers: Layers, environments: tuple[EnvironmentEntry, ...], tinker: Mapping[str, Any]) -> Iterator[str]:
    """Names of the keys that the parts require or can use."""
    yield from layers.preset.needs.keys
    if layers.linked_value("use_wandb") is not False:
        yield "WANDB_API_KEY"
    names = [str(tinker["base_model"]), str(tinker.get("tokenizer_name") or tinker["base_model"])]
    names += [str(entry.env["dataset_name"]) for entry in environments if entry.env.get("dataset_name")]
    if not all(Path(name).expanduser().exists() for name in names):
        yield "HF_TOKEN"
    for entry in environments:
        yield from _BACKEND_KEYS.get(str(entry.env.get("terminal_backend")), ())
        yield from _REFERENCE.findall(fast_json.dumps([entry.env, entry.openai]).decode())
    yield from _REFERENCE.findall(fast_json.dumps(tinker).decode())


def _has_wandb() -> bool:
    configured = find_key("WANDB_API_KEY") is not None or bool(os.environ.get("WANDB_MODE"))
    return configured and importlib.util.find_spec("wandb") is not None
