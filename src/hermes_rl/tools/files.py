"""The `file` toolset: reading, writing, patching and searching inside the rollout's sandbox."""

import shlex
from typing import Any, Literal

from hermes_rl.sandbox.protocol import DEFAULT_MAX_OUTPUT, Sandbox
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import ToolUseError, tool
from hermes_rl.tools.toolset import Toolset

MAX_LINE_CHARS = 2_000
SEARCH_TIMEOUT = 60.0


@tool
async def read_file(session: ToolSession, path: str, offset: int = 1, limit: int = 500) -> dict[str, Any]:
    """Read a text file, with line numbers.

    Args:
        path: The file; relative paths start in the workspace.
        offset: The first line to show, counted from 1.
        limit: How many lines to show.
    """
    lines = (await read_text(await session.sandbox(), path)).split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    first = max(1, offset)
    selected = lines[first - 1 : first - 1 + max(1, limit)]
    return {
        "content": "\n".join(f"{number}|{truncate_line(line)}" for number, line in enumerate(selected, first)),
        "total_lines": len(lines),
        "truncated": len(selected) < len(lines),
    }


@tool
async def write_file(session: ToolSession, path: str, content: str) -> dict[str, Any]:
    """Create a file or replace its whole content; parent directories are made.

    Args:
        path: The file; relative paths start in the workspace.
        content: The new content.
    """
    data = content.encode("utf-8", "replace")
    await write_bytes(await session.sandbox(), path, data)
    return {"path": path, "bytes_written": len(data)}


@tool
async def patch(
    session: ToolSession, path: str, old_string: str, new_string: str, replace_all: bool = False
) -> dict[str, Any]:
    """Replace a piece of text in a file.

    Args:
        path: The file to change.
        old_string: The exact text to replace; it must occur once, or replace_all must be true.
        new_string: What to put in its place.
        replace_all: Replace every occurrence.
    """
    sandbox = await session.sandbox()
    data = await read_bytes(sandbox, path)
    # In bytes, so that the rest of the file is unchanged whatever its encoding.
    old, new = old_string.encode("utf-8", "replace"), new_string.encode("utf-8", "replace")
    count = data.count(old) if old else 0
    if count == 0:
        raise ToolUseError(f"old_string does not occur in {path}; read the file and copy the text exactly")
    if count > 1 and not replace_all:
        raise ToolUseError(f"old_string occurs {count} times in {path}; give more of its surroundings or replace_all")
    await write_bytes(sandbox, path, data.replace(old, new))
    return {"path": path, "replacements": count}


@tool
async def search_files(
    session: ToolSession,
    pattern: str,
    path: str = ".",
    target: Literal["content", "files"] = "content",
    file_glob: str | None = None,
    limit: int = 50,
) -> dict[str, Any]:
    """Search in the contents of files, or for files by name.

    Args:
        pattern: A regular expression (Perl syntax) for content; a shell pattern such as *.py for files.
        path: Where to look; a directory is searched whole.
        target: content or files.
        file_glob: Only look into files whose name matches this shell pattern.
        limit: How many matches to return.
    """
    sandbox = await session.sandbox()
    location = shlex.quote(sandbox_path(sandbox, path))
    max_matches = max(1, limit)
    if target == "files":
        command = f"find {location} -name {shlex.quote(pattern)} -not -path '*/.git/*'"
    else:
        include = f"--include={shlex.quote(file_glob)} " if file_glob else ""
        # Models write \d and lazy quantifiers, which need Perl syntax; a grep without it falls back to -E.
        grep_mode = "$(grep -qP . /dev/null 2>/dev/null; [ $? -lt 2 ] && echo P || echo E)"
        command = f"grep -rnHI{grep_mode} --exclude-dir=.git {include}-e {shlex.quote(pattern)} -- {location}"
    result = await sandbox.exec(f"set -o pipefail; {command} | head -n {max_matches + 1}", timeout=SEARCH_TIMEOUT)
    problem = result.stderr.decode(errors="replace").strip()
    if result.timed_out:
        raise ToolUseError(f"the search took over {SEARCH_TIMEOUT:.0f} s; look in a smaller path")
    # Not splitlines, which also splits at form feeds and lone carriage returns.
    lines = [line.rstrip("\r") for line in result.stdout.decode(errors="replace").split("\n") if line]
    if not lines and problem:
        raise ToolUseError(problem)
    return {
        "matches": [truncate_line(line) for line in lines[:max_matches]],
        "total": min(len(lines), max_matches),
        "truncated": len(lines) > max_matches,
    }


FILE = Toolset("file", (read_file, write_file, patch, search_files))


async def read_text(sandbox: Sandbox, path: str) -> str:
    """Read a text file; ToolUseError when the model can fix the problem."""
    return (await read_bytes(sandbox, path)).decode(errors="replace")


async def read_bytes(sandbox: Sandbox, path: str) -> bytes:
    """Read the bytes of a text file; ToolUseError for a binary file."""
    data = await read_any(sandbox, path)
    if b"\0" in data[:8192]:
        raise ToolUseError(f"{path} is a binary file of {len(data)} bytes")
    return data


async def read_any(sandbox: Sandbox, path: str, max_bytes: int = DEFAULT_MAX_OUTPUT) -> bytes:
    """Read the bytes of any file; ToolUseError when the model can fix the problem."""
    try:
        return await sandbox.read(sandbox_path(sandbox, path), max_bytes=max_bytes)
    except FileNotFoundError:
        raise ToolUseError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise ToolUseError(f"{path} is a directory") from None
    except OSError as error:
        raise ToolUseError(str(error)) from None


async def write_bytes(sandbox: Sandbox, path: str, data: bytes) -> None:
    try:
        await sandbox.write(sandbox_path(sandbox, path), data)
    except OSError as error:
        raise ToolUseError(str(error)) from None


def truncate_line(line: str) -> str:
    """The line, truncated with a note if it is very long."""
    return (
        line
        if len(line) <= MAX_LINE_CHARS
        else f"{line[:MAX_LINE_CHARS]}… {len(line) - MAX_LINE_CHARS} characters left out"
    )


def sandbox_path(sandbox: Sandbox, path: str) -> str:
    """The absolute path in the sandbox; `~` and relative paths start in the workspace."""
    if path in (".", "~"):
        return sandbox.workspace
    if path.startswith("~/"):
        return sandbox.workspace + path[1:]
    return path if path.startswith("/") else f"{sandbox.workspace}/{path.removeprefix('./')}"
