"""Seconds of a training pass on the self-hosted engine with the prompt computed once a group, and once a sequence.

Both ways in turn in one process, medians after the first round, which compiles. MODEL is a folder as `hermes-rl engine
model` makes it; the Python is that of `scripts/engine_environment skyrl`:

    python=$(scripts/engine_environment skyrl)/bin/python
    export PYTHONPATH=src/hermes_rl/training/engines/skyrl/inside JAX_PLATFORMS=cpu
    $python benchmarks/shared_prompts.py ~/.hermes/rl/models/smollm2-float32
"""

import argparse
import importlib.util
import json
import statistics
import time
from pathlib import Path
from typing import Any

STEPS = Path(__file__).resolve().parents[1] / "tests" / "engines" / "skyrl" / "parity" / "device_steps.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("--rounds", type=int, default=4, help="rounds, the first of which is not counted")
    parser.add_argument("--prompt", type=int, default=242, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=34, help="tokens of an answer")
    chosen = parser.parse_args()
    spec = importlib.util.spec_from_file_location("device_steps", STEPS)
    assert spec is not None
    assert spec.loader is not None
    steps: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(steps)
    steps.fix_adapters()
    steps.segments.attend_within_segments()
    groups = [(chosen.prompt, [chosen.answer] * 8)] * 2
    given = steps.prompts(groups, "importance_sampling")
    backend = steps.opened(chosen.model, train_micro_batch_size=8, max_lora_rank=16)
    ways = {"shared": steps.segments.can_share, "separate": lambda _model: False}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    padded: dict[str, float] = {}
    for _ in range(chosen.rounds):
        for name, can_share in ways.items():
            steps.backend.can_share = can_share
            began, used = time.monotonic(), time.process_time()
            padded[name] = backend.forward_backward(given)["r"].metrics["padded_tokens:sum"]
            seconds[name].append(time.monotonic() - began)
            cpu[name].append(time.process_time() - used)
    figures = {
        name: {
            "seconds": statistics.median(seconds[name][1:]),
            "cpu_seconds": statistics.median(cpu[name][1:]),
            "padded_tokens": padded[name],
        }
        for name in ways
    }
    print(json.dumps({"benchmark": "shared_prompts", "figures": figures, "goals": {}}))


if __name__ == "__main__":
    main()
