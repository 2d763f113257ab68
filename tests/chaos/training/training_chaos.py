"""A training run whose parts are killed while they hold work, each started again with the same command.

Afterwards the books are compared: the lineage of the final weights, the batches the API gave out, the versions.
"""

import json
import random
import sqlite3
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.skyrl_engine import SkyrlEngine
from tests.support.training_processes import RUN, TrainingProcesses

PARTS = ("trainer", "engine", "api", "environment")
# A part that never holds work again within this is stuck.
MOST_SECONDS = 180.0
LAST_STEPS = 5
ENVIRONMENT = Path(__file__).parents[3] / "examples" / "plain_text_env.py"
ENGINE = ("--rank", "8", "--samples", "32", "--micro-batch", "32", "--adapters", "16")


@dataclass(frozen=True)
class Kill:
    """What was killed, at which step of the run, and what it held then."""

    part: str
    step: int
    held: str


@dataclass
class Outcome:
    kills: list[Kill]
    breaches: list[str]
    seconds: float
    rewards: list[float]
    lives: Counter[str] = field(default_factory=Counter)

    @property
    def final_reward(self) -> float:
        return final_reward(self.rewards)


def final_reward(rewards: Sequence[float]) -> float:
    """The mean over the last steps."""
    last = rewards[-LAST_STEPS:]
    return sum(last) / len(last)


def plain_text_run(folder: Path, engine: SkyrlEngine, *, steps: int, seed: int) -> TrainingProcesses:
    """A run that learns, of steps that take about a second each."""
    trainer = {
        "lora_rank": 8,
        "batch_size": 32,
        "total_steps": steps,
        "max_staleness": 1,
        "learning_rate": 0.005,
        "seed": seed,
        "step_retries": 20,
    }
    # How many versions there will be is the trainer's to say: it ends the run.
    environment = {
        "total_steps": 1_000_000,
        "seed": seed,
        "max_num_workers": 2,
        "ensure_scores_are_not_same": "false",
        "stop_timeout": 10,
    }
    return TrainingProcesses(folder, engine.url, engine.model, str(ENVIRONMENT), trainer, environment)


def disturbed(run: TrainingProcesses, engine: SkyrlEngine, kills: int, seed: int, *, most_seconds: float) -> Outcome:
    """Start a run, kill each part so often while it holds work, spread over the steps, and let it end."""
    began, moments = time.monotonic(), random.Random(seed)
    left = [part for part in PARTS for _ in range(kills)]
    moments.shuffle(left)
    total = int(run.trainer["total_steps"])
    # The last steps are left in peace, so that the last kill is survived too.
    due = sorted(moments.uniform(0, total - 3) for _ in left)
    done: list[Kill] = []
    with run:
        for part, at in zip(left, due, strict=True):
            await_true(lambda at=at: step_of(run) >= int(at), most_seconds, f"step {int(at)}", run)  # type: ignore[misc]
            time.sleep(moments.uniform(0, 0.6))
            held = await_true(lambda part=part: work_held(run, part), MOST_SECONDS, f"work of {part}", run)  # type: ignore[misc]
            done.append(Kill(part, step_of(run), str(held)))
            print(f"  kill {len(done)} of {len(left)}: {done[-1]}", file=sys.stderr, flush=True)
            if part == "engine":
                engine.kill()
                engine.start()
            else:
                run.parts[part].kill()
                run.parts[part].start()
        run.await_end(most_seconds)
    lives = Counter({name: part.lives for name, part in run.parts.items()})
    return Outcome(done, breaches(run), time.monotonic() - began, run.rewards(), lives)


def await_true(what: Callable[[], Any], seconds: float, name: str, run: TrainingProcesses) -> Any:
    end = time.monotonic() + seconds
    while not (value := what()):
        trainer = run.parts["trainer"]
        if trainer.status is not None or time.monotonic() > end:
            raise RuntimeError(f"waited in vain for {name}; the trainer: {trainer.status}\n{trainer.tail()}")
        time.sleep(0.02)
    return value


def step_of(run: TrainingProcesses) -> int:
    last = run.lineage.last if run.run_folder.exists() else None
    return last.step if last else 0


def work_held(run: TrainingProcesses, part: str) -> str | None:
    """What a part works on now, in words; None when it would not be missed."""
    try:
        status = asked(f"{run.api_url}/v1/status")
        loaned = asked(f"{run.api_url}/v1/trainers/{RUN}/batches")["batches"]
    except (OSError, ValueError):
        return None
    running = sum(status["running"].values())
    queued = status["total"]["waiting"] + status["total"]["leased"]
    held = {
        "trainer": f"batch {loaned[0]}" if loaned else None,
        "engine": f"{'a step of training' if loaned else 'sampling'}, {running} rollouts"
        if loaned or running
        else None,
        "api": f"{queued} rollouts queued, {running} running" if queued else None,
        "environment": f"{running} rollouts" if running else None,
    }
    return held[part]


def asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=2) as response:
        return json.loads(response.read())


def breaches(run: TrainingProcesses) -> list[str]:
    """Where the books of the lineage and of the API do not agree."""
    lineage = run.lineage
    trained = [batch for checkpoint in lineage.checkpoints for batch in checkpoint.batches]
    steps = [checkpoint.step for checkpoint in lineage.checkpoints if not checkpoint.final]
    versions = [checkpoint.version for checkpoint in lineage.checkpoints if not checkpoint.final]
    # A batch with nothing to train on leaves the weights and their version.
    weights = {(checkpoint.version, checkpoint.state) for checkpoint in lineage.checkpoints if not checkpoint.final}
    with sqlite3.connect(run.folder / "trajectories.db") as books:
        acknowledged = [number for (number,) in books.execute("SELECT id FROM batches WHERE state = 'acknowledged'")]
        given_back = [number for (number,) in books.execute("SELECT id FROM batches WHERE state <> 'acknowledged'")]
        doubled = list(
            books.execute(
                "SELECT place FROM batch_groups g JOIN batches b ON b.id = g.batch WHERE b.state = 'acknowledged' "
                "GROUP BY place HAVING COUNT(*) > 1"
            )
        )
        said = {number for (number,) in books.execute("SELECT version FROM versions")}
    books.close()
    total = int(run.trainer["total_steps"])
    checks = {
        "a batch is in the lineage twice": len(trained) != len(set(trained)),
        "a batch was acknowledged and not learned from": bool(set(acknowledged) - set(trained)),
        "a batch was learned from and not acknowledged": bool(set(trained) - set(acknowledged)),
        "a batch was skipped": bool(given_back),
        "a group was learned from twice": bool(doubled),
        "the steps have a gap": steps != list(range(total + 1)),
        "a version names two sets of weights": len(weights) != len(set(versions)) or versions != sorted(versions),
        "a version was never told to the API": bool(set(versions) - said - {0}),
        "the run is not complete": run.told()["state"] != "complete",
    }
    return [name for name, broken in checks.items() if broken]
