"""The folder of one training run: settings and state (`run.json`), lineage, metrics.

Always true: `run.json` is replaced atomically, and only the process that holds the folder sets it to `running`; a run
is never resumed with another base model or LoRA rank, or as if it had started from other weights.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.file_lock import exclusive_lock
from hermes_rl.core.paths import rl_home
from hermes_rl.core.private_files import private_folder
from hermes_rl.store.records import write_document
from hermes_rl.training.checkpoints import Lineage
from hermes_rl.training.config import TrainerSettings
from hermes_rl.version import __version__

# Settings that a checkpoint depends on.
FIXED = ("base_model", "lora_rank")


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def named(cls, name: str) -> "RunFolder":
        if not name or Path(name).name != name:
            raise ConfigError(f"--run {name!r} must be a name without slashes, like terminal-words-1")
        return cls(rl_home() / "runs" / name)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @contextmanager
    def acquire(self, settings: TrainerSettings, *, sft: str | None = None) -> Iterator[Lineage]:
        """Lock the folder for this process, and read its lineage.

        `sft` identifies the batches of a run of `trainer sft`, which resumes only with the same ones.
        """
        private_folder(self.path)
        with exclusive_lock(self.path / "lineage.jsonl", "--run"):
            before = self.read_state()
            lineage = Lineage(self.path / "lineage.jsonl")
            self._check_start(before, lineage, settings)
            for field in FIXED:
                was, now = (before.get("settings") or {}).get(field), getattr(settings, field)
                if was not in (None, now):
                    raise ConfigError(
                        f"the run {self.name} has {field} {was!r}, not {now!r}; use the same value, or choose another "
                        "run with --run"
                    )
            if lineage.last and before.get("sft") != sft:
                raise ConfigError(_other_data(self.name, before.get("sft"), sft))
            self.update_state(
                name=self.name,
                sft=sft,
                state="running",
                error=None,
                limit=None,
                pid=os.getpid(),
                settings=settings.model_dump(mode="json"),
                hermes_rl=__version__,
                started_at=before.get("started_at") or _now(),
            )
            yield lineage

    def _check_start(self, before: dict[str, Any], lineage: Lineage, settings: TrainerSettings) -> None:
        was = (before.get("settings") or {}).get("init_from")
        if lineage.last is not None and settings.init_from != was:
            began = f"from {was}" if was else "from an untrained adapter"
            raise ConfigError(
                f"the run {self.name} exists and started {began}, not from {settings.init_from}; choose another name "
                "with --run for a new run, or keep init_from unchanged to resume it"
            )

    def read_state(self) -> dict[str, Any]:
        """The content of `run.json`; empty if it does not exist."""
        try:
            state: dict[str, Any] = fast_json.loads((self.path / "run.json").read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ConfigError(
                f"{self.path / 'run.json'} cannot be read: {error}; choose another run with --run"
            ) from error
        return state

    def update_state(self, **changes: Any) -> None:
        """Merge `changes` into `run.json`."""
        write_document(self.path / "run.json", {**self.read_state(), **changes, "changed_at": _now()})


def _other_data(name: str, was: str | None, now: str | None) -> str:
    if was and now:
        what = "was started with other rollouts, another batch size or another seed"
    else:
        what = f"is a run of `hermes-rl trainer{' sft' if was else ''}`"
    return f"the run {name} {what}; choose another run with --run"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
