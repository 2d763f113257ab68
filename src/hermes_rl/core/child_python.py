"""Command lines of the Python interpreters that we start.

Always true: such an interpreter imports nothing from the current folder, where any file may be named like a module.
"""

import sys
from pathlib import Path


def python_command(*arguments: str, python: str | Path = sys.executable, isolated: bool = False) -> list[str]:
    """This interpreter, or `python`, with these arguments; by default it keeps PYTHONPATH and the user's packages.

    `isolated` ignores those too, as is right for an environment of its own. `-P` needs Python 3.11, isolation does not.
    """
    return [str(python), "-I" if isolated else "-P", *arguments]
