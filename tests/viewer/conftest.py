"""Each test that takes `store` or `address` runs on both databases."""

from tests.support.databases import address, postgres, store

__all__ = ["address", "postgres", "store"]
