"""The extra `otel`: spans of real rollouts, received as OTLP by a collector of this file."""

import gzip
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

NAMES: list[str] = []


class Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        data = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            NAMES.extend(span.name for scope in resource.scope_spans for span in scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """A request is nobody's news."""


def main(given: dict[str, Any]) -> str:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
    command = [str(Path(sys.executable).with_name("hermes-rl")), "process", "terminal_test"]
    command += ["--env.total_steps", "1", "--env.group_size", "2", "--openai.model_name", "null"]
    command += ["--openai.base_url", given["model"], "--trace", f"http://127.0.0.1:{server.server_port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert NAMES.count("invoke_agent terminal_test") == 2, NAMES
    return f"{len(NAMES)} spans of two rollouts received"


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
