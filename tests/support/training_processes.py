"""A whole training run as the processes a user starts: API, trainer and environment, over an engine that runs already.

Each part can be ended, killed and started again with the same command; all they keep is below one folder.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hermes_rl.sinks.metrics_file import read_metrics
from hermes_rl.training.checkpoints import Lineage
from tests.support.ports import free_port

RUN = "run"


@dataclass
class Part:
    """One command, with a log of all its lives."""

    name: str
    command: Sequence[str]
    variables: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    lives: int = 0

    def start(self) -> None:
        self.lives += 1
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hermes_rl", *self.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.variables},
            )

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return None if self.process is None else self.process.poll()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)

    def stop(self, seconds: float = 60.0) -> int:
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def tail(self, size: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""


@dataclass
class TrainingProcesses:
    """`trainer` and `environment` are further options of those commands."""

    folder: Path
    engine_url: str
    model: str
    environment_file: str
    trainer: Mapping[str, Any]
    environment: Mapping[str, Any]
    parts: dict[str, Part] = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        api, inference = free_port(), free_port()
        self.inference_url = f"http://127.0.0.1:{inference}"
        self.api_url = f"http://127.0.0.1:{api}"
        trainer = {
            "base_url": self.engine_url,
            "base_model": self.model,
            "rollout_server_url": self.api_url,
            "port": inference,
            **self.trainer,
        }
        environment = {
            "rollout_server_url": self.api_url,
            "tokenizer_name": self.model,
            "use_wandb": "false",
            **self.environment,
        }
        endpoint = {"base_url": f"{self.inference_url}/v1", "server_type": "vllm", "model_name": self.model}
        database = str(self.folder / "trajectories.db")
        commands: dict[str, Sequence[str]] = {
            "api": ["api", "--port", str(api), "--database", database],
            "trainer": ["trainer", "--run", RUN, *_options("tinker", trainer)],
            "environment": [
                "serve",
                self.environment_file,
                *_options("env", environment),
                *_options("openai", endpoint),
            ],
        }
        variables = {"HERMES_HOME": str(self.folder / "home"), "HF_HUB_OFFLINE": "1"}
        self.parts = {
            name: Part(name, command, variables, self.folder / f"{name}.log") for name, command in commands.items()
        }

    @property
    def run_folder(self) -> Path:
        return self.folder / "home" / "rl" / "runs" / RUN

    @property
    def lineage(self) -> Lineage:
        return Lineage(self.run_folder / "lineage.jsonl")

    def metrics(self) -> list[dict[str, Any]]:
        """The last line of each step."""
        path = self.run_folder / "metrics.jsonl"
        return [dict(line) for line in read_metrics(path)] if path.exists() else []

    def rewards(self) -> list[float]:
        return [float(line["reward/mean"]) for line in self.metrics()]

    def told(self) -> dict[str, Any]:
        """What the run says of itself."""
        said: dict[str, Any] = json.loads((self.run_folder / "run.json").read_text())
        return said

    def start(self) -> None:
        for part in self.parts.values():
            part.start()

    def await_end(self, seconds: float) -> None:
        """Until the trainer is complete; an error with its log when it is not, or when another part gave up before."""
        end = time.monotonic() + seconds
        trainer = self.parts["trainer"]
        while trainer.status is None:
            ended = [name for name in ("api", "environment") if self.parts[name].status not in (None, 0)]
            if time.monotonic() > end or ended:
                logs = "\n".join(f"--- {part.name}\n{part.tail()}" for part in self.parts.values())
                raise RuntimeError(f"{ended or 'nothing'} ended, the trainer runs on\n{logs}")
            time.sleep(0.1)
        if trainer.status != 0:
            raise RuntimeError(f"the trainer ended with {trainer.status}:\n{trainer.tail()}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # As the seed says: the environment, the trainer, the API.
        for name in ("environment", "trainer", "api"):
            try:
                self.parts[name].stop(20.0)
            except subprocess.TimeoutExpired:
                self.parts[name].kill()


def _options(section: str, values: Mapping[str, Any]) -> list[str]:
    return [text for name, value in values.items() for text in (f"--{section}.{name}", str(value))]
