"""Paths of a run: one folder per run, with logs in the seed's log directory.

Always true: a run's paths depend only on its id and HERMES_HOME, so every process finds the same ones.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import hermes_home, rl_home

MAX_ID_LENGTH = 64


def is_folder_name(text: str, max_length: int) -> bool:
    """Whether the text is a safe folder name: not hidden, and without path separators."""
    return len(text) <= max_length and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", text) is not None


@dataclass(frozen=True, slots=True)
class RunPaths:
    run_id: str

    def __post_init__(self) -> None:
        if not is_folder_name(self.run_id, MAX_ID_LENGTH):
            raise ConfigError(f"{self.run_id!r} is not a run id; `hermes-rl run list` shows all runs")

    @property
    def folder(self) -> Path:
        """Also the trainer's folder, with its run.json, lineage.jsonl and metrics.jsonl."""
        return rl_home() / "runs" / self.run_id

    @property
    def file(self) -> Path:
        """The run's full configuration, which its parts read: run_file.py."""
        return self.folder / "run.yaml"

    @property
    def state(self) -> Path:
        """The run's state: run_state.py. Only the supervisor writes it."""
        return self.folder / "state.json"

    @property
    def wanted(self) -> Path:
        """The desired state: run or stop."""
        return self.folder / "wanted.json"

    @property
    def lock(self) -> Path:
        """Held by the supervisor while it lives."""
        return self.folder / "supervisor.lock"

    @property
    def plan(self) -> Path:
        """The commands of the run's parts: supervision/run_plan.py."""
        return self.folder / "parts.json"

    @property
    def coming(self) -> Path:
        """The supervisor process that was started last, recorded before it writes any state."""
        return self.folder / "coming.json"

    @property
    def database(self) -> Path:
        return self.folder / "trajectories.db"

    @property
    def weights(self) -> Path:
        """The last weights as a PEFT folder, once the run has finished."""
        return self.folder / "weights"

    @property
    def curve(self) -> Path:
        return self.folder / "curve.png"

    def evaluation(self, name: str) -> Path:
        """What `hermes-rl evaluate` writes before the first step or after the last one."""
        return self.folder / "evaluations" / name

    def part(self, part: str) -> Path:
        """Files of one part other than its log: its shim's state, and what an environment serves."""
        return self.folder / "parts" / part

    def serving(self, part: str) -> Path:
        """The spool, split and metrics of an environment's `serve`."""
        return self.part(part) / "serve"

    def log(self, part: str) -> Path:
        """`part` is api, trainer, env, env-NAME, engine, export, before-greedy (and so on) or supervisor."""
        return logs_home() / f"{part}_{self.run_id}.log"


def runs_home() -> Path:
    return rl_home() / "runs"


def runs_database() -> Path:
    """The database with a row for each run."""
    return rl_home() / "runs.db"


def logs_home() -> Path:
    return hermes_home() / "logs" / "rl_training"


def inference_tests_home() -> Path:
    return logs_home() / "inference_tests"


def drafts_home() -> Path:
    """Configurations not yet started, one file per session."""
    return rl_home() / "drafts"
