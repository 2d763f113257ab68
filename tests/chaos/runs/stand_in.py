"""Parts of a run that speak the real ones' routes and files and do nothing: started by keepers in the tests of faults.

    python stand_in.py ROLE FOLDER PORT [API]

What the run's file of manners says of a role changes how it behaves: {"api": {"exit": 2, "slow": 3.0}, …}.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

ROLE, FOLDER, PORT, API = (*sys.argv[1:], "", "", "")[:4]
HOME = Path(FOLDER)
MANNER = HOME.parents[1] / f"manner-{HOME.name}.json"
BEAT = 0.2
HEARD: dict[str, float] = {}
STATE = {"ready": False}


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/v1/environments":
            rows = [{"name": name, "instance": "", "connected": True, "seen_at": at} for name, at in HEARD.items()]
            self.answer(200, rows)
            return
        ready = {"/api/v1/healthz", "/api/v1/get_server_capabilities", "/ready", "/health"}
        self.answer(200 if STATE["ready"] and self.path in ready else 503, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        HEARD[self.path.strip("/")] = time.time()
        self.answer(200, {})

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_words: Any) -> None:
        """Its log holds what the tests look for, and nothing else."""


def manner() -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(MANNER.read_text()).get(ROLE, {})
    except FileNotFoundError:
        return {}
    return told


def listen() -> None:
    try:
        server = ThreadingHTTPServer(("127.0.0.1", int(PORT)), Answers)
    except OSError as error:
        print(f"error: cannot listen on 127.0.0.1 port {PORT}: {error.strerror}", flush=True)
        sys.exit(2)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def tell(**news: Any) -> None:
    path = HOME / "run.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    aside = path.with_name("run.json.part")
    aside.write_text(json.dumps({**before, **news}))
    aside.replace(path)


def train(steps: int, seconds: float) -> None:
    """A step at a time, each a line on disk before it counts, so that a second life goes on with the next."""
    lineage = HOME / "steps.txt"
    tell(state="running", pid=os.getpid(), inference_url=f"http://127.0.0.1:{PORT}")
    done = len(lineage.read_text().split()) if lineage.exists() else 0
    while done < steps:
        time.sleep(seconds)
        if MANNER.with_suffix(".hold").exists():
            continue
        done += 1
        with lineage.open("a") as file:
            file.write(f"{done}\n")
        print(f"step {done} of {steps}", flush=True)
    tell(state="complete", step=done)
    while True:
        time.sleep(1)


def serve() -> None:
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(f"{API}/env", b"{}", method="POST"), timeout=5).close()
        except OSError as error:
            print(f"the API is away: {error}", flush=True)
        time.sleep(BEAT)


def linger(_number: int, _frame: FrameType | None) -> None:
    time.sleep(manner()["lingers"])
    os._exit(0)


def main() -> None:
    how = manner()
    if "lingers" in how:
        signal.signal(signal.SIGTERM, linger)
    print(f"{ROLE} begins", flush=True)
    time.sleep(how.get("slow", 0.0))
    if "exit" in how:
        print(f"error: {ROLE} was told to fail", flush=True)
        sys.exit(how["exit"])
    if how.get("raises"):
        raise RuntimeError("setup fails")
    # As an engine has: a process in a session of its own, which a signal to the group does not reach.
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    if ROLE == "env":
        serve()
    if ROLE == "export":
        time.sleep(how.get("takes", 0.3))
        (HOME / "weights").mkdir(exist_ok=True)
        sys.exit(0)
    listen()
    STATE["ready"] = True
    if ROLE == "trainer":
        train(how.get("steps", 20), how.get("seconds", 0.1))
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main()
