"""Atropos' routes over a store of both databases."""

from tests.engines.atropos.conftest import atropos_python

__all__ = ["atropos_python"]
