"""One HTML file that is the front end, and the answers it would ask a server for.

Always true: no byte of an answer can end the element it stands in, since none of them is a `<`; the page runs the one
script whose hash it names, and reaches no other address. The file is there whole or not at all.
"""

import base64
import hashlib
import html
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError

STATIC = Path(__file__).parents[1] / "static"
# The policy and the charset come first: what stands before them is not held to them.
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


class Page:
    """A page that is being written; `size` is what it has so far, with all that is written at its end."""

    def __init__(self, file: BinaryIO, title: str) -> None:
        script, style, icon = _front()
        self._file = file
        self._foot = FOOT.format(script=script).encode()
        self._first = True
        head = HEAD.format(
            policy=_policy(script, style), title=html.escape(_plain(title)), icon=icon, style=style
        ).encode()
        self.size = len(self._foot) + file.write(head)

    def add(self, *pieces: bytes) -> None:
        """Pieces that `answer` gave."""
        for piece in pieces:
            self.size += self._file.write(piece if self._first else b",\n" + piece)
            self._first = False

    def end(self) -> None:
        self._file.write(self._foot)


@contextmanager
def writing(path: Path, title: str) -> Iterator[Page]:
    """A page that takes its place when the body has ended well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            page = Page(file, title)
            yield page
            page.end()
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def answer(path: str, value: Any) -> bytes:
    """One member of the object of answers."""
    return (jsontext.dumps(path) + b":" + jsontext.dumps(value)).replace(b"<", rb"\u003c")


def _front() -> tuple[str, str, str]:
    """The script and the stylesheet as they can stand inside a page, and the icon as base64."""
    try:
        script, style = ((STATIC / name).read_text(encoding="utf-8") for name in ("app.js", "app.css"))
        icon = base64.b64encode((STATIC / "favicon.svg").read_bytes()).decode()
    except OSError as error:
        raise ConfigError(
            f"the viewer's pages are not here ({error}): run scripts/front, or install the wheel"
        ) from error
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


def _plain(title: str) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in title)
