"""Recognizes that pip or uv refused a file whose hash is not the recorded one."""

import re

ADVICE = (
    "is not the file that this version of hermes-rl was tested with: its hash differs, so nothing was installed. "
    "Somebody may have tampered with it, or the index builds its own packages. `pip config list` shows the index in use"
)
# pip names the package, then all expected hashes, then the one it got.
_PIP = re.compile(r"^ +(\S+)(?: \(from [^)]*\))? from \S+.*\n(?: +(?:Expected|or) .*\n)* +Got +(\w+)", re.MULTILINE)
_UV = re.compile(r"Hash mismatch for `([^`]+)`(?s:.*?)Computed:\s+sha256:(\w+)")


def mismatch(output: str) -> str | None:
    """What to tell the user; None when the output is about something else."""
    if found := _PIP.search(output) or _UV.search(output):
        package, got = found.groups()
        return f"{package} (sha256 {got}) {ADVICE}"
    return f"a package {ADVICE}" if "DO NOT MATCH THE HASHES" in output else None
