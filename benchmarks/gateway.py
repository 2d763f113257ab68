"""The gateway beside the bare engine: what it adds to a call in time and in CPU, and how many calls it takes.

A rollout is five turns: four calls of an echo tool, then a text. An agent that costs next to nothing plays it by Chat
Completions, the official way, on the core where the null engine runs; the gateway has the other core to itself. Sides:

    bare     the agent asks the engine, no gateway between
    chat     through the gateway, which asks the engine in chat: what verifiers' interception does
    tokens   through the gateway, which renders, asks for token ids, and records: what hermes-rl trains on

`calls_per_second` is with an engine that answers at once, so that the gateway is what is waited for. `added_ms` is with
one that takes its time, so that nothing queues: the time of a call less the engine's, and less the bare side's. CPU is
the gateway's process, all it does for a call. The sides alternate and repeat, and the figures are medians. Afterwards
every rollout of `tokens` is checked: one sequence, all turns, no breach.

verifiers' figures are those of facts/performance.md, part A: verifiers 0.4.0, the same five turns with the same null
model through its interception server, on the same machine: 141 turns/s at 64 rollouts and 102 at 512.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Self

import aiohttp
import orjson
import uvloop

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}

TURNS = 5
SIDES = ("bare", "chat", "tokens")
VERIFIERS = {64: 141.0, 512: 102.0}
TIMES_GOAL, CPU_GOAL_MS = 10.0, 2.0
USER = {"role": "user", "content": "Say hello four times with the echo tool, then stop."}
ECHO = {
    "type": "function",
    "function": {
        "name": "echo",
        "description": "Return the text.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "Any text."}},
            "required": ["text"],
        },
    },
}
CALL = 'I say it again.\n<tool_call>\n{"name": "echo", "arguments": {"text": "hello"}}\n</tool_call>'
FINAL = "I have said hello four times, as you asked."


# --- the gateway's process ---


async def serve(mode: str, engine: str, model: str) -> None:
    """Answer lines of standard input: `open N` by N keys, `close` by what became of them, `cpu` by seconds."""
    from hermes_rl.console.run_command import tune_gc
    from hermes_rl.gateway.api_keys import ApiKey
    from hermes_rl.gateway.rollout import GatewayRollout, RunSampling
    from hermes_rl.gateway.server import GatewayServer
    from hermes_rl.inference.config import APIServerConfig
    from hermes_rl.inference.managed_server import ManagedServer
    from hermes_rl.inference.server_manager import ServerManager
    from hermes_rl.inference.tokens.tokenizer import load_tokenizer

    config = APIServerConfig.model_validate(
        {"base_url": engine, "model_name": f"null-{TURNS}", "num_max_requests_at_once": 100_000}
        | {"server_type": "vllm" if mode == "tokens" else "openai", "timeout": 300}
    )
    tokenizer = load_tokenizer(model) if mode == "tokens" else None
    sampled = 0 if tokenizer is None else (TURNS - 1) * len(_ids(tokenizer, CALL)) + len(_ids(tokenizer, FINAL))
    tune_gc()
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with AsyncExitStack() as held, ServerManager([config]) as manager, GatewayServer() as server:
        print(server.url, flush=True)
        passes: list[ApiKey] = []
        while command := (await lines.readline()).split():
            if command[0] == b"open":
                for _ in range(int(command[1])):
                    policy: Any = manager
                    if tokenizer is not None:
                        policy = await held.enter_async_context(manager.managed_server(tokenizer))
                    sampling = RunSampling(max_tokens=256, extra_body=None if tokenizer else {"user": "agent"})
                    passes.append(server.keys.open(GatewayRollout(policy, sampling)))
                print(json.dumps([one.key for one in passes]), flush=True)
            elif command[0] == b"close":
                began, right = time.process_time(), 0
                for one in passes:
                    one.close()
                    result = one.rollout.transcript()
                    good = result.turns_used == TURNS and len(result.messages) == 2 * TURNS
                    if isinstance(one.rollout.policy, ManagedServer):
                        checked = one.rollout.policy.checked()
                        masks = [sum(sequence.mask) for sequence in checked.sequences]
                        good = good and masks == [sampled] and not checked.breaches
                    right += good
                spent = (time.process_time() - began) * 1e3 / max(len(passes), 1)
                passes.clear()
                await held.aclose()
                print(json.dumps({"right": right, "close_cpu_ms": spent}), flush=True)
            else:
                print(time.process_time(), flush=True)


def _ids(tokenizer: Any, text: str) -> list[int]:
    return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]


class Process:
    """A process of ours on one core that says its address first."""

    def __init__(self, core: int, *command: str) -> None:
        self.process = subprocess.Popen(
            _pinned(core, [sys.executable, *command]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.url = self.said()

    def said(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"{self.process.args!r} ended with {self.process.wait()}")
        return line

    def ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.said())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate()


def _pinned(core: int, command: list[str]) -> list[str]:
    return ["taskset", "-c", str(core), *command] if (os.cpu_count() or 1) > 1 else command


# --- the agents' process ---


async def play(url: str, keys: list[str], at_once: int, ramp: float) -> dict[str, Any]:
    """Play a rollout for each key, so many at once, the first ones spread over `ramp` seconds."""
    seconds: list[float] = []
    waiting = iter(keys)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def rollout(key: str) -> bool:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
            messages: list[dict[str, Any]] = [USER]
            for turn in range(1, TURNS + 1):
                body = orjson.dumps({"model": f"null-{TURNS}", "messages": messages, "tools": [ECHO], "user": key})
                began = time.perf_counter()
                async with session.post(f"{url}/chat/completions", data=body, headers=headers) as response:
                    raw = await response.read()
                seconds.append(time.perf_counter() - began)
                if response.status != 200:
                    return False
                message = orjson.loads(raw)["choices"][0]["message"]
                messages.append(message)
                calls = message.get("tool_calls")
                if not calls:
                    return turn == TURNS
                messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": "hello"})
            return False

        async def worker(place: int) -> int:
            await asyncio.sleep(ramp * place / at_once)
            return sum([await rollout(key) for key in waiting])

        began = time.perf_counter()
        right = sum(await asyncio.gather(*map(worker, range(at_once))))
        took = time.perf_counter() - began
    shares = quantiles(seconds, n=100)
    return {
        "calls": len(seconds),
        "calls_per_second": len(seconds) / took,
        "p50_ms": shares[49] * 1e3,
        "p99_ms": shares[98] * 1e3,
        "right": right,
    }


async def _set_delay(engine: str, delay: float) -> None:
    async with aiohttp.ClientSession() as session, session.put(f"{engine}/delay", data=str(delay)) as response:
        await response.read()


def measure(engine: str, gateway: Process | None, at_once: int, rollouts: int, delay: float) -> dict[str, Any]:
    """One side once: its agents in a fresh process, on the engine's core."""
    asyncio.run(_set_delay(engine, delay))
    keys = [f"r{place}" for place in range(rollouts)] if gateway is None else gateway.ask(f"open {rollouts}")
    cpu = 0.0 if gateway is None else gateway.ask("cpu")
    numbers = map(str, (at_once, max(delay, 0.0)))
    command = [sys.executable, str(Path(__file__).resolve()), "--play", f"{gateway.url}/v1" if gateway else engine]
    figures: dict[str, Any] = json.loads(
        subprocess.run(
            _pinned(0, [*command, *numbers]),
            input=json.dumps(keys),
            stdout=subprocess.PIPE,
            text=True,
            timeout=600,
            check=True,
        ).stdout
    )
    right = figures.pop("right")
    if gateway is not None:
        figures["cpu_ms_per_call"] = (gateway.ask("cpu") - cpu) * 1e3 / figures["calls"]
        closed = gateway.ask("close")
        right = min(right, closed["right"])
        figures["close_cpu_ms_per_rollout"] = closed["close_cpu_ms"]
    figures["succeeded"] = right / rollouts
    return figures


def compare(
    engine: str, gateways: dict[str, Process], repeats: int, at_once: int, rollouts: int, delay: float
) -> dict[str, Any]:
    """All sides, alternating; the median of each figure, but of successes the least."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for _ in range(repeats):
        for side, done in runs.items():
            done.append(measure(engine, gateways.get(side), at_once, rollouts, delay))
    row: dict[str, Any] = {
        side: {name: round(median(run[name] for run in done), 3) for name in done[0]}
        | {"succeeded": min(run["succeeded"] for run in done)}
        for side, done in runs.items()
    }
    for side in gateways:
        row[side]["added_ms_p50"] = round(row[side]["p50_ms"] - row["bare"]["p50_ms"], 3)
        row[side]["added_ms_p99"] = round(row[side]["p99_ms"] - row["bare"]["p99_ms"], 3)
    print(f"{at_once} at once, the engine takes {delay:g} s: {json.dumps(row)}", flush=True)
    return row


def goal(wanted: float, measured: float, met: bool) -> dict[str, Any]:
    return {"goal": round(wanted, 3), "measured": round(measured, 3), "met": met}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="each once, with fewer rollouts, in under a minute")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", help="a folder with SmolLM2's tokenizer (default: made by scripts/hf_model.py)")
    parser.add_argument("--serve", nargs=3, metavar=("MODE", "ENGINE", "MODEL"), help=argparse.SUPPRESS)
    parser.add_argument("--play", nargs=3, metavar=("URL", "AT_ONCE", "RAMP"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve(*arguments.serve))
        return 0
    if arguments.play:
        url, at_once, ramp = arguments.play
        print(json.dumps(uvloop.run(play(url, json.load(sys.stdin), int(at_once), float(ramp)))))
        return 0
    if arguments.model is None:
        from scripts.hf_model import model_folder

        arguments.model = str(model_folder("smollm2"))
    return run(arguments.model, 1 if arguments.quick else arguments.repeats, quick=arguments.quick)


def run(model: str, repeats: int, *, quick: bool) -> int:
    from hermes_rl.inference.tokens.tokenizer import load_tokenizer

    tokenizer, here = load_tokenizer(model), str(Path(__file__).resolve())
    ids = {"call": _ids(tokenizer, CALL), "final": _ids(tokenizer, FINAL), "stop": tokenizer.eos_token_id}
    share = 4 if quick else 1
    figures: dict[str, Any] = {}
    with (
        Process(0, str(HERE / "null_tokens.py"), json.dumps(ids)) as engine,
        Process(1, here, "--serve", "chat", engine.url, model) as chat,
        Process(1, here, "--serve", "tokens", engine.url, model) as tokens,
    ):
        gateways = {"chat": chat, "tokens": tokens}
        for at_once, rollouts in ((1, 400), (64, 1600), (512, 2048)):
            figures[f"{at_once}"] = compare(engine.url, gateways, repeats, at_once, rollouts // share, 0.0)
        for at_once, delay in ((1, 0.05), (64, 0.25), (512, 2.0), (1024, 4.0)):
            rollouts = 40 if at_once == 1 else at_once
            figures[f"{at_once}_{delay:g}s"] = compare(engine.url, gateways, repeats, at_once, rollouts, delay)
    goals: dict[str, Any] = {}
    for at_once, verifiers in VERIFIERS.items():
        per_second = figures[f"{at_once}"]["chat"]["calls_per_second"]
        wanted = TIMES_GOAL * verifiers
        goals[f"calls_per_second_at_{at_once}"] = goal(wanted, per_second, per_second >= wanted)
    for name, rows in {"busy": ("64", "512"), "mostly_idle": ("64_0.25s", "512_2s")}.items():
        cpu = max(figures[row]["tokens"]["cpu_ms_per_call"] for row in rows)
        goals[f"cpu_ms_per_call_{name}"] = goal(CPU_GOAL_MS, cpu, cpu < CPU_GOAL_MS)
    succeeded = min(row["tokens"]["succeeded"] for row in figures.values())
    all_at_1024 = min(figures["1024_4s"][side]["succeeded"] for side in gateways)
    goals["all_succeed_at_1024"] = goal(1.0, all_at_1024, all_at_1024 == 1.0)
    goals["every_rollout_exact"] = goal(1.0, succeeded, succeeded == 1.0)
    print(json.dumps({"benchmark": "gateway", "figures": figures, "goals": goals}))
    return 0 if all(one["met"] for one in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
