"""The model of every framework: a raw HTTP protocol that plays a recording back, with the faults a prompt asks for.

It goes by the rollout's name in the prompt (`#17/stall#`) and by the number of tool results, so a framework may put
what it likes around them. The first answer of a rollout waits up to twice as long as the others, by its number:
rollouts of a run are not in step. Always true: the gap between an answer and the next request of its rollout is
measured here, the same way for every client, and what a rollout is told depends on its name and its turn alone.

    model.py [--host ADDRESS] [--recording NAME]    prints its URL

PUT /delay sets the seconds of an answer; GET /stats says what happened since the last GET, and forgets it; GET /waiting
says how many requests wait for their answer now.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

import uvloop

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from benchmarks.peers.work import BROKEN, FAULT_TURN, TOOL_NAME, Recording  # noqa: E402

NAME = re.compile(rb"#(\d+)/(\w+)#")
TOOL_MESSAGE = re.compile(rb'"role": ?"tool"')
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
# Of the golden ratio: neighbours start far from each other, and any number of them is spread evenly.
SPREAD = 0.6180339887


def response(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answer(text: str, command: str | None, turn: int = 0) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if command is not None:
        function = {"name": TOOL_NAME, "arguments": json.dumps({"command": command})}
        message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "stop" if command is None else "tool_calls"}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "null", "choices": [choice]}
    return response(json.dumps({**body, "usage": usage}).encode())


class Played:
    """What all connections share: the answers, the delay, and what is to be told of them."""

    def __init__(self, recording: Recording) -> None:
        calls = [answer(turn.text, turn.command, number) for number, turn in enumerate(recording.turns, 1)]
        self.answers = [*calls, answer(recording.final, None)]
        self.broken = answer("", BROKEN, FAULT_TURN)
        self.delay = 0.0
        self.failed: set[bytes] = set()
        self.connections = self.waiting = 0
        self.forget()

    def forget(self) -> None:
        self.sent_at: dict[bytes, float] = {}
        self.gaps: list[float] = []
        self.turns = self.faults = self.most_connections = 0
        self.cpu = time.process_time()

    def report(self) -> bytes:
        shares = quantiles(self.gaps, n=100, method="inclusive") if len(self.gaps) > 1 else [0.0] * 99
        told = {
            "turns": self.turns,
            "faults": self.faults,
            "gap_p50": shares[49],
            "gap_p99": shares[98],
            "most_connections": self.most_connections,
            "connections": self.connections,
            "cpu_seconds": time.process_time() - self.cpu,
        }
        self.forget()
        return response(json.dumps(told).encode())

    def waits(self, number: int, turn: int) -> float:
        return self.delay * (1 + number * SPREAD % 1) if turn == 1 else self.delay


class Model(asyncio.Protocol):
    def __init__(self, played: Played) -> None:
        self.played = played
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.played.connections += 1
        self.played.most_connections = max(self.played.most_connections, self.played.connections)

    def connection_lost(self, exc: Exception | None) -> None:
        self.played.connections -= 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = LENGTH.search(head)
        size = int(length[1]) if length else 0
        if len(rest) < size:
            return
        self.buffer = rest[size:]
        self.respond(head, rest[:size])

    def respond(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"POST"):
            self.complete(body)
        elif head.startswith(b"PUT"):
            self.played.delay = float(body)
            self.transport.write(response(b"{}"))
        elif b"/stats" in head[:40]:
            self.transport.write(self.played.report())
        else:
            self.transport.write(response(json.dumps({"data": [], "waiting": self.played.waiting}).encode()))

    def complete(self, body: bytes) -> None:
        played, named = self.played, NAME.search(body)
        if named is None:
            self.transport.write(played.answers[-1])
            return
        number, kind, turn = named[1], named[2], len(TOOL_MESSAGE.findall(body)) + 1
        sent = played.sent_at.pop(number, None)
        if sent is not None:
            played.gaps.append(time.perf_counter() - sent)
        reply = played.answers[min(turn, len(played.answers)) - 1]
        if (
            turn == FAULT_TURN
            and kind not in (b"fine", b"reward")
            and not (kind.endswith(b"_once") and number in played.failed)
        ):
            played.failed.add(number)
            fault = kind.removesuffix(b"_once").decode()
            if fault != "tool":
                played.faults += 1
                self.misbehave(fault)
                return
            reply = played.broken
        played.waiting += 1
        wait = played.waits(int(number), turn)
        if wait:
            asyncio.get_running_loop().call_later(wait, self.send, reply, number)
        else:
            self.send(reply, number)

    def misbehave(self, fault: str) -> None:
        if fault == "500":
            self.transport.write(response(b'{"error": {"message": "engine died"}}', "500 Internal Server Error"))
        elif fault == "garbage":
            self.transport.write(response(b"<html>Bad gateway</html>"))
        elif fault == "hangup":
            self.transport.abort()
        # What is left is a stall: the request is read and never answered.

    def send(self, reply: bytes, number: bytes) -> None:
        played = self.played
        played.turns += 1
        played.waiting -= 1
        played.sent_at[number] = time.perf_counter()
        self.transport.write(reply)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--recording", default="null")
    arguments = parser.parse_args()
    played = Played(Recording.named(arguments.recording))
    server = await asyncio.get_running_loop().create_server(lambda: Model(played), arguments.host, 0, backlog=16384)
    print(f"http://{arguments.host}:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
