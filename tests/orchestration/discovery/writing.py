"""Folders of environments to be discovered, written as an author would."""

from pathlib import Path
from textwrap import dedent

METHODS = """
    def format_prompt(self, item):
        return item
    async def compute_reward(self, item, result, ctx):
        return 1.0
"""


def written(folder: Path, files: dict[str, str]) -> Path:
    """Write files by their paths in the folder; METHODS in a text stands for the two methods all must have."""
    for place, text in files.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).replace("    METHODS\n", METHODS.removeprefix("\n")))
    return folder
