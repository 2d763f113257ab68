"""Reading a metrics file back: one line for each step of the run as it went in the end.

Always true: steps rise. A line supersedes those of later steps that stand before it, as a run leaves them that was
taken up again from an earlier step; lines of one step are one, where a name that comes twice has its last value.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError

RESUMED = "resumed"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The metrics of each step, with `time` and `step`; a torn last line is left out.

    ConfigError that names file and line for one that holds no metrics.
    """
    steps: dict[int, dict[str, Any]] = {}
    for line in _lines(path):
        step = line["step"]
        while steps and next(reversed(steps)) > step:
            steps.popitem()
        if RESUMED not in line:
            steps.setdefault(step, {}).update(line)
    return list(steps.values())


def metrics_in(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """The metrics of one whole line; ConfigError that names the place for one that holds none."""
    try:
        metrics = jsontext.loads(line)
        sound = isinstance(metrics, dict) and isinstance(metrics["step"], int)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{path}, line {number} holds no metrics: {error}") from error
    if not sound:
        raise ConfigError(f"{path}, line {number} holds no metrics: its step must be a whole number")
    return dict(metrics)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            yield metrics_in(line, path, number)
