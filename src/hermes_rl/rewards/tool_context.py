"""ToolContext: the verifier's door into a rollout's sandbox.

Every method is an ordinary call that needs no await, inside setup, compute_reward and evaluate; other rollouts go on
meanwhile. The policy's processes are dead before the first call is carried out. A broken sandbox raises: the rollout
then has no score.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.rewards.sync_bridge import wait
from hermes_rl.rewards.verification import Verdict, verify
from hermes_rl.sandbox.protocol import OUR_ENV
from hermes_rl.tools.files import in_sandbox, read_text
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import ToolUseError

T = TypeVar("T")

DEFAULT_TIMEOUT = 180
LISTING_TIMEOUT = 60.0
# Of a file, or of all files below a directory, that the verifier takes to its own machine.
MAX_DOWNLOAD_BYTES = 1024**3


class ToolContext:
    """The verifier's door into a rollout's sandbox. Its calls need no await, and other rollouts go on meanwhile."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self._host = ToolHost.current()
        self._session = self._host.session(task_id)
        self._loop: asyncio.AbstractEventLoop | None = None
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()

    def terminal(self, command: str, timeout: int = DEFAULT_TIMEOUT) -> dict[str, Any]:
        """Run a command: {"output", "exit_code", "error"}."""
        return self._tool("terminal", {"command": command, "timeout": timeout})

    def read_file(self, path: str) -> dict[str, Any]:
        """A text file as it is, without line numbers: {"content"} or {"error"}."""
        return self._wait(self._read(path))

    def write_file(self, path: str, content: str) -> dict[str, Any]:
        """Write a text file: {"path", "bytes_written"}."""
        return self._tool("write_file", {"path": path, "content": content})

    def search(self, query: str, path: str = ".") -> dict[str, Any]:
        """Lines in files under `path` that match the regular expression."""
        return self._tool("search_files", {"pattern": query, "path": path})

    def upload_file(self, local_path: str, remote_path: str) -> dict[str, Any]:
        """Copy a file of this machine into the sandbox; binary safe."""
        return self._wait(self._upload(Path(local_path), remote_path))

    def upload_dir(self, local_dir: str, remote_dir: str) -> list[dict[str, Any]]:
        """Copy every file below a directory of this machine into the sandbox."""
        return self._wait(self._upload_dir(Path(local_dir), remote_dir))

    def download_file(self, remote_path: str, local_path: str) -> dict[str, Any]:
        """Copy a file out of the sandbox: {"success": True, "bytes": n} or {"success": False, "error": …}."""
        return self._wait(self._download(remote_path, Path(local_path)))

    def download_dir(self, remote_dir: str, local_dir: str) -> list[dict[str, Any]]:
        """Copy every regular file below a directory out of the sandbox; symbolic links are left behind.

        Nothing is written outside `local_dir`, whatever the names in the sandbox are.
        """
        return self._wait(self._download_dir(remote_dir, Path(local_dir)))

    def web_search(self, query: str) -> dict[str, Any]:
        """What the agent's web_search would find: {"results": [{"title", "url", "text"}]} or {"error"}."""
        return self._service_tool("web", "web_search", {"query": query})

    def web_extract(self, urls: list[str]) -> dict[str, Any]:
        """Pages as text: {"results": [{"url", "title", "content"} or {"url", "error"}]}."""
        return self._service_tool("web", "web_extract", {"urls": urls})

    def browser_navigate(self, url: str) -> dict[str, Any]:
        """Open a page in the rollout's own browser, with its cookies: {"url", "title", "status"} or {"error"}."""
        return self._service_tool("browser", "browser_navigate", {"url": url})

    def browser_snapshot(self) -> dict[str, Any]:
        """The page the agent left open: {"url", "title", "snapshot"} or {"error"}."""
        return self._service_tool("browser", "browser_snapshot", {})

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call any tool by name; its answer as the JSON text the agent would see."""
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
        """Judge the rollout in a fresh sandbox that the policy never touched, and give what the command left there.

        `artifacts` are files or directories of the rollout's sandbox; they arrive below `artifacts/` of the new
        workspace (also `$ARTIFACTS`) with their names. `files` are the tests: text, bytes or a local path, by their
        place in the workspace, where `command` runs. The image is the rollout's own unless another is named.
        """
        work = verify(self._session, command, files=files, artifacts=artifacts, image=image, timeout=timeout)
        return self._wait(work)

    def cleanup(self) -> None:
        """Close the rollout's sandbox. The environment does this too, so forgetting it leaks nothing."""
        self._wait(self._host.close_session(self.task_id))

    def _tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = jsontext.loads(self.call_tool(name, arguments))
        return answer

    def _service_tool(self, toolset: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if toolset not in self._host.toolsets:
            raise ConfigError(
                f"ctx.{name} needs the toolset {toolset}, which this environment has not opened; add it to "
                "enabled_toolsets, or to default_toolsets of the class"
            )
        return self._tool(name, arguments)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return wait(work, self._loop)

    async def _ready(self) -> ToolSession:
        await self._session.end_policy()
        return self._session

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return (await (await self._ready()).call(name, arguments)).text

    async def _read(self, path: str) -> dict[str, Any]:
        sandbox = await (await self._ready()).sandbox()
        try:
            return {"content": await read_text(sandbox, path)}
        except ToolUseError as error:
            return {"error": str(error)}

    async def _upload(self, local: Path, remote: str) -> dict[str, Any]:
        sandbox = await (await self._ready()).sandbox()
        return {"success": True, "bytes": await sandbox.upload(local, in_sandbox(sandbox, remote))}

    async def _upload_dir(self, local: Path, remote: str) -> list[dict[str, Any]]:
        return [
            await self._upload(path, str(PurePosixPath(remote, *path.relative_to(local).parts)))
            for path in _files_below(local)
        ]

    async def _download(self, remote: str, local: Path, max_bytes: int = MAX_DOWNLOAD_BYTES) -> dict[str, Any]:
        sandbox = await (await self._ready()).sandbox()
        try:
            size = await sandbox.download(in_sandbox(sandbox, remote), local, max_bytes=max_bytes)
        except OSError as error:
            return {"success": False, "error": str(error)}
        return {"success": True, "bytes": size}

    async def _download_dir(self, remote: str, local: Path) -> list[dict[str, Any]]:
        sandbox = await (await self._ready()).sandbox()
        listing = await sandbox.exec(
            "find . -type f -print0", cwd=in_sandbox(sandbox, remote), env=OUR_ENV, timeout=LISTING_TIMEOUT
        )
        names = [name.decode(errors="surrogateescape") for name in listing.stdout.split(b"\0") if name]
        fetched: list[dict[str, Any]] = []
        left = MAX_DOWNLOAD_BYTES
        for name in sorted(names):
            # A policy that is root of its sandbox can put a `find` of its own there.
            if name.startswith("/") or ".." in PurePosixPath(name).parts:
                fetched.append({"success": False, "error": f"the name {name!r} leads out of {remote}"})
                continue
            fetched.append(await self._download(f"{remote}/{name}", local / name, left))
            left -= fetched[-1].get("bytes", 0)
        return fetched


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
