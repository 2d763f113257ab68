"""What an index and a user read of a distribution, held to what the checkout says.

Always true: nothing is installed to find out; the wheel and the source distribution are asked the same questions.
"""

import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from email.message import Message
from importlib import import_module
from pathlib import Path
from typing import Any

# The finder of the seeds' module names, which Python loads from beside the packages.
IMPORT_NAMES = ("_hermes_rl_imports.py", "_hermes_rl_imports.pth")
SHOWN = ("README.md", "LICENSE", "SECURITY.md", "CHANGELOG.md")


def problems(sdist: Path, wheel: Path, root: Path) -> list[str]:
    """All that is wrong with the two; empty when nothing is."""
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    version = _version(root)
    found = []
    with tarfile.open(sdist) as archive:
        top = f"{project['name'].replace('-', '_')}-{version}"
        names = set(archive.getnames())
        found += [f"the source distribution has no {name}" for name in SHOWN if f"{top}/{name}" not in names]
        described = archive.extractfile(f"{top}/PKG-INFO")
        found += [f"sdist: {one}" for one in _of(described.read() if described else b"", project, version, root)]
    with zipfile.ZipFile(wheel) as archive_of_wheel:
        info = f"{project['name'].replace('-', '_')}-{version}.dist-info"
        inside = set(archive_of_wheel.namelist())
        if f"{info}/licenses/LICENSE" not in inside:
            found.append("the wheel has no LICENSE")
        stray = {name.split("/")[0] for name in inside} - {"hermes_rl", *IMPORT_NAMES, info}
        found += [f"the wheel has no {name}" for name in IMPORT_NAMES if name not in inside]
        found += [f"the wheel would install {name} beside hermes_rl" for name in sorted(stray)]
        found += [f"wheel: {one}" for one in _of(archive_of_wheel.read(f"{info}/METADATA"), project, version, root)]
    return found


def _of(data: bytes, project: dict[str, Any], version: str, root: Path) -> list[str]:
    told = message_from_bytes(data)
    readme = (root / "README.md").read_text()
    render: Callable[[str], str] = import_module("markdown").markdown
    needed: list[tuple[str, Callable[[Message], bool]]] = [
        (f"its name is not {project['name']}", lambda m: m["Name"] == project["name"]),
        (f"its version is {told['Version']}, and version.py says {version}", lambda m: m["Version"] == version),
        ("it names no licence", lambda m: m["License-Expression"] == project["license"]),
        ("it does not name its licence's file", lambda m: m.get_all("License-File") == project["license-files"]),
        ("it does not say which Python it needs", lambda m: m["Requires-Python"] == project["requires-python"]),
        ("it has no summary", lambda m: m["Summary"] == project["description"]),
        ("README is not its description", lambda m: _payload(m).strip() == readme.strip()),
        ("its description is not said to be Markdown", lambda m: m["Description-Content-Type"] == "text/markdown"),
        ("README renders to nothing", lambda m: "<h1" in render(_payload(m))),
        (
            "its extras are not those of pyproject.toml",
            lambda m: set(m.get_all("Provides-Extra") or []) == set(project["optional-dependencies"]),
        ),
        # An index refuses these.
        ("it needs a package by its address", lambda m: not any("@" in one for one in m.get_all("Requires-Dist", []))),
    ]
    return [problem for problem, holds in needed if not holds(told)]


def _payload(told: Message) -> str:
    payload = told.get_payload(decode=True)
    return payload.decode() if isinstance(payload, bytes) else ""


def _version(root: Path) -> str:
    said: dict[str, str] = {}
    exec((root / "src" / "hermes_rl" / "version.py").read_text(), said)  # noqa: S102 - our own file, without importing the rest
    return said["__version__"]
