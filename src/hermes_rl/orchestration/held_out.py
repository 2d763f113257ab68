"""The evaluations of a run before its first step and after its last one: how many items, and what they found.

Always true: both moments evaluate the same held-out items with the same seeds, greedily and sampled: a policy that
becomes surer of what it could do improves when sampled, and not when greedy.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.orchestration.run_file import EnvironmentEntry, RunFile
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.training.config import TrainerSettings

# An item is evaluated four times, and a step's rollouts also take time to learn from. With one item for eight rollouts
# of the run, the evaluations take about a fifth of its time on the engine of the preset laptop.
ROLLOUTS_PER_ITEM = 8
MAX_ITEMS = 200


class Moment(StrEnum):
    BEFORE = "before"
    AFTER = "after"


class Decoding(StrEnum):
    GREEDY = "greedy"
    SAMPLED = "sampled"

    @property
    def temperature(self) -> float:
        return 0.0 if self is Decoding.GREEDY else 1.0


@dataclass(frozen=True, slots=True)
class HeldOutResult:
    """One evaluation; the mean is None where a custom `evaluate` has no mean reward."""

    name: str
    environment: str
    moment: Moment
    decoding: Decoding
    items: int | None
    mean: float | None
    low: float | None
    high: float | None
    seconds: float | None


def default_items(run_file: RunFile) -> int:
    """About as many items as make all evaluations take a fifth of the run's time."""
    defaults = TrainerSettings.model_fields
    steps, batch = (run_file.tinker.get(name, defaults[name].default) for name in ("total_steps", "batch_size"))
    items = int(steps) * int(batch) // ROLLOUTS_PER_ITEM // max(1, len(run_file.trained_on))
    return max(1, min(items, MAX_ITEMS))


def evaluation_name(run_file: RunFile, entry: EnvironmentEntry, moment: Moment, decoding: Decoding) -> str:
    """The name of an evaluation's component and folder: before-greedy, or before-greedy-NAME."""
    name = f"{moment}-{decoding}"
    return name if len(run_file.trained_on) == 1 else f"{name}-{entry.name}"


def held_out_results(paths: RunPaths, run_file: RunFile | None) -> tuple[list[HeldOutResult], list[str]]:
    """The finished evaluations, and the names of the others."""
    if run_file is None or not run_file.held_out_items:
        return [], []
    found: list[HeldOutResult] = []
    missing: list[str] = []
    for entry, decoding, moment in product(run_file.trained_on, Decoding, Moment):
        name = evaluation_name(run_file, entry, moment, decoding)
        try:
            report = fast_json.loads((paths.evaluation(name) / "metrics.json").read_bytes())
            metrics: dict[str, Any] = report["metrics"]
        except (OSError, ValueError, KeyError, TypeError):
            missing.append(name)
            continue
        mean, low, high = (metrics.get(f"eval/mean_reward{end}") for end in ("", "/low", "/high"))
        items, seconds = metrics.get("eval/items_scored"), report.get("seconds")
        found.append(HeldOutResult(name, entry.name, moment, decoding, items, mean, low, high, seconds))
    return found, missing
