"""The text of each token, from the model's tokenizer if it is on this machine.

Always true: nothing is downloaded, and a missing or broken tokenizer is not an error: tokens are then shown as ids. A
model name from a record is only looked up in the hub cache, never used as a path.
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
CACHED_TOKENIZERS = 2
MAX_PIECE = 200


class TokenTexts:
    """`chosen` is a tokenizer.json or its folder, used for every model; else each model's own is searched."""

    def __init__(self, chosen: Path | None = None) -> None:
        self._chosen = chosen
        self._lock = Lock()
        self._loaded = lru_cache(CACHED_TOKENIZERS)(_load)

    def decode(self, model: str | None, ids: Sequence[int | None], run: Path | None = None) -> list[str] | None:
        """The text of each id; None without a tokenizer. `run` is the folder of the run that sampled the tokens."""
        path = self._chosen or _run_tokenizer(run) or _hub_tokenizer(model)
        if path is None:
            return None
        with self._lock:
            tokenizer = self._loaded(path / "tokenizer.json" if path.is_dir() else path)
        if tokenizer is None:
            return None
        byte_level = tokenizer.token_to_id(SPACE) is not None
        return [_piece(tokenizer, token, byte_level=byte_level) for token in ids]


def _piece(tokenizer: Any, token: int | None, *, byte_level: bool) -> str:
    text = None if token is None or not 0 <= token < 2**32 else tokenizer.id_to_token(token)
    if text is None:
        return "\ufffd"
    known = byte_letters()
    if byte_level and all(letter in known for letter in text):
        return bytes(known[letter] for letter in text).decode("utf-8", "replace")[:MAX_PIECE]
    return str(text).replace(METASPACE, " ")[:MAX_PIECE]


@cache
def byte_letters() -> dict[str, int]:
    """The byte of each letter in a byte-level vocabulary: printable ones stand for themselves, others are shifted."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(path))
    except Exception:  # noqa: BLE001 - the library raises bare Exceptions for unreadable files
        return None


def _run_tokenizer(run: Path | None) -> Path | None:
    path = None if run is None else run / "weights" / "tokenizer.json"
    return path if path is not None and path.is_file() else None


def _hub_tokenizer(model: str | None) -> Path | None:
    if model is None or not HUB_NAME.match(model) or ".." in model:
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(model, "tokenizer.json")
    return Path(found) if isinstance(found, str) else None
