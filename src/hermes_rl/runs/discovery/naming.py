"""Names that differ: what each environment is called when several would be called the same.

Always true: a bundled environment keeps its name, so that no file can stand in its place unseen; names have no
character that a path, an id or a reference gives a meaning to.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hermes_rl.runs.discovery.found import Found, Source
from hermes_rl.shipped import SUFFIX


def plain_name(file: Path, label: str | None) -> str:
    """The class's `name`, else that of its file without `_env`."""
    stem = file.parent.name if file.stem == "__init__" else file.stem
    name = re.sub(r"[^\w.-]+", "_", label or "").strip("._-")
    return name or stem.removesuffix(SUFFIX) or stem


def distinct(found: list[Found]) -> tuple[list[Found], list[str]]:
    """With names that differ, and a note for each name that several had."""
    shared = {name for name, count in Counter(one.name for one in found).items() if count > 1}
    renamed: list[Found] = []
    notes: list[str] = []
    taken = {one.name for one in found if one.name not in shared}
    for name in sorted(shared):
        same = [one for one in found if one.name == name]
        keeper = next((one for one in same if one.source is Source.BUNDLED), None)
        others = [one for one in same if one is not keeper]
        new = _told_apart(others, taken)
        taken.update([name, *(one.name for one in new)])
        renamed += new if keeper is None else [keeper, *new]
        told = ", ".join(f"{after.name} ({after.reference})" for after in new)
        owner = "" if keeper is None else "; the bundled one keeps it"
        notes.append(
            f"{len(same)} environments are named {name!r}{owner}: listed as {told}; give each a `name` of its own"
        )
    return [one for one in found if one.name not in shared] + renamed, notes


def _told_apart(same: list[Found], taken: set[str]) -> list[Found]:
    """By class, else by class and file, else by folder too, else by number; the first that makes them differ."""
    ways: list[Callable[[Found], str]] = [
        lambda one: f"{one.name}.{one.class_name}",
        lambda one: f"{one.name}.{one.file.stem}.{one.class_name}",
        lambda one: f"{one.name}.{one.file.parent.name}.{one.file.stem}.{one.class_name}",
    ]
    for way in ways:
        names = [re.sub(r"[^\w.-]+", "_", way(one)) for one in same]
        if len(set(names)) == len(names) and not taken & set(names):
            return [replace(one, name=name) for one, name in zip(same, names, strict=True)]
    ordered = sorted(same, key=lambda one: one.reference)
    numbered = []
    for one in ordered:
        number = 2
        while f"{one.name}.{number}" in taken:
            number += 1
        taken.add(f"{one.name}.{number}")
        numbered.append(replace(one, name=f"{one.name}.{number}"))
    return numbered
