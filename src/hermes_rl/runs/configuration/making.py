"""From a draft to the file that starts a run: every value of every part, checked. Making it is the dry run.

Always true: what comes out was accepted by the models of all its parts, and holds no secret and no address.
"""

import importlib.util
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hermes_rl import jsontext
from hermes_rl.environment.config import ENDLESS
from hermes_rl.errors import ConfigError
from hermes_rl.runs.configuration.draft import ChosenEnvironment, Draft
from hermes_rl.runs.configuration.editing import settled
from hermes_rl.runs.configuration.layers import Layers
from hermes_rl.runs.configuration.linked import LINKED, OWN_TO_EACH, RUN_OWNED
from hermes_rl.runs.configuration.problems import missing_of, problems_of, version_of
from hermes_rl.runs.keys import find_key
from hermes_rl.runs.run_file import EngineEntry, EnvironmentEntry, RunFile
from hermes_rl.training.settings import TrainerSettings

_REFERENCE = re.compile(r'"env:([A-Za-z_][A-Za-z0-9_]*)"')
_BACKEND_KEYS = {"modal": ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"), "daytona": ("DAYTONA_API_KEY",)}
# The trainer's endpoint answers when its model is loaded; the run starts the environment after that.
_READY_SECONDS = 600.0


def run_file_of(draft: Draft, *, run_id: str | None = None) -> RunFile:
    """ConfigError that lists what is missing or wrong."""
    now = settled(_with_versions(draft), afresh=True)
    faults = [*missing_of(now), *problems_of(now)]
    if faults:
        raise ConfigError("the run cannot start: " + "; ".join(problem.message for problem in faults))
    layers = Layers.of(now)
    tinker, engine = _tinker(layers), _engine(layers)
    environments = tuple(_entry(layers, one) for one in now.environments)
    return RunFile(
        run_id=run_id or secrets.token_hex(4),
        name=str(layers.linked("wandb_name") or now.wandb_name),
        preset=now.preset,
        environments=environments,
        tinker=tinker,
        engine=engine,
        keys=tuple(dict.fromkeys(_keys(layers, environments, tinker))),
    )


def needed_keys(draft: Draft) -> tuple[str, ...]:
    """The keys without which a run of this draft cannot start."""
    return Layers.of(draft).preset.needs.keys


def _with_versions(draft: Draft) -> Draft:
    """The environments with the ids of their files as they are now."""
    environments = []
    for one in draft.environments:
        name, _, _ = one.id.partition("@")
        version = version_of(one)
        environments.append(replace(one, id=f"{name}@{version}") if version else one)
    return replace(draft, environments=tuple(environments))


def _entry(layers: Layers, chosen: ChosenEnvironment) -> EnvironmentEntry:
    description = chosen.description
    env = {name: field.value for name, field in description.env.items() if field.readable}
    env |= _linked_in("env", layers)
    env |= {"total_steps": ENDLESS, "seed": layers.seed_of(chosen), "inference_weight": chosen.weight}
    env["evaluation_only"] = chosen.evaluation_only
    if not layers.says_wandb():
        env.pop("use_wandb", None)
        # Its author asks for wandb outright, and would stop a run on a machine that has none.
        if description.env["use_wandb"].said and not _has_wandb():
            env["use_wandb"] = False
    openai = {name: field.value for name, field in description.openai.items() if field.readable}
    openai |= _linked_in("openai", layers)
    openai |= {"server_type": "vllm", "api_key": None, "health_check": True}
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


def _tinker(layers: Layers) -> dict[str, Any]:
    values = layers.section("tinker")
    dumped = TrainerSettings.model_validate(values).model_dump(mode="json")
    if not layers.says_wandb():
        dumped.pop("use_wandb")
    return _without_addresses("tinker", dumped)


def _engine(layers: Layers) -> EngineEntry | None:
    if not layers.runs_engine():
        return None
    values = layers.section("engine")
    if "engine.rank" not in layers.decided():
        lora_rank = TrainerSettings.model_validate(layers.section("tinker")).lora_rank
        values["rank"] = max(int(values.get("rank", 1)), lora_rank)
    return EngineEntry.model_validate(values)


def _linked_in(section: str, layers: Layers) -> dict[str, Any]:
    return {
        place.removeprefix(f"{section}."): layers.linked(name)
        for name, places in LINKED.items()
        if name not in OWN_TO_EACH
        for place in places
        if place.startswith(f"{section}.")
    }


def _without_addresses(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Less what the run's supervisor gives each part when it starts it."""
    said = {"server_type", "api_key", "inference_weight", "evaluation_only"}
    return {name: value for name, value in values.items() if f"{section}.{name}" not in RUN_OWNED or name in said}


def _keys(layers: Layers, environments: tuple[EnvironmentEntry, ...], tinker: Mapping[str, Any]) -> Iterator[str]:
    """Names of the keys that the parts need, or can use."""
    yield from layers.preset.needs.keys
    if layers.linked("use_wandb") is not False:
        yield "WANDB_API_KEY"
    names = [str(tinker["base_model"]), str(tinker.get("tokenizer_name") or tinker["base_model"])]
    names += [str(one.env["dataset_name"]) for one in environments if one.env.get("dataset_name")]
    if not all(Path(name).expanduser().exists() for name in names):
        yield "HF_TOKEN"
    for one in environments:
        yield from _BACKEND_KEYS.get(str(one.env.get("terminal_backend")), ())
        yield from _REFERENCE.findall(jsontext.dumps([one.env, one.openai]).decode())
    yield from _REFERENCE.findall(jsontext.dumps(tinker).decode())


def _has_wandb() -> bool:
    set_up = find_key("WANDB_API_KEY") is not None or bool(os.environ.get("WANDB_MODE"))
    return set_up and importlib.util.find_spec("wandb") is not None
