"""Run folders in any state, as a supervisor, a trainer and environments would have left them.

A process that is to count as living is this one; one that is to be dead has a beginning that no process has.
"""

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.run_file import EnvironmentEntry, RunFile
from hermes_rl.orchestration.run_paths import RunPaths, runs_database
from hermes_rl.orchestration.run_state import ComponentStatus, Phase, RunState
from hermes_rl.store.database.store import open_store

DEAD = ProcessIdentity(os.getpid(), "another beginning")


def living() -> ProcessIdentity:
    return ProcessIdentity.from_pid(os.getpid())


def run_file(
    run_id: str,
    environments: Sequence[str] = ("words",),
    *,
    evaluation_only: Sequence[str] = (),
    tinker: Mapping[str, Any] | None = None,
    **fields: Any,
) -> RunFile:
    entries = tuple(
        EnvironmentEntry(name=name, id=f"{name}@12345678", reference=name, evaluation_only=name in evaluation_only)
        for name in environments
    )
    return RunFile(
        run_id=run_id,
        name=f"{'-'.join(environments)} {run_id}",
        preset="laptop",
        environments=entries,
        tinker={"total_steps": 100, **(tinker or {})},
        **fields,
    )


def make_run(
    run_id: str = "r1",
    *,
    phase: Phase | None = Phase.RUNNING,
    alive: bool = True,
    supervisor: bool | None = None,
    parts: Mapping[str, ComponentStatus] | None = None,
    wanted: str | None = "run",
    by: ProcessIdentity | None = None,
    reason: str | None = None,
    file: RunFile | None = None,
    now: float | None = None,
    age: float = 3600.0,
    **said: Any,
) -> RunPaths:
    """A folder of a run that began `age` seconds ago. No phase means that no supervisor has said anything.

    `alive` is of all its processes, `supervisor` of that one; `parts` replaces those that the phase implies.
    """
    moment = time.time() if now is None else now
    places, file = RunPaths(run_id), file or run_file(run_id)
    file.write(places.file)
    if wanted is not None:
        wish = {"wanted": wanted, "attempt": 1, "at": moment - age, "by": asdict(by) if by else None}
        places.wanted.write_text(json.dumps(wish))
    if phase is not None:
        lives = alive and not phase.ended
        begun = lives if supervisor is None else supervisor
        told = RunState(
            run_id=run_id,
            phase=phase,
            supervisor=living() if begun else DEAD,
            parts=dict(standings(file, phase, alive=lives) if parts is None else parts),
            reason=reason,
            started_at=said.pop("started_at", moment - age),
            changed_at=said.pop("changed_at", moment - age / 2),
            said_at=said.pop("said_at", moment),
            **said,
        )
        told.write(places.state)
    return places


def standings(file: RunFile, phase: Phase, *, alive: bool) -> dict[str, ComponentStatus]:
    """Parts as they are in a phase: all ready, or all ended."""
    names = ["api", "trainer", *(file.part_of(one) for one in file.environments)]
    who = living() if alive else DEAD
    if phase.ended:
        return {name: ComponentStatus(UnitState.EXITED, who, who, exit_code=0) for name in names}
    ready = ComponentStatus(UnitState.READY, who, who, url="http://127.0.0.1:8000")
    return dict.fromkeys(names, ready)


def write_steps(
    places: RunPaths, count: int, *, seconds: float = 10.0, last_at: float | None = None, **metrics: Any
) -> None:
    """As many steps of the trainer, with a reward that rises from 0 to 1."""
    end = time.time() if last_at is None else last_at
    lines = [
        {
            "time": end - (count - step) * seconds,
            "step": step,
            "reward/mean": step / count,
            "train/loss": -0.1,
            "train/learning_rate": 4e-5,
            "time/step": seconds,
            **metrics,
        }
        for step in range(1, count + 1)
    ]
    _append(places.folder / "metrics.jsonl", lines)


def write_environment_lines(places: RunPaths, part: str, *lines: Mapping[str, Any], file: str = "words-1") -> None:
    numbered = [{"time": time.time(), "step": number, **line} for number, line in enumerate(lines)]
    _append(places.serving(part) / f"{file}.metrics.jsonl", numbered)


def write_weights(places: RunPaths) -> Path:
    """The smallest PEFT folder that loads: one tensor of four bytes."""
    places.weights.mkdir(parents=True, exist_ok=True)
    (places.weights / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 1}))
    header = json.dumps({"layer.lora_A.weight": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}).encode()
    tensors = len(header).to_bytes(8, "little") + header + b"\0" * 4
    (places.weights / "adapter_model.safetensors").write_bytes(tensors)
    return places.weights


def write_note(places: RunPaths, part: str, process: ProcessIdentity, exit_code: int) -> None:
    """What a part's keeper leaves when the part has ended."""
    folder = places.part(part)
    folder.mkdir(parents=True, exist_ok=True)
    told = {"pid": process.pid, "began": process.began}
    (folder / "order.json").write_text(json.dumps({"life": "l1"}))
    (folder / "note.json").write_text(json.dumps({"life": "l1", "process": told, "exit_code": exit_code}))


def write_log(places: RunPaths, part: str, text: str, *, rotated: int = 0) -> Path:
    path = places.log(part)
    path = path.with_name(f"{path.name}.{rotated}") if rotated else path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def record(*runs: tuple[RunFile, str]) -> None:
    """Rows of the records, each with the state that it says."""

    async def put() -> None:
        async with open_store(runs_database()) as store:
            for file, state in runs:
                await store.put_run(file.run_id, name=file.name, state=state, settings=file.model_dump(mode="json"))

    asyncio.run(put())


def _append(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
