"""The `file` toolset: reading, writing, patching and searching inside the rollout's sandbox."""

import shlex
from typing import Any, Literal

from hermes_rl.sandbox.protocol import DEFAULT_MAX_OUTPUT, Sandbox
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import ToolUseError, tool
from hermes_rl.tools.toolset import Toolset

LINE_SHOWN = 2_000
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
    chosen = lines[first - 1 : first - 1 + max(1, limit)]
    return {
        "content": "\n".join(f"{number}|{line_shown(line)}" for number, line in enumerate(chosen, first)),
        "total_lines": len(lines),
        "truncated": len(chosen) < len(lines),
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
    # In bytes, so that what is not replaced stays as it was, whatever its encoding.
    old, new = old_string.encode("utf-8", "replace"), new_string.encode("utf-8", "replace")
    found = data.count(old) if old else 0
    if found == 0:
        raise ToolUseError(f"old_string does not occur in {path}; read the file and copy the text exactly")
    if found > 1 and not replace_all:
        raise ToolUseError(f"old_string occurs {found} times in {path}; give more of its surroundings or replace_all")
    await write_bytes(sandbox, path, data.replace(old, new))
    return {"path": path, "replacements": found}


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
    where = shlex.quote(in_sandbox(sandbox, path))
    wanted = max(1, limit)
    if target == "files":
        command = f"find {where} -name {shlex.quote(pattern)} -not -path '*/.git/*'"
    else:
        include = f"--include={shlex.quote(file_glob)} " if file_glob else ""
        # Models write \d and lazy quantifiers, which only Perl's syntax knows; a grep without it falls back.
        kind = "$(grep -qP . /dev/null 2>/dev/null; [ $? -lt 2 ] && echo P || echo E)"
        command = f"grep -rnHI{kind} --exclude-dir=.git {include}-e {shlex.quote(pattern)} -- {where}"
    result = await sandbox.exec(f"set -o pipefail; {command} | head -n {wanted + 1}", timeout=SEARCH_TIMEOUT)
    problem = result.stderr.decode(errors="replace").strip()
    if result.timed_out:
        raise ToolUseError(f"the search took over {SEARCH_TIMEOUT:.0f} s; look in a smaller path")
    # Not splitlines, which also breaks a line at a form feed or a lone carriage return.
    lines = [line.rstrip("\r") for line in result.stdout.decode(errors="replace").split("\n") if line]
    if not lines and problem:
        raise ToolUseError(problem)
    return {
        "matches": [line_shown(line) for line in lines[:wanted]],
        "total": min(len(lines), wanted),
        "truncated": len(lines) > wanted,
    }


FILE = Toolset("file", (read_file, write_file, patch, search_files))


async def read_text(sandbox: Sandbox, path: str) -> str:
    """The text of a file; ToolUseError for what the model can mend."""
    return (await read_bytes(sandbox, path)).decode(errors="replace")


async def read_bytes(sandbox: Sandbox, path: str) -> bytes:
    """The bytes of a file that is text as far as one can tell; ToolUseError for any other."""
    data = await read_any(sandbox, path)
    if b"\0" in data[:8192]:
        raise ToolUseError(f"{path} is a binary file of {len(data)} bytes")
    return data


async def read_any(sandbox: Sandbox, path: str, max_bytes: int = DEFAULT_MAX_OUTPUT) -> bytes:
    """The bytes of any file; ToolUseError for what the model can mend."""
    try:
        return await sandbox.read(in_sandbox(sandbox, path), max_bytes=max_bytes)
    except FileNotFoundError:
        raise ToolUseError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise ToolUseError(f"{path} is a directory") from None
    except OSError as error:
        raise ToolUseError(str(error)) from None


async def write_bytes(sandbox: Sandbox, path: str, data: bytes) -> None:
    try:
        await sandbox.write(in_sandbox(sandbox, path), data)
    except OSError as error:
        raise ToolUseError(str(error)) from None


def line_shown(line: str) -> str:
    """The line, or the beginning of a very long one and how much was left out."""
    return line if len(line) <= LINE_SHOWN else f"{line[:LINE_SHOWN]}… {len(line) - LINE_SHOWN} characters left out"


def in_sandbox(sandbox: Sandbox, path: str) -> str:
    """The path with `~` as the sandbox's home; relative ones start in the workspace."""
    if path in (".", "~"):
        return sandbox.workspace
    if path.startswith("~/"):
        return sandbox.workspace + path[1:]
    return path if path.startswith("/") else f"{sandbox.workspace}/{path.removeprefix('./')}"
