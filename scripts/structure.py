#!/usr/bin/env python3
"""Print the size of every package of src/hermes_rl, the imports between packages, and class names defined twice."""

import argparse
import ast
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "hermes_rl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json = parser.parse_args().json
    files = sorted(ROOT.rglob("*.py"))
    trees = {path: ast.parse(path.read_text()) for path in files}
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    arrows: Counter[tuple[str, str]] = Counter()
    classes: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        room = room_of(path)
        sizes[room].update(files=1, lines=len(path.read_text().splitlines()))
        arrows.update({(room, other) for other in imported(tree) if other != room})
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(str(path.relative_to(ROOT)))
    twice = {name: places for name, places in classes.items() if len(places) > 1}
    lines = sum(size["lines"] for size in sizes.values())
    if as_json:
        pairs = [[*pair, count] for pair, count in sorted(arrows.items())]
        print(json.dumps({"packages": sizes, "arrows": pairs, "classes_twice": twice, "lines": lines}))
        return
    for room, size in sorted(sizes.items(), key=lambda item: -item[1]["lines"]):
        targets = " ".join(sorted(target for source, target in arrows if source == room))
        print(f"{room:<14} {size['files']:>4} files {size['lines']:>6} lines  imports {targets or '-'}")
    folders = {path.parent for path in files}
    print(f"{len(files)} files, {lines} lines, {len(sizes)} packages and modules at the top, {len(folders)} folders")
    print(f"{len(arrows)} arrows between packages")
    print(f"class names defined twice: {twice or 'none'}")


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(tree: ast.Module) -> Iterator[str]:
    """The packages below hermes_rl that a module imports, at its top or later."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hermes_rl."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.ImportFrom) and node.module == "hermes_rl":
            yield from (alias.name for alias in node.names if (ROOT / alias.name).is_dir())
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("hermes_rl."))


if __name__ == "__main__":
    main()
