"""What a starting component is doing, from the last line of its log.

Always true: only the end of the log is read, and a log that cannot be read gives no stage.
"""

import re
from pathlib import Path

TAIL_BYTES = 4096
MAX_LENGTH = 100
# The seconds at the end of a stage change all the time and say nothing that the clock does not.
_SECONDS = re.compile(r",? \d+ s$")
# Lines of progress begin with the command: `engine 0/1  loading the model, 12 s`.
_COUNT = re.compile(r"^(.*?) (\d+)/(\d+)  ")

# In the lines of `serve`: the rollouts in flight.
_ROLLOUTS = re.compile(r" · turns (.*?)(?: · |$)")


def component_stage(log: Path) -> str | None:
    """None if the log is empty, or ends with a JSON object, which components print when they are ready."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return None
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if not last or last.startswith("{"):
        return None
    if rollouts := _ROLLOUTS.search(last):
        return rollouts[1]
    text = _SECONDS.sub("", _COUNT.sub("", last))
    return text if len(text) <= MAX_LENGTH else text[:MAX_LENGTH] + "…"
