"""A server with OpenEnv's contract: guess a number, by an MCP tool or by actions of its own; told to fail by the guess.

Started as a program: `python contract_server.py PORT`.
"""

import json
import sys
from typing import Any

from aiohttp import WSMsgType, web

DIE, HANG, BREAK, INVALID = 66, 77, 88, 99
TOOL = {"name": "guess", "description": "Guess.", "input_schema": {"type": "object", "properties": {"number": {}}}}
SCHEMA = {"action": {"type": "object", "properties": {"number": {"type": "integer"}, "metadata": {}}}}


def observation(fields: dict[str, Any], reward: float | None = None, *, done: bool = False) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": fields, "reward": reward, "done": done, "metadata": {}}}


class Episode:
    def __init__(self, *, tools: bool) -> None:
        self.tools, self.secret = tools, 0

    def answer(self, kind: str, data: dict[str, Any]) -> dict[str, Any] | None:
        if kind == "reset":
            self.secret = data["seed"]
            return observation({"prompt": f"Guess, seed {data['seed']}."})
        if kind != "step" or (data.get("type") in ("list_tools", "call_tool")) != self.tools:
            return {"type": "error", "data": {"message": "no such action", "code": "VALIDATION_ERROR"}}
        if data.get("type") == "list_tools":
            return observation({"tools": [TOOL]})
        number = data["arguments"]["number"] if self.tools else data["number"]
        if number == HANG:
            return None
        if number in (BREAK, INVALID):
            code = "EXECUTION_ERROR" if number == BREAK else "VALIDATION_ERROR"
            return {"type": "error", "data": {"message": f"{number} failed", "code": code}}
        right = number == self.secret
        said = "right" if right else "wrong"
        fields = {"result": {"content": [{"type": "text", "text": said}]}} if self.tools else {"message": said}
        return observation(fields, 1.0 if right else -0.25, done=right)


async def serve_socket(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    episode = Episode(tools=request.app[TOOLS])
    async for message in socket:
        if message.type is not WSMsgType.TEXT:
            break
        asked = json.loads(message.data)
        data = asked.get("data") or {}
        if DIE in (data.get("number"), (data.get("arguments") or {}).get("number")):
            break
        answer = episode.answer(asked["type"], data)
        if answer is not None:
            await socket.send_json(answer)
    return socket


async def healthy(_: web.Request) -> web.Response:
    return web.json_response({"status": "healthy"})


async def schema(_: web.Request) -> web.Response:
    return web.json_response(SCHEMA)


TOOLS = web.AppKey("tools", bool)


def make_app(*, tools: bool) -> web.Application:
    app = web.Application()
    app[TOOLS] = tools
    app.add_routes([web.get("/ws", serve_socket), web.get("/health", healthy), web.get("/schema", schema)])
    return app


if __name__ == "__main__":
    web.run_app(make_app(tools=True), host="127.0.0.1", port=int(sys.argv[1]), print=None)
