"""Find and read Harbor task folders for the checks that need no rollout. Reads only; runs nothing of a task."""

import hashlib
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

from hermes_rl.validation.audit.evidence import HarborFiles

MAX_TEXT_BYTES = 256 * 1024


def is_harbor_dataset(folder: Path) -> bool:
    """Whether the folder is a Harbor task or has tasks below it."""
    return folder.is_dir() and bool(find_tasks(folder))


def find_tasks(folder: Path) -> dict[str, Path]:
    """The task folders by name."""
    found = [folder] if (folder / "task.toml").is_file() else sorted(path.parent for path in folder.rglob("task.toml"))
    return {path.resolve().name: path for path in found}


def read_task(folder: Path) -> HarborFiles:
    """The texts of a task; a part that is missing or is not text is left out."""
    settings = _text(folder / "task.toml")
    environment = _texts(folder / "environment")
    return HarborFiles(
        instruction=_text(folder / "instruction.md"),
        tests=_texts(folder / "tests"),
        environment=environment,
        solution=_texts(folder / "solution"),
        settings=settings,
        variables={**_docker_variables(environment.get("Dockerfile", "")), **_toml_variables(settings)},
    )


def folder_digest(folder: Path) -> str:
    """SHA-256 of the paths and contents of all files below a folder."""
    content = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content.update(hashlib.sha256(path.read_bytes()).digest() + bytes(path.relative_to(folder)) + b"\0")
    return content.hexdigest()


def _texts(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size <= MAX_TEXT_BYTES)
    return {str(path.relative_to(folder)): _text(path) for path in files}


def _text(path: Path) -> str:
    return path.read_bytes()[:MAX_TEXT_BYTES].decode(errors="replace") if path.is_file() else ""


def _toml_variables(text: str) -> dict[str, str]:
    try:
        settings: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}
    environment = settings.get("environment")
    given = environment.get("env") if isinstance(environment, dict) else None
    return {str(name): str(value) for name, value in given.items()} if isinstance(given, dict) else {}


def _docker_variables(dockerfile: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in re.findall(r"^\s*ENV\s+(.+)$", dockerfile.replace("\\\n", " "), re.MULTILINE | re.IGNORECASE):
        try:
            words = shlex.split(line)
        except ValueError:
            continue
        if words and "=" not in words[0]:
            words = [f"{words[0]}={' '.join(words[1:])}"]
        found |= dict(word.split("=", 1) for word in words if "=" in word)
    return found
