"""Engines that compute nothing, in a process of their own: each takes a fixed time and so many requests at once.

What is more than its width an engine queues without a bound, or refuses (429); one that batches takes all of them, each
the slower the more there are. They speak OpenAI's chat protocol. GET /stats says what became of the requests since it
was asked last. A waiting request's time counts from its arrival.
"""

import argparse
import asyncio
import json
import time
from typing import Any

import uvloop
from aiohttp import web


class Engine:
    """`does` is queues, refuses or batches."""

    def __init__(self, does: str, width: int, seconds: float) -> None:
        self.does, self.width, self.seconds = does, width, seconds
        self._computing = asyncio.Semaphore(width if does != "batches" else 2**30)
        self._open = 0
        self._forget()

    async def url(self) -> str:
        runner = web.ServerRunner(web.Server(self._handle, access_log=None), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        if request.path == "/v1/stats":
            stats = {"answered": self.answered, "refused": self.refused, "times": sorted(self.times)}
            self._forget()
            return web.json_response(stats)
        if request.method == "GET":
            return web.json_response({"object": "list", "data": []})
        arrived = time.perf_counter()
        await request.read()
        if self.does == "refuses" and self._computing.locked():
            self.refused += 1
            return web.json_response({"error": {"message": "too many requests"}}, status=429)
        async with self._computing:
            self._open += 1
            try:
                slower = 1 + self._open / self.width if self.does == "batches" else 1.0
                await asyncio.sleep(self.seconds * slower)
            finally:
                self._open -= 1
        self.answered += 1
        self.times.append(time.perf_counter() - arrived)
        message = {"role": "assistant", "content": "yes"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
        body: dict[str, Any] = {"id": "1", "object": "chat.completion", "model": "null", "choices": [choice]}
        return web.json_response({**body, "usage": usage})

    def _forget(self) -> None:
        self.answered = self.refused = 0
        self.times: list[float] = []


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", nargs="+", help="DOES:WIDTH:SECONDS, as queues:8:0.4")
    given = parser.parse_args()
    engines = [
        Engine(does, int(width), float(seconds)) for does, width, seconds in (one.split(":") for one in given.engines)
    ]
    print(json.dumps([await engine.url() for engine in engines]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
