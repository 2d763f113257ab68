"""From a run file to the commands of its components.

Always true: a command contains names of environment variables, never secrets; components write below the run's
folder only, except for the engine's checkpoints, which are stored with the engines under the run's name.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes_rl.core.child_python import python_command
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.keys import find_key
from hermes_rl.core.secrets import SECRET_FIELDS, is_literal
from hermes_rl.orchestration.held_out import Decoding, Moment, evaluation_name
from hermes_rl.orchestration.run_file import (
    RUN_KEY,
    RUN_TOKEN,
    EngineEntry,
    EnvironmentEntry,
    RunFile,
    part_sections,
)
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.supervision.ports import HOST
from hermes_rl.orchestration.supervision.run_plan import TIMEOUTS, ComponentPlan, Role, RunPlan
from hermes_rl.tracing.setup import new_traceparent
from hermes_rl.training.checkpoints import Lineage

PROGRAM = tuple(python_command("-m", "hermes_rl"))


def build_plan(run_file: RunFile) -> RunPlan:
    paths = RunPaths(run_file.run_id)
    engine = run_file.engine
    parts = [
        *([] if engine is None else [_engine(run_file.run_id, engine)]),
        _api(run_file, paths),
        _trainer(run_file),
        *(_evaluations(run_file, paths, Moment.BEFORE) if not _has_steps(paths) else ()),
        *(_environment(run_file, entry) for entry in run_file.environments),
        _export(run_file, paths),
        *_evaluations(run_file, paths, Moment.AFTER),
    ]
    traceparent = new_traceparent() if run_file.trace else None
    return RunPlan(tuple(parts), run_file.keys, str(Path.cwd()), run_file.trace, traceparent, run_file.max_minutes)


def _api(run_file: RunFile, paths: RunPaths) -> ComponentPlan:
    words = ["--json", "--port", "{port}", "--database", str(paths.database), *_trace_args(run_file)]
    if run_file.reach:
        words += ["--host", run_file.reach, "--token", RUN_TOKEN]
    return _component("api", Role.API, "api", *words, host=run_file.reach or HOST)


def _trace_args(run_file: RunFile) -> list[str]:
    return ["--trace", run_file.trace] if run_file.trace else []


def _engine(run_id: str, engine: EngineEntry) -> ComponentPlan:
    options = {
        "--model": engine.model,
        "--name": run_id,
        "--rank": engine.rank,
        "--adapters": engine.adapters,
        "--micro-batch": engine.micro_batch,
        "--samples": engine.samples,
        "--max-length": engine.max_length,
        "--tensor-parallel": engine.tensor_parallel,
        "--fsdp": engine.fsdp,
        "--environment": engine.environment,
    }
    words = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
    words += ["--gradient-checkpointing"] * engine.gradient_checkpointing + ["--cuda"] * engine.cuda
    return _component("engine", Role.ENGINE, "engine", "start", "--json", "--port", "{port}", *words)


def _trainer(run_file: RunFile) -> ComponentPlan:
    needs = ("api",) if run_file.engine is None else ("engine", "api")
    words = ["--run", run_file.run_id, *_settings_args(run_file, "trainer"), "--stay", "--json"]
    words += ["--tinker.port", "{port}", "--tinker.rollout_server_url", "{url:api}"]
    if run_file.engine is not None:
        words += ["--tinker.base_url", "{url:engine}"]
    words += _trace_args(run_file)
    return _component("trainer", Role.TRAINER, "trainer", *words, needs=needs, host=run_file.reach or HOST)


def _environment(run_file: RunFile, entry: EnvironmentEntry) -> ComponentPlan:
    name = run_file.part_of(entry)
    words = [*_settings_args(run_file, name), "--env.rollout_server_url", "{url:api}"]
    words += ["--openai.base_url", "{url:trainer}/v1", *_trace_args(run_file), *_replica_args(run_file, entry)]
    return _component(
        name,
        Role.ENVIRONMENT,
        "serve",
        _absolute_reference(entry.reference),
        *words,
        needs=("api", "trainer"),
        evaluation_only=entry.evaluation_only,
        registers_as=None if len(run_file.environments) == 1 else entry.registers_as or entry.name,
        asks_with=RUN_KEY if run_file.reach else None,
    )


def _has_steps(paths: RunPaths) -> bool:
    """Whether the run has taken a step, so that a resumed one can no longer be evaluated before the first."""
    last = Lineage(paths.folder / "lineage.jsonl").last
    return last is not None and last.step > 0


def _evaluations(run_file: RunFile, paths: RunPaths, moment: Moment) -> Iterator[ComponentPlan]:
    """Greedy and sampled evaluations of each environment that is trained on, by the trainer's newest weights."""
    role = Role.BASELINE if moment is Moment.BEFORE else Role.EVALUATION
    for entry in run_file.trained_on if run_file.held_out_items else ():
        for decoding in Decoding:
            name = evaluation_name(run_file, entry, moment, decoding)
            options = {
                "eval_size": run_file.held_out_items,
                "eval_samples": 1,
                "eval_temperature": decoding.temperature,
                "data_dir_to_save_evals": paths.evaluation(name),
                "use_wandb": "false",
                "metric_sinks": "[]",
            }
            words = [_absolute_reference(entry.reference), *_settings_args(run_file, run_file.part_of(entry))]
            words += [word for field, value in options.items() for word in (f"--env.{field}", str(value))]
            # Rollouts without a score are in the report; they are no reason to try again.
            words += ["--openai.base_url", "{url:trainer}/v1", "--resume", "--max-unscored", "1", "--json"]
            words += _trace_args(run_file)
            yield _component(name, role, "evaluate", *words, needs=("trainer",))


def _replica_args(run_file: RunFile, entry: EnvironmentEntry) -> list[str]:
    """An evaluation-only environment is always a single process."""
    replicas = run_file.replicas
    if replicas is None or entry.evaluation_only:
        return []
    words = ["--replicas", str(replicas.count), "--on", replicas.on, "--name", run_file.fleet_of(entry)]
    words += ["--shards", str(replicas.shards)] if replicas.shards else []
    if replicas.on == "ray":
        words += ["--ray-address", replicas.ray_address] if replicas.ray_address else []
        words += ["--replica-cpus", str(replicas.cpus)]
        keys = [key for key in run_file.keys if find_key(key) is not None]
        words += [word for key in keys for word in ("--replica-key", key)]
    return words


def _export(run_file: RunFile, paths: RunPaths) -> ComponentPlan:
    words = ["export", run_file.run_id, "--to", "peft", "-o", str(paths.weights), "--overwrite", "--json"]
    if run_file.engine is None:
        return _component("export", Role.EXPORT, *words)
    return _component("export", Role.EXPORT, *words, "--base-url", "{url:engine}", needs=("engine",))


def _component(name: str, role: Role, *words: str, **fields: Any) -> ComponentPlan:
    return ComponentPlan(name, role, (*PROGRAM, *words), patience=TIMEOUTS[role], **fields)


def _settings_args(run_file: RunFile, part: str) -> list[str]:
    """The options with which a component reads its settings; ConfigError if they hold a secret."""
    for section, values in part_sections(run_file, part).items():
        for name in SECRET_FIELDS:
            value = values.get(name)
            # Atropos environments set placeholders such as "x" where no key is needed.
            if isinstance(value, str) and len(value) > 1 and is_literal(value):
                raise ConfigError(
                    f"{section}.{name} of {part} contains a secret; store it with `hermes-rl config set NAME` and "
                    "write env:NAME instead"
                )
    return ["--config", str(RunPaths(run_file.run_id).file), "--part", part]


def _absolute_reference(reference: str) -> str:
    """Make the path of a .py reference absolute, so that it resolves from any working directory."""
    file, colon, name = reference.partition(":")
    return f"{Path(file).absolute()}{colon}{name}" if file.endswith(".py") else reference
