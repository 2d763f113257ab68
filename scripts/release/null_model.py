"""A model without a model: an OpenAI-compatible endpoint that does what `terminal_test` asks for, at once."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ASKED = re.compile(r"Echo (\w+) into out\.txt")


@contextmanager
def null_model() -> Iterator[str]:
    """Its address, as `--openai.base_url` takes it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._say({"object": "list", "data": [{"id": "null", "object": "model"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = answer(asked["messages"])
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self._say({"id": "0", "object": "chat.completion", "model": "null", "choices": [choice], "usage": usage})

    def _say(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """A request is nobody's news."""


def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
    found = ASKED.fullmatch(str(messages[-1].get("content", "")).strip())
    if found is None:
        return {"role": "assistant", "content": "done"}
    arguments = json.dumps({"command": f"echo {found[1]} > out.txt"})
    call = {"id": "call_1", "type": "function", "function": {"name": "terminal", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}
