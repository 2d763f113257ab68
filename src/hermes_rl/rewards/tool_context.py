"""ToolContext: the verifier's access to a rollout's sandbox.

Its methods are called without await in setup, compute_reward and evaluate, and do not block other rollouts. The
policy's processes are killed before the first call runs. A broken sandbox raises, and the rollout has no score.
"""

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError, InfrastructureError
from hermes_rl.core.observation import ObservedFailure, observe
from hermes_rl.rewards.missing_program import MissingProgram, missing_program
from hermes_rl.rewards.sync_bridge import wait
from hermes_rl.rewards.verification import Verdict, verify
from hermes_rl.sandbox.protocol import INTERNAL_ENV
from hermes_rl.tools.files import read_text, sandbox_path
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import ToolUseError

T = TypeVar("T")

DEFAULT_TIMEOUT = 180
LISTING_TIMEOUT = 60.0
# Limit of one file, or of all files below a directory.
MAX_DOWNLOAD_BYTES = 1024**3


class ToolContext:
    """Access to a rollout's sandbox from a reward. Call its methods without await; other rollouts are not blocked."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self._host = ToolHost.current()
        self._session = self._host.session(task_id)
        self.missing_programs: list[MissingProgram] = []
        """Commands of `terminal` and `verify` that did not run."""
        self._loop: asyncio.AbstractEventLoop | None = None
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()

    @property
    def state(self) -> Any:
        """The state of `initial_state`, as the agent's work left it."""
        return self._session.state

    def terminal(self, command: str, timeout: int = DEFAULT_TIMEOUT) -> dict[str, Any]:
        """Run a command: {"output", "exit_code", "error"}."""
        answer = self._call_json("terminal", {"command": command, "timeout": timeout})
        self._note_missing(command, answer.get("exit_code"), answer.get("output", ""))
        return answer

    def read_file(self, path: str) -> dict[str, Any]:
        """Read a text file without line numbers: {"content"} or {"error"}."""
        return self._wait(self._read(path))

    def write_file(self, path: str, content: str) -> dict[str, Any]:
        """Write a text file: {"path", "bytes_written"}."""
        return self._call_json("write_file", {"path": path, "content": content})

    def search(self, query: str, path: str = ".") -> dict[str, Any]:
        """Find lines in files under `path` that match the regular expression."""
        return self._call_json("search_files", {"pattern": query, "path": path})

    def upload_file(self, local_path: str, remote_path: str) -> dict[str, Any]:
        """Copy a local file into the sandbox; binary safe."""
        return self._wait(self._upload(Path(local_path), remote_path))

    def upload_dir(self, local_dir: str, remote_dir: str) -> list[dict[str, Any]]:
        """Copy every file below a local directory into the sandbox."""
        return self._wait(self._upload_dir(Path(local_dir), remote_dir))

    def download_file(self, remote_path: str, local_path: str) -> dict[str, Any]:
        """Copy a file out of the sandbox: {"success": True, "bytes": n} or {"success": False, "error": …}."""
        return self._wait(self._download(remote_path, Path(local_path)))

    def download_dir(self, remote_dir: str, local_dir: str) -> list[dict[str, Any]]:
        """Copy every regular file below a directory out of the sandbox; symbolic links are skipped.

        Nothing is written outside `local_dir`, whatever the file names in the sandbox are.
        """
        return self._wait(self._download_dir(remote_dir, Path(local_dir)))

    def web_search(self, query: str) -> dict[str, Any]:
        """Run the agent's web_search: {"results": [{"title", "url", "text"}]} or {"error"}."""
        return self._call_service("web", "web_search", {"query": query})

    def web_extract(self, urls: list[str]) -> dict[str, Any]:
        """Read web pages as text: {"results": [{"url", "title", "content"} or {"url", "error"}]}."""
        return self._call_service("web", "web_extract", {"urls": urls})

    def browser_navigate(self, url: str) -> dict[str, Any]:
        """Open a page in the rollout's browser, with its cookies: {"url", "title", "status"} or {"error"}."""
        return self._call_service("browser", "browser_navigate", {"url": url})

    def browser_snapshot(self) -> dict[str, Any]:
        """Snapshot the page the agent left open: {"url", "title", "snapshot"} or {"error"}."""
        return self._call_service("browser", "browser_snapshot", {})

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call any tool by name; returns the JSON text the agent would see."""
        return self._wait(self._call(name, arguments))

    def verify(
        self,
        command: str,
        *,
        files: Mapping[str, bytes | str | Path],
        artifacts: Iterable[str],
        image: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Verdict:
        """Run a command in a fresh sandbox that the policy never touched, and return its result.

        `artifacts` are files or directories of the rollout's sandbox, copied below `artifacts/` in the new workspace
        (also `$ARTIFACTS`) under the same names. `files` are the tests: text, bytes or a local path, by their path in
        the workspace, where `command` runs. `image` defaults to the rollout's.
        """
        verdict = self._wait(
            verify(self._session, command, files=files, artifacts=artifacts, image=image, timeout=timeout)
        )
        self._note_missing(command, verdict.exit_code, verdict.stderr or verdict.stdout)
        return verdict

    def cleanup(self) -> None:
        """Close the rollout's sandbox. Optional: the environment closes it anyway."""
        self._wait(self._host.close_session(self.task_id))

    def _note_missing(self, command: str, exit_code: int | None, output: str) -> None:
        missing = missing_program(command, exit_code, output)
        if missing is None:
            return
        self.missing_programs.append(missing)
        if missing.blames_environment:
            self._host.warn_once(
                f"missing {missing.program}",
                f"{missing.problem}, so the score may not measure the agent's work; {missing.fix}; then test it with "
                "`hermes-rl validate`",
            )

    def _call_json(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = fast_json.loads(self.call_tool(name, arguments))
        return answer

    def _call_service(self, toolset: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if toolset not in self._host.toolsets:
            raise ConfigError(
                f"ctx.{name} needs the toolset {toolset}, which is not open in this environment; add it to "
                "enabled_toolsets, or to the class's default_toolsets"
            )
        return self._call_json(name, arguments)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        began = time.monotonic()
        try:
            return wait(work, self._loop)
        except InfrastructureError as error:
            observe(ObservedFailure(self.task_id, error.failure))
            raise
        finally:
            self._session.reward_seconds += time.monotonic() - began

    async def _ready_session(self) -> ToolSession:
        await self._session.end_policy()
        return self._session

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return (await (await self._ready_session()).call(name, arguments)).text

    async def _read(self, path: str) -> dict[str, Any]:
        sandbox = await (await self._ready_session()).sandbox()
        try:
            return {"content": await read_text(sandbox, path)}
        except ToolUseError as error:
            return {"error": str(error)}

    async def _upload(self, local: Path, remote: str) -> dict[str, Any]:
        sandbox = await (await self._ready_session()).sandbox()
        return {"success": True, "bytes": await sandbox.upload(local, sandbox_path(sandbox, remote))}

    async def _upload_dir(self, local: Path, remote: str) -> list[dict[str, Any]]:
        return [
            await self._upload(path, str(PurePosixPath(remote, *path.relative_to(local).parts)))
            for path in _list_files(local)
        ]

    async def _download(self, remote: str, local: Path, max_bytes: int = MAX_DOWNLOAD_BYTES) -> dict[str, Any]:
        sandbox = await (await self._ready_session()).sandbox()
        try:
            size = await sandbox.download(sandbox_path(sandbox, remote), local, max_bytes=max_bytes)
        except OSError as error:
            return {"success": False, "error": str(error)}
        return {"success": True, "bytes": size}

    async def _download_dir(self, remote: str, local: Path) -> list[dict[str, Any]]:
        sandbox = await (await self._ready_session()).sandbox()
        listing = await sandbox.exec(
            "find . -type f -print0", cwd=sandbox_path(sandbox, remote), env=INTERNAL_ENV, timeout=LISTING_TIMEOUT
        )
        names = [name.decode(errors="surrogateescape") for name in listing.stdout.split(b"\0") if name]
        fetched: list[dict[str, Any]] = []
        bytes_left = MAX_DOWNLOAD_BYTES
        for name in sorted(names):
            # A policy that is root in its sandbox can replace `find`.
            if name.startswith("/") or ".." in PurePosixPath(name).parts:
                fetched.append({"success": False, "error": f"the name {name!r} leads out of {remote}"})
                continue
            fetched.append(await self._download(f"{remote}/{name}", local / name, bytes_left))
            bytes_left -= fetched[-1].get("bytes", 0)
        return fetched


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
