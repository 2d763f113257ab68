"""The public names of the package, from their docstrings.

An attribute's docstring is the text below it, as the code writes it; Python itself does not keep those.
"""

import ast
import enum
import inspect
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import hermes_rl
from hermes_rl.orchestration.presets.preset import SECTIONS

from .markdown import after, paragraphs
from .settings import anchor

HOMES = {
    "environment": "Environments",
    "rollout": "Environments",
    "rewards": "Rewards",
    "agent": "The agent",
    "tools": "Tools",
    "sandbox": "Sandboxes",
    "inference": "Endpoints",
    "core.messages": "Messages",
    "core.trajectory": "Records",
    "core.errors": "Errors",
    "interop.records": "Records",
}
INTRODUCTION = """# Python

The public names: `from hermes_rl import NAME`. Adding or removing one is a decision with a line in the changelog;
everything else may change. `hermes_rl.__version__` is the version as text."""
LINE = 100


def public_names() -> dict[str, list[str]]:
    """What `hermes_rl` exports, by the heading of its home."""
    home_of: dict[str, str] = vars(hermes_rl)["_HOME_OF"]
    found: dict[str, list[str]] = {heading: [] for heading in HOMES.values()}
    for name in sorted(set(hermes_rl.__all__) - {"__version__"}, key=str.lower):
        heading = next(heading for home, heading in HOMES.items() if f"{home_of[name]}.".startswith(f"{home}."))
        found[heading].append(name)
    return found


def python_page() -> str:
    parts = [INTRODUCTION]
    for heading, names in public_names().items():
        parts.append(f"## {heading}")
        for name in names:
            parts += [f"### `{name}`", *_described(name)]
    return "\n\n".join(filter(None, parts)) + "\n"


def docstring(name: str) -> str:
    """What the code says of a public name; nothing where it says nothing of its own."""
    value = getattr(hermes_rl, name)
    if inspect.isclass(value) and "[" not in repr(value):
        own = inspect.cleandoc(value.__doc__ or "")
        return "" if own.startswith(f"{name}(") else own  # a dataclass without one is given its signature
    if inspect.isfunction(value):
        return inspect.getdoc(value) or ""
    return _alias_note(name)


def _alias_note(name: str) -> str:
    """The text below an alias, in its home or in the module below it that makes it."""
    home = f"hermes_rl.{vars(hermes_rl)['_HOME_OF'][name]}"
    below = sorted(module for module in sys.modules if module == home or module.startswith(f"{home}."))
    return next((note for module in below if (note := _notes(_source(module)).get(name))), "")


def _source(module: str) -> str:
    file = getattr(sys.modules[module], "__file__", None)
    return Path(file).read_text() if file and file.endswith(".py") else ""


def _described(name: str) -> Iterator[str]:
    value = getattr(hermes_rl, name)
    if inspect.isfunction(value):
        yield _signature(name, value)
        yield paragraphs(docstring(name))
        return
    if not inspect.isclass(value) or "[" in repr(value):
        yield paragraphs(docstring(name))
        return
    if issubclass(value, BaseModel):
        section = next((section for section, model in SECTIONS.items() if model is value), "env")
        yield paragraphs(docstring(name))
        yield f"Its fields: [settings](settings.md#{anchor(section)})."
    elif issubclass(value, enum.Enum):
        yield paragraphs(docstring(name))
        notes = _notes(inspect.getsource(value))
        yield "\n".join(f"- `{one.value}`{after(notes.get(one.name, ''))}" for one in value)
        return
    elif issubclass(value, Exception):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        yield f"```python\nclass {name}({bases})\n```"
        yield paragraphs(docstring(name))
    else:
        yield _signature(name, value)
        yield paragraphs(docstring(name))
    yield "\n".join(_members(value))


def members(value: type) -> dict[str, str]:
    """The public methods and properties of a class with their docstrings, ours only, in the order they stand in."""
    found: dict[str, str] = {}
    for owner in reversed(value.__mro__):
        if not owner.__module__.startswith("hermes_rl"):
            continue
        for name, member in vars(owner).items():
            inner = getattr(member, "__func__", member)
            if name.startswith("_") or not (inspect.isfunction(inner) or isinstance(inner, property)):
                continue
            if issubclass(value, BaseModel) and hasattr(inner, "decorator_info"):
                continue
            found[name] = inspect.getdoc(inner) or found.get(name, "")
    return found


def _members(value: type) -> Iterator[str]:
    notes = _notes(inspect.getsource(value))
    for name, note in notes.items():
        if not name.startswith("_") and name not in getattr(value, "model_fields", {}):
            yield f"- `{name}`{after(note)}"
    for name, said in members(value).items():
        member = inspect.getattr_static(value, name)
        if isinstance(member, property):
            shown = name
        else:
            inner = getattr(member, "__func__", member)
            awaited = "await " if inspect.iscoroutinefunction(inner) else ""
            shown = awaited + name + _without_self(inner)
        yield f"- `{shown}`{after(said)}"


def _without_self(function: Any) -> str:
    signature = inspect.signature(function)
    kept = [one for one in signature.parameters.values() if one.name not in {"self", "cls"}]
    return _cleaned(str(signature.replace(parameters=kept)))


def _signature(name: str, value: Any) -> str:
    text = name + (_cleaned(str(inspect.signature(value))) if not inspect.isclass(value) else _without_self(value))
    if len(text) > LINE:
        signature = inspect.signature(value)
        inner = ",\n    ".join(_cleaned(str(one)) for one in signature.parameters.values() if one.name != "self")
        stars = _keyword_only_mark(signature)
        text = f"{name}(\n    {stars(inner)},\n)"
    return f"```python\n{text.removesuffix(' -> None')}\n```"


def _keyword_only_mark(signature: inspect.Signature) -> Any:
    first = next((one for one in signature.parameters.values() if one.kind is one.KEYWORD_ONLY), None)
    if first is None:
        return lambda inner: inner
    return lambda inner: re.sub(rf"(?m)^(\s*)({first.name}\b)", r"\1*,\n    \2", inner, count=1)


def _cleaned(text: str) -> str:
    text = re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "…", text)
    text = re.sub(r"<(\w+)\.(\w+): [^<>]*>", r"\1.\2", text)
    return re.sub(r"\b(?:[a-z_][a-z0-9_]*\.)+(?=[A-Za-z_~])", "", text).replace("~", "")


def _notes(source: str) -> dict[str, str]:
    """Attributes that have a text below them, at the top of a module or in its classes, with that text."""
    notes: dict[str, str] = {}
    tree = ast.parse(inspect.cleandoc(source) if source.startswith(" ") else source)
    bodies = [tree.body, *(one.body for one in tree.body if isinstance(one, ast.ClassDef))]
    for body in bodies:
        for one, below in pairwise(body):
            text = below.value if isinstance(below, ast.Expr) else None
            if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
                continue
            targets = (
                [one.target] if isinstance(one, ast.AnnAssign) else one.targets if isinstance(one, ast.Assign) else []
            )
            notes |= {name.id: inspect.cleandoc(text.value) for name in targets if isinstance(name, ast.Name)}
    return notes
