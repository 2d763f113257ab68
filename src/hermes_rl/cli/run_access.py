"""Training runs as a data source of the viewer, which does not import orchestration."""

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from hermes_rl.cli.run.logs import logged_components
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.secrets import redact_value
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.status.inspect import find_run_file
from hermes_rl.orchestration.status.logs import log_lines
from hermes_rl.orchestration.status.redaction import known_secrets
from hermes_rl.orchestration.status.results import checkpoints
from hermes_rl.orchestration.status.run_list import list_runs
from hermes_rl.orchestration.status.status import status
from hermes_rl.sinks.tail import MetricsTail
from hermes_rl.training.checkpoints import Lineage
from hermes_rl.training.config import TrainerSettings
from hermes_rl.viewer.sources.source import AdvantageRule, Command, RunAccess

# Advantages that are computed here for display; others may be code of their author, which a viewer does not run.
BUILT_IN = {
    "mean": "score minus the mean of the group",
    "mean_std": "score minus the mean of the group, divided by its standard deviation",
    "leave_one_out": "score minus the mean of the others in the group",
}
ACTIVE = ("starting", "running", "stopping", "recovering")


def viewed_runs() -> RunAccess:
    followed = MetricsTail()
    return RunAccess(
        listed=list_runs,
        folder=lambda run_id: RunPaths(run_id).folder,
        status=partial(status, read=followed.rows),
        config=_config,
        steps=followed.steps,
        batch_steps=_batch_steps,
        advantage=_advantage,
        logs=logged_components,
        log=log_lines,
        commands=_commands,
    )


def _config(run_id: str) -> Mapping[str, Any] | None:
    """The configuration of a run, without its keys."""
    file = find_run_file(RunPaths(run_id))
    if file is None:
        return None
    shown: Mapping[str, Any] = redact_value(file.model_dump(mode="json"), known_secrets(file.keys))
    return shown


def _batch_steps(run_id: str) -> Mapping[int, int]:
    """From the lineage: a checkpoint names the batches since the one before it, one for each step."""
    try:
        made = Lineage(RunPaths(run_id).folder / "lineage.jsonl").checkpoints
    except (ConfigError, OSError, KeyError, TypeError):
        return {}
    return {
        batch: checkpoint.step - len(checkpoint.batches) + number
        for checkpoint in made
        for number, batch in enumerate(checkpoint.batches, 1)
    }


def _advantage(run_id: str) -> AdvantageRule:
    file = find_run_file(RunPaths(run_id))
    fields = TrainerSettings.model_fields
    chosen = {name: field.default for name, field in fields.items()} | (file.tinker if file else {})
    name = str(chosen["advantage"])
    if name not in BUILT_IN:
        return AdvantageRule(f"computed by {name}", None)
    if chosen["per_turn"]:
        return AdvantageRule("computed for each turn (per_turn)", None)
    if chosen["length_penalty"]:
        return AdvantageRule("computed with a length penalty", None)
    epsilon, sample_std = float(chosen["advantage_epsilon"]), bool(chosen["sample_std"])

    def compute(scores: Sequence[float]) -> list[float]:
        import numpy as np

        from hermes_rl.training.advantages import get_advantage

        found: list[float] = get_advantage(name, epsilon=epsilon, sample_std=sample_std)(np.array(scores)).tolist()
        return found

    return AdvantageRule(BUILT_IN[name], compute)


def _commands(run_id: str) -> list[Command]:
    """What a person is likely to do next with the run, as it is now."""
    state = str(status(run_id)["status"]).lower()
    if state in ACTIVE:
        return [
            Command("Follow the run in the terminal", f"hermes-rl run status {run_id} --watch"),
            Command("Stop it with a checkpoint", f"hermes-rl run stop {run_id}"),
        ]
    resume = Command("Continue from the last checkpoint", f"hermes-rl run resume {run_id}")
    found = [] if state == "finished" else [resume]
    if not checkpoints(RunPaths(run_id)):
        return found
    file = find_run_file(RunPaths(run_id))
    environments = [entry.reference for entry in file.environments] if file else []
    return [
        *found,
        *(
            Command("Evaluate the trained weights", shlex.join(["hermes-rl", "evaluate", one, "--run", run_id]))
            for one in environments[:1]
        ),
        Command("Serve the trained weights", f"hermes-rl engine serve {run_id}"),
        Command("Save the trained weights as a model folder", f"hermes-rl export {run_id} --to merged"),
        Command("Write a report to send", f"hermes-rl report {run_id}"),
    ]
