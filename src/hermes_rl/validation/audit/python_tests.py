"""What a Python test file shows without running it: tests that cannot fail, and tests that skip themselves."""

import ast
from collections.abc import Iterator

SKIPS = {"skip", "importorskip", "skipTest", "SkipTest"}
PLATFORM = {"platform", "version_info", "uname"}
SILENT = {"print", "sleep"}
SWALLOWED = {"Exception", "BaseException", "AssertionError"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def parse(source: str) -> ast.Module | None:
    """None for a file that is not Python 3."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def test_functions(module: ast.Module) -> list[Function]:
    return [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    ]


def cannot_fail(function: Function) -> bool:
    """Whether no statement of the function can depend on what the agent left."""
    return not any(map(_decides, function.body))


def runtime_skips(module: ast.Module) -> Iterator[int]:
    """The lines of calls inside functions that skip a test, other than for the platform."""
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                yield from _skips(statement)


def _skips(node: ast.AST) -> Iterator[int]:
    if isinstance(node, ast.If) and PLATFORM & set(_names(node.test)):
        return
    if isinstance(node, ast.Call) and SKIPS & {*_names(node.func)}:
        yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from _skips(child)


def _decides(node: ast.AST) -> bool:
    match node:
        case ast.Assert():
            return not _always_true(node.test)
        case ast.Raise():
            return True
        case ast.Call():
            return not SILENT & set(_names(node.func)) or any(map(_decides, ast.iter_child_nodes(node)))
        case ast.Try() if any(map(_swallows, node.handlers)):
            return any(map(_decides, [*node.orelse, *node.finalbody]))
    return any(map(_decides, ast.iter_child_nodes(node)))


def _swallows(handler: ast.ExceptHandler) -> bool:
    caught = SWALLOWED & set(_names(handler.type)) if handler.type else True
    return bool(caught) and not any(map(_decides, handler.body))


def _always_true(test: ast.expr) -> bool:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return any(map(_always_true, test.values))
    if isinstance(test, ast.BoolOp):
        return all(map(_always_true, test.values))
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        return ast.dump(test.left) == ast.dump(test.comparators[0])
    return isinstance(test, ast.Constant) and bool(test.value)


def _names(node: ast.AST) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr
