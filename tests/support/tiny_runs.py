"""Whole runs of the tiny model on plain_text: what to set, how to wait, and what must be there after."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.run_state import Phase
from hermes_rl.orchestration.status.run_list import list_runs
from hermes_rl.orchestration.supervision import await_phase, stop_run
from scripts.hf_model import model_folder
from tests.support.skyrl_engine import skyrl_environment

ENVIRONMENT = Path(__file__).parents[2] / "examples" / "plain_text_env.py"
STEPS = 2
# Half a minute on two idle cores; the engine may have to compile, and others may use the cores.
RUN_SECONDS = 900.0
# What the seed sleeps before the first training step can begin: 5 s, 30 s and 90 s.
SEED_SLEEPS = 125.0


def tiny_changes() -> dict[str, Any]:
    """What is edited of the preset laptop."""
    return {
        "base_model": str(model_folder("tiny")),
        "engine.environment": str(skyrl_environment()),
        "total_steps": STEPS,
        "lora_rank": 8,
        "engine.rank": 8,
        "engine.samples": 4,
        "engine.micro_batch": 4,
        "group_size": 4,
        "batch_size": 8,
        "use_wandb": False,
    }


@contextmanager
def home_of_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home with plain_text in it. Whatever runs in it has ended when this is over."""
    monkeypatch.setenv("HERMES_HOME", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # Only the first run on a machine compiles.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(skyrl_environment() / "compiled"))
    folder = home / "rl" / "environments"
    folder.mkdir(parents=True)
    (folder / "plain_text_env.py").write_text(ENVIRONMENT.read_text())
    try:
        yield home
    finally:
        going = [str(run["run_id"]) for run in list_runs()]
        for run_id in going:
            stop_run(run_id)
        for run_id in going:
            await_phase(run_id, [phase for phase in Phase if phase.ended], 180.0)


def seconds_to_first_step(run_id: str, started_at: float) -> float:
    with (RunPaths(run_id).folder / "metrics.jsonl").open() as lines:
        first = json.loads(next(lines))
    return float(first["time"]) - started_at


def tell_first_step(run_id: str, started_at: float) -> None:
    seconds = seconds_to_first_step(run_id, started_at)
    print(f"start to the end of the first training step: {seconds:.1f} s; the seed sleeps {SEED_SLEEPS:g} s before it")


def trained_tensors(folder: str) -> int:
    """How many tensors of a PEFT folder the training has moved from where they begin, which is 0."""
    config = json.loads((Path(folder) / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["r"] == 8
    tensors = load_file(Path(folder) / "adapter_model.safetensors")
    return sum(bool(tensor.any()) for name, tensor in tensors.items() if "lora_B" in name)


def processes_in(home: Path) -> dict[int, str]:
    """The command lines of all processes that have this home, but our own."""
    mark = f"HERMES_HOME={home}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) != os.getpid() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
        except OSError:
            continue
    return found


def given_to_processes(home: Path, secret: str) -> bool:
    """Whether a process of this home has it as a variable."""
    for pid in processes_in(home):
        try:
            if secret.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                return True
        except OSError:
            continue
    return False


def await_nothing_left(home: Path, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while left := processes_in(home):
        if time.monotonic() > end:
            raise AssertionError(f"processes are left: {left}")
        time.sleep(0.2)
