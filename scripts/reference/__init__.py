"""The reference pages, made from the code itself: every command and flag, setting, preset and public name.

Always true: the same code gives the same pages; none of them is kept in the repository. scripts/docs_hook.py puts them
into the site while it is built; `python -m scripts.reference FOLDER` writes them there to look at.
"""

from .commands import commands, commands_page
from .names import docstring, members, public_names, python_page
from .settings import presets_page, settings_page

__all__ = ["commands", "docstring", "members", "pages", "public_names"]


def pages() -> dict[str, str]:
    """By their path below docs/."""
    return {
        "reference/commands.md": commands_page(),
        "reference/settings.md": settings_page(),
        "reference/presets.md": presets_page(),
        "reference/python.md": python_page(),
    }
