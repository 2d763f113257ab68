"""Which files of the checkout a set of files depends on, read from their source.

An import anywhere in a module counts, inside functions too; so does a module, file or folder of the checkout that a
string names, because that is how processes and data files are reached. The result may hold a file too many, never one
too few that a name in the source would have led to.
"""

import ast
import hashlib
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

from scripts.suites.content import content

# Where the first part of a dotted name is found.
PACKAGES = {
    "_hermes_rl_imports": "src/_hermes_rl_imports",
    "hermes_rl": "src/hermes_rl",
    "tests": "tests",
    "scripts": "scripts",
    "benchmarks": "benchmarks",
    "environments": "environments",
}
# The wheel has the bundled environments under this name.
BUNDLED = "hermes_rl.bundled"
# The product's own command, and what may stand behind it where the source does not tell the verb.
COMMAND = ("hermes_rl", "hermes-rl")
EVERYTHING = ("src", "environments")
# Its names stand for parts that are loaded when a setting names them.
EXTENSIONS = "hermes_rl.extensions"
# Names every folder, and is tested by itself.
OWN = "scripts/suites/"


class Checkout:
    """The files git knows or would add, by path from the root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        self.files = frozenset(path for path in listed.split("\0") if path and (root / path).is_file())
        self._references: dict[str, frozenset[str]] = {}
        self._digests: dict[str, str] = {}

    def digest(self, path: str) -> str:
        """Of what the tests of this file can notice."""
        if path not in self._digests:
            data = (self.root / path).read_bytes()
            self._digests[path] = hashlib.sha256(content(path, data)).hexdigest()
        return self._digests[path]

    def below(self, folder: str) -> frozenset[str]:
        return self._folders.get(folder.rstrip("/"), frozenset())

    def expand(self, paths: Iterable[str]) -> set[str]:
        """Files as they are, folders as all files below them, patterns as what they match; one of these at least."""
        found: set[str] = set()
        for path in paths:
            matches = {path} & self.files or self.below(path)
            matches = matches or {file for file in self.files if PurePosixPath(file).match(path)}
            if not matches:
                raise ValueError(f"{path} names no file of this checkout")
            found |= matches
        return found

    def closure(self, roots: Iterable[str]) -> set[str]:
        found: set[str] = set()
        waiting = list(roots)
        while waiting:
            path = waiting.pop()
            if path in found:
                continue
            found.add(path)
            waiting.extend(self.references(path) - found)
        return found

    def references(self, path: str) -> frozenset[str]:
        """The files that this one names."""
        if path.startswith(OWN):
            return frozenset()
        if path not in self._references:
            found = set(_beside(self, path))
            if path.endswith(".py"):
                found |= _Module(self, path).references()
            elif _is_script(self.root / path):
                found |= _script_references(self, path)
            self._references[path] = frozenset(found)
        return self._references[path]

    def module(self, name: str, *, started: bool = False) -> set[str]:
        """The file of a dotted name and the packages around it; nothing for a name from elsewhere.

        A package that is `started` has a `__main__` too.
        """
        if name == BUNDLED or name.startswith(f"{BUNDLED}."):
            name = "environments" + name.removeprefix(BUNDLED)
        first, *rest = name.split(".")
        if first not in PACKAGES:
            return set()
        path, found = PACKAGES[first], set[str]()
        for part in ["", *rest]:
            path = f"{path}/{part}" if part else path
            if f"{path}/__init__.py" in self.files:
                found.add(f"{path}/__init__.py")
            elif f"{path}.py" in self.files:
                return found | {f"{path}.py"}
            elif path not in self._folders:
                return set()
        return found | ({f"{path}/__main__.py"} & self.files if started else set())

    def is_module(self, name: str) -> bool:
        return any(file.endswith(_tail(name)) for file in self.module(name))

    @cached_property
    def _folders(self) -> dict[str, frozenset[str]]:
        folders: dict[str, set[str]] = {}
        for file in self.files:
            for parent in PurePosixPath(file).parents:
                folders.setdefault(str(parent), set()).add(file)
        return {folder: frozenset(files) for folder, files in folders.items()}


def _tail(name: str) -> tuple[str, ...]:
    last = name.rpartition(".")[2]
    return f"/{last}.py", f"/{last}/__init__.py"


def _beside(checkout: Checkout, path: str) -> Iterator[str]:
    """Data files of a module's own package, down to the next folder with code; fixtures that pytest loads by itself."""
    if not path.endswith(".py"):
        return
    folder = str(PurePosixPath(path).parent)
    if path.startswith("src/"):
        for file in checkout.below(folder):
            between = PurePosixPath(file).parent
            if not file.endswith(".py") and not _has_code(checkout, str(between), folder):
                yield file
    if path.startswith("tests/"):
        for parent in PurePosixPath(path).parents:
            if (conftest := f"{parent}/conftest.py") in checkout.files:
                yield conftest


def _has_code(checkout: Checkout, folder: str, above: str) -> bool:
    """Whether this folder or one between it and `above` is a package of its own."""
    while folder != above:
        if f"{folder}/__init__.py" in checkout.files:
            return True
        folder = str(PurePosixPath(folder).parent)
    return False


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return path.suffix == ".sh" or file.read(2) == b"#!"


def _script_references(checkout: Checkout, path: str) -> set[str]:
    found: set[str] = set()
    text = re.sub(r"(?m)^\s*#.*", "", (checkout.root / path).read_text(errors="replace"))
    for word in re.findall(r"[\w./-]+", text):
        if "/" in word and (named := {word.lstrip("./")} & checkout.files or checkout.below(word)):
            found |= named
        elif "." in word:
            found |= checkout.module(word, started=True)
    return found - {path}


class _Module:
    """What one Python file names."""

    def __init__(self, checkout: Checkout, path: str) -> None:
        self._checkout = checkout
        self._path = path
        self._tree = ast.parse((checkout.root / path).read_text(), filename=path)
        self._package = path.removeprefix("src/").removesuffix(".py").replace("/", ".").rpartition(".")[0]

    def references(self) -> set[str]:
        found: set[str] = set()
        for node in _running(self._tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found |= self._checkout.module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                found |= self._imported(node)
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                found |= self._joined(node)
            elif isinstance(node, ast.List | ast.Tuple):
                found |= self._started(node.elts)
            elif isinstance(node, ast.Call):
                found |= self._started(node.args)
                if isinstance(node.func, ast.Attribute) and node.func.attr == "with_name":
                    found |= self._started([ast.Constant("-m"), *node.args])
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= self._named(node.value)
        return found - {self._path}

    def _started(self, words: list[ast.expr]) -> set[str]:
        """`[python, "-m", "hermes_rl", "api", …]` needs the verb `api`.

        With a verb that does not stand there it needs those that the module names anywhere, without any everything.
        """
        texts = [word.value if isinstance(word, ast.Constant) else None for word in words]
        at = next((place for place, text in enumerate(texts) if text in COMMAND), None)
        if at is None:
            return set()
        verb = texts[at + 1] if at + 1 < len(texts) else None
        if isinstance(verb, str) and self._checkout.is_module(f"hermes_rl.cli.{verb}"):
            return self._verb(verb)
        if texts[:at][-1:] != ["-m"]:
            return set()
        verbs = [self._verb(name) for name in self._strings() if self._checkout.is_module(f"hermes_rl.cli.{name}")]
        return set().union(*verbs) if verbs else self._checkout.expand(EVERYTHING)

    def _verb(self, name: str) -> set[str]:
        return self._checkout.module("hermes_rl.__main__") | self._checkout.module(f"hermes_rl.cli.{name}")

    def _strings(self) -> set[str]:
        nodes = ast.walk(self._tree)
        return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}

    def _imported(self, node: ast.ImportFrom) -> set[str]:
        source = node.module or ""
        if node.level:
            above = self._package.split(".")
            source = ".".join([*above[: len(above) - node.level + 1], *filter(None, [source])])
        found = self._checkout.module(source)
        for alias in node.names:
            if source == EXTENSIONS:
                found |= _built_in_parts(self._checkout, alias.name)
            elif self._checkout.is_module(name := f"{source}.{alias.name}"):
                found |= self._checkout.module(name)
            else:
                found |= _loaded_when_used(self._checkout, source, alias.name)
        return found

    def _named(self, text: str) -> set[str]:
        if len(text) > 300 or "\n" in text:
            return set()
        if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+(:\w+)?", text) and (
            found := self._checkout.module(text.split(":", maxsplit=1)[0], started=True)
        ):
            return found
        return self._file_or_folder(text) if "/" in text or text.endswith(".py") else set()

    def _joined(self, node: ast.BinOp) -> set[str]:
        """`start / "b" / "c"`: a folder of the root (`docs`) only where `start` is the root, as tests name it."""
        start, names = _divided(node)
        return self._file_or_folder("/".join(names), top=isinstance(start, ast.Name) and start.id == "ROOT")

    def _file_or_folder(self, text: str, *, top: bool = False) -> set[str]:
        text = text.strip("/").removeprefix("./")
        if not text or ".." in text:
            return set()
        for start in ("", f"{PurePosixPath(self._path).parent}/"):
            # `folder / "README.md"` does not name the README of the root.
            if (start or top or "/" in text) and start + text in self._checkout.files:
                return {start + text}
            if (top or "/" in text) and (found := self._checkout.below(start + text)):
                return set(found)
        return set()


@cache
def _loaded_when_used(checkout: Checkout, package: str, name: str) -> set[str]:
    """`from hermes_rl import Group`: where a package loads names late, its type-checking imports say from where."""
    found: set[str] = set()
    for path in checkout.module(package):
        if not path.endswith(f"{package.rpartition('.')[2]}/__init__.py"):
            continue
        for node in ast.walk(ast.parse((checkout.root / path).read_text())):
            if _is_type_checking(node):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.ImportFrom) and name in {alias.name for alias in inner.names}:
                        found |= checkout.module(inner.module or "")
    return found


@cache
def _built_in_parts(checkout: Checkout, kind: str) -> set[str]:
    """`from hermes_rl.extensions import PARSERS`: the modules of the built-in parts that it loads by their names."""
    found: set[str] = set()
    for path in checkout.module(EXTENSIONS):
        tables = {
            target.id: node.value
            for node in ast.parse((checkout.root / path).read_text()).body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tables.get(kind, ast.Pass())):
            match node:
                case ast.Call(func=ast.Name("_below"), args=[ast.Constant(str(package)), ast.Dict(values=references)]):
                    names = [reference.value for reference in references if isinstance(reference, ast.Constant)]
                    for name in names:
                        found |= checkout.module(f"hermes_rl.{package}.{str(name).partition(':')[0]}")
                case ast.Name(other) if other in tables and other != kind:
                    found |= _built_in_parts(checkout, other)
    return found


def _is_type_checking(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those for type checkers alone, docstrings, and the inner parts of `a / b / c`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            yield from (part for part in ast.walk(node) if not isinstance(part, ast.BinOp | ast.Constant))
            continue
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and _is_type_checking(child):
                waiting.extend(child.orelse)
            elif not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
                waiting.append(child)


def _divided(node: ast.BinOp) -> tuple[ast.expr, list[str]]:
    """What `a / "b" / "c" / d` starts with, and the strings up to the first that is not one."""
    parts: list[ast.expr] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp) and isinstance(left.op, ast.Div):
        parts.insert(0, left.right)
        left = left.left
    names = [part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "" for part in parts]
    return left, names[: names.index("")] if "" in names else names
