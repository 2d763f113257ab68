"""What each token says, by the model's tokenizer where there is one on this machine.

Always true: nothing is fetched, and a tokenizer that is missing or broken makes no error: the tokens have ids then. A
name that stands in a record is only looked up in the cache of the hub, never taken for a path.
"""

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z")
SPACE = "\u0120"  # how byte-level vocabularies write one
METASPACE = "\u2581"
KEPT = 2
PIECE = 200


class Pieces:
    """`chosen` is a tokenizer.json or a folder with one, for every model; else each model's own is looked for."""

    def __init__(self, chosen: Path | None = None) -> None:
        self._chosen = chosen
        self._lock = Lock()
        self._loaded = lru_cache(KEPT)(_load)

    def of(self, model: str | None, ids: Sequence[int | None], run: Path | None = None) -> list[str] | None:
        """`run` is the folder of the run that the tokens were sampled in."""
        path = self._chosen or _beside_weights(run) or _cached(model)
        if path is None:
            return None
        with self._lock:
            tokenizer = self._loaded(path / "tokenizer.json" if path.is_dir() else path)
        if tokenizer is None:
            return None
        by_bytes = tokenizer.token_to_id(SPACE) is not None
        return [_piece(tokenizer, token, by_bytes=by_bytes) for token in ids]


def _piece(tokenizer: Any, token: int | None, *, by_bytes: bool) -> str:
    written = None if token is None or not 0 <= token < 2**32 else tokenizer.id_to_token(token)
    if written is None:
        return "\ufffd"
    known = byte_letters()
    if by_bytes and all(letter in known for letter in written):
        return bytes(known[letter] for letter in written).decode("utf-8", "replace")[:PIECE]
    return str(written).replace(METASPACE, " ")[:PIECE]


@cache
def byte_letters() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for: printable ones as they are, others shifted."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(path))
    except Exception:  # noqa: BLE001 - the library raises bare Exceptions for what it cannot read
        return None


def _beside_weights(run: Path | None) -> Path | None:
    path = None if run is None else run / "weights" / "tokenizer.json"
    return path if path is not None and path.is_file() else None


def _cached(model: str | None) -> Path | None:
    if model is None or not HUB_NAME.match(model) or ".." in model:
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(model, "tokenizer.json")
    return Path(found) if isinstance(found, str) else None
