"""Reads a metrics file: one entry per step, without steps that a resumed run superseded.

Always true: steps increase. A line supersedes preceding lines of later steps, which a run leaves when it resumes from
an earlier step. Lines of the same step are merged, and the last value of a name wins.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError

RESUMED = "resumed"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The metrics of each step, with `time` and `step`; an incomplete last line is skipped.

    Raises ConfigError with file and line for an invalid line.
    """
    steps: dict[int, dict[str, Any]] = {}
    for line in _lines(path):
        step = line["step"]
        while steps and next(reversed(steps)) > step:
            steps.popitem()
        if RESUMED not in line:
            steps.setdefault(step, {}).update(line)
    return list(steps.values())


def parse_line(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        metrics = fast_json.loads(line)
        valid = isinstance(metrics, dict) and isinstance(metrics["step"], int)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{path}, line {number} is not a metrics line: {error}") from error
    if not valid:
        raise ConfigError(f"{path}, line {number} is not a metrics line: its step must be an integer")
    return dict(metrics)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            yield parse_line(line, path, number)
