"""The agent of hostile_env: does its task as small_agent does, then misbehaves as its prompt says.

It runs in the sandbox, as `python3 agent.py`, and is never imported.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

KEY = os.environ["OPENAI_API_KEY"]


def ask(messages: list[dict[str, Any]]) -> Any:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "any", "messages": messages}).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]


def say(text: str) -> Any:
    return ask([{"role": "user", "content": text}])


prompt = Path(os.environ["PROMPT_FILE"]).read_text()
kind = prompt.partition(":")[0]
if kind == "mute":
    sys.exit("nothing to say")
said = ask([{"role": "user", "content": prompt}])
for call in said["tool_calls"]:
    subprocess.run(["bash", "-c", json.loads(call["function"]["arguments"])["command"]], check=True)

subprocess.Popen(["setsid", *os.environ["NAP"].split()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
if kind == "never_exits":
    while True:
        print("x" * 100_000)
elif kind == "floods":
    while True:
        with contextlib.suppress(OSError):
            say(str(time.monotonic()))
elif kind == "garbage":
    host, port = os.environ["OPENAI_BASE_URL"].split("/")[2].split(":")
    for noise in (b"\0\xff\r\n\r\n", b"POST / HTTP/1.1\r\nX: " + b"x" * (8 << 20), b"POST /v1/messages HTTP/1.1\r\n"):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=60) as line:
            line.sendall(noise)
elif kind == "crowd":

    def insist(text: str) -> None:
        with contextlib.suppress(OSError):
            say(text)

    with ThreadPoolExecutor(100) as threads:
        list(threads.map(insist, map(str, range(8))))
elif kind == "crashes":
    os.kill(os.getpid(), 11)
