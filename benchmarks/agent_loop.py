"""Our agent loop beside a bare aiohttp client that plays the same turns, on a null model and a null tool.

Each side is a fresh process on one core, the model server on another; the sides alternate and repeat, and the figures
are medians. The bare client posts, reads and appends, and does nothing else: no checks, no records, no limits. Ours has
the garbage collector set as the hermes-rl command sets it, the bare one as Python does; `bare_settled` has it set too.

`--tracing` measures ours beside ours with every span exported to a collector that keeps none, slice about slice in one
process. What counts is that process's own processor time; its exporter's, a process on another core, is told beside it.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import orjson
import uvloop

from hermes_rl.agent.limits import AgentLimits
from hermes_rl.agent.loop import HermesAgentLoop
from hermes_rl.console.run_command import tune_gc
from hermes_rl.core.trajectory import StopReason
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.sandbox.backends.local import LocalBackend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import tool
from hermes_rl.tools.toolset import OpenToolset
from hermes_rl.tracing.span import Trace, TracedSpan, span
from hermes_rl.tracing.tracer import FLUSH_INTERVAL_S, ExportConfig, Tracer

HERE = Path(__file__).resolve().parent
RATIO_GOAL, MEMORY_GOAL_KB = 0.70, 100.0
GAP_RATIO_GOAL, GAP_EXTRA_GOAL = 1.3, 0.030
TRACING_GOAL = 0.03
MESSAGES = [{"role": "user", "content": "Say hello four times with the echo tool, then stop."}]


@tool(sandboxed=False)
async def echo(session: ToolSession, text: str) -> str:  # noqa: ARG001
    """Return the text.

    Args:
        text: Any text.
    """
    return text


class Ours:
    """The loop as an environment runs it, without an environment."""

    def __init__(self, base_url: str, turns: int) -> None:
        config = APIServerConfig(base_url=base_url, model_name=f"null-{turns}", num_max_requests_at_once=100_000)
        self.server = ServerManager([config])
        self.host = ToolHost(
            {},
            SandboxPool(LocalBackend()),
            calls_in_flight=100_000,
            terminal_timeout=60,
            toolsets={"null": OpenToolset((echo,))},
        )
        self.limits = AgentLimits(max_repeated_calls=None)
        self.turns = turns

    async def rollout(self, name: str) -> bool:
        with span("rollout") as traced:
            traced.set_attributes(rollout=name)
            return await self._rollout(name)

    async def _rollout(self, name: str) -> bool:
        session = self.host.session(name)
        loop = HermesAgentLoop(
            self.server,
            [echo.schema],
            {"echo"},
            max_turns=self.turns + 1,
            task_id=name,
            extra_body={"user": name},
            session=session,
            limits=self.limits,
        )
        result = await loop.run(MESSAGES)
        await self.host.close_session(name)
        return result.stop_reason is StopReason.NATURAL and result.turns_used == self.turns

    async def close(self) -> None:
        await self.host.close()
        await self.server.close()


class Bare:
    def __init__(self, base_url: str, turns: int) -> None:
        self.url = f"{base_url}/chat/completions"
        self.turns = turns
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self.schemas = [echo.schema]

    async def rollout(self, name: str) -> bool:
        messages: list[dict[str, Any]] = list(MESSAGES)
        for turn in range(1, self.turns + 1):
            body = {"model": f"null-{self.turns}", "messages": messages, "tools": self.schemas, "user": name}
            headers = {"Content-Type": "application/json"}
            async with self.session.post(self.url, data=orjson.dumps(body), headers=headers) as response:
                message = orjson.loads(await response.read())["choices"][0]["message"]
            messages.append(message)
            calls = message.get("tool_calls")
            if not calls:
                return turn == self.turns
            for call in calls:
                arguments = orjson.loads(call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": arguments["text"]})
        return False

    async def close(self) -> None:
        await self.session.close()


async def play(
    side: str, base_url: str, concurrency: int, rollouts: int, turns: int, ramp: float = 0.0
) -> dict[str, float]:
    """Run the rollouts, so many at once, and measure this process."""
    if side != "bare":
        tune_gc()
    client = Ours(base_url, turns) if side == "ours" else Bare(base_url, turns)
    await client.rollout("warm")
    async with aiohttp.ClientSession() as session:
        await (await session.get(f"{base_url}/stats")).read()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu, began = time.process_time(), time.perf_counter()
    right = await in_flight(client.rollout, concurrency, rollouts, ramp)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with aiohttp.ClientSession() as session:
        gaps = json.loads(await (await session.get(f"{base_url}/stats")).read())
    await client.close()
    return {
        "turns_per_second": rollouts * turns / seconds,
        "cpu_ms_per_turn": cpu * 1000 / (rollouts * turns),
        "kb_per_rollout": (after - before) / concurrency,
        "gap_p50": gaps["p50"],
        "gap_p99": gaps["p99"],
        "succeeded": right / rollouts,
    }


async def in_flight(rollout: Callable[[str], Awaitable[bool]], concurrency: int, rollouts: int, ramp: float) -> int:
    """Run them, so many at once, the first ones spread over `ramp` seconds: rollouts of a run are not in step."""
    names = iter(range(rollouts))

    async def worker(place: int) -> int:
        await asyncio.sleep(ramp * place / concurrency)
        return sum([await rollout(f"r{name}") for name in names])

    return sum(await asyncio.gather(*(worker(place) for place in range(concurrency))))


class Server:
    """The null model in a process of its own, on the first core."""

    def __enter__(self) -> str:
        command = pinned(0, [sys.executable, str(HERE / "null_model.py")])
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def pinned(core: int, command: list[str]) -> list[str]:
    return ["taskset", "-c", str(core), *command] if (os.cpu_count() or 1) > 1 else command


async def play_traced(base_url: str, collector: str, slices: int, rollouts: int, turns: int) -> dict[str, Any]:
    """Ours with tracing off and on, slice about slice in one process, and what became of the spans."""
    tune_gc()
    tracer = Tracer(ExportConfig(f"{collector}/v1/traces", "benchmark", {}))
    client = Ours(base_url, turns)
    seconds: dict[str, list[float]] = {"off": [], "on": []}
    with tracer:
        if (os.cpu_count() or 1) > 1 and tracer.exporter:
            os.sched_setaffinity(tracer.exporter, {0})
        for number in range(slices + 1):
            for side in ("off", "on") if number % 2 else ("on", "off"):
                root = TracedSpan(Trace(tracer, f"{number + 1:032x}"), 0, "benchmark", {})
                cpu = time.process_time()
                with root if side == "on" else nullcontext():
                    assert await in_flight(client.rollout, 64, rollouts, 0.0) == rollouts
                # Until the last spans of the slice are handed over, which is part of the cost.
                await asyncio.sleep(1.5 * FLUSH_INTERVAL_S)
                # The first of each warms it up.
                if number:
                    seconds[side].append(time.process_time() - cpu)
        await client.close()
    spans = tracer.taken + tracer.dropped
    # What else runs on the machine only ever adds, so the faster quarter of the slices tells most about us.
    fast = {side: median(sorted(took)[: max(1, slices // 4)]) for side, took in seconds.items()}
    return {
        **{f"cpu_ms_per_turn_{side}": round(took * 1000 / (rollouts * turns), 4) for side, took in fast.items()},
        "overhead": round(fast["on"] / fast["off"] - 1, 4),
        "overhead_of_medians": round(median(seconds["on"]) / median(seconds["off"]) - 1, 4),
        "spans": spans,
        "spans_delivered": (tracer.delivered or 0) / spans,
        "exporter_cpu_us_per_span": round(exporter_seconds() * 1e6 / spans, 1),
    }


def exporter_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Collector:
    """The null collector in a process of its own, on the first core."""

    def __enter__(self) -> str:
        command = pinned(0, [sys.executable, str(HERE / "null_collector.py")])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def measure(url: str, side: str, concurrency: int, rollouts: int, turns: int, delay: float) -> dict[str, float]:
    asyncio.run(set_delay(url, delay))
    numbers = map(str, (concurrency, rollouts, turns, delay))
    command = [sys.executable, str(Path(__file__).resolve()), "--play", side, url, *numbers]
    line = subprocess.check_output(pinned(1, command), text=True, timeout=600).splitlines()[-1]
    figures: dict[str, float] = json.loads(line)
    return figures


async def set_delay(url: str, delay: float) -> None:
    async with aiohttp.ClientSession() as session, session.put(f"{url}/delay", data=str(delay)) as response:
        await response.read()


def compare(url: str, repeats: int, concurrency: int, rollouts: int, turns: int, delay: float) -> dict[str, Any]:
    """Both sides, alternating; the median of each figure."""
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "bare": [], "bare_settled": []}
    for _ in range(repeats):
        for side, done in runs.items():
            done.append(measure(url, side, concurrency, rollouts, turns, delay))
    row: dict[str, Any] = {
        side: {name: round(median(run[name] for run in done), 4) for name in done[0]} for side, done in runs.items()
    }
    row["ratio"] = round(row["ours"]["turns_per_second"] / row["bare"]["turns_per_second"], 3)
    print(f"{concurrency} in flight, {delay:g} s a turn, {turns} turns: {json.dumps(row)}", flush=True)
    return row


def compare_tracing(slices: int, rollouts: int) -> dict[str, Any]:
    with Server() as url, Collector() as collector:
        numbers = map(str, (slices, rollouts, 5))
        command = [sys.executable, str(Path(__file__).resolve()), "--play-traced", url, collector, *numbers]
        row: dict[str, Any] = json.loads(subprocess.check_output(pinned(1, command), text=True, timeout=600))
    print(f"tracing: {json.dumps(row)}", flush=True)
    return row


def goal(wanted: float, measured: float, met: bool) -> dict[str, Any]:
    return {"goal": wanted, "measured": round(measured, 4), "met": met}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="64 and 512 in flight, once")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tracing", action="store_true", help="what tracing costs, and nothing else")
    parser.add_argument(
        "--play",
        nargs=6,
        metavar=("SIDE", "URL", "CONCURRENCY", "ROLLOUTS", "TURNS", "RAMP"),
        help=argparse.SUPPRESS,
    )
    parser.add_argument("--play-traced", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.play:
        side, url, *numbers, ramp = arguments.play
        concurrency, rollouts, turns = map(int, numbers)
        print(json.dumps(uvloop.run(play(side, url, concurrency, rollouts, turns, float(ramp)))))
        return 0
    if arguments.play_traced:
        url, collector, *numbers = arguments.play_traced
        print(json.dumps(uvloop.run(play_traced(url, collector, *map(int, numbers)))))
        return 0
    goals: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    if arguments.tracing:
        figures["tracing"] = row = compare_tracing(8 if arguments.quick else 60, 300)
        goals["tracing_overhead"] = goal(TRACING_GOAL, row["overhead"], row["overhead"] <= TRACING_GOAL)
        goals["spans_delivered"] = goal(1.0, row["spans_delivered"], row["spans_delivered"] == 1.0)
        return told_goals(figures, goals)
    with Server() as url:
        repeats = 1 if arguments.quick else arguments.repeats
        figures["64"] = compare(url, repeats, 64, 2000, 5, 0.0)
        figures["512"] = compare(url, repeats, 512, 3000, 5, 0.0)
        ratio = figures["512"]["ratio"]
        goals["throughput_ratio_at_512"] = goal(RATIO_GOAL, ratio, ratio >= RATIO_GOAL)
        if not arguments.quick:
            figures["4096"] = compare(url, repeats, 4096, 4096, 5, 0.0)
            figures["4096_1s"] = compare(url, repeats, 4096, 4096, 5, 1.0)
            calm = figures["4096_3s"] = compare(url, repeats, 4096, 4096, 5, 3.0)
            long = figures["long"] = compare(url, repeats, 16, 200, 50, 0.0)
            ours, bare = calm["ours"], calm["bare"]
            allowed = max(bare["gap_p99"] * GAP_RATIO_GOAL, bare["gap_p99"] + GAP_EXTRA_GOAL)
            goals["all_succeed_at_4096"] = goal(1.0, ours["succeeded"], ours["succeeded"] == 1.0)
            goals["gap_p99_at_4096"] = goal(round(allowed, 4), ours["gap_p99"], ours["gap_p99"] <= allowed)
            memory = ours["kb_per_rollout"]
            goals["kb_per_rollout"] = goal(MEMORY_GOAL_KB, memory, memory < MEMORY_GOAL_KB)
            # Both sides send the same growing conversation, so growth beyond the bare client's is ours.
            short = figures["64"]
            growth = long["ours"]["cpu_ms_per_turn"] / short["ours"]["cpu_ms_per_turn"]
            bytes_growth = bytes_per_turn(50) / bytes_per_turn(5)
            goals["cpu_growth_to_100_messages"] = goal(round(bytes_growth, 2), growth, growth <= bytes_growth)
    return told_goals(figures, goals)


def told_goals(figures: dict[str, Any], goals: dict[str, Any]) -> int:
    print(json.dumps({"benchmark": "agent_loop", "figures": figures, "goals": goals}))
    return 0 if all(one["met"] for one in goals.values()) else 1


def bytes_per_turn(turns: int) -> float:
    """Mean bytes of a request over a conversation of so many turns."""
    pair = [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "echo", "arguments": '{"text": "hello"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "hello"},
    ]
    fixed = len(orjson.dumps({"messages": MESSAGES, "tools": [echo.schema]}))
    return fixed + len(orjson.dumps(pair)) * (turns - 1) / 2


if __name__ == "__main__":
    sys.exit(main())
