"""One rule for regular expressions, because Debian 12 has Python 3.11.2."""

import re
from pathlib import Path

import hermes_rl

POSSESSIVE_GROUP = re.compile(r"\)(?:[*+?]|\{[\d,]+\})\+(?!=)")


def test_no_group_is_possessive() -> None:
    """Python before 3.11.5 gets some of them wrong (gh-106052); a possessive set of characters is safe."""
    sources = Path(hermes_rl.__file__).parent.rglob("*.py")
    found = [
        f"{file}:{number}"
        for file in sources
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if POSSESSIVE_GROUP.search(line) and not line.lstrip().startswith("#")
    ]
    assert not found
