"""One HTML file with the front end and the API responses it needs.

Always true: no response can close its script element, since none contains a `<`; the page runs only the script with the
hash in its policy, and makes no network requests. The file is complete or absent.
"""

import base64
import hashlib
import html
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.private_files import open_private

STATIC = Path(__file__).parents[1] / "static"
# The charset and the policy come first: they do not apply to anything before them.
HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<link rel="icon" href="data:image/svg+xml;base64,{icon}">
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript>This report needs JavaScript. It loads nothing from anywhere.</noscript>
<script type="application/json" id="answers">{{"""
FOOT = """}}</script>
<script type="module">{script}</script>
</body>
</html>
"""


class ReportPage:
    """A page being written; `size` is its size so far, including the end of the file."""

    def __init__(self, file: BinaryIO, title: str) -> None:
        script, style, icon = _front_end_files()
        self._file = file
        self._foot = FOOT.format(script=script).encode()
        self._first = True
        head = HEAD.format(
            policy=_policy(script, style), title=html.escape(_printable(title)), icon=icon, style=style
        ).encode()
        self.size = len(self._foot) + file.write(head)

    def add(self, *pieces: bytes) -> None:
        """Add results of `json_member`."""
        for piece in pieces:
            self.size += self._file.write(piece if self._first else b",\n" + piece)
            self._first = False

    def end(self) -> None:
        self._file.write(self._foot)


@contextmanager
def open_page(path: Path, title: str, *, private: bool = False) -> Iterator[ReportPage]:
    """A page that replaces the file at `path` when the block succeeds; only the owner can read a `private` one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb", opener=open_private if private else None) as file:
            page = ReportPage(file, title)
            yield page
            page.end()
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def json_member(path: str, value: Any) -> bytes:
    """One API response, as a member of the page's JSON object."""
    return (fast_json.dumps(path) + b":" + fast_json.dumps(value)).replace(b"<", rb"\u003c")


def _front_end_files() -> tuple[str, str, str]:
    """The script and stylesheet escaped for inlining, and the icon as base64."""
    try:
        script, style = ((STATIC / name).read_text(encoding="utf-8") for name in ("app.js", "app.css"))
        icon = base64.b64encode((STATIC / "favicon.svg").read_bytes()).decode()
    except OSError as error:
        raise ConfigError(f"the pages are not built ({error}); run scripts/front, or install the wheel") from error
    for opening in ("</script", "</SCRIPT", "<!--", "<script"):
        script = script.replace(opening, rf"\x3c{opening[1:]}")
    return script, style.replace("</", r"<\/"), icon


def _policy(script: str, style: str) -> str:
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _printable(title: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in title)
