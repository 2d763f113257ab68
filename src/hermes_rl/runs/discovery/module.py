"""What a module's text says of its classes: where each base comes from, and what each defines.

Always true: it is read from the syntax tree in the order in which Python would run it, and nothing is run. Of what
stands under a condition every branch counts, except those of `TYPE_CHECKING` and `__name__`, which no loader takes.
"""

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Here:
    """A class of the same module, by its place among `Module.classes`."""

    index: int


@dataclass(frozen=True, slots=True)
class There:
    """What an import brings: `path` within the module `name`; `level` counts the dots before the name."""

    level: int
    name: str
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "." * self.level + ".".join((*filter(None, [self.name]), *self.path))


Meaning = Here | There
Meanings = tuple[Meaning, ...]
"""What a name may stand for: more than one where branches differ, none where it is nothing that we follow."""


@dataclass(frozen=True, slots=True)
class Defined:
    """A class as it is written. `label` is its attribute `name`, where it is a text that can be read."""

    name: str
    line: int
    bases: tuple[Meanings, ...]
    defines: frozenset[str]
    abstract: frozenset[str]
    is_marked_abstract: bool
    label: str | None
    description: str


@dataclass(frozen=True, slots=True)
class Module:
    classes: tuple[Defined, ...]
    names: dict[str, Meanings]
    """What each name of the module stands for at its end."""
    stars: tuple[There, ...]
    description: str

    def own_classes(self) -> Iterator[tuple[int, Defined]]:
        """The classes that can be had from the module by their names."""
        for index, defined in enumerate(self.classes):
            if Here(index) in self.names.get(defined.name, ()):
                yield index, defined


def module_of(tree: ast.Module) -> Module:
    reading = _Reading()
    for statement, conditional in _statements(tree.body):
        reading.take(statement, conditional)
    return Module(tuple(reading.classes), reading.names, tuple(reading.stars), _first_line(tree))


@dataclass(slots=True)
class _Reading:
    """The module as far as it was read."""

    classes: list[Defined] = field(default_factory=list)
    names: dict[str, Meanings] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    stars: list[There] = field(default_factory=list)

    def take(self, statement: ast.stmt, conditional: bool) -> None:
        match statement:
            case ast.ClassDef():
                self.classes.append(self._defined(statement))
                self._bind(statement.name, (Here(len(self.classes) - 1),), conditional)
            case ast.Import():
                for alias in statement.names:
                    whole = There(0, alias.name if alias.asname else alias.name.partition(".")[0])
                    self._bind(alias.asname or whole.name, (whole,), conditional)
            case ast.ImportFrom():
                self._take_from(statement, conditional)
            case ast.Assign() | ast.AnnAssign(value=ast.expr()):
                self._assign(statement, conditional)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._bind(statement.name, (), conditional)
            case ast.Delete():
                for target in statement.targets:
                    if isinstance(target, ast.Name) and not conditional:
                        self.names.pop(target.id, None)

    def _take_from(self, statement: ast.ImportFrom, conditional: bool) -> None:
        module = There(statement.level, statement.module or "")
        for alias in statement.names:
            if alias.name == "*":
                self.stars.insert(0, module)
            else:
                there = There(module.level, module.name, (alias.name,))
                self._bind(alias.asname or alias.name, (there,), conditional)

    def _assign(self, statement: ast.Assign | ast.AnnAssign, conditional: bool) -> None:
        for name in _bound(statement):
            self.texts.pop(name, None)
            if (text := _text(statement.value, self.texts)) is not None:
                self.texts[name] = text
            plain = not isinstance(statement, ast.Assign) or any(isinstance(one, ast.Name) for one in statement.targets)
            self._bind(name, self._meanings(statement.value) if plain else (), conditional)

    def _bind(self, name: str, meanings: Meanings, conditional: bool) -> None:
        before = self.names.get(name, ()) if conditional else ()
        self.names[name] = tuple(dict.fromkeys((*before, *meanings)))

    def _defined(self, node: ast.ClassDef) -> Defined:
        bases = tuple(self._meanings(base) for base in node.bases)
        defines, abstract, texts = set[str](), set[str](), dict[str, str]()
        for statement, _ in _statements(node.body):
            for name in _bound(statement):
                defines.add(name)
                abstract.discard(name)
                texts.pop(name, None)
                if isinstance(statement, ast.Assign | ast.AnnAssign):
                    text = _text(statement.value, self.texts | texts)
                    texts |= {} if text is None else {name: text}
                elif _is_abstract(statement):
                    abstract.add(name)
        metaclasses = [keyword.value for keyword in node.keywords if keyword.arg == "metaclass"]
        marks = {str(meaning) for meanings in (*bases, *map(self._meanings, metaclasses)) for meaning in meanings}
        return Defined(
            name=node.name,
            line=node.lineno,
            bases=bases,
            defines=frozenset(defines),
            abstract=frozenset(abstract),
            is_marked_abstract=bool(abstract) or bool(marks & {"abc.ABC", "abc.ABCMeta"}),
            label=texts.get("name"),
            description=_first_line(node),
        )

    def _meanings(self, expression: ast.expr | None) -> Meanings:
        """What an expression such as `a.b.C` or `C[int]` stands for."""
        path: list[str] = []
        while True:
            match expression:
                case ast.Subscript(value=inner):
                    expression = inner
                case ast.Attribute(value=inner, attr=attribute):
                    path.insert(0, attribute)
                    expression = inner
                case ast.Name(id=name):
                    return self._of_name(name, path)
                case _:
                    return ()

    def _of_name(self, name: str, path: list[str]) -> Meanings:
        known = self.names.get(name)
        if known is None:
            stars = [There(star.level, star.name, (name, *path)) for star in self.stars if not name.startswith("_")]
            return (*stars, There(0, "builtins", (name, *path))) if hasattr(builtins, name) else tuple(stars)
        return tuple(
            There(meaning.level, meaning.name, (*meaning.path, *path)) if isinstance(meaning, There) else meaning
            for meaning in known
            if isinstance(meaning, There) or not path
        )


def _statements(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, bool]]:
    """Statements in their order, with those of inner blocks, and whether each stands under a condition."""
    waiting = [(statement, False) for statement in reversed(body)]
    while waiting:
        statement, conditional = waiting.pop()
        yield statement, conditional
        inner, certain = _blocks(statement)
        waiting.extend((one, conditional or not certain) for one in reversed(inner))


def _blocks(statement: ast.stmt) -> tuple[list[ast.stmt], bool]:
    """What stands inside a statement that is no definition, and whether all of it runs."""
    match statement:
        case ast.If(test=test, body=body, orelse=orelse):
            return (orelse, True) if _never(test) else ([*body, *orelse], False)
        case ast.With(body=body) | ast.AsyncWith(body=body):
            return body, True
        case ast.Try() | ast.TryStar():
            handled = [one for handler in statement.handlers for one in handler.body]
            return [*statement.body, *handled, *statement.orelse, *statement.finalbody], False
        case ast.For(body=body, orelse=orelse) | ast.While(body=body, orelse=orelse):
            return [*body, *orelse], False
        case ast.Match(cases=cases):
            return [one for case in cases for one in case.body], False
        case _:
            return [], True


def _never(test: ast.expr) -> bool:
    """Whether a condition does not hold in a module that is loaded."""
    match test:
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()]) | ast.Name(id="TYPE_CHECKING"):
            return True
        case ast.Attribute(attr="TYPE_CHECKING") | ast.Constant(value=False):
            return True
    return False


def _bound(statement: ast.stmt) -> list[str]:
    """The names that a statement of a class or module binds itself."""
    match statement:
        case ast.Assign(targets=targets):
            return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [alias.asname or alias.name for alias in names]
    return []


def _is_abstract(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    marks = (one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in statement.decorator_list)
    return any(mark.startswith("abstract") for mark in marks)


def _text(value: ast.expr | None, texts: dict[str, str]) -> str | None:
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return texts.get(name)
    return None


def _first_line(node: ast.Module | ast.ClassDef) -> str:
    told = (ast.get_docstring(node) or "").strip()
    return told.splitlines()[0] if told else ""
