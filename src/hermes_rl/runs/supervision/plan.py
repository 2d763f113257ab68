"""From a run file to the commands of its parts, and the files that these read.

Always true: no secret is in a command or a file, only the names of variables; everything a run's parts leave behind is
below the run's folder, but for the engine's checkpoints, which are under the run's name among the engines.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from hermes_rl.environment.config import ENDLESS
from hermes_rl.errors import ConfigError
from hermes_rl.runs.keys import find_key
from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.run_file import EngineEntry, EnvironmentEntry, RunFile
from hermes_rl.runs.supervision.parts import PATIENCE, PartPlan, Plan, Role
from hermes_rl.runs.supervision.ports import HOST
from hermes_rl.secrets import is_literal
from hermes_rl.tracing.opening import new_traceparent

# A stop shall not take a minute for rollouts that nobody will learn from.
STOP_SECONDS = 20.0
SECRETS = ("api_key", "rollout_server_token", "inference_token")
# What parts show each other where others can reach them.
RUN_KEY = "HERMES_RL_RUN_TOKEN"
KEPT = f"env:{RUN_KEY}"
# Without the working folder on its path, as the command `hermes-rl` has it.
PROGRAM = (sys.executable, "-P", "-m", "hermes_rl")


def plan_of(run_file: RunFile) -> Plan:
    """Writes what the parts read, and tells their commands."""
    places = RunPlaces(run_file.run_id)
    engine = run_file.engine
    parts = [
        *([] if engine is None else [_engine(run_file.run_id, engine)]),
        _api(run_file, places),
        _trainer(run_file, places),
        *(_environment(run_file, places, entry) for entry in run_file.environments),
        _export(run_file, places),
    ]
    traceparent = new_traceparent() if run_file.trace else None
    return Plan(tuple(parts), run_file.keys, str(Path.cwd()), run_file.trace, traceparent)


def _api(run_file: RunFile, places: RunPlaces) -> PartPlan:
    words = ["--json", "--port", "{port}", "--database", str(places.database), *_traced(run_file)]
    if run_file.reach:
        words += ["--host", run_file.reach, "--token", KEPT]
    return replace(_part("api", Role.API, "api", *words), host=run_file.reach or HOST)


def _traced(run_file: RunFile) -> list[str]:
    return ["--trace", run_file.trace] if run_file.trace else []


def _engine(run_id: str, engine: EngineEntry) -> PartPlan:
    options = {
        "--model": engine.model,
        "--name": run_id,
        "--rank": engine.rank,
        "--adapters": engine.adapters,
        "--micro-batch": engine.micro_batch,
        "--samples": engine.samples,
        **({} if engine.environment is None else {"--environment": engine.environment}),
    }
    words = [str(word) for pair in options.items() for word in pair]
    return _part("engine", Role.ENGINE, "engine", "start", "--json", "--port", "{port}", *words)


def _trainer(run_file: RunFile, places: RunPlaces) -> PartPlan:
    shown = {"host": run_file.reach, "inference_token": KEPT, "rollout_server_token": KEPT} if run_file.reach else {}
    config = _written(places, "trainer", {"tinker": {**run_file.tinker, **shown}})
    needs = ("api",) if run_file.engine is None else ("engine", "api")
    words = ["--run", run_file.run_id, "--config", str(config), "--stay", "--json", "--tinker.port", "{port}"]
    words += ["--tinker.rollout_server_url", "{url:api}"]
    if run_file.engine is not None:
        words += ["--tinker.base_url", "{url:engine}"]
    words += _traced(run_file)
    return replace(_part("trainer", Role.TRAINER, "trainer", *words, needs=needs), host=run_file.reach or HOST)


def _environment(run_file: RunFile, places: RunPlaces, entry: EnvironmentEntry) -> PartPlan:
    name = run_file.part_of(entry)
    env = {
        "stop_timeout": STOP_SECONDS,
        **entry.env,
        "total_steps": ENDLESS,
        "serve_dir": str(places.serving(name)),
        "inference_weight": entry.weight,
        "evaluation_only": entry.evaluation_only,
    }
    # The trainer's own inference, which speaks vLLM's protocol, and answers to the name of its base model.
    model = run_file.tinker.get("base_model")
    openai = {"server_type": "vllm", **({"model_name": model} if model else {}), **entry.openai}
    if run_file.reach:
        env["rollout_server_token"] = openai["api_key"] = KEPT
    config = _written(places, name, {"env": env, "openai": openai})
    words = ["--config", str(config), "--env.rollout_server_url", "{url:api}"]
    words += ["--openai.base_url", "{url:trainer}/v1", *_traced(run_file), *_replicas(run_file, entry)]
    part = _part(
        name,
        Role.ENVIRONMENT,
        "serve",
        _absolute(entry.reference),
        *words,
        needs=("api", "trainer"),
        evaluation_only=entry.evaluation_only,
        registers_as=None if len(run_file.environments) == 1 else entry.registers_as or entry.name,
    )
    return replace(part, asks_with=RUN_KEY if run_file.reach else None)


def _replicas(run_file: RunFile, entry: EnvironmentEntry) -> list[str]:
    """An environment that only evaluates is one process, whatever the others are."""
    wanted = run_file.replicas
    if wanted is None or entry.evaluation_only:
        return []
    words = ["--replicas", str(wanted.count), "--on", wanted.on, "--name", run_file.fleet_of(entry)]
    words += ["--shards", str(wanted.shards)] if wanted.shards else []
    if wanted.on == "ray":
        words += ["--ray-address", wanted.ray_address] if wanted.ray_address else []
        words += ["--replica-cpus", str(wanted.cpus)]
        keys = [key for key in run_file.keys if find_key(key) is not None]
        words += [word for key in keys for word in ("--replica-key", key)]
    return words


def _export(run_file: RunFile, places: RunPlaces) -> PartPlan:
    words = ["export", run_file.run_id, "--to", "peft", "-o", str(places.weights), "--overwrite", "--json"]
    if run_file.engine is None:
        return _part("export", Role.EXPORT, *words)
    return _part("export", Role.EXPORT, *words, "--base-url", "{url:engine}", needs=("engine",))


def _part(
    name: str,
    role: Role,
    *words: str,
    needs: tuple[str, ...] = (),
    evaluation_only: bool = False,
    registers_as: str | None = None,
) -> PartPlan:
    return PartPlan(name, role, (*PROGRAM, *words), needs, evaluation_only, registers_as, PATIENCE[role])


def _written(places: RunPlaces, part: str, sections: Mapping[str, Mapping[str, Any]]) -> Path:
    for section, values in sections.items():
        for name in SECRETS:
            value = values.get(name)
            # Environments call for a key where none is needed, hence Atropos' "x" and its like.
            if isinstance(value, str) and len(value) > 1 and is_literal(value):
                raise ConfigError(
                    f"{section}.{name} of {part} holds a secret itself; `hermes-rl config set NAME` keeps it, and "
                    "env:NAME stands for it"
                )
    folder = places.part(part)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{part}.yaml"
    path.write_text(yaml.safe_dump({name: dict(values) for name, values in sections.items()}, sort_keys=False))
    return path


def _absolute(reference: str) -> str:
    """A file named relative to where we are is found from anywhere."""
    file, colon, name = reference.partition(":")
    return f"{Path(file).absolute()}{colon}{name}" if file.endswith(".py") else reference
