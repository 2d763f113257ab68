"""Where tasks come from: a folder, a task's own folder, a git repository, an entry of a registry.json, or the hub.

Repositories are cloned once for each commit asked for, below our home. Nothing is fetched for a folder.
"""

import asyncio
import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import rl_home
from hermes_rl.core.private_files import private_folder
from hermes_rl.interop.harbor.hub import newest, read_hub_dataset, read_registry
from hermes_rl.interop.harbor.task import Task

CLONE_TIMEOUT = 600.0
HUB = "hub:"
_GIT = re.compile(r"(?P<url>git\+[^#@]+(?:@[^/#@]+[:/][^#@]+)?|[^#@]+\.git)(?:@(?P<ref>[^#]+))?(?:#(?P<folder>.+))?")


@dataclass(frozen=True, slots=True)
class Source:
    """Folders to search for tasks, or task folders themselves."""

    name: str
    folders: tuple[Path, ...]


async def dataset_source(text: str) -> Source:
    """`FOLDER`, `git+URL[@REF][#FOLDER]`, `registry.json#NAME[@VERSION]` or `hub:NAME[@VERSION]`.

    ConfigError when it cannot be had.
    """
    if match := _GIT.fullmatch(text):
        root = await _checkout(match["url"].removeprefix("git+"), match["ref"])
        return Source(text, (_inside(root, match["folder"]) if match["folder"] else _tasks_of(root),))
    if text.startswith(HUB):
        name, _, version = text.removeprefix(HUB).partition("@")
        return Source(text, await _tasks_in(await read_hub_dataset(name, version), text))
    registry, _, entry = text.partition("#")
    if entry and registry.endswith(".json"):
        return Source(text, await _registered(registry, entry))
    return Source(text, (Path(text),))


def load_tasks(source: Source, names: Sequence[str] | None, variables: Mapping[str, str]) -> list[Task]:
    """The tasks below a source's folders; ConfigError when there is none or one is not there."""
    found = [path for folder in source.folders for path in _task_folders(folder)]
    tasks = {path.name: Task(path, variables) for path in found}
    where = f"--env.dataset_name {source.name}"
    if len(tasks) < len(found):
        raise ConfigError(f"{where}: two tasks have the same folder name; rename one")
    missing = [name for name in names or () if name not in tasks]
    if not tasks or missing:
        what = f"no task {', '.join(missing)}" if missing else "no folder with a task.toml"
        raise ConfigError(f"{where}: {what}; there is: {', '.join(tasks) or 'nothing'}")
    return [tasks[name] for name in names or tasks]


def _task_folders(folder: Path) -> list[Path]:
    if (folder / "task.toml").exists():
        return [folder]
    return sorted(path.parent for path in folder.rglob("task.toml") if ".git" not in path.parts)


def _tasks_of(root: Path) -> Path:
    """Harbor looks below tasks/ of a repository."""
    return root / "tasks" if (root / "tasks").is_dir() else root


def _inside(root: Path, folder: str) -> Path:
    found = (root / folder).resolve()
    if not found.is_relative_to(root.resolve()) or not found.is_dir():
        raise ConfigError(f"there is no folder {folder} in the repository")
    return found


async def _registered(registry: str, entry: str) -> tuple[Path, ...]:
    name, _, version = entry.partition("@")
    remote = registry.startswith(("http://", "https://"))
    try:
        datasets: list[dict[str, Any]] = await read_registry(registry) if remote else json.loads(_text(registry))
        versions = {str(one.get("version", "")): one for one in datasets if one["name"] == name}
        version = version or newest(list(versions))
        if version not in versions:
            known = ", ".join(f"{one['name']}@{one.get('version', '')}" for one in datasets)
            raise ConfigError(f"{registry} has no dataset {entry}; it has: {known or 'none'}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{registry} is not a Harbor registry: {type(error).__name__}: {error}") from None
    return await _tasks_in(versions[version], registry, None if remote else Path(registry).parent)


def _text(path: str) -> str:
    return Path(path).read_text()


async def _tasks_in(dataset: Mapping[str, Any], source: str, local: Path | None = None) -> tuple[Path, ...]:
    """The folders of a dataset's tasks; those without a repository are below `local`."""
    folders: list[Path] = []
    for task in dataset.get("tasks", ()):
        if not isinstance(task, Mapping) or not task.get("path"):
            raise ConfigError(f"{source} is not a Harbor registry: a task has no path")
        path, url = str(task["path"]), task.get("git_url")
        if url:
            folders.append(_inside(await _checkout(str(url), task.get("git_commit_id")), path))
        elif local is not None:
            folders.append(local / path)
        else:
            raise ConfigError(f"{source}: the task {path} has no repository to fetch it from")
    return tuple(folders)


async def _checkout(url: str, ref: str | None) -> Path:
    """A clone of a repository at a commit, branch or tag; made once, unless no commit is named."""
    if url.startswith("-") or (ref or "").startswith("-"):
        raise ConfigError(f"{url}@{ref} is not a repository")
    key = hashlib.sha256(f"{url}@{ref}".encode()).hexdigest()[:24]
    target = rl_home() / "harbor" / key
    fixed = ref is not None and re.fullmatch(r"[0-9a-f]{40}", ref) is not None
    if target.is_dir() and fixed:
        return target
    part = target.with_name(f"{key}.part")
    await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)
    private_folder(part.parent)
    await _git("clone", "--quiet", "--no-checkout", "--", url, str(part))
    await _git("-C", str(part), "checkout", "--quiet", "--detach", ref or "HEAD")
    await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)
    part.rename(target)
    return target


async def _git(*arguments: str) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            "git",
            "-c",
            "core.hooksPath=/dev/null",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except FileNotFoundError:
        raise ConfigError("a repository needs the program git: install it, or clone it yourself") from None
    try:
        async with asyncio.timeout(CLONE_TIMEOUT):
            _, said = await process.communicate()
    except TimeoutError:
        raise ConfigError(f"git {arguments[0]} took over {CLONE_TIMEOUT:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise ConfigError(f"git {' '.join(arguments)} failed: {said.decode(errors='replace').strip()[-500:]}")
