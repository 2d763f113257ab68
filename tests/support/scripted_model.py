"""A model server whose answers and faults are scripted, speaking the OpenAI protocol over a real socket.

A script is a function of the request alone, so that any number of conversations can share one server and a retried
request gets the same answer. In a process of its own: `python -m tests.support.scripted_model --port 0 --delay 0.2`.
"""

import argparse
import asyncio
import itertools
import json
import signal
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from types import TracebackType
from typing import Any, Self, TypeAlias

from aiohttp import web

MODEL_NAME = "scripted"
BACKLOG = 4096


@dataclass(frozen=True, slots=True)
class Text:
    """A plain answer."""

    content: str
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class Calls:
    """Tool calls as (name, arguments) pairs; the arguments are sent as they are, valid JSON or not."""

    calls: Sequence[tuple[str, str]]
    content: str | None = None


@dataclass(frozen=True, slots=True)
class RawMessage:
    """An assistant message sent as it is."""

    message: Mapping[str, Any]
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class Status:
    """An HTTP error; a Mapping body is sent as JSON."""

    status: int
    body: Mapping[str, Any] | str = field(
        default_factory=lambda: {"error": {"message": "scripted", "type": "scripted"}}
    )
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Truncated:
    """Half of a good answer under the Content-Length of the whole, then the connection closes."""

    content: str = "never seen whole"


@dataclass(frozen=True, slots=True)
class Garbage:
    """Status 200 with a body that is no JSON."""

    body: bytes = b"<html>\xff not json"


@dataclass(frozen=True, slots=True)
class EmptyChoices:
    """Status 200 and well-formed, with no choice in it."""


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is reset (RST) with no byte of an answer."""


@dataclass(frozen=True, slots=True)
class Hang:
    """No answer until the client leaves or the server closes."""


@dataclass(frozen=True, slots=True)
class Delayed:
    """Any other reply, some seconds later."""

    seconds: float
    reply: "Reply"


Reply: TypeAlias = Text | Calls | RawMessage | Status | Truncated | Garbage | EmptyChoices | Reset | Hang | Delayed
Script: TypeAlias = Callable[[dict[str, Any]], Reply]


class ScriptedModel:
    """The server, on the running event loop; `async with` opens and closes it.

    `requests` counts chat requests received, `peak` is the most that were open at once, and `bodies` holds the latest.
    """

    def __init__(
        self,
        script: Script,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        keep_bodies: int = 1024,
        serves: Sequence[str] = (MODEL_NAME,),
    ) -> None:
        self.script = script
        self.requests = 0
        self.open = 0
        self.peak = 0
        self.bodies: deque[dict[str, Any]] = deque(maxlen=keep_bodies)
        self.model_name, *_ = self._serves = serves
        self._host, self._port = host, port
        self._ids = itertools.count(1)
        self._closing = asyncio.Event()
        self._runner: web.ServerRunner | None = None

    @property
    def base_url(self) -> str:
        return f"http://{self._host}:{self._port}/v1"

    async def __aenter__(self) -> Self:
        # The low-level server: no router, no middleware, no per-request match info.
        server = web.Server(self._handle, access_log=None)
        self._runner = web.ServerRunner(server, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, backlog=BACKLOG)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        match request.method, request.path:
            case "POST", "/v1/chat/completions":
                return await self._chat(request)
            case "GET", "/health":
                return web.json_response({"status": "ok"})
            case "GET", "/v1/models":
                models = [{"id": name, "object": "model", "created": 0, "owned_by": "tests"} for name in self._serves]
                return web.json_response({"object": "list", "data": models})
        return _json(404, {"error": {"message": f"no route {request.method} {request.path}", "type": "not_found"}})

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        self.open += 1
        self.peak = max(self.peak, self.open)
        try:
            try:
                body = json.loads(await request.content.read())
            except ValueError as error:
                return _json(400, {"error": {"message": f"not JSON: {error}", "type": "invalid_request_error"}})
            self.bodies.append(body)
            return await self._send(request, body, self.script(body))
        finally:
            self.open -= 1

    async def _send(self, request: web.BaseRequest, body: dict[str, Any], reply: Reply) -> web.StreamResponse:
        while isinstance(reply, Delayed):
            await self._pause(reply.seconds)
            reply = reply.reply
        match reply:
            case Truncated(content):
                whole = self._answer(body, {"role": "assistant", "content": content}, "stop")
                return await self._half_of(request, whole)
            case Reset():
                return _abort(request)
            case Hang():
                await self._closing.wait()
                return _abort(request)
            case _:
                return self._whole(body, reply)

    def _whole(
        self, body: dict[str, Any], reply: Text | Calls | RawMessage | Status | Garbage | EmptyChoices
    ) -> web.Response:
        match reply:
            case Text(content, finish_reason):
                return self._answer(body, {"role": "assistant", "content": content}, finish_reason)
            case Calls():
                return self._answer(body, self._call_message(reply), "tool_calls")
            case RawMessage(message, finish_reason):
                return self._answer(body, message, finish_reason)
            case Status():
                return _status(reply)
            case Garbage(content):
                return web.Response(body=content, content_type="application/json")
            case EmptyChoices():
                return _json(200, {**self._envelope(body), "choices": []})

    async def _pause(self, seconds: float) -> None:
        # Closing the server ends the wait, so that a test never waits for its own delays.
        if seconds > 1.0:
            try:
                async with asyncio.timeout(seconds):
                    await self._closing.wait()
            except TimeoutError:
                return
        else:
            await asyncio.sleep(seconds)

    def _call_message(self, reply: Calls) -> dict[str, Any]:
        calls = [
            {"id": f"call_{next(self._ids)}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in reply.calls
        ]
        return {"role": "assistant", "content": reply.content, "tool_calls": calls}

    def _envelope(self, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{next(self._ids)}",
            "object": "chat.completion",
            "created": 0,
            "model": body.get("model", MODEL_NAME),
        }

    def _answer(self, body: dict[str, Any], message: Mapping[str, Any], finish_reason: str) -> web.Response:
        prompt, completion = count_tokens(body.get("messages", [])), count_tokens([message])
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        return _json(200, {**self._envelope(body), "choices": [choice], "usage": usage})

    async def _half_of(self, request: web.BaseRequest, whole: web.Response) -> web.StreamResponse:
        body = whole.body
        assert isinstance(body, bytes)
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        )
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        if request.transport is not None:
            request.transport.close()
        return response


def count_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """The words of all contents and tool calls: what this model calls tokens."""
    total = 0
    for message in messages:
        total += len(str(message.get("content") or "").split())
        for call in message.get("tool_calls") or []:
            total += 1 + len(str(call["function"]["arguments"]).split())
    return total


def always(reply: Reply) -> Script:
    return lambda _request: reply


def calls_then_text(name: str, arguments: str, text: str = "Done.", *, turns: int = 1) -> Script:
    """Ask for one tool call in each of the first `turns` turns since the last user message, then answer with text."""

    def script(request: dict[str, Any]) -> Reply:
        done = 0
        for message in reversed(request["messages"]):
            if message["role"] == "user":
                break
            done += message["role"] == "assistant"
        return Calls([(name, arguments)]) if done < turns else Text(text)

    return script


def delayed(seconds: float, script: Script) -> Script:
    return lambda request: Delayed(seconds, script(request))


def in_order(*replies: Reply, then: Reply) -> Script:
    """The replies in the order the requests come in, then always `then`: for faults that pass after some tries.

    The one script that is a function of more than the request; give it to one conversation.
    """
    left = iter(replies)
    return lambda _request: next(left, then)


def _json(status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=json.dumps(body).encode(), content_type="application/json", headers=headers)


def _status(reply: Status) -> web.Response:
    headers = {} if reply.retry_after is None else {"Retry-After": f"{reply.retry_after:g}"}
    if isinstance(reply.body, str):
        return web.Response(status=reply.status, text=reply.body, headers=headers)
    return _json(reply.status, reply.body, headers)


def _abort(request: web.BaseRequest) -> web.Response:
    transport = request.transport
    if transport is not None:
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # Linger zero makes the close a reset instead of an orderly end.
            sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    # The connection is gone; aiohttp only needs something to drop.
    return web.Response()


async def _main(arguments: argparse.Namespace) -> None:
    script = calls_then_text(arguments.tool, arguments.arguments, arguments.text, turns=arguments.turns)
    if arguments.delay:
        script = delayed(arguments.delay, script)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with ScriptedModel(script, port=arguments.port, keep_bodies=0) as model:
        print(f"ready: {model.base_url} model={model.model_name}", flush=True)
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--turns", type=int, default=1, help="tool calls before the final text")
    parser.add_argument("--tool", default="terminal", help="the tool called")
    parser.add_argument("--arguments", default='{"command": "true"}', help="its arguments")
    parser.add_argument("--text", default="Done.", help="the final answer")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
