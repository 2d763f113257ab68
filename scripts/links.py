#!/usr/bin/env python
"""Every link of the repository's Markdown, checked without a network: README, docs, skills and the rest.

scripts/links.py    prints what is broken, a line each; exit status 1 when something is

A link to a file must lead to one, an anchor to a heading of it, and a path in backticks that begins like one of ours
(as `tests/…`, `benchmarks/…`) to something that is there. Of other hosts only the form of the address is looked at.
"""

import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"(?ms)^( *)(```|~~~).*?^\1\2[ \t]*$")
LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^()\s>]+(?:\([^()]*\))?)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"(?m)^#{1,6} +(.+?) *#*$")
OURS = re.compile(r"`((?:tests|benchmarks|scripts|examples|environments|constraints|skills)/[\w./-]*)(?:::\w+)?`")
# Of a task of Harbor's, not of ours.
THEIRS = {"tests/test.sh", "tests/run/run.sh"}
HOST = re.compile(r"[A-Za-z0-9.-]+(:\d+)?$")


def broken(root: Path = ROOT) -> list[str]:
    """What is wrong, as `FILE: LINK: why`."""
    return [f"{page.relative_to(root)}: {what}" for page in pages(root) for what in _broken_in(page, root)]


def pages(root: Path) -> list[Path]:
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=root, text=True)
    return [
        root / name for name in sorted(listed.split("\n")) if name and "fixtures/" not in name and "/data/" not in name
    ]


def _broken_in(page: Path, root: Path) -> Iterator[str]:
    text = FENCE.sub("", page.read_text())
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
        if why := _fault(link, page, root):
            yield f"{link}: {why}"
    for path in OURS.findall(text):
        if path not in THEIRS and not (root / path).exists():
            yield f"{path}: there is no such file"


def _fault(link: str, page: Path, root: Path) -> str | None:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        known = parts.scheme in {"http", "https"} and HOST.match(parts.netloc)
        return None if known or (parts.scheme == "mailto" and "@" in parts.path) else "no address of the web"
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_relative_to(root):
        return "leads out of the repository"
    docs = root / "docs"
    made = generated().get(target.relative_to(docs).as_posix()) if target.is_relative_to(docs) else None
    if not target.exists() and made is None:
        return "there is no such file"
    headed = not parts.fragment or target.suffix != ".md" or parts.fragment in _anchors(made or target.read_text())
    return None if headed else "it has no such heading"


@cache
def generated() -> dict[str, str]:
    """The pages of the reference, which stand in no folder."""
    from scripts.reference import pages as reference

    return reference()


@cache
def _anchors(text: str) -> frozenset[str]:
    """Those that mkdocs gives the headings of a page."""
    found: list[str] = []
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())
        again = sum(one == slug or re.fullmatch(rf"{re.escape(slug)}_\d+", one) is not None for one in found)
        found.append(f"{slug}_{again}" if again else slug)
    return frozenset(found)


if __name__ == "__main__":
    faults = broken()
    print("\n".join(faults) or "every link leads somewhere")
    sys.exit(1 if faults else 0)
