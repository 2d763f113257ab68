"""The floor: a bare aiohttp client on uvloop that posts, reads and appends, and does nothing else.

No framework, so no records: what it keeps is what it saw.
"""

import asyncio
from importlib.metadata import version
from typing import Any

import aiohttp
import orjson
import uvloop

from benchmarks.peers.work import Job, Kept, Recording, Sandboxes, called, tool_schema

VERSION = f"aiohttp {version('aiohttp')}"
SETTINGS = "no limit of connections; no retries"
HEADERS = {"Content-Type": "application/json"}


SEEN = Kept()


def drive(job: Job) -> None:
    SEEN.scores.clear()
    uvloop.run(play(job))


def kept(job: Job) -> Kept:  # noqa: ARG001
    return SEEN


async def play(job: Job) -> None:
    sandboxes, recording = Sandboxes(), Recording.named(job.recording)
    schemas = [tool_schema()]
    waiting = iter(job.names)
    timeout = aiohttp.ClientTimeout(total=job.patience)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def rollout(name: str) -> None:
            messages: list[dict[str, Any]] = [{"role": "user", "content": job.prompt(name)}]
            while True:
                body = orjson.dumps({"model": "null", "messages": messages, "tools": schemas})
                async with session.post(f"{job.base_url}/chat/completions", data=body, headers=HEADERS) as response:
                    message = orjson.loads(await response.read())["choices"][0]["message"]
                messages.append(message)
                calls = message.get("tool_calls")
                if not calls:
                    SEEN.scores[name] = recording.score(job.prompt(name), message["content"])
                    return
                sandboxes.ensure(name)
                for call in calls:
                    result = called(orjson.loads(call["function"]["arguments"])["command"])
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

        async def worker() -> None:
            for name in waiting:
                try:
                    await rollout(name)
                except Exception as error:  # noqa: BLE001 (whatever it is, it is counted)
                    SEEN.causes[name] = type(error).__name__
                    SEEN.scores[name] = None
                finally:
                    sandboxes.close(name)

        await asyncio.gather(*(worker() for _ in range(job.in_flight)))
    SEEN.open_sandboxes = len(sandboxes.open)
