"""A whole run of the tiny model under the run manager, and its processes by name.

Always true: the run is started once and never resumed or stopped by us; what is read of it is read from files, the
database and /proc, so that a broken network hides nothing.
"""

import json
import os
import random
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.run_file import EngineEntry, EnvironmentEntry, RunFile
from hermes_rl.orchestration.supervision.commands import start_run
from hermes_rl.orchestration.supervision.plan_builder import build_plan
from hermes_rl.rollout.config import ENDLESS
from hermes_rl.sandbox.process_tree import all_pids, children, descendants
from tests.chaos.runs.stage import SERVICES, Stage
from tests.chaos.stack import chaos_env
from tests.chaos.stack.clocks import SITE, Clocks
from tests.chaos.stack.grounds import commanded

RUN = "chaos"
GROUP, BATCH = 4, 8
ENGINE_PROCESSES = {"engine server": "hermes_skyrl api", "engine worker": "hermes_skyrl engine"}


class Scene(Stage):
    """One run below HERMES_HOME. `aside` is a folder that the full disk does not reach."""

    def __init__(self, aside: Path, model: Path, environment: Path) -> None:
        super().__init__(RUN)
        self._aside, self._model, self._environment = aside, str(model), environment
        self.clocks = Clocks(aside)
        self.spool = self.places.part("env") / "serve" / "spool" / chaos_env.ChaosEnv.name

    def begin(self, steps: int, seed: int) -> None:
        """Start it, with clocks that can be set."""
        self.set_pace(1.0)
        self.spool.mkdir(parents=True)
        os.environ |= self.clocks.variables("supervisor")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SITE), os.environ.get("PYTHONPATH"))))
        run_file = self._run_file(steps, seed)
        start_run(run_file, plan=self.clocks.wound(build_plan(run_file)))

    def set_pace(self, seconds: float) -> None:
        """How long a sandbox takes to count."""
        aside = self._aside / "pace.part"
        aside.write_text(f"{seconds:.2f}")
        aside.replace(self._aside / "pace")

    @property
    def step(self) -> int:
        with suppress(OSError, ValueError):
            return int(json.loads((self.places.folder / "run.json").read_bytes()).get("step") or 0)
        return 0

    def port(self, part: str) -> int:
        state = self.state
        url = (state.parts[part].url or "") if state else ""
        return int(url.rpartition(":")[2] or 0)

    def living(self, target: str, draw: random.Random) -> ProcessIdentity:
        """The process of a name, or nobody; of several sandboxes one that has a command."""
        if target == "supervisor":
            return self.supervisor()
        return ProcessIdentity.from_pid(self._process_id(target, draw))

    def _process_id(self, target: str, draw: random.Random) -> int:
        kind, _, part = target.partition(" ")
        if kind == "sandbox":
            return draw.choice(busy_sandboxes() or sandboxes() or [0])
        if target in ENGINE_PROCESSES:
            mark = f"-m {ENGINE_PROCESSES[target]} "
            return next((pid for pid in all_pids() if mark in commanded(pid)), 0)
        note = self.note(part or kind)
        if kind not in {"keeper", "guard"}:
            return int((note.get("process") or {}).get("pid", 0))
        keeper = int((note.get("keeper") or {}).get("pid", 0))
        return next(iter(children(keeper)), 0) if kind == "guard" else keeper

    def is_whole(self) -> bool:
        """Whether a living supervisor says that every part is ready, and every part lives."""
        state = self.state
        if state is None or not self.supervisor().alive():
            return False
        parts = [state.parts[part] for part in SERVICES]
        return all(part.state == "ready" and part.process is not None and part.process.alive() for part in parts)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Of the trajectory store; nothing while it cannot be read."""
        return _asked(self.places.database, sql)

    def ask_engine(self, sql: str) -> list[tuple[Any, ...]]:
        return _asked(self.places.folder.parents[1] / "engines" / RUN / "tinker.db", sql)

    def _run_file(self, steps: int, seed: int) -> RunFile:
        env = {
            "max_num_workers": 4,
            "ensure_scores_are_not_same": False,
            "tokenizer_name": self._model,
            "group_size": GROUP,
            "use_wandb": False,
            "terminal_backend": "bubblewrap",
            "pace_file": str(self._aside / "pace"),
            "seed": seed,
            "total_steps": ENDLESS,
            "stop_timeout": 20,
        }
        tinker = {"base_model": self._model, "lora_rank": 8, "batch_size": BATCH, "total_steps": steps}
        openai = {"server_type": "vllm", "model_name": self._model}
        reference = str(Path(chaos_env.__file__))
        entry = EnvironmentEntry(name=chaos_env.ChaosEnv.name, reference=reference, env=env, openai=openai)
        return RunFile(
            run_id=RUN,
            name=RUN,
            preset="laptop",
            environments=(entry,),
            tinker={**tinker, "max_staleness": 2, "learning_rate": 0.001, "seed": seed, "use_wandb": False},
            engine=EngineEntry(
                model=self._model,
                environment=str(self.clocks.engine_environment(self._environment)),
                rank=8,
                samples=4,
                micro_batch=4,
            ),
        )


def sandboxes() -> list[int]:
    """The first process of every sandbox: the one that is process 1 in a namespace below ours."""
    found = []
    for pid in all_pids():
        with suppress(OSError, StopIteration):
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
            numbers = next(line for line in status if line.startswith("NSpid:")).split()[1:]
            if len(numbers) > 1 and numbers[-1] == "1":
                found.append(pid)
    return found


def busy_sandboxes() -> list[int]:
    """Those in which a command runs: below the warden a keeper, below that the command."""
    return [pid for pid in sandboxes() if len(descendants(pid)) > 1]


def _asked(database: Path, sql: str) -> list[tuple[Any, ...]]:
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=2.0)) as books:
        return books.execute(sql).fetchall()
    return []
