"""JAX's compilation cache, made safe against engines that are killed while writing to it."""

import os
from pathlib import Path
from typing import Any

from jax._src.lru_cache import LRUCache


def write_entries_atomically() -> None:
    """JAX writes in place and never overwrites: a torn entry would be recompiled at every start."""
    put = LRUCache.put

    def put_atomically(self: Any, key: str, value: bytes) -> None:
        if self.eviction_enabled:
            put(self, key, value)
            return
        entry = Path(str(self.path)) / f"{key}-cache"
        temporary = entry.with_name(f".{key}.{os.getpid()}")
        temporary.write_bytes(value)
        temporary.rename(entry)

    LRUCache.put = put_atomically
