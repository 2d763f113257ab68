"""Every `whose/cause` that the code can produce, read from its text: the first argument of each failure it makes.

A function that is handed the cause (`def _error(self, cause, …)`, `def lost(self, reason, cause="died")`) stands for
the class it makes; so what its callers give counts. `error.cause` hands on what another call has made. A cause with a
part that is only known at run time is its beginning and `…`.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hermes_rl.core.errors import FailureSource

ROOT = Path(__file__).parents[2]
WHOSE = {
    "EndpointError": "endpoint",
    "RetryableEndpointError": "endpoint",
    "ContextFullError": "endpoint",
    "SandboxError": "sandbox",
    "ToolHostError": "tool",
    "VerifierError": "verifier",
    "JudgeError": "judge",
    "EnvironmentCodeError": "environment",
    "DeadlineError": "framework",
    "InfrastructureError": "framework",
}
PARTIES = {party.name: party.value for party in FailureSource}


@cache
def modules() -> dict[Path, ast.Module]:
    """The package and the bundled environments, read once."""
    files = [file for folder in ("src", "environments") for file in sorted((ROOT / folder).rglob("*.py"))]
    return {file: ast.parse(file.read_text()) for file in files}


@cache
def produced() -> frozenset[str]:
    return frozenset(cause for module in modules().values() for cause in _in(module))


def _in(module: ast.Module) -> Iterator[str]:
    tables = {
        one.targets[0].id: one.value
        for one in module.body
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
    }
    makers = dict(_makers(module))
    yield from (f"{makers[name][0]}/{default}" for name, default in _defaults(module) if name in makers)
    for call in ast.walk(module):
        if not isinstance(call, ast.Call):
            continue
        name = _name(call.func)
        if name == "Failure" and len(call.args) > 1 and isinstance(call.args[0], ast.Attribute):
            if call.args[0].attr in PARTIES:
                yield from (f"{PARTIES[call.args[0].attr]}/{cause}" for cause in _words(call.args[1], tables))
        elif name in WHOSE and call.args:
            yield from (f"{WHOSE[name]}/{cause}" for cause in _words(call.args[0], tables))
        elif name in makers:
            whose, place = makers[name]
            given = [one.value for one in call.keywords if one.arg == "cause"] or call.args[place : place + 1]
            yield from (f"{whose}/{cause}" for one in given for cause in _words(one, tables))


def _makers(module: ast.Module) -> Iterator[tuple[str, tuple[str, int]]]:
    """Functions that are handed a cause: their name, whose it is, and the argument's place."""
    for one in ast.walk(module):
        if not isinstance(one, ast.FunctionDef):
            continue
        names = [argument.arg for argument in one.args.args if argument.arg != "self"]
        made = [WHOSE[word] for word in (_name(node) for node in ast.walk(one)) if word in WHOSE]
        if "cause" in names and made and one.name != "__init__":
            yield one.name, (made[0], names.index("cause"))


def _defaults(module: ast.Module) -> Iterator[tuple[str, str]]:
    for one in ast.walk(module):
        if isinstance(one, ast.FunctionDef) and one.args.defaults:
            last = dict(zip([argument.arg for argument in one.args.args[::-1]], one.args.defaults[::-1], strict=False))
            if isinstance(value := last.get("cause"), ast.Constant):
                yield one.name, str(value.value)


def _words(node: ast.expr, tables: dict[str, ast.expr]) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        first = node.values[0]
        yield f"{str(first.value) if isinstance(first, ast.Constant) else ''}…"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        # A table's `get`, with what it gives where it has nothing.
        table = tables.get(node.func.value.id)
        if isinstance(table, ast.Dict):
            yield from (word for value in (*table.values, *node.args[1:]) for word in _words(value, tables))
    elif isinstance(node, ast.IfExp):
        yield from _words(node.body, tables)
        yield from _words(node.orelse, tables)
    elif not isinstance(node, ast.Attribute | ast.Name):
        raise TypeError(f"{ast.unparse(node)} is a cause of a form that is not known here")


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
