"""Where a run keeps what it leaves behind: one folder a run, logs where the seed puts them.

Always true: a run's paths follow from its id and HERMES_HOME alone, so every process finds the same ones.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.errors import ConfigError
from hermes_rl.home import hermes_home, rl_home

LONGEST_ID = 64


def names_a_folder(text: str, longest: int) -> bool:
    """Whether it can be a folder's name beside others: nothing hidden, nothing that leads elsewhere."""
    return len(text) <= longest and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", text) is not None


@dataclass(frozen=True, slots=True)
class RunPlaces:
    run_id: str

    def __post_init__(self) -> None:
        if not names_a_folder(self.run_id, LONGEST_ID):
            raise ConfigError(f"{self.run_id!r} is no id of a run; `hermes-rl run list` shows those there are")

    @property
    def folder(self) -> Path:
        """The trainer's folder too: its run.json, lineage.jsonl and metrics.jsonl stand here."""
        return rl_home() / "runs" / self.run_id

    @property
    def file(self) -> Path:
        """The whole run as it was started: run_file.py."""
        return self.folder / "run.yaml"

    @property
    def state(self) -> Path:
        """What the supervisor says of the run: states.py. Only a supervisor writes it."""
        return self.folder / "state.json"

    @property
    def wanted(self) -> Path:
        """What people want of the run: to go on or to stop."""
        return self.folder / "wanted.json"

    @property
    def lock(self) -> Path:
        """Held by the supervisor for as long as it lives."""
        return self.folder / "supervisor.lock"

    @property
    def plan(self) -> Path:
        """The commands of its parts: supervision/parts.py."""
        return self.folder / "parts.json"

    @property
    def coming(self) -> Path:
        """Which process was last started to supervise it, before it has said anything."""
        return self.folder / "coming.json"

    @property
    def database(self) -> Path:
        return self.folder / "trajectories.db"

    @property
    def weights(self) -> Path:
        """The last weights as a PEFT folder, once the run has ended well."""
        return self.folder / "weights"

    @property
    def curve(self) -> Path:
        return self.folder / "curve.png"

    def part(self, part: str) -> Path:
        """What one part leaves behind besides its log: its configuration, its keeper's notes."""
        return self.folder / "parts" / part

    def serving(self, part: str) -> Path:
        """Where an environment's `serve` keeps its spool, its split and what it measured."""
        return self.part(part) / "serve"

    def log(self, part: str) -> Path:
        """`part` is api, trainer, env, env-NAME, engine, export or supervisor."""
        return logs_home() / f"{part}_{self.run_id}.log"


def runs_home() -> Path:
    return rl_home() / "runs"


def records() -> Path:
    """The store's database with a row for each run."""
    return rl_home() / "runs.db"


def logs_home() -> Path:
    return hermes_home() / "logs" / "rl_training"


def inference_tests_home() -> Path:
    return logs_home() / "inference_tests"


def drafts_home() -> Path:
    """What was selected and edited and not yet started, a file a session."""
    return rl_home() / "drafts"
