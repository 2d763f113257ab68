#!/usr/bin/env python3
"""Run the README's commands as a new user: a fresh virtual environment, an empty home, nothing else installed.

    python scripts/readme_trial.py --python python3.11                        # in a clone of the last commit
    python scripts/readme_trial.py --python python3.11 --wheel dist/hermes_rl-0.1.0-py3-none-any.whl
    python scripts/readme_trial.py --python python3.11 --until validate       # stop after this command

The commands are read from README.md, and only the port 8901 is replaced by a free one. With --wheel they run in an
empty folder, `.` in `pip install` is the wheel, and what needs the checkout's scripts is skipped. The training commands
are skipped: docs/reports/quickstart.md times them. Written to stdout: each command, its seconds, its exit code and the
end of its output.
"""

import argparse
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEADLINE_S, START_DEADLINE_S = 2400.0, 900.0
# Commands that do not end by themselves, and what they write when they are ready.
SERVERS = {"python scripts/small_model.py": "ready", "hermes-rl view": "viewer: "}
TRAINING = "## A learning curve on a laptop"


def readme_commands() -> list[str]:
    """The commands of the blocks marked `bash` and the two of the quickstart, in the order of the README."""
    text = (ROOT / "README.md").read_text().split(TRAINING)[0]
    commands = []
    pattern = r"```bash\n(.*?)```|`((?:pip install '|hermes-rl quickstart)[^`]*)`"
    for block, inline in re.findall(pattern, text, re.DOTALL):
        source = block or inline
        commands += [line.strip() for line in source.replace("\\\n", " ").splitlines() if line.strip()]
    return commands


class Trial:
    """One new user: a folder, a home and an environment of their own."""

    def __init__(self, folder: Path, python: str, wheel: Path | None) -> None:
        self.folder, self.wheel = folder, wheel
        self.work, self.log = folder / "work", folder / "output"
        self.servers: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        if wheel:
            self.work.mkdir()
        else:
            subprocess.run(["git", "clone", "-q", ROOT, self.work], check=True)
        own = ("HERMES", "VIRTUAL_ENV", "PYTHON")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        path = f"{self.work / '.venv' / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        (folder / "home").mkdir()
        self.environment = {**kept, "PATH": path, "HOME": str(folder / "home"), "PIP_NO_CACHE_DIR": "1"}
        self.environment.pop("XDG_CACHE_HOME", None)
        self.run(f"{python} -m venv .venv", shown="python3 -m venv .venv")

    def run(self, command: str, shown: str = "") -> int:
        """Run one command to its end, or a server until it is ready. Its row is on stdout afterwards."""
        words = command.replace("8901", str(self.port))
        if self.wheel:
            installed = r"pip install '?\.(\[.*?\])?'?"
            words = re.sub(installed, lambda found: f"pip install '{self.wheel}{found[1] or ''}'", words)
        began = time.monotonic()
        ready = next((text for start, text in SERVERS.items() if command.startswith(start)), None)
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                ["sh", "-c", f"exec {words}"],
                cwd=self.work,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if ready:
            self.servers.append(process)
            code = self._wait_for(process, ready)
        else:
            try:
                code = process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = -9
        written = self.log.read_text(errors="replace")
        seconds = time.monotonic() - began
        print(f"\n$ {shown or command}\n[{seconds:.1f} s, exit {code}]", flush=True)
        print(re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", written)[-1800:].strip().replace(str(self.folder), "…"), flush=True)
        return code or 0

    def _wait_for(self, process: subprocess.Popen[bytes], ready: str) -> int | None:
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline and process.poll() is None:
            written = self.log.read_text(errors="replace")
            if ready in written:
                if address := re.search(r"viewer: (http\S+)", written):
                    with urllib.request.urlopen(address[1], timeout=60) as page:  # noqa: S310 - the viewer's own address
                        print(f"\nviewer's page: HTTP {page.status}, {len(page.read())} bytes")
                return process.poll()
            time.sleep(0.2)
        return process.poll() or 1

    def end(self) -> None:
        for server in self.servers:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGINT)
                try:
                    server.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(server.pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter that makes the virtual environment")
    parser.add_argument("--wheel", type=Path, help="install this wheel instead of the checkout")
    parser.add_argument("--until", default="", help="stop after the first command that contains this text")
    chosen = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="readme-") as folder:
        trial = Trial(Path(folder), shlex.quote(chosen.python), chosen.wheel.resolve() if chosen.wheel else None)
        failed = 0
        try:
            for command in readme_commands():
                if chosen.wheel and "scripts/" in command:
                    print(f"\n$ {command}\n[skipped: needs the checkout]")
                    continue
                if chosen.wheel and "8901" in command:
                    print(f"\n$ {command}\n[skipped: needs the model server of the checkout]")
                    continue
                if chosen.wheel and command.startswith("hermes-rl view"):
                    continue
                failed += trial.run(command) != 0
                if chosen.until and chosen.until in command:
                    break
        finally:
            trial.end()
    print(f"\n{time.monotonic() - began:.0f} s in all; commands that failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
