"""SmolLM2-135M on log_numbers: pairs of training arms that differ in one setting, with several seeds each.

Each run trains 40 steps through the whole product and is evaluated on held-out items, sampled and greedy. It takes 30
to 60 minutes on two cores. Stop and start it as you like: finished runs are not repeated, and a run resumes.

    python benchmarks/learning/arms.py --out arms                           # every arm, three seeds
    python benchmarks/learning/arms.py --out arms --arms token_mean length_weighted
    python benchmarks/learning/arms.py --out arms --table                   # only print
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.hf_model import model_folder  # noqa: E402

HERE = Path("benchmarks/learning")
USELESS = "--env.useless_share 0.5"
# Options of the trainer and of the environment.
ARMS = {
    "token_mean": ("", ""),
    "length_weighted": (
        f"--tinker.loss {HERE}/length_weighted.py:length_weighted --tinker.loss_aggregation token_sum",
        "",
    ),
    "uniform": ("", f"{USELESS} --env.item_sampler uniform"),
    "by_difficulty": ("", f"{USELESS} --env.item_sampler by_difficulty"),
}
STEPS, SAMPLES = 40, 100
METRICS = Path("home/rl/runs/terminal-words/metrics.jsonl")


def train(out: Path, model: str, arm: str, seed: int, steps: int) -> None:
    trainer, environment = ARMS[arm]
    folder = out / f"{arm}-{seed}"
    # The untrained model is the same in every arm.
    if (out / "before").exists() and not (folder / "before").exists():
        shutil.copytree(out / "before", folder / "before")
    command = [
        *(sys.executable, "examples/learn_terminal_words.py", "--environment", str(HERE / "log_numbers_env.py")),
        *("--model", model, "--steps", str(steps), "--samples", str(SAMPLES), "--out", str(folder)),
        *("--trainer-options", f"{trainer} --tinker.seed {seed}"),
        *("--env-options", f"{environment} --env.seed {seed}"),
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    if not (out / "before").exists():
        shutil.copytree(folder / "before", out / "before")
    (folder / "finished").touch()


def evaluated(folder: Path) -> float:
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return float(result["metrics"]["eval/mean_reward"])


def rewards(folder: Path) -> list[float]:
    lines = (folder / METRICS).read_text().splitlines()
    return [float(json.loads(line)["reward/mean"]) for line in lines]


def table(out: Path, arms: list[str]) -> Iterator[str]:
    yield "| arm | seeds | reward, steps 1 to 10 | 11 to 20 | 21 to 30 | 31 to 40 | sampled after | greedy after |"
    yield "|---|---|---|---|---|---|---|---|"
    for arm in arms:
        done = sorted(path.parent for path in out.glob(f"{arm}-*/finished"))
        if not done:
            continue
        curves = [rewards(folder) for folder in done]
        tens = [[mean(curve[first : first + 10]) for curve in curves] for first in range(0, STEPS, 10)]
        after = [[evaluated(folder / "after" / decoding) for folder in done] for decoding in ("sampled", "greedy")]
        yield f"| {arm} | {len(done)} | " + " | ".join(map(spread, [*tens, *after])) + " |"
    for decoding in ("sampled", "greedy"):
        if (out / "before" / decoding).exists():
            yield f"Before training, {decoding}: {evaluated(out / 'before' / decoding):.3f}"


def spread(values: list[float]) -> str:
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="default: all")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print the results and stop")
    chosen = parser.parse_args()
    out: Path = chosen.out.resolve()
    if not chosen.table:
        model = str(model_folder("smollm2"))
        for seed in range(chosen.seeds):
            for arm in chosen.arms:
                if not (out / f"{arm}-{seed}" / "finished").exists():
                    print(f"arm {arm}, seed {seed}", file=sys.stderr, flush=True)
                    train(out, model, arm, seed, chosen.steps)
    print("\n".join(table(out, chosen.arms)))


if __name__ == "__main__":
    main()
