#!/usr/bin/env python3
"""Train a small model to use a terminal, on a laptop: engine, API, trainer and environment.

examples/learn_terminal_words.py --model FOLDER               one kind of task, ten steps
examples/learn_terminal_words.py --model FOLDER --families echo,mkdir,touch,rm,cp,mv,cat --steps 150
examples/learn_terminal_words.py --model FOLDER --vllm http://127.0.0.1:8000     vLLM samples, the engine trains
examples/learn_terminal_words.py --model FOLDER --agent examples/agent_openai.py     that program is the agent

The model is evaluated on held-out words before and after training, with the same seeds: sampled (temperature 1, 200
rollouts) and greedy (temperature 0, one rollout per item). If it is stopped, the same command resumes. Everything is
written below --out.
"""

import argparse
import json
import os
import shlex
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


def main(chosen: argparse.Namespace) -> int:
    out: Path = chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.environ["HERMES_HOME"] = str(out / "home")
    ports = kept(out / "ports.json", lambda: [free_port(), free_port()])
    api, inference = (f"http://127.0.0.1:{port}" for port in ports)
    families = ["--env.families", chosen.families] if chosen.families else []
    endpoint = [
        "--openai.base_url",
        f"{inference}/v1",
        "--openai.server_type",
        "vllm",
        "--openai.model_name",
        chosen.model,
    ]
    environment = [chosen.environment, *families, *agent(chosen.agent), *shlex.split(chosen.env_options)]
    environment += ["--env.tokenizer_name", chosen.model, "--env.use_wandb", "false", *endpoint]
    engine = json.loads(run("engine", "start", "--detach", "--json", "--model", chosen.model, *chosen.engine.split()))
    processes = [start(out / "api.log", "api", "--port", str(ports[0]), "--database", str(out / "trajectories.db"))]
    try:
        options = {
            "base_url": engine["url"],
            "base_model": chosen.model,
            "lora_rank": 16,
            "rollout_server_url": api,
            "port": ports[1],
            "batch_size": chosen.batch,
            "total_steps": chosen.steps,
            "max_staleness": 1,
            "learning_rate": chosen.learning_rate,
        }
        if chosen.vllm:
            options |= {"vllm_servers": chosen.vllm}
        flags = [text for name, value in options.items() for text in (f"--tinker.{name}", str(value))]
        flags += shlex.split(chosen.trainer_options)
        processes.append(start(out / "trainer.log", "trainer", "--run", RUN, "--stay", *flags))
        before = evaluations(out / "before", inference, environment, chosen.samples)
        # Groups in which all rollouts pass have no gradient, and repeating them would delay the last steps.
        also = ["--env.rollout_server_url", api, "--env.ensure_scores_are_not_same", "false"]
        also += ["--env.total_steps", str(chosen.steps)]
        serving = start(out / "serve.log", "serve", *environment, *also)
        processes.append(serving)
        await_complete(out, chosen.steps, processes)
        end(serving)
        after = evaluations(out / "after", inference, environment, chosen.samples)
    finally:
        for process in reversed(processes):
            end(process)
        run("engine", "stop")
    for decoding in before:
        print(f"{decoding}: {shown(before[decoding])} before, {shown(after[decoding])} after {chosen.steps} steps")
    print(f"metrics of each step: {out / 'home/rl/runs' / RUN / 'metrics.jsonl'}")
    return 0


def agent(program: Path | None) -> list[str]:
    """Options that make a program on the official SDKs the agent, instead of our loop. Installs the SDKs if needed."""
    if program is None:
        return []
    run("agent", "install", "sdk")
    files = json.dumps({"agent.py": str(program.resolve())})
    return ["--env.agent_command", "agent:sdk", "--env.agent_files", files]


def run(*arguments: str) -> str:
    """The output of a finished command."""
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


def evaluations(folder: Path, inference: str, environment: list[str], samples: int) -> dict[str, dict[str, Any]]:
    """By decoding. Sampled rollouts improve when the model gets surer of what it could do; greedy ones do not."""
    size = str(samples // 2)
    return {
        "sampled": evaluated(folder / "sampled", inference, environment, size, "2"),
        "greedy": evaluated(folder / "greedy", inference, environment, size, "1"),
    }


def evaluated(folder: Path, inference: str, environment: list[str], size: str, samples: str) -> dict[str, Any]:
    """The evaluation in the folder; run if it is not there yet."""
    done = folder / "result.json"
    if not done.exists():
        await_ready(inference)
        where = ["--env.data_dir_to_save_evals", str(folder), "--env.eval_size", size, "--env.eval_samples", samples]
        output = run("evaluate", *environment, *where, "--json")
        done.write_text(output)
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
    state_file = out / "home" / "rl" / "runs" / RUN / "run.json"
    printed = -1
    while True:
        state = json.loads(state_file.read_text())
        if state.get("step", 0) != printed:
            printed = state.get("step", 0)
            print(f"step {printed} of {steps}", flush=True)
        if state["state"] == "complete":
            return
        if any(process.poll() not in (None, 0) for process in processes):
            sys.exit(f"a process ended early; see its log in {out}, then run the same command to resume")
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
    """The content of the file, created once."""
    if not path.exists():
        path.write_text(json.dumps(make()))
    return json.loads(path.read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", required=True, help="folder of the model, in float32 (scripts/hf_model.py makes one)"
    )
    parser.add_argument("--families", default="", help="kinds of tasks, comma-separated (default: the environment's)")
    parser.add_argument("--environment", default="terminal_words", help="name or file (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="training steps (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="rollouts per step (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=4e-4, help="default: %(default)s")
    parser.add_argument(
        "--samples", type=int, default=200, help="rollouts of a sampled evaluation (default: %(default)s)"
    )
    parser.add_argument("--engine", default="--rank 16 --samples 8 --micro-batch 8", help="options of the engine")
    parser.add_argument("--trainer-options", default="", help="more options of the trainer, as one string")
    parser.add_argument("--env-options", default="", help="more options of the environment, as one string")
    parser.add_argument("--vllm", default="", help="addresses of vLLM servers that sample, comma-separated")
    parser.add_argument("--agent", type=Path, help="a program to use as the agent, through the gateway")
    parser.add_argument("--out", type=Path, default=Path("learned"), help="%(default)s")
    # Raises, so that `finally` ends every process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(parser.parse_args()))
