"""The work that every framework is given, and what is kept of it. Standard library only: each driver runs elsewhere.

A rollout is a recording played back: for each turn the model's text and the command of its one tool call, for each
command its result, and the model's last text. Always true: two frameworks with the same `Job` see the same requests
answered the same way, and a rollout's name (`#17/stall#` in its prompt) is all that the model goes by.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RECORDINGS = ("null", "recorded")
FAULT_TURN = 3
FAULTS = (
    "500_once",
    "500",
    "hangup_once",
    "hangup",
    "stall_once",
    "stall",
    "garbage_once",
    "garbage",
    "tool",
    "reward",
)
BROKEN = "break"
"""The command on which the tool raises."""
TOOL_NAME, TOOL_DOC, ARGUMENT_DOC = "run", "Run a command and return what it printed.", "The command."


class ToolBrokeError(Exception):
    """What the tool raises when a rollout of the kind `tool` calls it."""


class RewardBrokeError(Exception):
    """What the reward of a rollout of the kind `reward` raises."""


@dataclass(frozen=True)
class Turn:
    text: str
    command: str


@dataclass(frozen=True)
class Recording:
    task: str
    turns: tuple[Turn, ...]
    results: Mapping[str, str]
    final: str

    @staticmethod
    @cache
    def named(name: str) -> "Recording":
        if name == "null":
            turns = tuple(Turn("", f"echo hello {number}") for number in range(1, 5))
            results = {turn.command: turn.command.removeprefix("echo ") for turn in turns}
            return Recording("Say hello four times with the tool, then stop.", turns, results, "done")
        read = json.loads((HERE / f"{name}.json").read_text())
        turns = tuple(Turn(one["text"], one["command"]) for one in read["turns"])
        return Recording(read["task"], turns, {one["command"]: one["result"] for one in read["turns"]}, read["final"])

    def score(self, prompt: str, final: str | None) -> float:
        """The reward; RewardBrokeError where it is to break."""
        if name_in(prompt).endswith("/reward"):
            raise RewardBrokeError("the reward broke, as it was told to")
        return float((final or "").strip() == self.final)


@dataclass(frozen=True)
class Job:
    """One measurement: so many rollouts of a recording, so many at once, by the endpoint at `base_url`."""

    base_url: str
    recording: str
    rollouts: int
    in_flight: int
    folder: str
    delay: float = 0.0
    """Seconds of the model for an answer."""
    patience: float = 600.0
    """Seconds that a request may take, by the framework's own setting."""
    faults: bool = False
    first: int = 0
    """The number of its first rollout: those that share a model have numbers of their own."""
    warm: bool = False

    @property
    def names(self) -> list[str]:
        kinds = ("fine", *FAULTS) if self.faults else ("fine",)
        # The model must not take the warm-up for the job.
        first = 10_000_000 if self.warm else self.first
        return [f"{first + number}/{kinds[number % len(kinds)]}" for number in range(self.rollouts)]

    def prompt(self, name: str) -> str:
        return f"#{name}# {Recording.named(self.recording).task}"

    def written(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> "Job":
        return cls(**json.loads(text))


@dataclass
class Sandboxes:
    """Null sandboxes: opened by a rollout's first tool call, closed by whatever hook the framework has for its end."""

    opened: int = 0
    open: set[str] = field(default_factory=set)

    def ensure(self, name: str) -> None:
        if name not in self.open:
            self.open.add(name)
            self.opened += 1

    def close(self, name: str) -> None:
        self.open.discard(name)


@dataclass
class Kept:
    """What a framework's own records say after a run: the score of each rollout, None for one kept without a score."""

    scores: dict[str, float | None] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    open_sandboxes: int = 0


@cache
def results() -> Mapping[str, str]:
    """What each command of each recording gave."""
    return {command: result for name in RECORDINGS for command, result in Recording.named(name).results.items()}


def called(command: str) -> str:
    """What the tool gives; ToolBrokeError where it is to break."""
    if command == BROKEN:
        raise ToolBrokeError("the tool broke, as it was told to")
    return results()[command]


def name_in(prompt: str) -> str:
    """The rollout's name, from its prompt."""
    return prompt.partition("#")[2].partition("#")[0]


def tool_schema() -> dict[str, Any]:
    """The tool, for those that write its schema themselves."""
    properties = {"command": {"type": "string", "description": ARGUMENT_DOC}}
    parameters = {"type": "object", "properties": properties, "required": ["command"]}
    return {"type": "function", "function": {"name": TOOL_NAME, "description": TOOL_DOC, "parameters": parameters}}
