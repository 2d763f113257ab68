"""A run of the tiny model on plain_text to its end: API, trainer with its inference, and environment as processes."""

from pathlib import Path
from typing import Any

from tests.support.skyrl_engine import SkyrlEngine
from tests.support.training_processes import TrainingProcesses

ENVIRONMENT = Path(__file__).parents[3] / "examples" / "plain_text_env.py"
WANTED = 0.95
# Half a minute on two idle cores with our loop.
RUN_SECONDS = 400.0


def learned(engine: SkyrlEngine, folder: Path, *, seed: int, steps: int, **environment: Any) -> TrainingProcesses:
    """`environment` are further options of it."""
    trainer = {
        "lora_rank": 8,
        "batch_size": 64,
        "total_steps": steps,
        "max_staleness": 0,
        "learning_rate": 0.01,
        "seed": seed,
    }
    environment = {
        "total_steps": steps,
        "seed": seed,
        "max_num_workers": 4,
        "ensure_scores_are_not_same": "false",
        **environment,
    }
    run = TrainingProcesses(folder, engine.url, engine.model, str(ENVIRONMENT), trainer, environment)
    with run:
        run.await_end(RUN_SECONDS)
    return run
