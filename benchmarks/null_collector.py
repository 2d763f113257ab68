"""A collector that takes every batch of spans and keeps none; prints its address, and ends with its standard input."""

import asyncio
import sys

from aiohttp import web


async def take(request: web.BaseRequest) -> web.StreamResponse:
    await request.content.read()
    return web.Response(content_type="application/x-protobuf")


async def main() -> None:
    runner = web.ServerRunner(web.Server(take, access_log=None), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
