"""What of a file its tests can notice: Python code without comments and without docstrings that no program reads."""

import ast
import io
import tokenize

DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def content(path: str, data: bytes) -> bytes:
    """Everything of a data file. Blank lines do not count in Python files either."""
    if not path.endswith(".py"):
        return data
    text = data.decode()
    lines = text.splitlines(keepends=True)
    for (row, start), (end_row, end) in sorted([*_comments(text), *_docstrings(text)], reverse=True):
        first, last = lines[row - 1], lines[end_row - 1]
        lines[row - 1 : end_row] = [first[:start] + last[end:]]
    return "\n".join(line.rstrip() for line in lines if line.strip()).encode()


Span = tuple[tuple[int, int], tuple[int, int]]


def _comments(text: str) -> list[Span]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [(token.start, token.end) for token in tokens if token.type == tokenize.COMMENT]


def _docstrings(text: str) -> list[Span]:
    """Those of modules and plain functions. Users or models may see the docstring of a class or a decorated function.

    A docstring stays where the module itself reads one.
    """
    if "__doc__" in text:
        return []
    lines = text.splitlines()
    spans: list[Span] = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, DEFINITIONS) or isinstance(node, ast.ClassDef) or getattr(node, "decorator_list", None):
            continue
        first = node.body[0] if node.body else None
        if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
            continue
        if isinstance(first.value.value, str) and first.end_lineno and first.end_col_offset is not None:
            # ast counts bytes, tokenize counts characters.
            start = len(lines[first.lineno - 1].encode()[: first.col_offset].decode())
            end = len(lines[first.end_lineno - 1].encode()[: first.end_col_offset].decode())
            spans.append(((first.lineno, start), (first.end_lineno, end)))
    return spans
