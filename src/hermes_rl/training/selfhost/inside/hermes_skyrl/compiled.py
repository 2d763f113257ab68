"""The cache of what JAX compiled, which engines that are killed share with those after them."""

import os
from pathlib import Path
from typing import Any

from jax._src.lru_cache import LRUCache


def write_whole_entries() -> None:
    """JAX writes in place and never writes again what exists: an entry torn once would be compiled at every start."""
    put = LRUCache.put

    def put_whole(self: Any, key: str, value: bytes) -> None:
        if self.eviction_enabled:
            put(self, key, value)
            return
        entry = Path(str(self.path)) / f"{key}-cache"
        aside = entry.with_name(f".{key}.{os.getpid()}")
        aside.write_bytes(value)
        aside.rename(entry)

    LRUCache.put = put_whole
