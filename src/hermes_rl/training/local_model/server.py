"""A llama.cpp server of this process: an OpenAI-compatible endpoint over one GGUF file.

Always true: it answers requests when it is handed out, and it ends with the block, with this process, or with `kill -9`
of it.
"""

import importlib.util
import json
import os
import select
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.core.child_python import python_command
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.private_files import open_private, private_folder
from hermes_rl.core.process_guard import guard_argv

# Loading is seconds for small models; a file of gigabytes on a slow disk takes minutes.
READY_DEADLINE_S = 600.0
STOP_DEADLINE_S = 15.0
LOG_LINES = 15
LOOPBACK = "127.0.0.1"
PROGRAM = "hermes_rl.training.local_model.llama_cpp"


class ModelServerError(HermesRLError):
    """The llama.cpp server did not start, or ended; the message includes the end of its log."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`port` 0 takes a free one; `context` is the maximum tokens of one conversation."""

    file: Path
    name: str
    log: Path
    host: str = LOOPBACK
    port: int = 0
    parallel: int = 8
    context: int = 2048
    threads: int = 0
    """0 for half of the cores."""
    chat_template: str | None = None
    """Default: the file's own."""


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A running server; `base_url` ends with /v1."""

    base_url: str
    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def wait(self) -> None:
        """Wait for the server to end by itself, which is a failure."""
        status = self.process.wait()
        raise ModelServerError(f"the model server ended with status {status}; {self.log} ends:\n{_tail(self.log)}")


def require_llama_cpp() -> None:
    """Raise ConfigError unless llama.cpp is installed."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigError("serving a model on this machine needs llama.cpp: pip install 'hermes-rl[quickstart]'")


@contextmanager
def model_server(settings: ServerSettings) -> Iterator[ModelServer]:
    """Serve the file for the duration of the block."""
    require_llama_cpp()
    private_folder(settings.log.parent)
    with open(settings.log, "ab", opener=open_private) as log:
        began = log.tell()
        process = subprocess.Popen(
            guard_argv(python_command("-m", PROGRAM, *_arguments(settings))),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # Ctrl-C is for this process, which then ends the server.
            start_new_session=True,
        )
    try:
        root = _ready_address(process, settings, began)
        _complete_once(root, settings)
        yield ModelServer(f"{root}/v1", settings.name, process, settings.log)
    finally:
        _end(process)


def _arguments(settings: ServerSettings) -> list[str]:
    # llama.cpp's threads wait for each other: next to a busy neighbor on two cores, two threads gave 0.2 rollouts/s
    # where one gave 1.0, so half of the cores are left to the environment and its sandboxes.
    threads = settings.threads or max(1, (os.cpu_count() or 1) // 2)
    words = [str(settings.file), "--name", settings.name, "--host", settings.host, "--port", str(settings.port)]
    words += ["--parallel", str(settings.parallel), "--context", str(settings.context), "--threads", str(threads)]
    return words + (["--chat_template", settings.chat_template] if settings.chat_template else [])


def _ready_address(process: "subprocess.Popen[bytes]", settings: ServerSettings, began: int) -> str:
    assert process.stdout is not None  # noqa: S101 - for the type checker; it is a pipe
    # The program prints its one line in one write.
    readable, _, _ = select.select([process.stdout], [], [], READY_DEADLINE_S)
    line = process.stdout.readline().decode() if readable else ""
    if line.startswith("ready: "):
        return line.removeprefix("ready: ").strip()
    where = f"on {settings.host}:{settings.port}" if settings.port else "on this machine"
    why = "ended before it was ready" if readable else f"was not ready within {READY_DEADLINE_S:g} s"
    taken = "; is the port taken?" if settings.port else ""
    raise ModelServerError(
        f"the model server for {settings.file.name} {where} {why}{taken}\n"
        f"{settings.log} ends:\n{_tail(settings.log, began)}"
    )


def _complete_once(root: str, settings: ServerSettings) -> None:
    body = {"model": settings.name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    request = urllib.request.Request(  # noqa: S310 - our own server's address
        f"{root}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    # Bypass proxies for our own server.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=READY_DEADLINE_S) as response:
            json.load(response)["choices"][0]
    except (OSError, ValueError, LookupError) as error:
        raise ModelServerError(
            f"the model server at {root} does not answer a request ({error}); {settings.log} ends:\n"
            f"{_tail(settings.log)}"
        ) from error


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Close the lifeline: the guard ends the server. A guard that does not is killed, and the server with it."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: Path, start: int = 0) -> str:
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES:])
