#!/usr/bin/env python3
"""List the strings that users of the command line read, as FILE:LINE KIND TEXT, to be reviewed by reading.

    python scripts/user_strings.py                       # the whole package
    python scripts/user_strings.py cli console           # some of its folders
    python scripts/user_strings.py --suspect             # only those with words that STYLE calls translated

Always true: the strings come from the syntax tree, and every text of three words or more is listed: help of commands
and options, messages, warnings, exceptions, tables. Texts that are not messages (SQL, templates) are listed too; of
docstrings only those of commands, which are their help. In a text, `{}` stands for a value.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1] / "src" / "hermes_rl"
# Calls whose shorter texts are listed too.
WRITERS = {"echo", "print", "warn", "warning", "confirm", "prompt", "Table", "add_row", "add_column", "Finding"}
WORDS = re.compile(r"[A-Za-z{][\w}'-]*(?:[ ,.:;]+[A-Za-z{`][\w}`'-]*){2,}")
SUSPECT = re.compile(
    r"\b(mend|anew|reckon|heed|told|blow|in vain|beside|is no |are no |go(?:es)? on|at most so many|whoever|"
    r"what it came|not a thing|the least|of its own accord|as it was|by itself|borne|thereof|whose fault|carried out|"
    r"stands? in|does not stand|comes? to|makes? it|nobody)\b",
    re.IGNORECASE,
)


class UserString(NamedTuple):
    """One string that a user may read."""

    path: Path
    line: int
    kind: str
    text: str


def text_of(node: ast.expr) -> str:
    """The text of a string expression with `{}` for values; empty for what is none."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) if isinstance(part, ast.Constant) else "{}" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            one, other = text_of(left), text_of(right)
            return f"{one or '{}'}{other or '{}'}" if one or other else ""
        case ast.IfExp(body=body, orelse=orelse):
            return " | ".join(filter(None, (text_of(body), text_of(orelse))))
    return ""


def strings_in(path: Path) -> Iterator[UserString]:
    yield from _texts_below(ast.parse(path.read_text()), path, "text")


def _texts_below(node: ast.AST, path: Path, kind: str) -> Iterator[UserString]:
    """The outermost string expressions below a node; `kind` is the call that they are given to."""
    if isinstance(node, ast.FunctionDef) and any(map(_is_command, node.decorator_list)):
        yield UserString(path, node.lineno, "help", " ".join((ast.get_docstring(node) or "").split()))
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue  # a docstring
        if isinstance(child, ast.expr) and (text := " ".join(text_of(child).split())):
            if WORDS.search(text) or (kind in WRITERS and re.search(r"[A-Za-z]{2}", text)):
                yield UserString(path, child.lineno, kind, text)
            continue
        called = _called(child)
        yield from _texts_below(child, path, called or ("text" if isinstance(child, ast.stmt) else kind))


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_command(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr in {"command", "group"}


def user_strings(folders: list[str]) -> list[UserString]:
    """Each string once per file, in the order of the lines."""
    found: dict[tuple[Path, str], UserString] = {}
    for folder in folders or ["."]:
        start = ROOT / folder
        for path in sorted(start.rglob("*.py")) if start.is_dir() else [start]:
            for one in sorted(strings_in(path), key=lambda one: one.line):
                found.setdefault((path, one.text), one)
    return list(found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", help="folders or files below src/hermes_rl; by default all")
    parser.add_argument("--suspect", action="store_true", help="only strings with a word to avoid")
    chosen = parser.parse_args()
    shown = [one for one in user_strings(chosen.folders) if not chosen.suspect or SUSPECT.search(one.text)]
    for one in shown:
        line = f"{one.path.relative_to(ROOT)}:{one.line} {one.kind}: {one.text}"
        print(line.encode(errors="backslashreplace").decode())
    print(f"{len(shown)} strings", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
