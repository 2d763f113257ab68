"""Refuse what does not belong in the repository: a file over 1 MB, a binary file outside docs/images and data folders.

Looks at every file that git tracks or would add. Exit status 1 with a line for each.
"""

import sys
from pathlib import Path

from scripts.suites.closure import Checkout

ROOT = Path(__file__).parent.parent
MAX_BYTES = 1_000_000
BINARIES_ALLOWED = ("docs/images/", "environments/data/")


def problems(root: Path = ROOT) -> list[str]:
    found = []
    for path in sorted(Checkout(root).files):
        content = (root / path).read_bytes()
        if len(content) > MAX_BYTES:
            found.append(f"{path}: {len(content) / 1e6:.1f} MB, over 1 MB; remove it or have a script make it")
        elif b"\0" in content[:8000] and not path.startswith(BINARIES_ALLOWED):
            found.append(
                f"{path}: a binary file; these belong in {', '.join(BINARIES_ALLOWED)} or outside the repository"
            )
    return found


if __name__ == "__main__":
    found = problems()
    for line in found:
        print(line)
    sys.exit(1 if found else 0)
