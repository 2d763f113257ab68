"""Runs without processes: they start, take a step at each look, finish and stop, and answer as the real ones do."""

from dataclasses import dataclass, field
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.rl_tools.context import RunFunctions
from hermes_rl.orchestration.run_file import RunFile
from hermes_rl.orchestration.run_paths import RunPaths

STEPS = 3


@dataclass
class StandInRuns:
    """`looks` is how often a run was checked with the cache."""

    files: dict[str, RunFile] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    phases: dict[str, str] = field(default_factory=dict)
    stops: list[str] = field(default_factory=list)

    @property
    def functions(self) -> RunFunctions:
        return RunFunctions(
            start=self.start,
            stop=self.stop,
            resume=self.resume,
            status=self.status,
            results=self.results,
            list_runs=self.listed,
            test_inference=self.test_inference,
        )

    def start(self, run_file: RunFile) -> str:
        run_file.write(RunPaths(run_file.run_id).file)
        self.files[run_file.run_id] = run_file
        self.phases[run_file.run_id], self.looks[run_file.run_id] = "starting", 0
        return run_file.run_id

    def stop(self, run_id: str) -> None:
        self._known(run_id)
        self.stops.append(run_id)
        self.phases[run_id] = "stopped"

    def resume(self, run_id: str) -> None:
        self._known(run_id)
        self.phases[run_id] = "starting"

    def status(self, run_id: str, *, use_cache: bool = False) -> dict[str, Any]:
        self._known(run_id)
        phase = self.phases[run_id]
        if use_cache and phase in {"starting", "running"}:
            self.looks[run_id] += 1
            phase = "finished" if self.looks[run_id] > STEPS else "running"
            self.phases[run_id] = phase
        process = {"status": "running" if phase == "running" else "exited (0)", "restarts": 0, "problem": None}
        return {
            "run_id": run_id,
            "status": phase,
            "ended": phase in {"finished", "stopped", "failed"},
            "reason": None,
            "environment": self.files[run_id].environments[0].name,
            "running_time_minutes": 0.1,
            "processes": {"api": process, "trainer": process, "env": process},
            "metrics": {"step": self.looks[run_id], "total_steps": STEPS, "reward_mean": 0.5},
            "next_check_in_seconds": 0 if phase == "finished" else 1800,
        }

    def results(self, run_id: str) -> dict[str, Any]:
        return {**self.status(run_id), "weights_path": str(RunPaths(run_id).weights)}

    def listed(self) -> list[dict[str, Any]]:
        return [{"run_id": run_id, "status": phase} for run_id, phase in reversed(self.phases.items())]

    async def test_inference(self, *asked: Any, progress: Any, **more: Any) -> dict[str, Any]:
        await progress(1, 3, "qwen/qwen3-8b: 1 groups")
        return {"environment": asked[1], "asked": list(asked), **more}

    def _known(self, run_id: str) -> None:
        if run_id not in self.files:
            raise ConfigError(f"there is no run {run_id!r}; `hermes-rl run list` shows all")
