#!/usr/bin/env python3
"""A small model learns to use a terminal, on a laptop: engine, API, trainer and environment, from nothing to a curve.

examples/learn_terminal_words.py --model FOLDER               one kind of task, ten steps
examples/learn_terminal_words.py --model FOLDER --families echo,mkdir,touch,rm,cp,mv,cat --steps 150
examples/learn_terminal_words.py --model FOLDER --vllm http://127.0.0.1:8000     vLLM samples, the engine trains
examples/learn_terminal_words.py --model FOLDER --agent examples/agent_openai.py     that program is the agent

The model is asked 200 times for words it never trains on, before and after, along the same path and with the same
seeds. Whatever it is stopped by, the same command goes on where it stopped. All it makes is below --out.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

RUN = "terminal-words"
PATIENCE = 900.0


def main(told: argparse.Namespace) -> int:
    out: Path = told.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.environ["HERMES_HOME"] = str(out / "home")
    ports = kept(out / "ports.json", lambda: [free_port(), free_port()])
    api, inference = (f"http://127.0.0.1:{port}" for port in ports)
    families = ["--env.families", told.families] if told.families else []
    endpoint = [
        "--openai.base_url",
        f"{inference}/v1",
        "--openai.server_type",
        "vllm",
        "--openai.model_name",
        told.model,
    ]
    environment = [*families, *agent(told.agent), "--env.tokenizer_name", told.model, "--env.use_wandb", "false"]
    environment += endpoint
    engine = json.loads(run("engine", "start", "--detach", "--json", "--model", told.model, *told.engine.split()))
    processes = [start(out / "api.log", "api", "--port", str(ports[0]), "--database", str(out / "trajectories.db"))]
    try:
        options = {
            "base_url": engine["url"],
            "base_model": told.model,
            "lora_rank": 16,
            "rollout_server_url": api,
            "port": ports[1],
            "batch_size": told.batch,
            "total_steps": told.steps,
            "max_staleness": 1,
            "learning_rate": told.learning_rate,
        }
        if told.vllm:
            options |= {"vllm_servers": told.vllm}
        flags = [text for name, value in options.items() for text in (f"--tinker.{name}", str(value))]
        processes.append(start(out / "trainer.log", "trainer", "--run", RUN, "--stay", *flags))
        before = evaluated(out / "before", inference, environment, told.samples)
        # Groups in which all rollouts are right teach nothing, and repeating them would delay the last steps.
        also = ["--env.rollout_server_url", api, "--env.ensure_scores_are_not_same", "false"]
        also += ["--env.total_steps", str(told.steps)]
        serving = start(out / "serve.log", "serve", "terminal_words", *environment, *also)
        processes.append(serving)
        await_complete(out, told.steps, processes)
        end(serving)
        after = evaluated(out / "after", inference, environment, told.samples)
    finally:
        for process in reversed(processes):
            end(process)
        run("engine", "stop")
    print(f"held-out words, {told.samples} samples: {shown(before)} before, {shown(after)} after {told.steps} steps")
    print(f"the curve: {out / 'home/rl/runs' / RUN / 'metrics.jsonl'}")
    return 0


def agent(program: Path | None) -> list[str]:
    """What makes a program on the official SDKs the agent, in place of our loop; it is installed when it is not."""
    if program is None:
        return []
    run("agent", "install", "sdk")
    files = json.dumps({"agent.py": str(program.resolve())})
    return ["--env.agent_command", "agent:sdk", "--env.agent_files", files]


def run(*arguments: str) -> str:
    """What a command prints to its end."""
    command = [sys.executable, "-m", "hermes_rl", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def start(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        command = [sys.executable, "-m", "hermes_rl", *arguments]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def evaluated(folder: Path, inference: str, environment: list[str], samples: int) -> dict[str, Any]:
    """The evaluation kept in the folder, made when there is none."""
    done = folder / "result.json"
    if not done.exists():
        await_ready(inference)
        size = str(samples // 2)
        where = ["--env.data_dir_to_save_evals", str(folder), "--env.eval_size", size, "--env.eval_samples", "2"]
        said = run("evaluate", "terminal_words", *environment, *where, "--json")
        done.write_text(said)
    result: dict[str, Any] = json.loads(done.read_text())
    return result


def await_ready(inference: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(f"{inference}/health", timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def await_complete(out: Path, steps: int, processes: list[subprocess.Popen[bytes]]) -> None:
    told = out / "home" / "rl" / "runs" / RUN / "run.json"
    shown = -1
    while True:
        said = json.loads(told.read_text())
        if said.get("step", 0) != shown:
            shown = said.get("step", 0)
            print(f"step {shown} of {steps}", flush=True)
        if said["state"] == "complete":
            return
        if any(process.poll() not in (None, 0) for process in processes):
            sys.exit(f"a part ended; its log is in {out}: the same command goes on where it stopped")
        time.sleep(2)


def shown(result: dict[str, Any]) -> str:
    metrics = result["metrics"]
    low, high = metrics.get("eval/mean_reward/low"), metrics.get("eval/mean_reward/high")
    interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
    return f"{metrics['eval/mean_reward']:.3f}{interval}"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def kept(path: Path, make: Any) -> Any:
    """What the file holds, made once."""
    if not path.exists():
        path.write_text(json.dumps(make()))
    return json.loads(path.read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", required=True, help="folder of the model, in float32 (scripts/hf_model.py makes one)"
    )
    parser.add_argument("--families", default="", help="kinds of tasks, by commas; the environment's own when left out")
    parser.add_argument("--steps", type=int, default=10, help="%(default)s")
    parser.add_argument("--batch", type=int, default=16, help="rollouts of a step, %(default)s")
    parser.add_argument("--learning-rate", type=float, default=4e-4, help="%(default)s")
    parser.add_argument("--samples", type=int, default=200, help="of each evaluation, %(default)s")
    parser.add_argument("--engine", default="--rank 16 --samples 8 --micro-batch 8", help="options of the engine")
    parser.add_argument("--vllm", default="", help="addresses of vLLM servers that sample, by commas")
    parser.add_argument("--agent", type=Path, help="a program that is the agent, through the gateway; ours if left out")
    parser.add_argument("--out", type=Path, default=Path("learned"), help="%(default)s")
    # So that no process is left behind, however it ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(parser.parse_args()))
