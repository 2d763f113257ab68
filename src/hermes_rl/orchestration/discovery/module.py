"""Static analysis of a module: its classes, where their bases come from, and what they define.

Always true: it reads the syntax tree in execution order and runs nothing. Every branch of a condition counts, except
those of `TYPE_CHECKING` and `__name__`, which are not executed on import.
"""

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile


@dataclass(frozen=True, slots=True)
class LocalClass:
    """A class of the same module, by its index in `Module.classes`."""

    index: int


@dataclass(frozen=True, slots=True)
class ImportedName:
    """An imported name: `path` within the module `name`; `level` counts the leading dots."""

    level: int
    name: str
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "." * self.level + ".".join((*filter(None, [self.name]), *self.path))

    def member(self, *path: str) -> "ImportedName":
        return ImportedName(self.level, self.name, (*self.path, *path))


Binding = LocalClass | ImportedName
Bindings = tuple[Binding, ...]
"""What a name may refer to: several where branches differ, none where it cannot be resolved."""


@dataclass(frozen=True, slots=True)
class ClassDefinition:
    """A class in source. `label` is its attribute `name`, if that is a string known without running the code."""

    name: str
    line: int
    bases: tuple[Bindings, ...]
    defines: frozenset[str]
    abstract: frozenset[str]
    is_marked_abstract: bool
    label: str | None
    description: str


@dataclass(frozen=True, slots=True)
class Module:
    classes: tuple[ClassDefinition, ...]
    names: dict[str, Bindings]
    """The bindings of each name at the end of the module."""
    star_imports: tuple[ImportedName, ...]
    description: str
    imports: tuple[tuple[ImportedName, int], ...] = ()
    """The modules that it imports before any of its own code runs, with the line."""
    runs_code: bool = False
    """Whether it does more than import, define and assign plain values when it is loaded."""

    def named_classes(self) -> Iterator[tuple[int, ClassDefinition]]:
        """The classes that can be imported by their own name."""
        for index, defined in enumerate(self.classes):
            if LocalClass(index) in self.names.get(defined.name, ()):
                yield index, defined


def read_module(tree: ast.Module) -> Module:
    reader = _ModuleReader()
    for statement, conditional in _statements(tree.body):
        reader.add_statement(statement, conditional)
    passive = list(takewhile(_is_passive, tree.body))
    return Module(
        tuple(reader.classes),
        reader.names,
        tuple(reader.star_imports),
        _first_line(tree),
        tuple(_imports(passive)),
        runs_code=len(passive) < len(tree.body),
    )


@dataclass(slots=True)
class _ModuleReader:
    classes: list[ClassDefinition] = field(default_factory=list)
    names: dict[str, Bindings] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    star_imports: list[ImportedName] = field(default_factory=list)

    def add_statement(self, statement: ast.stmt, conditional: bool) -> None:
        match statement:
            case ast.ClassDef():
                self.classes.append(self._class_definition(statement))
                self._bind(statement.name, (LocalClass(len(self.classes) - 1),), conditional)
            case ast.Import():
                for alias in statement.names:
                    imported = ImportedName(0, alias.name if alias.asname else alias.name.partition(".")[0])
                    self._bind(alias.asname or imported.name, (imported,), conditional)
            case ast.ImportFrom():
                self._add_import_from(statement, conditional)
            case ast.Assign() | ast.AnnAssign(value=ast.expr()):
                self._assign(statement, conditional)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._bind(statement.name, (), conditional)
            case ast.Delete():
                for target in statement.targets:
                    if isinstance(target, ast.Name) and not conditional:
                        self.names.pop(target.id, None)

    def _add_import_from(self, statement: ast.ImportFrom, conditional: bool) -> None:
        module = ImportedName(statement.level, statement.module or "")
        for alias in statement.names:
            if alias.name == "*":
                self.star_imports.insert(0, module)
            else:
                self._bind(alias.asname or alias.name, (module.member(alias.name),), conditional)

    def _assign(self, statement: ast.Assign | ast.AnnAssign, conditional: bool) -> None:
        for name in _bound_names(statement):
            self.texts.pop(name, None)
            if (text := _string_value(statement.value, self.texts)) is not None:
                self.texts[name] = text
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            simple = any(isinstance(target, ast.Name) for target in targets)
            self._bind(name, self._resolve_expression(statement.value) if simple else (), conditional)

    def _bind(self, name: str, bindings: Bindings, conditional: bool) -> None:
        before = self.names.get(name, ()) if conditional else ()
        self.names[name] = tuple(dict.fromkeys((*before, *bindings)))

    def _class_definition(self, node: ast.ClassDef) -> ClassDefinition:
        bases = tuple(self._resolve_expression(base) for base in node.bases)
        defines, abstract, texts = set[str](), set[str](), dict[str, str]()
        for statement, _ in _statements(node.body):
            for name in _bound_names(statement):
                defines.add(name)
                abstract.discard(name)
                texts.pop(name, None)
                if isinstance(statement, ast.Assign | ast.AnnAssign):
                    text = _string_value(statement.value, self.texts | texts)
                    texts |= {} if text is None else {name: text}
                elif _is_abstract(statement):
                    abstract.add(name)
        metaclasses = [keyword.value for keyword in node.keywords if keyword.arg == "metaclass"]
        parents = (*bases, *map(self._resolve_expression, metaclasses))
        parent_names = {str(binding) for bindings in parents for binding in bindings}
        return ClassDefinition(
            name=node.name,
            line=node.lineno,
            bases=bases,
            defines=frozenset(defines),
            abstract=frozenset(abstract),
            is_marked_abstract=bool(abstract) or bool(parent_names & {"abc.ABC", "abc.ABCMeta"}),
            label=texts.get("name"),
            description=_first_line(node),
        )

    def _resolve_expression(self, expression: ast.expr | None) -> Bindings:
        """What an expression such as `a.b.C` or `C[int]` may refer to."""
        path: list[str] = []
        while True:
            match expression:
                case ast.Subscript(value=inner):
                    expression = inner
                case ast.Attribute(value=inner, attr=attribute):
                    path.insert(0, attribute)
                    expression = inner
                case ast.Name(id=name):
                    return self._resolve_name(name, path)
                case _:
                    return ()

    def _resolve_name(self, name: str, path: list[str]) -> Bindings:
        known = self.names.get(name)
        if known is None:
            modules = [] if name.startswith("_") else [*self.star_imports]
            modules += [ImportedName(0, "builtins")] if hasattr(builtins, name) else []
            return tuple(module.member(name, *path) for module in modules)
        return tuple(
            binding.member(*path) if isinstance(binding, ImportedName) else binding
            for binding in known
            if isinstance(binding, ImportedName) or not path
        )


def _statements(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, bool]]:
    """Statements in order, including those of inner blocks, and whether each is conditional."""
    pending = [(statement, False) for statement in reversed(body)]
    while pending:
        statement, conditional = pending.pop()
        yield statement, conditional
        inner, certain = _blocks(statement)
        pending.extend((child, conditional or not certain) for child in reversed(inner))


def _blocks(statement: ast.stmt) -> tuple[list[ast.stmt], bool]:
    """The inner statements of a compound statement, and whether all of them run."""
    match statement:
        case ast.If(test=test, body=body, orelse=orelse):
            return (orelse, True) if _is_never_true(test) else ([*body, *orelse], False)
        case ast.With(body=body) | ast.AsyncWith(body=body):
            return body, True
        case ast.Try() | ast.TryStar():
            handled = [child for handler in statement.handlers for child in handler.body]
            return [*statement.body, *handled, *statement.orelse, *statement.finalbody], False
        case ast.For(body=body, orelse=orelse) | ast.While(body=body, orelse=orelse):
            return [*body, *orelse], False
        case ast.Match(cases=cases):
            return [child for case in cases for child in case.body], False
        case _:
            return [], True


def _is_passive(statement: ast.stmt) -> bool:
    """Whether a statement cannot change how later imports are resolved."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return True
        case ast.If(test=test, orelse=[]):
            return _is_never_true(test)
        case ast.Expr(value=value) | ast.Assign(targets=[ast.Name()], value=value):
            return not any(isinstance(node, ast.Call) for node in ast.walk(value))
    return False


def _imports(statements: Sequence[ast.stmt]) -> Iterator[tuple[ImportedName, int]]:
    for statement in statements:
        if isinstance(statement, ast.Import):
            yield from ((ImportedName(0, alias.name), statement.lineno) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            yield ImportedName(statement.level, statement.module or ""), statement.lineno


def _is_never_true(test: ast.expr) -> bool:
    """Whether a condition is false when the module is imported."""
    match test:
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()]) | ast.Name(id="TYPE_CHECKING"):
            return True
        case ast.Attribute(attr="TYPE_CHECKING") | ast.Constant(value=False):
            return True
    return False


def _bound_names(statement: ast.stmt) -> list[str]:
    """The names that a statement binds directly."""
    match statement:
        case ast.Assign(targets=targets):
            return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
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
    decorators = (getattr(node, "attr", "") or getattr(node, "id", "") for node in statement.decorator_list)
    return any(name.startswith("abstract") for name in decorators)


def _string_value(value: ast.expr | None, texts: dict[str, str]) -> str | None:
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return texts.get(name)
    return None


def _first_line(node: ast.Module | ast.ClassDef) -> str:
    docstring = (ast.get_docstring(node) or "").strip()
    return docstring.splitlines()[0] if docstring else ""
