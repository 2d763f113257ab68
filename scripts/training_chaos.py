#!/usr/bin/env python3
"""A training run under `kill -9`: trainer, engine, API and environment, each many times while it holds work.

scripts/training_chaos.py                 ten kills each over 60 steps, beside five undisturbed runs: about half an hour
scripts/training_chaos.py --kills 1 --steps 14 --undisturbed 0

Each part is started again with the same command and must go on by itself. Afterwards no batch may be in the lineage of
the final weights twice or be skipped, no version be used twice, and the reward of the last steps must lie in the range
of the undisturbed runs. Progress is on stderr, the last line is one JSON object; exit status 1 on any breach.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from scripts.hf_model import model_folder
from tests.chaos.training.training_chaos import ENGINE, disturbed, final_reward, plain_text_run
from tests.support.skyrl_engine import SkyrlEngine

MOST_SECONDS = 1800.0


def main(told: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        with SkyrlEngine(model_folder("tiny"), home / "engine", *ENGINE) as engine:
            peaceful = []
            for seed in range(1, told.undisturbed + 1):
                run = plain_text_run(home / f"peace-{seed}", engine, steps=told.steps, seed=seed)
                with run:
                    run.await_end(MOST_SECONDS)
                peaceful.append(final_reward(run.rewards()))
                print(f"undisturbed, seed {seed}: {peaceful[-1]:.4f}", file=sys.stderr, flush=True)
            run = plain_text_run(home / "run", engine, steps=told.steps, seed=0)
            outcome = disturbed(run, engine, told.kills, told.seed, most_seconds=MOST_SECONDS)
    breaches = outcome.breaches
    if peaceful and not min(peaceful) <= outcome.final_reward <= max(peaceful):
        breaches = [*breaches, "the reward is not in the range of the undisturbed runs"]
    report = {
        "kills": len(outcome.kills),
        "steps": told.steps,
        "seconds": round(outcome.seconds),
        "final_reward": outcome.final_reward,
        "undisturbed": peaceful,
        "breaches": breaches,
    }
    print(json.dumps(report))
    return 1 if breaches else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="of each part (%(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="%(default)s")
    parser.add_argument("--undisturbed", type=int, default=5, help="runs to compare with (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order and the moments (%(default)s)")
    sys.exit(main(parser.parse_args()))
