"""The JSON records of a file of traces: lines, the elements of a list, or one document.

Always true: of JSON lines, one is in memory at a time. What cannot be read is yielded as a ValueError in its place, and
reading goes on after it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json, json_scanner
from hermes_rl.core.errors import ConfigError
from hermes_rl.interop.traces.trace import Place

LINE_LIMIT = 64 * 2**20
DOCUMENT_LIMIT = 2**30
CHUNK = 2**20
# Where exports and list endpoints put their records.
_WRAPPERS = ("data", "runs", "traces", "observations", "conversations", "spans", "trajectories")
_SUFFIXES = (".jsonl", ".json", ".ndjson")

Record = tuple[Place, Mapping[str, Any] | ValueError]


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """The files, and those in the folders; ConfigError if there are none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inner = sorted(one for one in path.rglob("*") if one.suffix in _SUFFIXES and one.is_file())
            found += [one for one in inner if not any(part.startswith(".") for part in one.relative_to(path).parts)]
        else:
            found.append(path)
    if not found:
        raise ConfigError(f"no file of traces ({', '.join(_SUFFIXES)}) in {', '.join(map(str, paths))}")
    return found


def read_records(path: Path) -> Iterator[Record]:
    """Every record of the file, in order."""
    if path.suffix == ".json":
        raw = _whole(path)
        if (start := raw[:64].lstrip()[:1]) == b"[":
            yield from _elements(path, raw)
            return
        try:
            document = fast_json.loads(raw)
        except ValueError as error:
            # One object a line, under the other name, or nothing that can be read.
            if start != b"{" or b"\n" not in raw.strip():
                yield Place(path, 1), error
                return
        else:
            yield from _document(path, document)
            return
    yield from _lines(path)


def _whole(path: Path) -> bytes:
    if (size := path.stat().st_size) > DOCUMENT_LIMIT:
        raise ConfigError(
            f"{path} has {size:,} bytes in one document, more than {DOCUMENT_LIMIT:,}; "
            f"write one record per line first: jq -c '.[]' {path.name} > {path.stem}.jsonl"
        )
    return path.read_bytes()


def _elements(path: Path, raw: bytes) -> Iterator[Record]:
    number = 0
    begin = len(raw) - len(raw.lstrip())
    try:
        for number, span in enumerate(json_scanner.elements(raw, begin), 1):
            yield Place(path, number), _parsed(span.slice(raw))
    except ValueError as error:
        yield Place(path, number + 1), error


def _document(path: Path, document: Any) -> Iterator[Record]:
    wrapped = next((document[name] for name in _WRAPPERS if isinstance(document.get(name), list)), None)
    # A trace of Langfuse has observations and is a record itself.
    if wrapped is None or "id" in document:
        yield Place(path, 1), document
        return
    for number, one in enumerate(wrapped, 1):
        yield Place(path, number), one if isinstance(one, dict) else ValueError("not a JSON object")


def _lines(path: Path) -> Iterator[Record]:
    with path.open("rb", buffering=CHUNK) as file:
        for number in count(1):
            line = file.readline(LINE_LIMIT)
            if not line:
                return
            if len(line) == LINE_LIMIT and not line.endswith(b"\n"):
                while (rest := file.readline(CHUNK)) and not rest.endswith(b"\n"):
                    pass
                yield Place(path, number), ValueError(f"the line is longer than {LINE_LIMIT:,} bytes")
            elif not line.isspace():
                yield Place(path, number), _parsed(line)


def _parsed(raw: bytes) -> Mapping[str, Any] | ValueError:
    try:
        value = fast_json.loads(raw)
    except ValueError as error:
        return error
    return value if isinstance(value, dict) else ValueError("not a JSON object")
