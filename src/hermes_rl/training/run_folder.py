"""The folder of one training run: its settings and state, its lineage, its metrics.

Always true: `run.json` is whole at every moment, and says `running` only of a run that a process has taken on; weights
of another model or another rank are never continued under the same name.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.home import rl_home
from hermes_rl.store.holding import only_writer
from hermes_rl.store.records import write_document
from hermes_rl.training.lineage import Lineage
from hermes_rl.training.settings import TrainerSettings
from hermes_rl.version import __version__

# What a checkpoint cannot be loaded into another of.
FIXED = ("base_model", "lora_rank")


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def named(cls, name: str) -> "RunFolder":
        if not name or Path(name).name != name:
            raise ConfigError(f"--run {name!r} must be a plain name, like terminal-words-1")
        return cls(rl_home() / "runs" / name)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @contextmanager
    def taken(self, settings: TrainerSettings) -> Iterator[Lineage]:
        """Hold the folder for this process, and what was learned in it so far."""
        self.path.mkdir(parents=True, exist_ok=True)
        with only_writer(self.path / "lineage.jsonl", "--run"):
            before = self.told()
            for field in FIXED:
                was, now = (before.get("settings") or {}).get(field), getattr(settings, field)
                if was not in (None, now):
                    raise ConfigError(
                        f"the run {self.name} has {field} {was!r}, not {now!r}; go on with that, or name another run "
                        "with --run"
                    )
            self.tell(
                name=self.name,
                state="running",
                error=None,
                pid=os.getpid(),
                settings=settings.model_dump(mode="json"),
                hermes_rl=__version__,
                started_at=before.get("started_at") or _now(),
            )
            yield Lineage(self.path / "lineage.jsonl")

    def told(self) -> dict[str, Any]:
        """What `run.json` says; nothing where there is none."""
        try:
            said: dict[str, Any] = jsontext.loads((self.path / "run.json").read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ConfigError(
                f"{self.path / 'run.json'} cannot be read: {error}; name another run with --run"
            ) from error
        return said

    def tell(self, **news: Any) -> None:
        """Write what is new into `run.json`, beside what stands there."""
        write_document(self.path / "run.json", {**self.told(), **news, "changed_at": _now()})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
