"""verifiers: a taskset and a harness as its docs have them, run by the runner of `vf-eval` with traces.jsonl as record.

Its built-in harnesses start a program for every rollout; this one runs its loop in-process, which `Harness.launch`
allows ("the interception is the contract, not the process") and which is the cheapest way it has. Each model call goes
through its interception server, as every call in verifiers does. The loop asks by aiohttp and tries again as the openai
client of the built-in harnesses does: twice, after a 5xx or a lost connection, and it tells the model of a broken tool.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.cli.eval.runner import run_eval
from verifiers.v1.configs.cli.eval import EvalConfig

from benchmarks.peers.work import Job, Kept, Recording, Sandboxes, ToolBrokeError, called, name_in, tool_schema

VERSION = version("verifiers")
SETTINGS = (
    "the runner of `vf-eval`, in-process harness, subprocess runtime (a folder), elastic interception pool (its "
    "default), max_concurrent as many as rollouts in flight, no dashboard, no upload; client.timeout.read as the "
    "patience; retries of a request as its own harnesses have them (2), of a rollout as they are (0)"
)
SANDBOXES = Sandboxes()
RETRIES = 2
__all__ = ["PlaybackHarness", "PlaybackTaskset"]


class PlaybackTask(vf.Task):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        final = trace.branches[-1].messages[-1].content if trace.branches else None
        return PlaybackTaskset.recording().score(str(trace.task.data.prompt), final if isinstance(final, str) else None)


class PlaybackTaskset(vf.Taskset[PlaybackTask, vf.TasksetConfig]):
    job: ClassVar[Job]

    def load(self) -> Iterable[PlaybackTask]:
        for name in self.job.names:
            yield PlaybackTask(vf.TaskData(name=name, prompt=self.job.prompt(name)))

    @classmethod
    def recording(cls) -> Recording:
        return Recording.named(cls.job.recording)


class PlaybackHarness(vf.Harness[vf.HarnessConfig]):
    NEEDS_CONTAINER = False
    EXECUTES_CODE = False
    http: ClassVar[aiohttp.ClientSession]

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Any,
        data: Any,
    ) -> vf.ProgramResult:
        messages: list[dict[str, Any]] = [{"role": "user", "content": data.prompt}]
        tools = [tool_schema()]
        while True:
            body = {"model": ctx.model, "messages": messages, "tools": tools}
            message = (await self.asked(endpoint, secret, body))["choices"][0]["message"]
            messages.append(message)
            calls = message.get("tool_calls")
            if not calls:
                return vf.ProgramResult(exit_code=0, stdout="", stderr="")
            SANDBOXES.ensure(name_in(data.prompt))
            for call in calls:
                try:
                    result = called(json.loads(call["function"]["arguments"])["command"])
                except ToolBrokeError as error:
                    result = f"error: {error}"
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    async def asked(self, endpoint: str, secret: str, body: Mapping[str, Any]) -> Any:
        headers = {"Authorization": f"Bearer {secret}"}
        for attempt in range(RETRIES + 1):
            if attempt:
                await asyncio.sleep(0.5 * 2**attempt)
                headers["x-stainless-retry-count"] = str(attempt)
            try:
                async with self.http.post(f"{endpoint}/chat/completions", json=body, headers=headers) as response:
                    if response.status < 500 or attempt == RETRIES:
                        response.raise_for_status()
                        return await response.json()
            except aiohttp.ClientConnectionError:
                if attempt == RETRIES:
                    raise
        raise AssertionError("unreachable")

    async def cleanup(self, trace: Any, runtime: Any) -> None:
        SANDBOXES.close(name_in(trace.task.data.prompt))


def drive(job: Job) -> None:
    logging.disable(logging.WARNING)
    # Its plugins are found by a module's name; this one is both the plugin and the driver.
    sys.modules["verifiers_peer"] = sys.modules[__name__]
    PlaybackTaskset.job = job
    config = EvalConfig.model_validate(
        {
            "env": {"taskset": {"id": "verifiers_peer"}, "agent": {"runtime": {"type": "subprocess"}}},
            "model": "null",
            "client": {"base_url": job.base_url, "api_key_var": "NO_KEY", "timeout": {"read": job.patience}},
            "max_concurrent": job.in_flight,
            "rich": None,
            "push": False,
            "output_dir": job.folder,
            "run": {"name": "run"},
        }
    )
    asyncio.run(play(config))


async def play(config: EvalConfig) -> None:
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        PlaybackHarness.http = http
        await run_eval(config)


def kept(job: Job) -> Kept:
    found = Kept(open_sandboxes=len(SANDBOXES.open))
    with (Path(job.folder) / "run" / "traces.jsonl").open() as lines:
        for episode in map(json.loads, lines):
            trace = episode["traces"][-1] if episode["traces"] else {}
            name = name_in(episode["task"]["data"]["prompt"])
            rewards = [reward for reward in trace.get("rewards", {}).values() if reward is not None]
            found.scores[name] = rewards[0]["score"] if rewards else None
            errors = trace.get("errors") or episode.get("errors")
            if errors:
                found.causes[name] = errors[-1]["type"]
    return found
