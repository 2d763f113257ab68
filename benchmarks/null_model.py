"""A model server that thinks nothing: a raw HTTP protocol that answers with a fixed tool call, then with a fixed text.

It runs on a core of its own and costs a few microseconds a request, so that what is measured is the client. The number
of turns is read from the model's name (`null-5`), the conversation from `user`. It also measures the gap between
sending one answer of a conversation and receiving its next request, the same way for every client.
"""

import argparse
import asyncio
import json
import time
from itertools import count

import uvloop

CALL = {"id": "call_1", "type": "function", "function": {"name": "echo", "arguments": '{"text": "hello"}'}}


def answer(message: dict[str, object], reason: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "model": "null", "choices": [choice]}
    return as_response(json.dumps({**body, "usage": {"prompt_tokens": 100, "completion_tokens": 10}}).encode())


def as_response(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


TOOL_CALL = answer({"content": None, "tool_calls": [CALL]}, "tool_calls")
FINAL = answer({"content": "done"}, "stop")


class State:
    """What all connections share: the delay, and when each conversation was last answered."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.requests = count()
        self.sent_at: dict[bytes, float] = {}
        self.gaps: list[float] = []

    def report(self) -> bytes:
        gaps = sorted(self.gaps)
        self.gaps, self.sent_at = [], {}
        shares = {name: gaps[int(len(gaps) * share)] if gaps else 0.0 for name, share in (("p50", 0.5), ("p99", 0.99))}
        return as_response(json.dumps({"gaps": len(gaps), **shares}).encode())


class NullModel(asyncio.Protocol):
    def __init__(self, state: State) -> None:
        self.state = state
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = 0
        for line in head.split(b"\r\n"):
            if line[:15].lower() == b"content-length:":
                length = int(line[15:])
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        self.respond(head, rest[:length])

    def respond(self, head: bytes, body: bytes) -> None:
        state = self.state
        if head.startswith(b"GET"):
            self.send(state.report() if b"/stats" in head[:40] else as_response(b'{"data": []}'), b"")
            return
        if head.startswith(b"PUT"):
            state.delay = float(body)
            self.send(as_response(b"{}"), b"")
            return
        conversation = value_of(body, b'"user":"')
        sent = state.sent_at.get(conversation)
        if sent is not None:
            state.gaps.append(time.perf_counter() - sent)
        turns = int(value_of(body, b'"model":"').rpartition(b"-")[2])
        reply = TOOL_CALL if body.count(b'"role":"tool"') < turns - 1 else FINAL
        if state.delay:
            asyncio.get_running_loop().call_later(state.delay, self.send, reply, conversation)
        else:
            self.send(reply, conversation)

    def send(self, reply: bytes, conversation: bytes) -> None:
        if conversation:
            self.state.sent_at[conversation] = time.perf_counter()
        self.transport.write(reply)  # type: ignore[attr-defined]


def value_of(body: bytes, opening: bytes) -> bytes:
    return body.partition(opening)[2].partition(b'"')[0]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", type=float, default=0.0)
    state = State(parser.parse_args().delay)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: NullModel(state), "127.0.0.1", 0, backlog=8192)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
