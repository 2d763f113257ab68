"""How often an untrained model does a small task, greedily and sampled, over a grid of wordings and worked examples.

A task that shows learning is failed greedily before training, so that sharpening alone cannot solve it, and done in
some samples, so that groups have a signal. The chosen one is environments/append_log_env.py.

    python benchmarks/base_rates.py                        # the grid on SmolLM2-135M with llama.cpp
    python benchmarks/base_rates.py --chosen               # only the task of append_log as it is
    python benchmarks/base_rates.py --base-url URL --model NAME
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from environments.append_log_env import EXAMPLES, HELD_OUT_WORDINGS, WORDINGS, AppendLogEnv, Wording  # noqa: E402
from hermes_rl import APIServerConfig  # noqa: E402

# What should hold before training; benchmarks end with their goals.
MAX_GREEDY, MIN_SAMPLED, MAX_SAMPLED = 0.2, 0.1, 0.4
APPEND, WRITE = [("append", word) for word in ("sun", "rain")], [("write", word) for word in ("hello", "moon", "star")]
# Kinds of worked examples, in their order.
ORDERS: Mapping[str, Sequence[tuple[str, str]]] = {
    "writing only": WRITE[:2],
    "append, write": [APPEND[0], WRITE[0]],
    "write, append": [WRITE[0], APPEND[0]],
    "append, write, append, write": EXAMPLES,
    "write, append, write, append, write": [WRITE[2], *EXAMPLES],
}


@dataclass(frozen=True, slots=True)
class Task:
    wordings: Sequence[Wording]
    examples: Sequence[tuple[str, str]] = EXAMPLES


CHOSEN = "append_log, held out"


def tasks(*, all_of_them: bool) -> dict[str, Task]:
    """All orders of examples in the first wording, all wordings with the chosen order, and append_log as it is."""
    if not all_of_them:
        return {CHOSEN: Task(HELD_OUT_WORDINGS)}
    orders = {f"{WORDINGS[0].append} | {name}": Task(WORDINGS[:1], order) for name, order in ORDERS.items()}
    wordings = {f"{each.append} | as chosen": Task([each]) for each in (*WORDINGS[1:], *HELD_OUT_WORDINGS)}
    return orders | wordings | {CHOSEN: Task(HELD_OUT_WORDINGS)}


async def measure(task: Task, endpoint: APIServerConfig, items: int, temperature: float) -> dict[str, Any]:
    """The metrics of an evaluation on the first held-out items, one sample each."""

    class Candidate(AppendLogEnv):
        held_out_wordings = task.wordings
        examples = task.examples

    config, _ = Candidate.config_init()
    with tempfile.TemporaryDirectory() as folder:
        changes = {"eval_size": items, "eval_temperature": temperature, "data_dir_to_save_evals": folder}
        env = Candidate(config.model_copy(update=changes), [endpoint])
        async with env.opened():
            await env.run_evaluate()
    metrics: dict[str, Any] = (env.last_evaluation or {})["metrics"]
    return metrics


async def rates(
    measured: Mapping[str, Task], endpoint: APIServerConfig, items: int
) -> Mapping[str, tuple[dict[str, Any], dict[str, Any]]]:
    found = {}
    for name, task in measured.items():
        began = time.monotonic()
        greedy, sampled = [await measure(task, endpoint, items, temperature) for temperature in (0.0, 1.0)]
        found[name] = greedy, sampled
        print(f"| {name} | {shown(greedy)} | {shown(sampled)} | {time.monotonic() - began:.0f} s |", flush=True)
    return found


def shown(metrics: Mapping[str, Any]) -> str:
    name = "eval/mean_reward"
    return f"{metrics[name]:.3f} [{metrics[f'{name}/low']:.2f}, {metrics[f'{name}/high']:.2f}]"


@contextmanager
def endpoint_of(chosen: argparse.Namespace) -> Iterator[APIServerConfig]:
    if chosen.base_url:
        yield APIServerConfig(base_url=chosen.base_url, model_name=chosen.model, timeout=600)
        return
    from hermes_rl.cli.local_server import SMALL_MODEL, RunServerSettings, run_server

    with run_server(RunServerSettings(SMALL_MODEL)) as server:
        yield APIServerConfig(base_url=server.base_url, model_name=server.name, timeout=600)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=40, help="held-out items of each task (default: %(default)s)")
    parser.add_argument("--chosen", action="store_true", help="measure only the task of append_log")
    parser.add_argument("--match", default="", help="measure only the tasks with this text in their name")
    parser.add_argument("--base-url", help="use this endpoint in place of SmolLM2-135M on llama.cpp")
    parser.add_argument("--model", default="smollm2", help="model of --base-url (default: %(default)s)")
    chosen = parser.parse_args()
    print("| wording and examples | greedy | sampled at 1 | time |\n|---|---|---|---|")
    with endpoint_of(chosen) as endpoint:
        kept = {name: task for name, task in tasks(all_of_them=not chosen.chosen).items() if chosen.match in name}
        found = asyncio.run(rates(kept, endpoint, chosen.items))
    if CHOSEN not in found:
        return 0
    greedy, sampled = (one["eval/mean_reward"] for one in found[CHOSEN])
    goals = {
        "greedy": {"goal": MAX_GREEDY, "measured": greedy, "met": greedy <= MAX_GREEDY},
        "sampled": {
            "goal": [MIN_SAMPLED, MAX_SAMPLED], "measured": sampled, "met": MIN_SAMPLED <= sampled <= MAX_SAMPLED
        },
    }  # fmt: skip
    print(json.dumps({"benchmark": "base_rates", "figures": {"items": chosen.items}, "goals": goals}))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
