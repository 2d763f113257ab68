"""A model server of token ids that thinks nothing: vLLM's /inference/v1/generate in a few microseconds a request.

It answers with a fixed tool call until the conversation has as many turns as the model's name says (`null-5`), then
with a fixed text. It also speaks null_model.py's chat, so that one process serves both ways.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path

import orjson
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.null_model import NullModel, State, as_response


class NullTokens(NullModel):
    """`stop` ends every message; a prompt with two of them, of the system and the user, asks for the first turn."""

    def __init__(self, state: State, call: list[int], final: list[int], stop: int) -> None:
        super().__init__(state)
        self.stop = stop
        self.answers = [as_response(_generated(ids)) for ids in (call, final)]

    def respond(self, head: bytes, body: bytes) -> None:
        if b"/inference/v1/generate" not in head[:60]:
            super().respond(head, body)
            return
        asked = orjson.loads(body)
        turn = asked["token_ids"].count(self.stop) // 2
        reply = self.answers[turn >= int(asked["model"].rpartition("-")[2])]
        if self.state.delay:
            asyncio.get_running_loop().call_later(self.state.delay, self.send, reply, b"")
        else:
            self.send(reply, b"")


def _generated(ids: list[int]) -> bytes:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "token_ids": ids,
        "weight_versions": [{"version": "default", "start": 0, "end": len(ids)}],
        "logprobs": {"content": [{"token_id": one, "logprob": -(one % 97 + 1) / 64} for one in ids]},
    }
    return json.dumps({"choices": [choice]}).encode()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", help="JSON: {call: [ids], final: [ids], stop: id}")
    ids = json.loads(parser.parse_args().ids)
    state = State(0.0)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: NullTokens(state, **ids), "127.0.0.1", 0, backlog=8192)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
