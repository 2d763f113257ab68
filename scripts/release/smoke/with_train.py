"""The extra `train`: the trainer's settings, and its engine speaking the Tinker API to a server of this file."""

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.tinker.engine import TinkerEngine
from hermes_rl.training.utilization import BusyTimer

MODEL = "a-model"
ANSWERS: dict[str, dict[str, Any]] = {
    "client/config": {},
    "create_session": {"type": "create_session", "session_id": "session-1"},
    "session_heartbeat": {"type": "session_heartbeat"},
    "telemetry": {"status": "accepted"},
    "get_server_capabilities": {"supported_models": [{"model_name": MODEL}]},
    "create_model": {"request_id": "request-1", "model_id": "model-1"},
    "retrieve_future": {"type": "create_model", "model_id": "model-1"},
}


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: "list[str]" = []  # noqa: RUF012 - one server a process

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer()

    def _answer(self) -> None:
        name = self.path.removeprefix("/api/v1/")
        self.asked.append(name)
        data = json.dumps(ANSWERS.get(name, {"status": "ok"})).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """A request is nobody's news."""


def main(_given: dict[str, Any]) -> str:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
    settings = TrainerSettings(base_model=MODEL, base_url=f"http://127.0.0.1:{server.server_port}", lora_rank=4)
    asyncio.run(opened(settings))
    assert "create_model" in Server.asked, Server.asked
    return f"an engine opened over the SDK by {len(Server.asked)} requests of {len(set(Server.asked))} kinds"


async def opened(settings: TrainerSettings) -> None:
    engine = await TinkerEngine.open(settings, None, busy=BusyTimer(), decode=str, context=64)
    assert type(engine).__name__ == "TinkerEngine"


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])), flush=True)
