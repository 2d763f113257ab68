"""A real run on the tiny model with the real engine, each kind of its processes killed on the way to its last step."""

import json
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from hermes_rl.orchestration.run_file import EngineEntry, EnvironmentEntry, RunFile
from hermes_rl.orchestration.run_state import Phase
from hermes_rl.orchestration.supervision.commands import resume_run, start_run
from hermes_rl.rollout.config import ENDLESS
from scripts.hf_model import model_folder
from tests.chaos.runs.stage import Stage
from tests.support.skyrl_engine import skyrl_environment

ENVIRONMENT = Path(__file__).parents[3] / "examples" / "plain_text_env.py"
VICTIMS = ("supervisor", "part env", "part trainer", "part engine", "part api", "keeper trainer", "everything")
SPARE_STEPS = 3
MOST_SECONDS = 900.0
TRUE_WITHIN = 5.0


def real_run(home: Path, victims: tuple[str, ...] = VICTIMS) -> dict[str, Any]:
    """A victim a step, then to the end. What came of it, with what is wrong under `breaches`."""
    environment = skyrl_environment()
    os.environ |= {
        "HERMES_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(environment / "compiled"),
    }
    began, steps = time.monotonic(), len(victims) + SPARE_STEPS
    stage = Stage(start_run(_run_file(environment, steps)))
    true_after: dict[str, float] = {}
    try:
        stage.await_phase(Phase.RUNNING, seconds=MOST_SECONDS)
        for number, victim in enumerate(victims, 1):
            stage.await_(lambda number=number: _step(stage) >= number, MOST_SECONDS, f"step {number}")  # type: ignore[misc]
            _kill(stage, victim)
            true_after[victim] = round(stage.await_truth(TRUE_WITHIN), 2)
            if victim == "everything":
                stage.await_nothing_left()
                resume_run(stage.run_id)
        state = stage.await_phase(Phase.FINISHED, Phase.FAILED, seconds=MOST_SECONDS)
        stage.await_nothing_left()
        return {
            "phase": state.phase,
            "steps": steps,
            "seconds": round(time.monotonic() - began),
            "true_after": true_after,
            "breaches": _breaches(stage, state.phase, steps),
        }
    finally:
        stage.kill_all()


def _run_file(environment: Path, steps: int) -> RunFile:
    model = str(model_folder("tiny"))
    env = {
        "max_num_workers": 2,
        "ensure_scores_are_not_same": False,
        "tokenizer_name": model,
        "max_token_length": 256,
        "group_size": 8,
        "use_wandb": False,
        "total_steps": ENDLESS,
        "stop_timeout": 20,
    }
    openai = {"server_type": "vllm", "model_name": model}
    tinker = {"base_model": model, "lora_rank": 8, "batch_size": 16, "total_steps": steps, "max_staleness": 1}
    return RunFile(
        run_id="real",
        name="real",
        preset="laptop",
        environments=(EnvironmentEntry(name="plain_text", reference=str(ENVIRONMENT), env=env, openai=openai),),
        tinker={**tinker, "learning_rate": 0.005, "use_wandb": False},
        engine=EngineEntry(model=model, environment=str(environment), rank=8, adapters=16, samples=32, micro_batch=32),
    )


def _kill(stage: Stage, victim: str) -> None:
    kind, _, part = victim.partition(" ")
    if kind == "everything":
        stage.kill_all()
    elif kind == "supervisor":
        stage.supervisor().signal(signal.SIGKILL)
    else:
        (stage.keeper(part) if kind == "keeper" else stage.process(part)).signal(signal.SIGKILL)


def _breaches(stage: Stage, phase: Phase, steps: int) -> list[str]:
    lineage = [json.loads(line) for line in (stage.places.folder / "lineage.jsonl").read_text().splitlines()]
    batches = Counter(batch for one in lineage for batch in one.get("batches") or ())
    wrong = [] if phase is Phase.FINISHED else [f"it is {stage.picture()}"]
    wrong += [f"batch {batch} is in the lineage {times} times" for batch, times in batches.items() if times > 1]
    if max(one.get("step") or 0 for one in lineage) != steps:
        wrong.append(f"its last step is not {steps}")
    return wrong if stage.places.weights.is_dir() else [*wrong, "there are no weights"]


def _step(stage: Stage) -> int:
    with suppress(OSError, ValueError):
        return int(json.loads((stage.places.folder / "run.json").read_bytes()).get("step") or 0)
    return 0
