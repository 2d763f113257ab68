"""Adds to each pin of a requirements file the hashes of its files, from the index that pip is set to.

    python -m scripts.hashes FILE…            write the hashes of every pin
    python -m scripts.hashes --check FILE…    exit status 1 if a pin has none, or a line names an address

With hashes, pip installs nothing but these files: `--require-hashes` is implied. A file has the wheels for CPython 3.11
to 3.14 on Linux and macOS, and the source archive. Neither the file nor the output names the index.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

DEFAULT_INDEX = "https://pypi.org/simple"
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)")
PYTHONS = range(11, 15)
SYSTEMS = re.compile(r"any|(manylinux|linux|musllinux|macosx).*_(x86_64|aarch64|arm64|universal2)")
MAX_BYTES = 10**6


class Files(HTMLParser):
    """The sha256 of each file on a project's page (PEP 503)."""

    def __init__(self) -> None:
        super().__init__()
        self.hashes: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = urlsplit(dict(attrs).get("href") or "") if tag == "a" else None
        if address is not None and address.fragment.startswith("sha256="):
            name = unquote(address.path.rpartition("/")[2])
            self.hashes[name] = address.fragment.removeprefix("sha256=")


def index() -> str:
    """The index that pip is set to."""
    if address := os.environ.get("PIP_INDEX_URL"):
        return address
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or DEFAULT_INDEX


def read_page(project: str, address: str) -> dict[str, str]:
    name = re.sub(r"[-_.]+", "-", project).lower()
    request = Request(f"{address.rstrip('/')}/{name}/", headers={"Accept": "text/html"})  # noqa: S310 - pip's index
    with urlopen(request, timeout=60) as answer:  # noqa: S310
        page = Files()
        page.feed(answer.read().decode())
    return page.hashes


def is_wanted(file: str, version: str) -> bool:
    """Whether this is a file of the version that a supported Python may install."""
    try:
        if not file.endswith(".whl"):
            return parse_sdist_filename(file)[1] == Version(version)
        _, found, _, tags = parse_wheel_filename(file)
    except (InvalidSdistFilename, InvalidWheelFilename):
        return False
    return found == Version(version) and any(
        SYSTEMS.fullmatch(tag.platform) and _runs(tag.interpreter, tag.abi) for tag in tags
    )


def _runs(interpreter: str, abi: str) -> bool:
    if interpreter.startswith("py"):
        return interpreter.startswith("py3")
    if not interpreter.startswith("cp3"):
        return False
    minor = int(interpreter.removeprefix("cp3") or 0)
    return minor <= max(PYTHONS) if abi == "abi3" else minor in PYTHONS and not abi.endswith("t")


def pinned(lines: list[str], address: str) -> Iterator[str]:
    """The lines, each pin with its hashes, sorted."""
    for line in lines:
        if line.lstrip().startswith("--hash="):
            continue
        pin = PIN.match(line)
        if pin is None:
            yield line
            continue
        project, version = pin.groups()
        found = sorted(sha for file, sha in read_page(project, address).items() if is_wanted(file, version))
        if not found:
            raise SystemExit(f"the index has no file of {project} {version} with a sha256; is the pin right?")
        yield " \\\n".join([line.rstrip(" \\"), *(f"    --hash=sha256:{sha}" for sha in found)])


def problems(path: Path) -> list[str]:
    """What keeps this file from being installed by hash."""
    text = path.read_text()
    joined = text.replace("\\\n", " ").splitlines()
    found = [f"{path}: {line.split()[0]} has no hash" for line in joined if PIN.match(line) and "--hash=" not in line]
    found += [f"{path}: an address or an option: {line[:60]}" for line in joined if re.search(r"://|^-|@ |^/", line)]
    if len(text) >= MAX_BYTES:
        found.append(f"{path}: {len(text)} bytes; the limit is {MAX_BYTES}")
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options.add_argument("--check", action="store_true", help="only report what is missing")
    chosen = options.parse_args()
    if not chosen.check:
        address = index()
        for path in chosen.files:
            lines = list(pinned(path.read_text().splitlines(), address))
            path.write_text("\n".join(lines) + "\n")
            print(f"{path}: {sum(1 for line in lines if PIN.match(line))} pins, {path.stat().st_size // 1024} KB")
    found = [problem for path in chosen.files for problem in problems(path)]
    print("\n".join(found), end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
